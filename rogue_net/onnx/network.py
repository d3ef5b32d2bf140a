"""The network of the NumPy runtime, whose tensors are those of a graph.

Each method gives the numbers of the method that it replaces, in few nodes, and for any number of entities. Shapes: E tokens of
width D, n entities of a type with F features, K remembered entities, M memories.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rogue_net.numpy import network
from rogue_net.numpy.reading import GLOBAL, Array, Spaces

from .graph import Graph, Rows, Tensor


def gelu(x: Rows) -> Rows:
    """x Φ(x), where Φ is the standard normal distribution function."""
    return x.graph.node("Gelu", x, like=x)


def distances(d: Rows) -> Rows:
    """(..., 1) lengths of (..., n) vectors."""
    return np.sqrt(np.square(d).sum(-1, keepdims=True))


def turned(settings: network.Settings, d: Rows, facing: Rows) -> Rows:
    """R(-φ) d of (..., 2) differences and (..., 2) cos φ and sin φ; d itself if the settings name no orientation."""
    if not settings["rotation_vec_features"] and settings["rotation_angle_feature"] is None:
        return d
    (x, y), (cos, sin) = ((each[..., :1], each[..., 1:]) for each in (d, facing))
    return np.concatenate([x * cos + y * sin, y * cos - x * sin], -1)


class Network(network.Network):
    """The network of a policy, or the separate one of its values, that writes itself into a graph."""

    def __init__(self, tensors: Mapping[str, Array], settings: network.Settings, spaces: Spaces, graph: Graph) -> None:
        super().__init__(tensors, settings, spaces)
        self.graph = graph

    def __call__(self, rows: Rows, frame: Rows, before: Rows) -> tuple[Rows, Rows, Rows]:
        """(E, D) tokens, () value, and what is remembered: (M, 2) types and ids, (M, D) states."""
        tokens, after, num_blocks, sees, relative = self.embed(rows), before, self.settings["n_layer"], None, None
        if self.settings["relpos"]["kind"] != "none":
            relative = self.relative(rows)
        if num_blocks and self.settings["pooling"] == "none":
            sees = np.where(frame.visible | ~frame.visible[:, None], np.float32(0), np.float32(-np.inf))
        for k in range(max(1, num_blocks)):
            if num_blocks:
                tokens = self.block(
                    f"transformer.blocks.{k}", tokens, frame.visible if sees is None else sees, relative
                )
            if k == 0 and self.remember:
                tokens, after = self.memory(tokens, frame, before)
        mean, deviation = (self.take(f"value_head.{part}") for part in ("mean", "deviation"))
        project = self.take("value_head.project.weight", 1, self.width), self.take("value_head.project.bias", 1)
        weight, bias = (float(deviation) * each for each in project)
        count = np.maximum(tokens.length(), 1).astype(np.float32)
        value = tokens.sum(0, keepdims=True) @ weight.T / count + (bias + float(mean))
        return tokens, value.reshape(), after

    def linear(self, name: str, x: Rows, outputs: int, scale: Any = 1) -> Rows:
        """W x + b for each row of (..., inputs), times a scale of each output."""
        weight, bias = self.take(f"{name}.weight", outputs, x.shape[-1]), self.take(f"{name}.bias", outputs)
        weight, bias = (weight.T * scale).astype(np.float32), (bias * scale).astype(np.float32)
        if x.ndim != 2:
            return x @ weight + bias
        return self.graph.node("Gemm", x, weight, bias, like=x, shape=(x.shape[0], outputs))

    def layer_norm(self, name: str, x: Rows) -> Rows:
        """(x - mean(x)) / sqrt(var(x) + 1e-5) w + b for each row of (n, D)."""
        weights = (self.take(f"{name}.{part}", self.width) for part in ("weight", "bias"))
        return self.graph.node("LayerNormalization", x, *weights, like=x, axis=-1, epsilon=1e-5)

    def embed(self, rows: Rows) -> Rows:
        """(E, D) tokens."""
        tokens: list[Rows] = []
        for k, (name, given) in enumerate(rows.items()):
            at, kinds = f"embedding.entities.{k}", [kind["type"] if kind else "" for _, kind in self.joined[name]]
            of = {t: [k for k, kind in enumerate(kinds) if kind == t] for t in ("", "Angle", "Flag", "Category")}
            parts: list[Rows] = [self.running_norm(f"{at}.norm", given[:, of[""]])] if of[""] else []
            parts += [wave(given[:, of["Angle"]]) for wave in (np.cos, np.sin) if of["Angle"]]
            parts += [given[:, of["Flag"]]] if of["Flag"] else []
            hidden = self.linear(f"{at}.project.0", self.graph.concat(parts, 1), self.width) if parts else np.float32(0)
            for number, column in enumerate(of["Category"]):
                table = self.take(f"{at}.tables.{number}", self.joined[name][column][1]["num"], self.width)
                hidden = hidden + self.graph.constant(table)[given[:, column].astype(np.int64)]
            if kinds:
                tokens.append(self.layer_norm(f"{at}.project.2", np.maximum(hidden, 0)))
            else:
                tokens.append(self.graph.full(self.take(f"{at}.vector", 1, self.width), given.length(), self.width))
        return self.graph.concat(tokens)

    def block(self, at: str, tokens: Rows, visible: Rows, relative: Any) -> Rows:
        """Return x + mix(norm(x)), then x + MLP(norm(x))."""
        mix = self.attend if self.settings["pooling"] == "none" else self.pool
        tokens = tokens + mix(at, self.layer_norm(f"{at}.attention_norm", tokens), visible, relative)
        hidden = self.linear(f"{at}.mlp.1", self.layer_norm(f"{at}.mlp.0", tokens), 4 * self.width)
        return tokens + self.linear(f"{at}.mlp.3", gelu(hidden), self.width)

    def attend(self, at: str, x: Rows, visible: Rows, relative: Any) -> Rows:
        """Attention; `visible` is added to scores: (E, E) or (1, 1), -inf for what an entity does not see."""
        num_heads, size = self.width // self.head_width, self.head_width
        scale = np.repeat([1 / math.sqrt(size), 1, 1], self.width)
        qkv = self.linear(f"{at}.query_key_value", x, 3 * self.width, scale)
        q, k, v = self.graph.split(qkv.reshape(0, 3 * num_heads, size).transpose(1, 0, 2), 3, 0)  # (H, E, K)
        scores = q @ k.transpose(0, 2, 1)  # (H, E, E)
        if relative is not None:
            keys, values, gate = relative
            scores = scores + (q.transpose(1, 0, 2) @ keys.transpose(0, 2, 1)).transpose(1, 0, 2)
        p = self.graph.node("Softmax", scores + visible, like=scores, axis=-1)
        y = p @ v
        if relative is not None:
            y = y + (p.transpose(1, 0, 2) @ (gate(x) * values)).transpose(1, 0, 2)
        return self.linear(f"{at}.project", y.transpose(1, 0, 2).reshape(0, self.width), self.width)

    def pool(self, at: str, x: Rows, visible: Rows, relative: Any) -> Rows:
        """Pooling over the visible entities, and over all; `visible` is (E,) or (1,) bool."""
        prepared, found = self.linear(f"{at}.pool.prepare", x, self.width), list[Rows]()
        for some in (visible, visible | True):
            counted = some[:, None].expand(x.length(), 1)
            count = counted.sum(0, keepdims=True)
            total = np.where(counted, prepared, 0).sum(0, keepdims=True)
            of_none: Rows = np.where(count > 0, np.float32(-np.inf), np.float32(0))
            of_none = of_none.expand(1, self.width)
            largest = self.graph.concat([np.where(counted, prepared, -np.inf), of_none]).max(0, keepdims=True)
            parts = {"mean": total / np.maximum(count, 1).astype(np.float32), "max": largest}
            rows = self.graph.concat([part for name, part in parts.items() if name in self.settings["pooling"]], 1)
            found.append(self.linear(f"{at}.pool.project", rows, self.width))
        return np.where(visible[:, None], *found)

    def memory(self, tokens: Rows, frame: Rows, before: Rows) -> tuple[Rows, Rows]:
        """A minimal GRU along the type and id of each entity; an entity of which `frame.ids` is negative remembers nothing."""
        at, first = "transformer.memory", self.take("transformer.memory.first", len(self.features), self.width)
        numbers = {name: number if name in self.remember else -1 for number, name in enumerate(self.features)}
        types, ids, (known, states) = self.by_type(numbers, frame.features), frame.ids, before
        places = self.graph.node("NonZero", (types >= 0) & (ids >= 0), dtype=np.int64, shape=(1, None)).squeeze(0)
        types, ids = types[places], ids[places]
        same = (types[:, None] == known[:, 0]) & (ids[:, None] == known[:, 1])  # (K, M)
        found = (same * (self.graph.arange(known.length()) + 1)).sum(1)  # the number of a memory from 1 on; 0: none
        remembered = self.graph.concat([np.zeros((1, self.width), np.float32), states])[found]
        h = np.where(found[:, None] > 0, remembered, self.graph.constant(first)[types])
        x = self.layer_norm(f"{at}.norm_in", tokens[places])
        z, c = self.graph.split(self.linear(f"{at}.gates", x, 2 * self.width), 2, 1)
        h = h + self.graph.node("Sigmoid", z, like=z) * (c - h)
        tokens = tokens.copy()
        tokens[places] += self.linear(f"{at}.out", self.layer_norm(f"{at}.norm_out", h), self.width)
        return tokens, (self.graph.concat([types[:, None], ids[:, None]], 1), h)

    def by_type(self, numbers: Mapping[str, int], rows: Rows) -> Rows:
        """(E,) int64, the number of each entity's type."""
        return self.graph.concat([self.graph.full(numbers[name], rows[name].length()) for name in rows])

    def facing(self, settings: network.Settings, name: str, rows: Rows) -> Rows:
        """(n, 2) cos φ and sin φ of the orientations φ of a type's entities; 1 and 0 where there is none."""
        if angle := self.columns(name, [settings["rotation_angle_feature"]]):
            return np.concatenate([np.cos(rows[:, angle]), np.sin(rows[:, angle])], 1)
        if not (columns := self.columns(name, settings["rotation_vec_features"])):
            return self.graph.full(np.array([[1, 0]], np.float32), rows.length(), 2)
        vector = rows[:, columns]
        largest = np.abs(vector).max(1, keepdims=True)
        vector = vector / np.where(largest == 0, 1, largest)  # so that no square is too small or too large
        return np.where(largest == 0, np.array([1, 0], np.float32), vector / distances(vector))

    def rows(self, frame: Rows) -> Rows:
        """(n, F) features by type: with translated positions, their lengths if `add_distance`, and the global features."""
        rows, move = dict[str, Any](frame.features), self.settings["translation"]
        if (name := self.reference) is not None:
            flags = frame.visible.expand(self.by_type(dict.fromkeys(rows, 0), rows).length())
            before = [rows[each].length() for each in [*rows][: [*rows].index(name)]]
            start = self.graph.constant(np.zeros(1, np.int64))
            for count in before:
                start = start + count
            ends = start, start + rows[name].length(), np.zeros(1, np.int64)
            flags = self.graph.node("Slice", flags, *ends, like=flags)
            shown = self.graph.node("Compress", rows[name], flags, like=rows[name], axis=0)
            origin = self.graph.concat([shown, np.zeros((1, rows[name].shape[1]), np.float32)])[:1]
            q, facing = origin[:, self.columns(name, move["position_features"])], self.facing(move, name, origin)
            for name in self.moved:
                columns, given = self.columns(name, move["position_features"]), rows[name]
                d = turned(move, given[:, columns] - q, facing)
                parts = [given[:, [k]] for k in range(given.shape[1])]
                for k, column in enumerate(columns):
                    parts[column] = d[:, [k]]
                rows[name] = self.graph.concat(parts + [distances(d)] * move["add_distance"], 1)
        for name in rows.keys() - {GLOBAL} if self.spaces.globals else ():
            everywhere = rows[GLOBAL].expand(rows[name].length(), rows[GLOBAL].shape[1])
            rows[name] = self.graph.concat([rows[name], everywhere], 1)
        return rows

    def relative(self, rows: Rows) -> tuple[Any, ...]:
        """(E, E, K) keys a_ij and values b_ij, and the gate, a function of (E, D) tokens."""
        at, settings, size = "transformer.relative_positions", self.settings["relpos"], self.head_width
        of = self.by_type({name: self.placed.index(name) if name in self.placed else -1 for name in rows}, rows)
        coordinates, given = settings["position_features"], rows.items()
        p = self.graph.concat([
            x[:, self.columns(name, coordinates)]
            if name in self.placed
            else self.graph.full(np.float32(0), x.length(), len(coordinates))
            for name, x in given
        ])  # fmt: skip
        facing = self.graph.concat([self.facing(settings, name, x) for name, x in given])
        d = turned(settings, p[:, None] - p, facing[:, None])
        known = np.concatenate([d, distances(d)], -1)
        sizes = [2 * max(1, e) + 1 if settings["kind"] == "grid" else e for e in settings["extent"]]
        count, tables, buckets = math.prod(sizes), list[Rows](), list[Any](self.buckets(known, sizes))
        for part, blocks in ("key", 1), ("value", len(self.placed) if settings["per_entity_values"] else 1):
            table = self.graph.constant(self.take(f"{at}.{part}s", blocks * count, size))
            total: Rows = 0
            for row, share in buckets:
                found = table[row + of % blocks * count if blocks > 1 else row]
                total = total + (share[..., None] * found if isinstance(share, Tensor) else found)
            if settings[f"{part}_projection"]:
                total = total + self.linear(f"{at}.{part}_projection", self.running_norm(f"{at}.norm", known), size)
            tables.append(total * ((of >= 0)[:, None] & (of >= 0))[..., None])
        gate = ({**network.GATES, "gelu": gelu}).get(settings["value_gate"])
        return *tables, lambda x: gate(self.linear(f"{at}.gate_projection", x, size)) if gate else 1
