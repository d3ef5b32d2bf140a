"""Frames as columns: one row for each frame, whatever is in a column.

A subclass of `Columns` is a frozen dataclass whose fields are the columns. A new column is one more field, with the default None
for frames that do not have it, and the line that fills it: gathering, splitting, concatenating, padding and moving to a device go
through all fields.

Shapes: B frames, ordered by step and then by environment unless said otherwise; A actors of an action in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor

from rogue_net import ObsBatch, RaggedTensor
from rogue_net.crossing import to_device
from rogue_net.ragged import Cat, Cuts, Gather

#: (B, ...) numbers, B sequences, observations, several of these by name, or None for a column that is not there.
Column: TypeAlias = Tensor | RaggedTensor | ObsBatch | dict[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Columns:
    """B frames."""

    obs: ObsBatch

    def __len__(self) -> int:
        return len(self.obs)

    def gather(self, frames: Tensor, *, all_of_them: bool = False) -> Self:
        """The frames numbered `frames`.

        Args:
            frames: (n,) int64, in the order that is wanted.
            all_of_them: every frame is there exactly once. Then it does not synchronise with the device.
        """
        gather = Gather(frames, all_of_them=all_of_them)
        return self._replaced(lambda column: _gathered(column, gather))

    def split(self, sizes: Sequence[int]) -> list[Self]:
        """Consecutive parts of so many frames each, which share the memory. Synchronises with the device once."""
        if len(sizes) == 1:
            return [self]
        cuts = Cuts(sizes, [each for field in fields(self) for each in _offsets(getattr(self, field.name))])
        parts = {field.name: _split(getattr(self, field.name), cuts) for field in fields(self)}
        return [replace(self, **{name: parts[name][i] for name in parts}) for i in range(len(sizes))]

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """All frames of the first part, then all of the second, and so on. A column stays where all parts have it."""
        if len(parts) == 1:
            return parts[0]
        cat = Cat()
        return cls(
            **{field.name: cat_columns([getattr(part, field.name) for part in parts], cat) for field in fields(cls)}
        )

    def map(self, change: Callable[[Tensor], Any]) -> Self:
        """The frames with `change(tensor)` in place of every tensor. A tensor that is there twice is changed once."""
        changed: dict[int, tuple[Tensor, Any]] = {}

        def once(tensor: Tensor) -> Any:
            if id(tensor) not in changed:
                changed[id(tensor)] = tensor, change(tensor)
            return changed[id(tensor)][1]

        return self._replaced(lambda column: _mapped(column, once))

    def tensors(self) -> list[Tensor]:
        """Every tensor once, always in the same order."""
        found: list[Tensor] = []
        self.map(lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
        return found

    def to(self, device: torch.device) -> Self:
        """The frames on a device. From the CPU all of it is one copy, for which nobody waits."""
        if device.type == self.obs.device.type:
            return self
        if self.obs.device.type != "cpu":
            return self.map(lambda tensor: tensor.to(device))
        moved: Iterator[Tensor] = iter(to_device(self.tensors(), device))
        return self.map(lambda _: next(moved))

    def _replaced(self, change: Callable[[Any], Any]) -> Self:
        return replace(self, **{field.name: change(getattr(self, field.name)) for field in fields(self)})


@dataclass(frozen=True, kw_only=True)
class Frames(Columns):
    """B frames that were played: what was seen and done in each, and what came of it."""

    env_id: Tensor  # (B,) int64, the number of the environment
    step: Tensor  # (B,) int64, steps of the episode before this frame; 0 for its first
    actions: dict[str, RaggedTensor]  # action -> B sequences of (A, 1) int64 or (A, n) float32
    log_probs: dict[str, RaggedTensor]  # action -> B sequences of (A,) float32, under the policy that acted
    logits: dict[str, RaggedTensor] | None = None  # action -> as `ActResult.logits`; None where they were not kept
    targets: dict[str, Tensor] | None = None  # target of the space -> (B, size) float32; None: it has none
    values: Tensor  # (B,) float32, V(s_t) of the policy that acted
    rewards: Tensor  # (B,) float32, for the actions taken in this frame
    terminated: Tensor  # (B,) bool, the episode ended by its own rules with these actions
    truncated: Tensor  # (B,) bool, the episode was cut after them
    final_values: Tensor  # (B,) float32, V of the episode's last observation where truncated (NaN: unknown), else 0

    @property
    def num_actors(self) -> Tensor:
        """(B,) int64, actors of all actions in each frame."""
        return torch.stack([action.lengths for action in self.actions.values()]).sum(dim=0)

    @property
    def frames_of_actors(self) -> Tensor:
        """(A,) int64, the frame of each actor, action by action."""
        frames = torch.arange(len(self), device=self.values.device)
        return torch.cat(
            [
                torch.repeat_interleave(frames, action.lengths, output_size=len(action.values))
                for action in self.actions.values()
            ]
        )


def cat_columns(columns: Sequence[Any], cat: Cat) -> Any:
    """One column of several parts; None unless all of them have it."""
    first = columns[0]
    if any(column is None for column in columns):
        return None
    if isinstance(first, dict):
        return {name: cat_columns([column[name] for column in columns], cat) for name in first}
    if isinstance(first, ObsBatch):
        return ObsBatch.cat(columns, cat)
    return cat(columns) if isinstance(first, RaggedTensor) else torch.cat(list(columns))


def _gathered(column: Any, gather: Gather) -> Any:
    match column:
        case dict():
            return {name: _gathered(each, gather) for name, each in column.items()}
        case ObsBatch():
            return column.gather(gather)
        case RaggedTensor():
            return gather(column)
        case Tensor():
            return column.index_select(0, gather.sequences)
    return None


def _split(column: Any, cuts: Cuts) -> list[Any]:
    match column:
        case dict():
            parts = {name: _split(each, cuts) for name, each in column.items()}
            return [{name: each[i] for name, each in parts.items()} for i in range(len(cuts.sizes))]
        case ObsBatch():
            return column.split(cuts)
        case RaggedTensor():
            return cuts(column)
        case Tensor():
            return list(torch.split(column, cuts.sizes))
    return [None] * len(cuts.sizes)


def _mapped(column: Any, change: Callable[[Tensor], Any]) -> Any:
    match column:
        case dict():
            return {name: _mapped(each, change) for name, each in column.items()}
        case ObsBatch() | RaggedTensor():
            return column.map(change)
    return None if column is None else change(column)


def _offsets(column: Any) -> list[Tensor]:
    match column:
        case dict():
            return [offsets for each in column.values() for offsets in _offsets(each)]
        case ObsBatch():
            return column.offsets
        case RaggedTensor():
            return [column.offsets]
    return []
