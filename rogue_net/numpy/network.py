"""From the features of a frame to its tokens: n entities of a type, E of the frame, F features, D width, H heads of K = D / H."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from .reading import GLOBAL, Array, Frame, PolicyError, Spaces

Settings = Mapping[str, Any]
Memories = Mapping[tuple[str, Hashable], Array]  # (entity type, id) -> (D,) what the entity remembers
SLACK = 1e-4  # what lies this close before a bucket, in buckets, is in it: rounding must not decide


def gelu(x: Array) -> Array:
    """x Φ(x), by Abramowitz & Stegun 1964, 7.1.26: Φ, the standard normal distribution function, is right to 8e-8."""
    t = 1 / (1 + 0.3275911 / math.sqrt(2) * np.abs(x))
    tail = ((((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.142248368) * t + 0.127414796) * t
    return np.maximum(x, 0) - np.abs(x) * tail * np.exp(-0.5 * x * x)


def log_softmax(logits: Array, is_open: Any = True) -> Array:
    """Log-probs along the last axis; -inf for what is closed."""
    shifted = np.where(is_open, logits, -np.inf)
    shifted = shifted - shifted.max(-1, keepdims=True, initial=-1e30)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def turned(settings: Settings, d: Array, facing: Array) -> Array:
    """R(-φ) d of (..., 2) differences and (...) exp(i φ); d itself, of any length, if the settings name no orientation."""
    if not settings["rotation_vec_features"] and settings["rotation_angle_feature"] is None:
        return d
    z = (d[..., 0] + 1j * d[..., 1]) * facing.conj()
    return np.stack([z.real, z.imag], -1)


GATES: dict[str, Any] = {"linear": lambda x: x, "relu": lambda x: np.maximum(x, 0), "gelu": gelu}
GATES["sigmoid"] = lambda x: 0.5 + 0.5 * np.tanh(0.5 * x)  # 1 / (1 + exp(-x)) without overflow


class Network:
    """The network of a policy, or the separate one of its values: tensors by name, `config.net` or `config.value_net`, spaces."""

    def __init__(self, tensors: Mapping[str, Array], settings: Settings, spaces: Spaces) -> None:
        self.tensors, self.settings, self.spaces, self.features = tensors, settings, spaces, dict(spaces.features)
        self.width, self.head_width = settings["d_model"], settings["d_model"] // settings["n_head"]
        self.average = np.full_like(self.take("value_head.project.weight", 1, self.width), 1 / self.width).T
        move, there, memory = (settings[part] for part in ("translation", "relpos", "memory"))
        self.reference, coordinates = move["reference_entity"], move["position_features"]
        moved = [] if self.reference is None else [name for name in self.features if self.columns(name, coordinates)]
        self.moved = [name for name in moved if name not in (self.reference, GLOBAL)]
        for name in self.moved if move["add_distance"] else ():
            self.features[name] = [*self.features[name], ("distance", None)]
        self.joined = {name: own + spaces.globals * (name != GLOBAL) for name, own in self.features.items()}
        placed = [name for name in self.features if self.columns(name, there["position_features"])]
        self.placed = [name for name in placed if name not in there["exclude_entities"]]
        chosen = self.features if settings["memory_types"] is None else settings["memory_types"]
        self.remember = [name for name in chosen if name != GLOBAL and memory in ("entity", "both")]
        self.remember += [GLOBAL] * (memory in ("frame", "both"))

    def __call__(self, rows: dict[str, Array], frame: Frame, before: Memories) -> tuple[Array, float, Memories]:
        """(E, D) tokens of a frame with these `rows`, its value, and what its entities remember."""
        tokens, after, num_blocks = self.embed(rows), before, self.settings["n_layer"]
        relative = self.relative(rows) if self.settings["relpos"]["kind"] != "none" else None
        for k in range(max(1, num_blocks)):
            tokens = self.block(f"transformer.blocks.{k}", tokens, frame.visible, relative) if num_blocks else tokens
            if k == 0 and self.remember:
                tokens, after = self.memory(tokens, frame, before)
        mean, deviation = (self.take(f"value_head.{part}") for part in ("mean", "deviation"))
        of_mean = self.linear("value_head.project", tokens.sum(0) / max(1, len(tokens)), 1)  # without entities of 0
        return tokens, float(mean + deviation * of_mean[0]), after

    def take(self, name: str, *shape: int, dtype: type[np.generic] = np.float32) -> Array:
        """A tensor; a ValueError if it is missing, or has another shape or type."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.shape != shape or tensor.dtype != dtype:
            given = "missing" if tensor is None else f"{tensor.dtype} of shape {tensor.shape}"
            raise ValueError(f"the tensor {name!r} is {given}; the settings ask for {np.dtype(dtype)} of shape {shape}")
        return tensor

    def linear(self, name: str, x: Array, outputs: int) -> Array:
        """W x + b for each row of (..., inputs)."""
        return x @ self.take(f"{name}.weight", outputs, x.shape[-1]).T + self.take(f"{name}.bias", outputs)

    def layer_norm(self, name: str, x: Array) -> Array:
        """(x - mean(x)) / sqrt(var(x) + 1e-5) w + b for each row of (n, D)."""
        centered = x - x @ self.average  # in half the time of x.mean()
        normalized = centered / np.sqrt(np.square(centered) @ self.average + 1e-5)
        return normalized * self.take(f"{name}.weight", self.width) + self.take(f"{name}.bias", self.width)

    def running_norm(self, name: str, x: Array) -> Array:
        """clip((x - mean) / std, -5, 5) with the statistics of training; std is 1 for a feature that never varied."""
        mean, squares = (self.take(f"{name}.{part}", x.shape[-1], dtype=np.float64) for part in ("mean", "squares"))
        std = np.sqrt(squares / np.maximum(1, self.take(f"{name}.count", dtype=np.int64)))
        scale = 1 / np.where(std < np.finfo(np.float32).tiny, 1, std)
        return np.clip((x - mean.astype(np.float32)) * scale.astype(np.float32), -5, 5)

    def embed(self, rows: dict[str, Array]) -> Array:
        """(E, D) tokens: LayerNorm(ReLU(W x + b + table_c[id_c] + ...)) for each type; without features, a learned vector."""
        tokens: list[Array] = [np.zeros((0, self.width), np.float32)]
        for k, (name, given) in ((k, each) for k, each in enumerate(rows.items()) if len(each[1])):
            at, kinds = f"embedding.entities.{k}", [kind["type"] if kind else "" for _, kind in self.joined[name]]
            of = {t: [k for k, kind in enumerate(kinds) if kind == t] for t in ("", "Angle", "Flag", "Category")}
            plain, angles, flags = (given[:, of[kind]] for kind in ("", "Angle", "Flag"))
            plain = self.running_norm(f"{at}.norm", plain) if of[""] else plain
            x = np.concatenate([plain, np.cos(angles), np.sin(angles), flags], 1)
            hidden = self.linear(f"{at}.project.0", x, self.width) if x.shape[1] else np.zeros((), np.float32)
            for number, column in enumerate(of["Category"]):
                table = self.take(f"{at}.tables.{number}", self.joined[name][column][1]["num"], self.width)
                hidden = hidden + table[given[:, column].astype(np.intp)]
            hidden = self.layer_norm(f"{at}.project.2", np.maximum(hidden, 0)) if kinds else hidden
            tokens.append(hidden if kinds else self.take(f"{at}.vector", 1, self.width).repeat(len(given), 0))
        return np.concatenate(tokens)

    def block(self, at: str, tokens: Array, visible: Array | None, relative: Any) -> Array:
        """Return x + mix(norm(x)), then x + MLP(norm(x)) with 4 D hidden units and GELU; `mix` is attention, or pooling."""
        mix = self.attend if self.settings["pooling"] == "none" else self.pool
        tokens = tokens + mix(at, self.layer_norm(f"{at}.attention_norm", tokens), visible, relative)
        hidden = self.linear(f"{at}.mlp.1", self.layer_norm(f"{at}.mlp.0", tokens), 4 * self.width)
        return tokens + self.linear(f"{at}.mlp.3", gelu(hidden), self.width)

    def attend(self, at: str, x: Array, visible: Array | None, relative: Any) -> Array:
        """y_i = sum_j p_ij (v_j + gate_j b_ij),    p_ij = softmax_j(q_i · (k_j + a_ij) / sqrt(K)),    in each head.

        a and b are relative positions, if there are any. Visible entities see the visible ones, hidden ones all.
        """
        qkv = self.linear(f"{at}.query_key_value", x, 3 * self.width)
        q, k, v = qkv.reshape(len(x), 3, -1 if len(x) else 1, self.head_width).transpose(1, 2, 0, 3)  # (H, E, K)
        q = q / math.sqrt(self.head_width)
        scores = q @ k.transpose(0, 2, 1)  # (H, E, E)
        if relative is not None:
            keys, values, gate = relative
            scores = scores + (q.transpose(1, 0, 2) @ keys.transpose(0, 2, 1)).transpose(1, 0, 2)
        p = np.exp(log_softmax(scores, True if visible is None else visible | ~visible[:, None]))
        y = p @ v
        if relative is not None:
            y = y + (p.transpose(1, 0, 2) @ (gate(x) * values)).transpose(1, 0, 2)
        return self.linear(f"{at}.project", y.transpose(1, 0, 2).reshape(x.shape), self.width)

    def pool(self, at: str, x: Array, visible: Array | None, relative: None) -> Array:
        """y = P [mean_j, max_j](Q x_j), over the visible entities for visible ones, over all for hidden ones."""
        prepared, found = self.linear(f"{at}.pool.prepare", x, self.width), list[Array]()
        visible = np.full(len(x), True) if visible is None else visible
        for rows in (prepared[visible], prepared):
            rows = rows if len(rows) else np.zeros((1, self.width), np.float32)
            parts = [getattr(rows, part)(0) for part in ("mean", "max") if part in self.settings["pooling"]]
            found.append(self.linear(f"{at}.pool.project", np.concatenate(parts), self.width))
        return np.where(visible[:, None], *found)

    def memory(self, tokens: Array, frame: Frame, before: Memories) -> tuple[Array, Memories]:
        """A minimal GRU along the id of each entity, from step to step; an entity that is not in a frame is forgotten.

        z = sigmoid(W_z norm(x) + b_z),  c = W_c norm(x) + b_c,  h_t = (1 - z) h_{t-1} + z c,  x + W_o norm(h_t) + b_o
        """
        at, first = "transformer.memory", self.take("transformer.memory.first", len(self.features), self.width)
        begins = dict(zip(self.features, first, strict=True))
        places = [(name, k) for name in self.remember for k in range(len(tokens))[frame.places[name]]]
        known = {(name, frame.ids[k]): k for name, k in places if name == GLOBAL or frame.ids[k] is not None}
        if places and not known:
            raise PolicyError(f"the policy remembers entities of {self.remember} by their ids; give `ids`")
        h = np.array([before.get(key, begins[key[0]]) for key in known], np.float32).reshape(-1, self.width)
        x, tokens = self.layer_norm(f"{at}.norm_in", tokens[[*known.values()]]), tokens.copy()
        z, c = np.split(self.linear(f"{at}.gates", x, 2 * self.width), 2, 1)
        h = h + GATES["sigmoid"](z) * (c - h)
        tokens[[*known.values()]] += self.linear(f"{at}.out", self.layer_norm(f"{at}.norm_out", h), self.width)
        return tokens, dict(zip(known, h, strict=True))

    def columns(self, name: str, wanted: list[str]) -> list[int]:
        """The columns of the wanted features of a type; none if it lacks one of them."""
        names = [feature for feature, _ in self.features[name]]
        return [names.index(each) for each in wanted] if {*wanted} <= {*names} else []

    def facing(self, settings: Settings, name: str, rows: Array) -> Array:
        """(n,) exp(i φ) of the orientations φ of a type's entities; 1 where there is none."""
        if angle := self.columns(name, [settings["rotation_angle_feature"]]):
            return np.exp(1j * rows[:, angle[0]])
        x, y = self.columns(name, settings["rotation_vec_features"]) or (0, 0)
        vector = rows[:, x] + 1j * rows[:, y] if x != y else np.ones(len(rows), np.complex64)
        return np.where(vector == 0, 1, vector / np.where(vector == 0, 1, np.abs(vector)))

    def rows(self, frame: Frame) -> dict[str, Array]:
        """(n, F) features by type: with translated positions, their lengths if `add_distance`, and the global features.

        p' = R(-φ) (p - q), as the reference entity sees them, which stands at q and faces along φ: 0 if it is hidden or absent.
        """
        rows, move = dict(frame.features), self.settings["translation"]
        if (name := self.reference) is not None:
            shown = rows[name] if frame.visible is None else rows[name][frame.visible[frame.places[name]]]
            if len(shown) > 1:
                raise PolicyError(f"the observation shows {len(shown)} of {name!r}; it may show one or none")
            origin = shown if len(shown) else np.zeros((1, rows[name].shape[1]), np.float32)
            q, facing = origin[:, self.columns(name, move["position_features"])], self.facing(move, name, origin)
            for name in self.moved:
                columns, rows[name] = self.columns(name, move["position_features"]), rows[name].copy()
                rows[name][:, columns] = d = turned(move, rows[name][:, columns] - q, facing)
                distance = np.linalg.norm(d, axis=1, keepdims=True)[:, : int(move["add_distance"])]
                rows[name] = np.concatenate([rows[name], distance], 1)
        for name in rows.keys() - {GLOBAL} if self.spaces.globals else ():
            rows[name] = np.concatenate([rows[name], rows[GLOBAL].repeat(len(rows[name]), 0)], 1)
        return rows

    def relative(self, rows: dict[str, Array]) -> tuple[Any, ...]:
        """(E, E, K) keys a_ij and values b_ij for where j stands as i sees it, and the gate, a function of (E, D) tokens.

        a_ij = sum of rows of a table, which d = R(-φ_i) (p_i - p_j) chooses; with a projection + W norm(d, |d|) + b. Excluded: 0.
        """
        at, settings, size = "transformer.relative_positions", self.settings["relpos"], self.head_width
        types = [self.placed.index(name) if name in self.placed else -1 for name in rows for _ in rows[name]]
        of, p = np.array(types, np.intp), np.zeros((len(types), len(settings["position_features"])), np.float32)
        for number, name in enumerate(self.placed):
            p[of == number] = rows[name][:, self.columns(name, settings["position_features"])]
        facing = np.concatenate([self.facing(settings, name, rows[name]) for name in rows])
        d = turned(settings, p[:, None] - p, facing[:, None])
        known = np.concatenate([d, np.linalg.norm(d, axis=-1, keepdims=True)], -1)
        sizes = [2 * max(1, e) + 1 if settings["kind"] == "grid" else e for e in settings["extent"]]
        count, tables, buckets = math.prod(sizes), list[Array](), list[Any]()
        for part, blocks in ("key", 1), ("value", len(self.placed) if settings["per_entity_values"] else 1):
            table = self.take(f"{at}.{part}s", blocks * count, size)
            buckets = buckets or self.buckets(known, sizes)  # not more combinations of axes than the table has rows
            total: Any = sum(share[..., None] * table[row + of % blocks * count] for row, share in buckets)
            if settings[f"{part}_projection"]:
                total = total + self.linear(f"{at}.{part}_projection", self.running_norm(f"{at}.norm", known), size)
            tables.append(total * ((of >= 0)[:, None] & (of >= 0))[..., None])
        gate = GATES.get(settings["value_gate"])
        return *tables, lambda x: gate(self.linear(f"{at}.gate_projection", x, size)) if gate else 1

    def buckets(self, known: Array, sizes: list[int]) -> list[tuple[Array, Array]]:
        """Rows of a table and their shares, (E, E), for pairs whose d and |d| are `known`; `sizes` are the axes' buckets."""
        kind, extent, scale = (self.settings["relpos"][each] for each in ("kind", "extent", "scale"))
        distance, axes, rounding, stride, found = known[..., -1], [], SLACK, 1, list[Any]([(0, np.float32(1))])
        if kind == "grid":  # each coordinate from -e to e, to the nearest
            axes, rounding = [np.clip(known[..., k] / scale, -e, e) + e for k, e in enumerate(extent)], SLACK + 0.5
        if kind in ("radial", "polar"):  # counterclockwise from the first axis; 0 for what stands in one place
            turn = np.arctan2(known[..., 1], known[..., 0]) / (2 * math.pi)
            axes.append(np.where(distance == 0, 0, turn - np.floor(turn)) * extent[0])
        if kind in ("distance", "polar"):  # the last one is open
            axes.append(np.minimum(distance / scale, extent[-1] - 1))
        for axis, (at, size) in enumerate(zip(axes, sizes, strict=True)):  # the first one runs fastest
            low, before, is_circle, found = np.floor(at), found, axis == 0 and kind in ("radial", "polar"), []
            ends = [(low, 1 - (at - low)), (low + 1, at - low)]
            for end, part in ends if self.settings["relpos"]["interpolate"] else [(np.floor(at + rounding), 1)]:
                bucket = (end % size if is_circle else np.minimum(end, size - 1)).astype(np.intp)
                found += [(row + bucket * stride, share * part) for row, share in before]
            stride *= size
        return found
