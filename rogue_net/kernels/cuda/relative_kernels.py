"""Attention with relative positions among the entities of a frame, in Triton.

    s_ij = q_i · (k_j + a_ij) / sqrt(K),   y_i = sum_j p_ij (v_j + gate_j * b_ij)

as `attention_kernels.py` computes without a and b, which are sums of rows of two tables that all heads share:

    a_ij = sum_m c_ijm keys[r_ijm],   b_ij = sum_m c_ijm values[r_ijm]

They are gathered for a tile of pairs at a time, and never leave the registers. `relative_backward_kernels.py` has
the gradient.

Pairs are numbered: pair (i, j) of a frame is pairs_i + j - first_i. Of their M terms the first BUCKETS have the row that `places`
names; those of the projections, so many as KEY_PROJECTED and VALUE_PROJECTED say, have the rows from NUM_BUCKETS on. The tables
have KEY_BLOCK and VALUE_BLOCK rows from one type of key to the next.
"""

import triton
import triton.language as tl

from rogue_net.kernels.cuda.attention_kernels import (
    LOG2_E,
    NOTHING,
    are_visible,
    finite,
    fold,
    masked,
    may_attend,
    neighbours,
    normalized,
    normalizer,
    product,
    put_rows,
    rows,
)


@triton.jit
def pairs_of(pairs, tokens, inside, first, j):
    """(i, j) int64: the numbers of pairs of the tokens, whose frames begin at `first`, with the keys j."""
    own = tl.load(pairs + tokens, mask=inside, other=0)
    return own[:, None] + (j[None, :] - first[:, None]).to(tl.int64)


@triton.jit
def related(
    table,
    places,
    coefficients,
    num_pairs,
    pair,
    allowed,
    j_type,
    BLOCK: tl.constexpr,
    BUCKETS: tl.constexpr,
    PROJECTED: tl.constexpr,
    NUM_BUCKETS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """(i, j, COLUMNS): sum_m c_ijm table[r_ijm], 0 for pairs that are not allowed."""
    columns = tl.arange(0, COLUMNS)
    real = (columns < WIDTH)[None, None, :] & allowed[:, :, None]
    total = tl.zeros([allowed.shape[0], allowed.shape[1], COLUMNS], tl.float32)
    for m in range(BUCKETS):
        row = tl.load(places + m * num_pairs + pair, mask=allowed, other=0) + (j_type * BLOCK)[None, :]
        coefficient = tl.load(coefficients + m * num_pairs + pair, mask=allowed, other=0.0)
        numbers = tl.load(table + (row * WIDTH)[:, :, None] + columns[None, None, :], mask=real, other=0.0)
        total += coefficient[:, :, None] * numbers
    for m in range(PROJECTED):
        row = NUM_BUCKETS + m + j_type * BLOCK
        coefficient = tl.load(coefficients + (BUCKETS + m) * num_pairs + pair, mask=allowed, other=0.0)
        numbers = tl.load(table + (row * WIDTH)[:, None] + columns[None, :], mask=(columns < WIDTH)[None, :], other=0.0)
        total += coefficient[:, :, None] * numbers[None, :, :]
    return total


@triton.jit
def gated(relvalue, gate, j, near, GATED: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr):
    """gate_j * b_ij; b_ij where there is no gate."""
    result = relvalue
    if GATED:
        result = relvalue * rows(gate, j, WIDTH, near, COLUMNS, WIDTH).to(tl.float32)[None, :, :]
    return result


@triton.jit(do_not_specialize=["num_tokens", "num_pairs"])
def attend(
    q,
    k,
    v,
    keys,
    values,
    gate,
    first,
    last,
    visible,
    pairs,
    types,
    places,
    coefficients,
    out,
    norms,
    num_tokens,
    num_pairs,
    num_heads,
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    scale,
    HIDES: tl.constexpr,
    GATED: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    BUCKETS: tl.constexpr,
    KEY_PROJECTED: tl.constexpr,
    VALUE_PROJECTED: tl.constexpr,
    NUM_BUCKETS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attend.

    Args:
        keys, values: (rows, K) fp32, the tables.
        gate: (E, K) contiguous, read if GATED.
        pairs: (E,) int64, the first pair of each token.
        types: (E,) int32, the type of each token as a key, from 0.
        places: (BUCKETS, P) int32, rows.
        coefficients: (M, P) fp32.
        num_pairs: P.
        others: see `rogue_net.kernels.cuda.attention_kernels.attend`.
    """
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    num_pairs = num_pairs.to(tl.int64)
    i = tile * QUERIES + tl.arange(0, QUERIES)
    real = i < num_tokens
    i_first = tl.load(first + i, mask=real, other=0)
    i_last = tl.load(last + i, mask=real, other=0)
    i_visible = are_visible(visible, i, real, HIDES)
    low, high = neighbours(first, last, tile * QUERIES, num_tokens, QUERIES)
    query = rows(q + head * q_head, i, q_token, real, COLUMNS, WIDTH)

    top = tl.full([QUERIES], NOTHING, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mean = tl.zeros([QUERIES, COLUMNS], tl.float32)
    for start in range(low, high, KEYS):
        j = start + tl.arange(0, KEYS)
        near = j < high
        key = rows(k + head * k_head, j, k_token, near, COLUMNS, WIDTH)
        value, are_finite = finite(rows(v + head * v_head, j, v_token, near, COLUMNS, WIDTH))
        allowed = may_attend(i_first, i_last, i_visible, j, are_visible(visible, j, near, HIDES), HIDES)
        pair = pairs_of(pairs, i, real, i_first, j)
        j_type = tl.load(types + j, mask=near, other=0)
        relkey = related(
            keys, places, coefficients, num_pairs, pair, allowed, j_type,
            KEY_BLOCK, BUCKETS, KEY_PROJECTED, NUM_BUCKETS, COLUMNS, WIDTH,
        )  # fmt: skip
        scores = product(query, tl.trans(key), PRECISION) + tl.sum(query.to(tl.float32)[:, None, :] * relkey, axis=2)
        scores = masked(scores * (scale * LOG2_E), allowed, are_finite)
        weights, fade, top, total = fold(scores, top, total)
        relvalue = related(
            values, places, coefficients, num_pairs, pair, allowed, j_type,
            VALUE_BLOCK, BUCKETS, VALUE_PROJECTED, NUM_BUCKETS, COLUMNS, WIDTH,
        )  # fmt: skip
        relvalue = tl.where(allowed[:, :, None], gated(relvalue, gate, j, near, GATED, COLUMNS, WIDTH), 0.0)
        mean = (
            mean * fade[:, None] + product(weights, value, PRECISION) + tl.sum(weights[:, :, None] * relvalue, axis=1)
        )

    put_rows(out + head * WIDTH, i, num_heads * WIDTH, real, normalized(mean, total), COLUMNS, WIDTH)
    tl.store(norms + head * num_tokens + i, normalizer(top, total), mask=real)
