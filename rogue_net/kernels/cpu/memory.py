"""The memory of a thread: room for a tile, which grows with the frames that it meets."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from rogue_net.kernels.cpu import attention, relative_attention, tables
from rogue_net.kernels.cpu.compiling import address
from rogue_net.kernels.cpu.dense import LANES as LANES_OF_A_PANEL
from rogue_net.kernels.cpu.dense import ROWS
from rogue_net.kernels.cpu.relative_terms import Places
from rogue_net.kernels.cpu.simd import LANES


def padded(size: int, multiple: int) -> int:
    """`size` rounded up to a multiple."""
    return -(-size // multiple) * multiple


def usual_room(width: int) -> int:
    """Tokens of a tile whose numbers stay in a core's cache."""
    return 128 if width <= 32 else 96 if width <= 64 else 64


class TileMemory:
    """The memory of one thread.

    Args:
        net: the network.
        inputs: of the widest linear layer of the embedding.
        keys: width of the widest query of a select-entity action.
        numbers: of the largest continuous action that others are decided after, padded; 0: no action is chained.
        ordered: whether an action selects ordered sets.
    """

    def __init__(self, net: tables.Net, inputs: int, keys: int, numbers: int, ordered: bool) -> None:
        self._net, self._inputs, self._keys, self._numbers, self._ordered = net, inputs, keys, numbers, ordered
        self._tile: tables.Tile  # once `of` has made it
        self._shape: tuple[int, ...] = (0, 0, 0, 0)

    def of(self, room: int, usual: int, logits: int, num_types: int, num_actions: int) -> tables.Tile:
        """A tile with `room`, at most `usual` tokens, and so many logits of all actions, types and actions."""
        shape = tuple(map(max, self._shape, (room, logits, num_types, num_actions)))
        if shape != self._shape:
            self._shape = shape
            self._make(*shape)
        if (self._tile.room, self._tile.usual) != (room, usual):
            self._tile = self._tile._replace(room=room, usual=usual)
        return self._tile

    def _make(self, room: int, logits: int, num_types: int, num_actions: int) -> None:
        width, head_width, mixing = self._net.width, self._net.head_width, self._net.mixing
        scheme = self._net.scheme
        keys, actors, chained = self._keys, room * max(num_actions, 1), bool(self._numbers)
        rows = room * (1 + chained)  # with those of actors in turn behind the tokens
        saved_floats = tables.saved_floats(width, self._net.num_heads, head_width, mixing)
        saved = self._net.num_blocks * room * saved_floats
        floats = {
            "x": rows * width, "tokens": rows * width, "dqkv": rows * 3 * width, "dhidden": room * 4 * width,
            "dgate": room * head_width, "saved": saved, "inputs": (room + ROWS * (num_types + 1)) * self._inputs,
            "hidden": (room + ROWS) * width, "normalized": room * width, "inverse_std": room, "log_probs": actors,
            "panel": 2 * rows * LANES_OF_A_PANEL,
            "old_log_probs": actors, "entropies": actors, "dlog_probs": actors,
            "dentropies": actors, "logits": logits + room * 8, "rows": room * max(width, keys),
            "queries": room * keys, "keys": (room + ROWS) * keys, "dkeys": (room + ROWS) * keys, "means": room * width,
            "values": room, "dvalues": room,
        }  # fmt: skip
        of_chains = [
            *(rows * width * factor * chained for factor in (1, 1, 1, 2, 1)),
            actors * width * chained,
            actors * self._numbers,
            width,
        ]
        of_sets = [size * self._ordered for size in (*[(room + ROWS) * keys] * 6, keys, keys, room * keys, room + 8)]
        of_memory = [0] * 6
        if self._net.memory >= 0:
            of_memory = [room * width, 2 * room * width, room * width, room * width, room, room]
        ints = {
            "encoded": room + 1, "encodings": room, "offsets": room + 2, "next": room + 1,
            "places": room, "sources": room, "type_rows": num_types + 1,
            "actor_tokens": actors, "actor_frames": actors, "actor_sources": actors,
            "action_actors": num_actions + 1, "actee_tokens": room, "actee_starts": room + 1,
            "origins": room, "origin_rows": room,
        }  # fmt: skip
        # the logits are more than the pairs of any action
        of_choices = [size * chained for size in (actors + logits, room + 1, room, room)]
        more_ints = [*of_choices, room * self._ordered, (room + 1) * self._ordered, room]
        keys_at_once = padded(room, 16)  # a multiple of any number of lanes
        of_attention = attention.scratch_sizes(head_width, keys_at_once)
        of_relative = relative_attention.scratch_sizes(scheme.dimensions, scheme.terms, head_width, keys_at_once)
        places_room = room + LANES
        of_places = [scheme.dimensions * places_room, 2 * room, places_room]
        sizes = [*floats.values(), *of_memory, *of_chains, *of_sets, *of_attention, *of_relative, *of_places]
        starts = np.cumsum([0, *(padded(size, 16) for size in sizes)]).tolist()
        # torch's memory begins with a line of the cache, and NumPy's within one
        self._floats = torch.zeros(starts[-1], dtype=torch.float32, device="cpu")
        self._ints = np.zeros(sum(ints.values()) + sum(more_ints), np.int64)
        self._visible = np.ones(room, np.bool_)
        base: int = address(self._floats)
        places: list[Any] = [base + 4 * start for start in starts[:-1]]
        named = dict(zip(floats, places, strict=False))
        rest = places[len(floats) :]
        memory, rest = rest[: len(of_memory)], rest[len(of_memory) :]
        chains, rest = rest[: len(of_chains)], rest[len(of_chains) :]
        sets, rest = rest[: len(of_sets)], rest[len(of_sets) :]
        own, rest = rest[: len(of_attention)], rest[len(of_attention) :]
        int_starts = np.cumsum([0, *ints.values(), *more_ints]).tolist()
        int_places: list[Any] = [address(self._ints) + 8 * start for start, _ in pairwise(int_starts)]
        visible: Any = address(self._visible)
        self._tile = tables.Tile(
            room=room,
            usual=room,
            visible=visible,
            memory=tables.MemoryActivations(*memory),
            chains=tables.Chains(*chains, *int_places[len(ints) : -3]),
            sets=tables.Sets(*sets, *int_places[-3:-1]),
            attention=attention.Scratch(keys_at_once, *own),
            relative=relative_attention.Scratch(keys_at_once, *rest[: len(of_relative)]),
            entities=Places(places_room, *rest[len(of_relative) :], *int_places[-1:]),
            **named,
            **dict(zip(ints, int_places, strict=False)),
        )
