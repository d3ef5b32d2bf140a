"""Features of entities as the linear layers of the embedding take them."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rogue_net.embedding import EntityEmbedding
from rogue_net.kernels.cpu.compiling import Count, Floats, Ints, address, bind, inline, kernel
from rogue_net.normalization import RunningNorm

LIMIT = np.float32(RunningNorm.LIMIT)


@kernel
def prepare(
    num_frames: Count,
    offsets: Ints,
    features: Floats,
    num_features: Count,
    joining: Floats,
    num_joining: Count,
    columns: Ints,
    num_plain: Count,
    num_angles: Count,
    num_flags: Count,
    num_ids: Count,
    offset: Floats,
    scale: Floats,
    inputs: Floats,
    stride: Count,
    ids: Ints,
    wrong: Ints,
) -> None:
    """Write inputs and ids of all entities of a type; see `EntityEmbedding.inputs` and `RunningNorm`.

    Args:
        num_frames: B.
        offsets: (B + 1) entities of each frame.
        features: (n, num_features).
        num_features: of the entities themselves.
        joining: (B, num_joining) global features, which follow theirs.
        num_joining: how many.
        columns: of plain numbers, angles, flags and categories, and then the number of ids of each category.
        num_plain: plain numbers.
        num_angles: angles.
        num_flags: flags.
        num_ids: categories.
        offset: (num_plain) that is subtracted.
        scale: (num_plain) that it is multiplied with.
        inputs: result, (n, stride); what is behind the inputs stays as it is.
        stride: numbers in a row.
        ids: result, (n, num_ids).
        wrong: result, (2) if an id is not in its table: the entity and the category.
    """
    angles, flags = num_plain, num_plain + num_angles
    categories = flags + num_flags
    for frame in range(num_frames):
        for entity in range(offsets[frame], offsets[frame + 1]):
            to = entity * stride
            for c in range(num_plain):
                x = _feature(features, num_features, joining, num_joining, entity, frame, columns[c])
                x = (x - offset[c]) * scale[c]
                if x > LIMIT:
                    x = LIMIT
                elif x < -LIMIT:
                    x = -LIMIT
                inputs[to + c] = x
            for c in range(num_angles):
                x = _feature(features, num_features, joining, num_joining, entity, frame, columns[angles + c])
                inputs[to + angles + c] = np.float32(math.cos(x))
                inputs[to + flags + c] = np.float32(math.sin(x))
            for c in range(num_flags):
                x = _feature(features, num_features, joining, num_joining, entity, frame, columns[flags + c])
                inputs[to + flags + num_angles + c] = x
            for c in range(num_ids):
                x = _feature(features, num_features, joining, num_joining, entity, frame, columns[categories + c])
                count = columns[categories + num_ids + c]
                if not (x >= 0 and x < count):  # NaN is neither
                    wrong[0], wrong[1] = entity, c
                    return
                ids[entity * num_ids + c] = int(x)


@inline
def _feature(features, num_features, joining, num_joining, entity, frame, column):  # type: ignore[no-untyped-def]
    if column < num_features:
        return features[entity * num_features + column]
    return joining[frame * num_joining + column - num_features]


class Inputs:
    """Prepares the features of one entity type.

    Args:
        entity: its embedding.
    """

    def __init__(self, entity: EntityEmbedding) -> None:
        self._entity, columns = entity, entity.columns
        sources = [*columns.plain, *columns.angles, *columns.flags, *(each.column for each in columns.categories)]
        self._columns = np.array([*sources, *(each.kind.num for each in columns.categories)], np.int64)
        self._counts = tuple(map(len, (columns.plain, columns.angles, columns.flags, columns.categories)))
        self._nothing = torch.zeros(1)
        self._run = bind(prepare)

    def __call__(
        self, features: Tensor, offsets: Tensor, joining: Tensor | None, stride: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Inputs (n, stride) and ids (n, categories).

        Args:
            features: (n, F) float32.
            offsets: (B + 1,) int64, entities of each frame.
            joining: (B, G) float32, global features; None: there are none.
            stride: numbers in a row, at least as many as there are inputs; the others are 0.

        Raises:
            ValueError: an id is not in its table.
        """
        features = features.contiguous()
        rows = len(features)
        inputs = np.zeros((rows, stride), np.float32)
        ids = np.empty((rows, self._counts[-1]), np.int64)
        wrong = np.full(2, -1, np.int64)
        norm = self._entity.norm if self._counts[0] else None
        offset, scale = (self._nothing, self._nothing) if norm is None else (norm.offset, norm.scale)
        joined = self._nothing if joining is None else joining
        self._run(
            len(offsets) - 1, address(offsets), address(features), features.shape[1], address(joined),
            0 if joining is None else joining.shape[1], address(self._columns), *self._counts, address(offset),
            address(scale), address(inputs), stride, address(ids), address(wrong),
        )  # fmt: skip
        if wrong[0] >= 0:
            self._refuse(features, offsets, joining, *wrong.tolist())
        return inputs, ids

    def _refuse(self, features: Tensor, offsets: Tensor, joining: Tensor | None, entity: int, category: int) -> None:
        column, kind = self._entity.columns.categories[category]
        if column < features.shape[1]:
            wrong = float(features[entity, column])
        else:
            assert joining is not None
            frame = int(np.searchsorted(offsets.numpy(), entity, "right")) - 1
            wrong = float(joining[frame, column - features.shape[1]])
        raise ValueError(
            f"{self._entity.name!r}: category {kind.name!r} is {wrong:g}; ids are whole numbers from 0 to {kind.num - 1}"
        )
