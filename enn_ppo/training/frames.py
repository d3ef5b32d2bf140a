"""Frames as a table: each column holds one value per frame.

A subclass of `Columns` is a frozen dataclass whose fields are the columns: (B, ...) numbers, B sequences, observations, a
mapping of names to these, or None if a column is absent. A new column is one more field, with the default None
for frames that do not have it, and the line that fills it: gathering, splitting, concatenating and moving to a device go
through all fields.

Shapes: B frames, ordered by step and then by environment unless said otherwise; A actors of an action in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from rogue_net import ObsBatch, RaggedTensor, State
from rogue_net.batch.crossing import is_on, to_device
from rogue_net.batch.ragged import Cat, Cuts, Gather


@dataclass(frozen=True, kw_only=True)
class Columns:
    """B frames."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def gather(self, frames: Tensor, *, all_of_them: bool = False) -> Self:
        """Select frames by index.

        Args:
            frames: (n,) int64 indices of frames, in the order of the result.
            all_of_them: `frames` is a permutation of all frames, which avoids a synchronisation with the device.
        """
        gather = Gather(frames, all_of_them=all_of_them)
        return self._replaced(lambda column: _gathered(column, gather))

    def split(self, sizes: Sequence[int]) -> list[Self]:
        """Split into consecutive parts of `sizes` frames, which share memory. Synchronises with the device once."""
        if len(sizes) == 1:
            return [self]
        cuts = Cuts(sizes, [each for field in fields(self) for each in _offsets(getattr(self, field.name))])
        parts = {field.name: _split(getattr(self, field.name), cuts) for field in fields(self)}
        return [replace(self, **{name: parts[name][i] for name in parts}) for i in range(len(sizes))]

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Concatenate parts. A column that a part lacks is dropped."""
        if len(parts) == 1:
            return parts[0]
        cat = Cat()
        return cls(
            **{field.name: cat_columns([getattr(part, field.name) for part in parts], cat) for field in fields(cls)}
        )

    def map(self, change: Callable[[Tensor], Any]) -> Self:
        """Replace every tensor by `change(tensor)`, which is called once for a tensor that occurs several times."""
        changed: dict[int, tuple[Tensor, Any]] = {}

        def once(tensor: Tensor) -> Any:
            if id(tensor) not in changed:
                changed[id(tensor)] = tensor, change(tensor)
            return changed[id(tensor)][1]

        return self._replaced(lambda column: _mapped(column, once))

    def tensors(self) -> list[Tensor]:
        """All distinct tensors, in a fixed order."""
        found: list[Tensor] = []
        self.map(lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
        return found

    def _replaced(self, change: Callable[[Any], Any]) -> Self:
        return replace(self, **{field.name: change(getattr(self, field.name)) for field in fields(self)})


@dataclass(frozen=True, kw_only=True)
class Frames(Columns):
    """B frames of a rollout: observations, actions, log-probs, values and rewards."""

    obs: ObsBatch
    env_id: Tensor  # (B,) int64, the number of the environment
    step: Tensor  # (B,) int64, steps of the episode before this frame; 0 for its first
    actions: dict[str, RaggedTensor]  # action -> B sequences of (A, 1) int64 or (A, n) float32
    log_probs: dict[str, RaggedTensor]  # action -> B sequences of (A,) float32, under the policy that acted
    state: State | None = None  # what the policy knew before each frame; None: it remembers nothing
    instance: Tensor | None = None  # (B,) int64, equal where members of a group play the same episode; None: no groups
    targets: dict[str, Tensor] | None = None  # target -> (B, size) float32; None: the space has no targets
    values: Tensor  # (B,) float32, V(s_t) of the policy that acted
    rewards: Tensor  # (B,) float32, for the actions taken in this frame
    terminated: Tensor  # (B,) bool, the episode ended by its own rules with these actions
    truncated: Tensor  # (B,) bool, the episode was cut after them
    final_values: Tensor  # (B,) float32, V of the episode's last observation where truncated (NaN: unknown), else 0

    def to(self, device: torch.device) -> Self:
        """Copy the frames to a device; from the CPU, as one asynchronous copy."""
        if is_on(self.obs.device, device):
            return self
        if self.obs.device.type != "cpu":
            return self.map(lambda tensor: tensor.to(device))
        moved: Iterator[Tensor] = iter(to_device(self.tensors(), device))
        return self.map(lambda _: next(moved))

    @property
    def num_actors(self) -> Tensor:
        """(B,) int64, number of actors of all actions in each frame."""
        return torch.stack([of_actors.lengths for of_actors in self.log_probs.values()]).sum(dim=0)

    @property
    def frames_of_actors(self) -> Tensor:
        """(A,) int64, index of each actor's frame, action by action."""
        frames = torch.arange(len(self), device=self.values.device)
        return torch.cat(
            [
                torch.repeat_interleave(frames, of_actors.lengths, output_size=len(of_actors.values))
                for of_actors in self.log_probs.values()
            ]
        )


def cat_columns(columns: Sequence[Any], cat: Cat) -> Any:
    """Concatenate one column of several parts; None if a part lacks it."""
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
