"""From the features of a frame to its tokens and its value.

Only attention, or pooling in its place, lets entities see each other. Shapes: n entities of a type, E of the frame, F features, D
width, H heads of K = D / H numbers each.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from .reading import GLOBAL, Array, Feature, Frame, PolicyError, Spaces
from .tensors import check_tensors, shapes_of

Settings = Mapping[str, Any]
Memories = Mapping[tuple[str, Hashable], Array]  # (entity type, id) -> (D,) what the entity remembers
Relative = tuple[Array, Array] | None  # see `Network.relative`

SLACK = 1e-4  # what lies this close before a bucket, in buckets, is in it: rounding must not decide


def gelu(x: Array) -> Array:
    """x Φ(x) = max(x, 0) - |x| Φ(-|x|), where Φ is the distribution function of the standard normal distribution.

    Source: Abramowitz & Stegun 1964, 7.1.26; Φ is right to 8e-8.
    """
    size = np.abs(x)
    t = 1 / (1 + 0.3275911 / math.sqrt(2) * size)
    tail = ((((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.142248368) * t + 0.127414796) * t
    return np.maximum(x, 0) - size * tail * np.exp(-0.5 * x * x)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def softmax(scores: Array) -> Array:
    """Weights along the last axis; those of -inf are 0."""
    weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    return weights / weights.sum(-1, keepdims=True)


def length(d: Array) -> Array:
    """|d|: (..., 1) lengths of (..., n) differences."""
    return np.sqrt(np.square(d).sum(-1, keepdims=True))


GATES = {"linear": lambda x: x, "relu": lambda x: np.maximum(x, 0), "gelu": gelu, "sigmoid": sigmoid}


def turns(settings: Settings) -> bool:
    """Whether the settings name an orientation."""
    return bool(settings["rotation_vec_features"] or settings["rotation_angle_feature"])


class Pose:
    """Where the entities of a type stand, and where they face, in the features that the settings name."""

    def __init__(self, settings: Settings, features: list[Feature]) -> None:
        names = [name for name, _ in features]
        vector, angle = settings["rotation_vec_features"], settings["rotation_angle_feature"]
        self.position = [names.index(name) for name in settings["position_features"]]
        self.vector = [names.index(name) for name in vector] if {*vector} <= {*names} else []
        self.angle = [names.index(angle)] if angle in names else []

    def facing(self, rows: Array) -> Array:
        """(n, 2) cosines and sines of the orientations φ; (1, 0) where there is none."""
        if self.angle:
            return np.concatenate([np.cos(rows[:, self.angle]), np.sin(rows[:, self.angle])], 1)
        vector = rows[:, self.vector] if self.vector else np.zeros((len(rows), 2), np.float32)
        return np.where(length(vector) > 0, vector / np.maximum(length(vector), 1e-37), np.array([1, 0], np.float32))


def poses_of(settings: Settings, features: Mapping[str, list[Feature]]) -> dict[str, Pose]:
    """The poses of the types that have all coordinates."""
    wanted = {*settings["position_features"]}
    return {name: Pose(settings, given) for name, given in features.items() if wanted <= {each for each, _ in given}}


def turned(d: Array, facing: Array) -> Array:
    """R(-φ) d of (..., 2) differences: as somebody sees them who faces along φ."""
    x, y, cosine, sine = *np.moveaxis(d, -1, 0), *np.moveaxis(facing, -1, 0)
    return np.stack([cosine * x + sine * y, cosine * y - sine * x], -1)


class Network:
    """The network of a policy, or the separate one of its values.

    Args:
        tensors: by name.
        settings: `config.net`, or `config.value_net`; docs/network.md explains them.
        spaces: of the worlds.

    Raises:
        ValueError: a tensor is missing, unknown, or has another shape or type.
    """

    def __init__(self, tensors: Mapping[str, Array], settings: Settings, spaces: Spaces) -> None:
        self.settings, self.actions, features = settings, spaces.actions, dict(spaces.features)
        self.heads = {name: f"heads.{k}" for k, name in enumerate(spaces.actions)}
        move, there = settings["translation"], settings["relpos"]
        self.reference, self.moved = move["reference_entity"], dict[str, Pose]()
        if self.reference is not None:
            self.moved = poses_of(move, {name: given for name, given in features.items() if name != GLOBAL})
            for name in self.moved.keys() - {self.reference} if move["add_distance"] else ():
                features[name] = [*features[name], ("distance", None)]
        self.placed = {} if there["kind"] == "none" else poses_of(there, features)
        self.placed = {name: pose for name, pose in self.placed.items() if name not in there["exclude_entities"]}
        self.remember = [] if settings["memory"] in ("none", "frame") else [name for name in features if name != GLOBAL]
        if self.remember and settings["memory_types"] is not None:
            self.remember = list(settings["memory_types"])
        self.remember += [GLOBAL] * (settings["memory"] in ("frame", "both"))
        self.features = {name: given + spaces.globals * (name != GLOBAL) for name, given in features.items()}
        kinds = {name: [kind["type"] if kind else "" for _, kind in given] for name, given in self.features.items()}
        self.columns = {
            name: [[k for k, kind in enumerate(given) if kind == each] for each in ("", "Angle", "Flag", "Category")]
            for name, given in kinds.items()
        }
        check_tensors(tensors, shapes_of(settings, spaces.actions, self.features, len(self.placed)))
        self.w = {name: np.array(tensor) for name, tensor in tensors.items()}  # a copy: the file's memory can go
        for at in [name.removesuffix("squares") for name in self.w if name.endswith(".norm.squares")]:
            std = np.sqrt(np.abs(self.w[f"{at}squares"]) / np.maximum(self.w[f"{at}count"], 1))
            has_varied = std >= np.finfo(np.float32).tiny
            self.w[f"{at}scale"] = np.where(has_varied, 1 / np.where(has_varied, std, 1), 1).astype(np.float32)
            self.w[f"{at}mean"] = self.w[f"{at}mean"].astype(np.float32)
        self.average = np.full((settings["d_model"], 1), 1 / settings["d_model"], np.float32)

    def __call__(self, rows: dict[str, Array], frame: Frame, before: Memories) -> tuple[Array, Memories]:
        """(E, D) tokens of a frame with these `rows`, and what its entities remember."""
        tokens, after = self.embed(rows), before
        relative = self.relative(rows) if self.settings["relpos"]["kind"] != "none" else None
        for k in range(max(1, self.settings["n_layer"])):
            if self.settings["n_layer"]:
                tokens = self.block(f"transformer.blocks.{k}", tokens, frame.visible, relative)
            if k == 0 and self.remember:
                tokens, after = self.memory(tokens, frame, before)
        return tokens, after

    def value(self, tokens: Array) -> float:
        """mean + deviation (w · m + b), where m is the mean of all (E, D) tokens, 0 without any."""
        m = tokens.sum(0) / max(1, len(tokens))
        return float(
            self.w["value_head.mean"] + self.w["value_head.deviation"] * self.linear("value_head.project", m)[0]
        )

    def linear(self, name: str, x: Array) -> Array:
        """W x + b for each row of (..., inputs)."""
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def layer_norm(self, name: str, x: Array) -> Array:
        """(x - mean(x)) / sqrt(var(x) + 1e-5) w + b for each row of (n, D)."""
        centered = x - x @ self.average  # a product takes a fifth of the time of np.mean
        variance = (centered * centered) @ self.average
        return centered / np.sqrt(variance + 1e-5) * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def running_norm(self, name: str, x: Array) -> Array:
        """clip((x - mean) / std, -5, 5) with the statistics of training; std is 1 for a feature that never varied."""
        return np.minimum(np.maximum((x - self.w[f"{name}.mean"]) * self.w[f"{name}.scale"], -5), 5)

    def rows(self, frame: Frame) -> dict[str, Array]:
        """(n, F) features by type: translated positions, their lengths with `add_distance`, and the global features.

        p' = R(-φ) (p - q), as the reference entity sees them, which stands at q and faces along φ: 0 if it is hidden or not there.
        """
        rows, move = dict(frame.features), self.settings["translation"]
        if self.reference is not None:
            pose, origin = self.moved[self.reference], rows[self.reference]
            if frame.visible is not None:
                origin = origin[frame.visible[frame.places[self.reference]]]
            if len(origin) > 1:
                raise PolicyError(f"the observation shows {len(origin)} of {self.reference!r}; it may show one or none")
            origin = origin if len(origin) else np.zeros((1, origin.shape[1]), np.float32)
            for name in self.moved.keys() - {self.reference}:
                columns, rows[name] = self.moved[name].position, rows[name].copy()
                d = rows[name][:, columns] - origin[:, pose.position]
                rows[name][:, columns] = d = turned(d, pose.facing(origin)) if turns(move) else d
                rows[name] = np.concatenate([rows[name], length(d)], 1) if move["add_distance"] else rows[name]
        for name in rows if GLOBAL in rows else ():
            if name != GLOBAL:
                rows[name] = np.concatenate([rows[name], rows[GLOBAL].repeat(len(rows[name]), 0)], 1)
        return rows

    def embed(self, rows: dict[str, Array]) -> Array:
        """(E, D) tokens: LayerNorm(ReLU(W x + b + table_c[id_c] + ...)) for each type; without features, a learned vector.

        x has plain numbers, normalized, then cosines and sines of angles, then flags.
        """
        tokens = []
        for k, (name, given) in enumerate(rows.items()):
            at, (plain, angles, flags, categories) = f"embedding.entities.{k}", self.columns[name]
            if not given.shape[1]:
                tokens.append(self.w[f"{at}.vector"].repeat(len(given), 0))
                continue
            x = self.running_norm(f"{at}.norm", given[:, plain]) if plain else given[:, plain]
            if angles or flags:
                x = np.concatenate([x, np.cos(given[:, angles]), np.sin(given[:, angles]), given[:, flags]], 1)
            hidden = self.linear(f"{at}.project.0", x) if x.shape[1] else np.float32(0)
            for number, column in enumerate(categories):
                hidden = hidden + self.w[f"{at}.tables.{number}"][given[:, column].astype(np.intp)]
            tokens.append(self.layer_norm(f"{at}.project.2", np.maximum(hidden, 0)))
        return np.concatenate(tokens)

    def block(self, at: str, tokens: Array, visible: Array | None, relative: Relative) -> Array:
        """x + mix(norm(x)), then x + MLP(norm(x)) with 4 D hidden units and GELU; `mix` is attention, or pooling."""
        x = self.layer_norm(f"{at}.attention_norm", tokens)
        pools = self.settings["pooling"] != "none"
        tokens = tokens + (self.pool(at, x, visible) if pools else self.attend(at, x, visible, relative))
        hidden = self.linear(f"{at}.mlp.1", self.layer_norm(f"{at}.mlp.0", tokens))
        return tokens + self.linear(f"{at}.mlp.3", gelu(hidden))

    def attend(self, at: str, x: Array, visible: Array | None, relative: Relative) -> Array:
        """y_i = sum_j p_ij (v_j + gate_j b_ij),    p_ij = softmax_j(q_i · (k_j + a_ij) / sqrt(K)),    in each head.

        a and b are relative positions, if there are any. Visible entities see the visible ones, hidden ones all.
        """
        size, width = x.shape
        qkv = self.linear(f"{at}.query_key_value", x).reshape(size, 3, self.settings["n_head"], -1)
        q, k, v = qkv.transpose(1, 2, 0, 3)  # (H, E, K)
        q = q / math.sqrt(q.shape[2])
        scores = q @ k.transpose(0, 2, 1)  # (H, E, E)
        if relative is not None:
            scores = scores + (q.transpose(1, 0, 2) @ relative[0].transpose(0, 2, 1)).transpose(1, 0, 2)
        if visible is not None:
            scores = np.where(visible | ~visible[:, None], scores, -np.inf)
        p = softmax(scores)
        y = p @ v
        if relative is not None:
            y = y + (p.transpose(1, 0, 2) @ (self.gate(x) * relative[1])).transpose(1, 0, 2)
        return self.linear(f"{at}.project", y.transpose(1, 0, 2).reshape(size, width))

    def pool(self, at: str, x: Array, visible: Array | None) -> Array:
        """y = P [mean_j, max_j](Q x_j), over the visible entities for visible ones, over all for hidden ones."""
        prepared = self.linear(f"{at}.pool.prepare", x)

        def pooled(rows: Array) -> Array:
            rows = rows if len(rows) else np.zeros_like(x[:1])
            parts = {"mean": rows.mean(0), "max": rows.max(0)}
            of = np.concatenate([part for name, part in parts.items() if name in self.settings["pooling"]])
            return self.linear(f"{at}.pool.project", of)

        if visible is None or not len(x):
            return pooled(prepared)
        return np.where(visible[:, None], pooled(prepared[visible]), pooled(prepared))

    def memory(self, tokens: Array, frame: Frame, before: Memories) -> tuple[Array, Memories]:
        """A minimal GRU along the id of each entity, from step to step; an entity that is not in a frame is forgotten.

        z = sigmoid(W_z norm(x) + b_z),  c = W_c norm(x) + b_c,  h_t = (1 - z) h_{t-1} + z c,  x + W_o norm(h_t) + b_o
        """
        at, first = "transformer.memory", dict(zip(self.features, self.w["transformer.memory.first"], strict=True))
        places = {(name, frame.ids[k]): k for name in self.remember for k in range(len(frame.ids))[frame.places[name]]}
        known = {key: k for key, k in places.items() if key[0] == GLOBAL or key[1] is not None}
        if places and not known:
            raise PolicyError(f"the policy remembers entities of {self.remember} by their ids; give `ids`")
        if not known:
            return tokens, {}
        h, numbers = np.stack([before.get(key, first[key[0]]) for key in known]), list(known.values())
        z, c = np.split(self.linear(f"{at}.gates", self.layer_norm(f"{at}.norm_in", tokens[numbers])), 2, 1)
        h, tokens = h + sigmoid(z) * (c - h), tokens.copy()
        tokens[numbers] += self.linear(f"{at}.out", self.layer_norm(f"{at}.norm_out", h))
        return tokens, dict(zip(known, h, strict=True))

    def relative(self, rows: dict[str, Array]) -> tuple[Array, Array]:
        """(E, E, K) keys a_ij and values b_ij for where entity j stands as i sees it; the same in all blocks and heads.

        Both are sums of rows of a table, which d = R(-φ_i) (p_i - p_j) chooses; a projection adds W norm(d, |d|) + b. They are 0
        for pairs with a type that has no position.
        """
        at, settings, numbers = "transformer.relative_positions", self.settings["relpos"], list(self.placed)
        of = np.array([numbers.index(name) if name in numbers else -1 for name in rows for _ in rows[name]], np.intp)
        p, facing = (
            np.zeros((len(of), len(settings["position_features"])), np.float32),
            np.zeros((len(of), 2), np.float32),
        )
        for number, (name, pose) in enumerate(self.placed.items()):
            p[of == number], facing[of == number] = rows[name][:, pose.position], pose.facing(rows[name])
        d = p[:, None] - p
        d = turned(d, facing[:, None]) if turns(settings) else d
        buckets, found = self.buckets(d, length(d)[..., 0]), []
        counts = ((of >= 0)[:, None] & (of >= 0)).astype(np.float32)[..., None]
        for part in ("key", "value"):
            table, block = self.w[f"{at}.{part}s"], np.zeros(len(of), np.intp)
            if part == "value" and settings["per_entity_values"]:
                block = np.maximum(of, 0) * len(self.w[f"{at}.keys"])
            total = sum(share * table[row + block] for row, share in buckets)
            if settings[f"{part}_projection"]:
                known = self.running_norm(f"{at}.norm", np.concatenate([d, length(d)], -1))
                total = total + self.linear(f"{at}.{part}_projection", known)
            found.append(counts * total)
        return found[0], found[1]

    def buckets(self, d: Array, distance: Array) -> list[tuple[Array, Array]]:
        """(E, E) rows of a table and (E, E, 1) shares: a bucket of each axis, with `interpolate` the two nearest.

        The first axis runs fastest.
        """
        kind, extent, scale, is_smooth = (
            self.settings["relpos"][each] for each in ("kind", "extent", "scale", "interpolate")
        )
        axes, rounding, stride = [], SLACK, 1
        if kind == "grid":  # each coordinate from -e to e, to the nearest
            axes = [(np.clip(d[..., k] / scale, -e, e) + e, 2 * e + 1) for k, e in enumerate(extent)]
            rounding += 0.5
        if kind in ("radial", "polar"):  # counterclockwise from the first axis; 0 for what stands in one place
            turns = np.arctan2(d[..., 1], d[..., 0]) / (2 * math.pi)
            axes.append((np.where(distance == 0, 0, turns - np.floor(turns)) * extent[0], extent[0]))
        if kind in ("distance", "polar"):  # the last one is open
            axes.append((np.minimum(distance / scale, extent[-1] - 1), extent[-1]))
        found = [(np.zeros(d.shape[:2], np.intp), np.ones((*d.shape[:2], 1), np.float32))]
        for axis, (position, size) in enumerate(axes):
            low, is_circle = np.floor(position), axis == 0 and kind in ("radial", "polar")
            share = (position - low)[..., None]
            ends = [(low, 1 - share), (low + 1, share)] if is_smooth else [(np.floor(position + rounding), 1)]
            for k, (end, part) in enumerate(ends):
                bucket = (end % size if is_circle else np.minimum(end, size - 1)).astype(np.intp)
                ends[k] = bucket * stride, part
            found = [(row + step, share * part) for step, part in ends for row, share in found]
            stride *= size
        return found

    def gate(self, x: Array) -> Array:
        """(E, K) factors of the values of each j: a function of a linear map of a block's normalized tokens."""
        function = self.settings["relpos"]["value_gate"]
        if function == "none":
            return np.ones(1, np.float32)
        return GATES[function](self.linear("transformer.relative_positions.gate_projection", x))
