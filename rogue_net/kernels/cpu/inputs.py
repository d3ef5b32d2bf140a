"""Features of entities as the linear layers of the embedding take them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rogue_net.inputs.embedding import EntityEmbedding
from rogue_net.inputs.normalization import RunningNorm
from rogue_net.kernels.cpu.calling import floats_at, ints_at, shifted
from rogue_net.kernels.cpu.compiling import Count, Floats, Ints, Table, inline, kernel
from rogue_net.kernels.cpu.tables import EntityType

LIMIT = np.float32(RunningNorm.LIMIT)


def sources_of(entity: EntityEmbedding) -> NDArray[np.int64]:
    """Columns of plain numbers, angles, flags and categories, and then the number of ids of each category."""
    columns = entity.columns
    sources = [*columns.plain, *columns.angles, *columns.flags, *columns.categories]
    return np.array([*sources, *(each.num for each in columns.categories.values())], np.int64)


@kernel
def prepare(
    num_frames: Count, num_types: Count, types: Table[EntityType], joining: Floats, num_joining: Count, wrong: Ints
) -> None:
    """Write inputs and ids of all entities; see `EntityEmbedding.inputs` and `RunningNorm`.

    Args:
        num_frames: B.
        types: see `tables`; inputs and ids are the result. What is behind a row's inputs becomes 0.
        joining: (B, num_joining) global features, which follow those of types that they join.
        wrong: result, (1) the first type with an id that is not in its table, or -1.
    """
    wrong[0] = -1
    for number in range(num_types):
        if types[number].vector < 0:
            _prepare(num_frames, number, types[number], joining, num_joining, wrong)
            if wrong[0] >= 0:
                return


@inline
def _prepare(num_frames, number, of_type, joining, num_joining, wrong):  # type: ignore[no-untyped-def]
    offsets, features, num_features = ints_at(of_type.offsets), floats_at(of_type.features), of_type.num_features
    inputs, stride, ids, num_ids = floats_at(of_type.inputs), of_type.stride, ints_at(of_type.ids), of_type.num_ids
    num_plain, num_angles, num_flags = of_type.num_plain, of_type.num_angles, of_type.num_flags
    columns, offset, scale = ints_at(of_type.sources), floats_at(of_type.norm_offset), floats_at(of_type.norm_scale)
    angles, flags = num_plain, num_plain + num_angles
    categories = flags + num_flags
    own = num_joining if of_type.joins else 0
    for frame in range(num_frames):
        joined = shifted(joining, frame * own)
        for entity in range(offsets[frame], offsets[frame + 1]):
            row, to = shifted(features, entity * num_features), entity * stride
            for c in range(num_plain):
                x = (_feature(row, num_features, joined, columns[c]) - offset[c]) * scale[c]
                if x > LIMIT:
                    x = LIMIT
                elif x < -LIMIT:
                    x = -LIMIT
                inputs[to + c] = x
            for c in range(num_angles):
                x = _feature(row, num_features, joined, columns[angles + c])
                inputs[to + angles + c] = np.float32(math.cos(x))
                inputs[to + flags + c] = np.float32(math.sin(x))
            for c in range(num_flags):
                inputs[to + flags + num_angles + c] = _feature(row, num_features, joined, columns[flags + c])
            for c in range(categories + num_angles, stride):
                inputs[to + c] = np.float32(0)
            for c in range(num_ids):
                x = _feature(row, num_features, joined, columns[categories + c])
                count = columns[categories + num_ids + c]
                if not (x >= 0 and x < count):  # NaN is neither
                    wrong[0] = number
                    return
                ids[entity * num_ids + c] = int(x)


@inline
def _feature(row, num_features, joined, column):  # type: ignore[no-untyped-def]
    return row[column] if column < num_features else joined[column - num_features]
