"""Rows and coefficients of relative positions on CPUs, for one query and all keys of its frame at a time.

The formulas are those of `RelativePositions.terms` without projections; here they are once more, in vectors of keys. Rows are
kept as float32, which holds every number up to 2^24.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from rogue_net.config import rotates
from rogue_net.kernels.cpu.compiling import Count, Floats, Ints, Number, address, inline, value
from rogue_net.kernels.cpu.simd import (
    absolute,
    floor,
    fma,
    load,
    maximum,
    minimum,
    spread,
    square_root,
    store,
    where_positive,
)
from rogue_net.relative.relative_positions import RelativePositions

GRID, RADIAL, DISTANCE, POLAR = range(4)
_KINDS = {"grid": GRID, "radial": RADIAL, "distance": DISTANCE, "polar": POLAR}

# arctan(r) = r (1 + a_1 r^2 + a_2 r^4 + ... + a_8 r^16) within 2e-8 for r in [-1, 1]
# (Abramowitz and Stegun 1964, "Handbook of Mathematical Functions", 4.4.49), from a_8 to a_1
_ARCTAN = (
    0.0028662257, -0.0161657367, 0.0429096138, -0.0752896400, 0.1065626393, -0.1420889944, 0.1999355085, -0.3333314528,
)  # fmt: skip
_PER_TURN = np.float32(1 / (2 * math.pi))


class Scheme(NamedTuple):
    """Parameters by which pairs choose rows. Constants of other modules are passed, too: Numba's cache would not see a change."""

    kind: Count
    interpolate: Count  # whether
    turns: Count  # whether
    dimensions: Count  # n
    axes: Count
    sizes: Ints  # (axes,) buckets
    extents: Floats  # (axes,) e of a grid
    per_scale: Number  # buckets per unit of distance
    rounding: Number  # added to a position on an axis before it is rounded down to a bucket
    terms: Count  # M


class Places(NamedTuple):
    """Positions of the tokens of a tile. Vectors of keys may reach behind the last token: there is more room."""

    room: Count  # E + LANES
    positions: Floats  # (n, room)
    facing: Floats  # (E, 2)
    counts: Floats  # (room,) 1, or 0 for an excluded entity
    value_blocks: Ints  # (E,) where the rows of the token's type start in the values, in floats


def scheme_of(positions: RelativePositions, held: list[Any]) -> Scheme:
    """The terms of the pairs, as kernels take them; `held` gets the owners of their memory."""
    config = positions.config
    sizes = torch.tensor(positions.sizes)
    extents = torch.tensor(config.extent, dtype=torch.float32)
    held += [sizes, extents]
    return Scheme(
        kind=_KINDS[config.kind],
        interpolate=config.interpolate,
        turns=rotates(config),
        dimensions=len(config.position_features),
        axes=len(positions.sizes),
        sizes=address(sizes),
        extents=address(extents),
        per_scale=1 / config.scale,
        rounding=positions.rounding,
        terms=positions.num_bucket_terms,
    )


#: Of a network without relative positions.
NO_SCHEME = Scheme(*(0 for _ in Scheme._fields))  # type: ignore[arg-type]


@inline
def relate(lanes, scheme, places, first, length, i, scratch):  # type: ignore[no-untyped-def]
    """Write the terms of token `first + i` and the tokens `first:first + length` of its frame.

    Args:
        scratch: its `rows`, in the block of a type, and `coefficients` are the result.
    """
    rows, coefficients, room = scratch.rows, scratch.coefficients, scratch.room
    for j in range(0, length, value(lanes)):
        _compare(lanes, scheme, places, first + i, first + j, scratch.components)
        counts = load(lanes, places.counts, first + j) * places.counts[first + i]
        store(rows, j, spread(lanes, np.float32(0)))
        store(coefficients, j, counts)
        terms, stride = 1, 1
        for axis in range(scheme.axes):
            position = _position(lanes, scheme, scratch.components, axis)
            size = scheme.sizes[axis]
            circular = axis == 0 and (scheme.kind == RADIAL or scheme.kind == POLAR)
            if scheme.interpolate:
                _split(lanes, position, size, circular, stride, rows, coefficients, j, terms, room)
                terms *= 2
            else:
                below = floor(position + scheme.rounding)
                store(rows, j, load(lanes, rows, j) + _within(lanes, below, size, circular) * stride)
            stride *= size


@inline
def _compare(lanes, scheme, places, i, j, components):  # type: ignore[no-untyped-def]
    """The components of the pairs of token i with the tokens from j on: differences as i sees them, and their length."""
    for d in range(scheme.dimensions):
        p = places.positions[d * places.room + i]
        store(components, d * value(lanes), p - load(lanes, places.positions, d * places.room + j))
    if scheme.turns:
        x, y = load(lanes, components, 0), load(lanes, components, value(lanes))
        cosine, sine = places.facing[2 * i], places.facing[2 * i + 1]
        store(components, 0, cosine * x + sine * y)
        store(components, value(lanes), cosine * y - sine * x)
    squares = spread(lanes, np.float32(0))
    for d in range(scheme.dimensions):
        difference = load(lanes, components, d * value(lanes))
        squares = fma(difference, difference, squares)
    store(components, scheme.dimensions * value(lanes), square_root(squares))


@inline
def _position(lanes, scheme, components, axis):  # type: ignore[no-untyped-def]
    """Positions of pairs on an axis, in buckets. Never NaN, whatever the positions are: rows are looked up without checks."""
    if scheme.kind == GRID:
        extent = spread(lanes, scheme.extents[axis])
        difference = load(lanes, components, axis * value(lanes)) * scheme.per_scale
        return minimum(maximum(difference, spread(lanes, -scheme.extents[axis])), extent) + extent
    if axis == 0 and scheme.kind != DISTANCE:
        turns = _turns(lanes, load(lanes, components, 0), load(lanes, components, value(lanes)))
        distance = load(lanes, components, scheme.dimensions * value(lanes))
        turns = where_positive(np.float32(0) - distance, spread(lanes, np.float32(0)), turns)
        return minimum(turns * scheme.sizes[0], spread(lanes, np.float32(scheme.sizes[0])))
    distance = load(lanes, components, scheme.dimensions * value(lanes)) * scheme.per_scale
    return minimum(distance, spread(lanes, np.float32(scheme.sizes[axis] - 1)))


@inline
def _turns(lanes, x, y):  # type: ignore[no-untyped-def]
    """The angle of (x, y) from the first axis, counterclockwise, in turns: [0, 1]."""
    across, up = absolute(x), absolute(y)
    longer = maximum(maximum(across, up), spread(lanes, np.float32(1e-30)))
    r = minimum(across, up) / longer
    square = r * r
    series = spread(lanes, np.float32(_ARCTAN[0]))
    for coefficient in _ARCTAN[1:]:
        series = fma(series, square, spread(lanes, np.float32(coefficient)))
    turns = fma(series, square, spread(lanes, np.float32(1))) * r * _PER_TURN  # at most 1/8
    turns = where_positive(across - up, turns, np.float32(0.25) - turns)
    turns = where_positive(x, turns, np.float32(0.5) - turns)
    return where_positive(y, turns, np.float32(1) - turns)


@inline
def _within(lanes, bucket, size, circular):  # type: ignore[no-untyped-def]
    last = spread(lanes, np.float32(size - 1))
    if circular:  # at most one beyond the number of buckets, which is beyond the last one of a single bucket too
        return where_positive(bucket - size, minimum(bucket - size, last), bucket)
    return minimum(bucket, last)


@inline
def _split(lanes, position, size, circular, stride, rows, coefficients, j, terms, room):  # type: ignore[no-untyped-def]
    """Share each term between the two buckets next to a position."""
    below = floor(position)
    share = position - below
    low = _within(lanes, below, size, circular) * stride
    high = _within(lanes, below + np.float32(1), size, circular) * stride
    for m in range(terms):
        at, to = m * room + j, (m + terms) * room + j
        row, coefficient = load(lanes, rows, at), load(lanes, coefficients, at)
        store(rows, at, row + low)
        store(rows, to, row + high)
        store(coefficients, at, coefficient * (np.float32(1) - share))
        store(coefficients, to, coefficient * share)
