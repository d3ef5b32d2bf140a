"""What ragged buffers are made of: pure functions of values and offsets, and the wording of their errors.

Shapes: S sequences, I items of all sequences, F features.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.packing import offsets_of, rows_of

ALL = slice(None)


class Ragged(Protocol):
    """Sequence i is values[offsets[i]:offsets[i + 1]]."""

    @property
    def values(self) -> NDArray[Any]:
        """(I, F)."""

    @property
    def offsets(self) -> NDArray[np.int64]:
        """(S + 1,)."""


# ---- joining: (values, offsets) of the result


def cat_sequences(parts: Sequence[Ragged]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """All sequences of the first part, then all of the second, and so on."""
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return np.concatenate([part.values for part in parts]), offsets_of(lengths)


def cat_items(parts: Sequence[Ragged]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Sequence i is sequence i of every part, one after another."""
    bases = offsets_of(np.array([len(part.values) for part in parts], dtype=np.int64))
    starts = np.stack([base + part.offsets[:-1] for base, part in zip(bases[:-1], parts, strict=True)], axis=1)
    lengths = np.stack([np.diff(part.offsets) for part in parts], axis=1)  # (S, buffers), as starts
    values = np.concatenate([part.values for part in parts])
    return values[rows_of(starts.ravel(), lengths.ravel())], offsets_of(lengths.sum(axis=1))


def cat_features(parts: Sequence[Ragged]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Features side by side; a sequence of length 1 is repeated, and any empty one makes the result's empty."""
    lengths = np.stack([np.diff(part.offsets) for part in parts])  # (buffers, S)
    common = np.where(lengths.min(axis=0) == 0, 0, lengths.max(axis=0))
    wrong = np.argwhere((lengths != common) & (lengths != 1) & (common != 0))
    if len(wrong):
        part, sequence = wrong[0]
        raise ValueError(
            f"sequence {sequence} has the lengths {brief(lengths[:, sequence])} in the buffers: to stand side by side"
            f" they must be equal, 1 or 0, and that of buffer {part} is not"
        )
    columns = [
        part.values[rows_of(part.offsets[:-1], common, np.where(own == 1, 0, 1))]
        for part, own in zip(parts, lengths, strict=True)
    ]
    return np.concatenate(columns, axis=1), offsets_of(common)


# ---- indexing, growing and messages


def three(index: Any) -> tuple[Any, Any, Any]:
    """An index as one for each axis."""
    if not isinstance(index, tuple):
        return index, ALL, ALL
    if not 1 <= len(index) <= 3:
        raise IndexError(
            f"{len(index)} indices were given: a ragged buffer has 3 axes (sequences, positions, features)"
        )
    return index + (ALL,) * (3 - len(index))


def appended(storage: NDArray[Any] | None, used: NDArray[Any], more: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """`used` (the beginning of `storage`) with `more` behind it: the storage, moved if it was full, and its used part.

    Doubling makes a series of pushes linear; the new arrays leave the old ones, and views on them, as they are.
    """
    size = len(used) + len(more)
    if storage is None or size > len(storage):
        storage = np.empty((max(2 * size, 16), *used.shape[1:]), dtype=used.dtype)
        storage[: len(used)] = used
    storage[len(used) : size] = more
    return storage, storage[:size]


def describe(array: NDArray[Any]) -> str:
    """How messages name an array."""
    return f"{array.dtype} of shape {array.shape}"


def brief(lengths: NDArray[np.int64]) -> str:
    """How messages name lengths."""
    return (
        str(lengths.tolist()) if len(lengths) <= 8 else f"{str(lengths[:8].tolist())[:-1]}, ... {len(lengths)} in all]"
    )


def mismatch(lengths: NDArray[np.int64], others: NDArray[np.int64]) -> str:
    """The message for buffers that do not go together."""
    return (
        f"the lengths are {brief(lengths)} and {brief(others)}: there must be equally many sequences, of equal"
        " lengths or all of length 1 on one side"
    )
