"""The gradient of attention with relative positions, in Triton; `rogue_net/kernels/cuda/relative_kernels.py` has the formulas.

What the pairs take from the tables is gathered anew, and

    da_ij = ds_ij q_i / sqrt(K),   dgate_j = sum_i p_ij dy_i * b_ij,   db_ij = p_ij dy_i * gate_j,
    dkeys[r_ijm] += c_ijm da_ij,   dvalues[r_ijm] += c_ijm db_ij

The last two are added by programs that run at once, in any order; everything else has one order, always. So that programs wait
less for each other, they add to COPIES of the tables, and rows that many pairs of a tile share get their sum.
"""

import triton
import triton.language as tl

from rogue_net.kernels.cuda.attention_kernels import (
    LOG2_E,
    NOTHING,
    are_visible,
    may_attend,
    mean_change,
    neighbours,
    product,
    put_rows,
    rows,
)
from rogue_net.kernels.cuda.relative_kernels import gated, pairs_of, related


@triton.jit
def scatter(
    table,
    places,
    coefficients,
    num_pairs,
    pair,
    allowed,
    j_type,
    changes,
    BLOCK: tl.constexpr,
    BUCKETS: tl.constexpr,
    PROJECTED: tl.constexpr,
    NUM_BUCKETS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Add c_ijm times the (i, j, COLUMNS) changes to the rows r_ijm of the gradient of a table."""
    columns = tl.arange(0, COLUMNS)
    for m in range(BUCKETS):
        row = tl.load(places + m * num_pairs + pair, mask=allowed, other=0) + (j_type * BLOCK)[None, :]
        coefficient = tl.load(coefficients + m * num_pairs + pair, mask=allowed, other=0.0)
        used = (columns < WIDTH)[None, None, :] & (coefficient != 0.0)[:, :, None]
        where = table + (row * WIDTH)[:, :, None] + columns[None, None, :]
        tl.atomic_add(where, coefficient[:, :, None] * changes, mask=used, sem="relaxed")
    for m in range(PROJECTED):
        coefficient = tl.load(coefficients + (BUCKETS + m) * num_pairs + pair, mask=allowed, other=0.0)
        sums = tl.sum(coefficient[:, :, None] * changes, axis=0)  # over the queries
        if BLOCK == 0:
            where = table + (NUM_BUCKETS + m) * WIDTH + columns
            tl.atomic_add(where, tl.sum(sums, axis=0), mask=columns < WIDTH, sem="relaxed")
        else:
            row = NUM_BUCKETS + m + j_type * BLOCK
            used = (columns < WIDTH)[None, :] & (tl.sum(allowed.to(tl.int32), axis=0) > 0)[:, None]
            tl.atomic_add(table + (row * WIDTH)[:, None] + columns[None, :], sums, mask=used, sem="relaxed")


@triton.jit
def backward_of_queries(
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
    dout,
    dq,
    dkeys,
    dvalues,
    own,
    real,
    low,
    high,
    size,
    num_pairs,
    q_token,
    k_token,
    v_token,
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
    """Write dq of the tokens `own`, where they are `real`, and add what their pairs leave in the tables' gradients.

    All pointers are at the head; `low:high` are keys to look at.
    """
    own_first = tl.load(first + own, mask=real, other=0)
    own_last = tl.load(last + own, mask=real, other=0)
    own_visible = are_visible(visible, own, real, HIDES)
    query = rows(q, own, q_token, real, COLUMNS, WIDTH)
    grad = rows(dout, own, size, real, COLUMNS, WIDTH)
    change = mean_change(rows(out, own, size, real, COLUMNS, WIDTH), grad)
    norm = tl.load(norms + own, mask=real, other=0.0)
    dquery = tl.zeros([QUERIES, COLUMNS], tl.float32)
    for start in range(low, high, KEYS):
        j = start + tl.arange(0, KEYS)
        near = j < high
        key = rows(k, j, k_token, near, COLUMNS, WIDTH)
        value = rows(v, j, v_token, near, COLUMNS, WIDTH)
        allowed = may_attend(own_first, own_last, own_visible, j, are_visible(visible, j, near, HIDES), HIDES)
        pair = pairs_of(pairs, own, real, own_first, j)
        j_type = tl.load(types + j, mask=near, other=0)
        relvalue = related(
            values, places, coefficients, num_pairs, pair, allowed, j_type,
            VALUE_BLOCK, BUCKETS, VALUE_PROJECTED, NUM_BUCKETS, COLUMNS, WIDTH,
        )  # fmt: skip
        relvalue = gated(relvalue, gate, j, near, GATED, COLUMNS, WIDTH)
        changes = product(grad, tl.trans(value), PRECISION)
        changes += tl.sum(grad.to(tl.float32)[:, None, :] * relvalue, axis=2)
        relkey = related(
            keys, places, coefficients, num_pairs, pair, allowed, j_type,
            KEY_BLOCK, BUCKETS, KEY_PROJECTED, NUM_BUCKETS, COLUMNS, WIDTH,
        )  # fmt: skip
        scores = product(query, tl.trans(key), PRECISION) + tl.sum(query.to(tl.float32)[:, None, :] * relkey, axis=2)
        weights = tl.exp2(tl.where(allowed, scores * (scale * LOG2_E) - norm[:, None], NOTHING))
        slopes = weights * (changes - change[:, None]) * scale
        dquery += product(slopes, key, PRECISION) + tl.sum(slopes[:, :, None] * relkey, axis=1)
        scatter(
            dkeys, places, coefficients, num_pairs, pair, allowed, j_type,
            slopes[:, :, None] * query.to(tl.float32)[:, None, :],
            KEY_BLOCK, BUCKETS, KEY_PROJECTED, NUM_BUCKETS, COLUMNS, WIDTH,
        )  # fmt: skip
        dvalue = gated(weights[:, :, None] * grad.to(tl.float32)[:, None, :], gate, j, near, GATED, COLUMNS, WIDTH)
        scatter(
            dvalues, places, coefficients, num_pairs, pair, allowed, j_type, dvalue,
            VALUE_BLOCK, BUCKETS, VALUE_PROJECTED, NUM_BUCKETS, COLUMNS, WIDTH,
        )  # fmt: skip
    put_rows(dq, own, 3 * size, real, dquery, COLUMNS, WIDTH)


@triton.jit
def backward_of_keys(
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
    dout,
    dk,
    dv,
    dgate,
    own,
    real,
    low,
    high,
    size,
    num_pairs,
    q_token,
    k_token,
    v_token,
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
    """Write dk, dv and dgate of the tokens `own`, as `backward_of_queries` does: those who see them are in the same range."""
    own_visible = are_visible(visible, own, real, HIDES)
    key = rows(k, own, k_token, real, COLUMNS, WIDTH)
    value = rows(v, own, v_token, real, COLUMNS, WIDTH)
    own_type = tl.load(types + own, mask=real & (own < high), other=0)  # padding has no type
    dkey = tl.zeros([QUERIES, COLUMNS], tl.float32)
    dvalue = tl.zeros([QUERIES, COLUMNS], tl.float32)
    dopen = tl.zeros([QUERIES, COLUMNS], tl.float32)
    for start in range(low, high, KEYS):
        i = start + tl.arange(0, KEYS)
        near = i < high
        i_first = tl.load(first + i, mask=near, other=0)
        i_last = tl.load(last + i, mask=near, other=0)
        query = rows(q, i, q_token, near, COLUMNS, WIDTH)
        grad = rows(dout, i, size, near, COLUMNS, WIDTH)
        change = mean_change(rows(out, i, size, near, COLUMNS, WIDTH), grad)
        norm = tl.load(norms + i, mask=near, other=0.0)
        allowed = may_attend(i_first, i_last, are_visible(visible, i, near, HIDES), own, own_visible, HIDES)
        pair = pairs_of(pairs, i, near, i_first, own)
        relkey = related(
            keys, places, coefficients, num_pairs, pair, allowed, own_type,
            KEY_BLOCK, BUCKETS, KEY_PROJECTED, NUM_BUCKETS, COLUMNS, WIDTH,
        )  # fmt: skip
        scores = product(query, tl.trans(key), PRECISION) + tl.sum(query.to(tl.float32)[:, None, :] * relkey, axis=2)
        weights = tl.exp2(tl.where(allowed, scores * (scale * LOG2_E) - norm[:, None], NOTHING))
        relvalue = related(
            values, places, coefficients, num_pairs, pair, allowed, own_type,
            VALUE_BLOCK, BUCKETS, VALUE_PROJECTED, NUM_BUCKETS, COLUMNS, WIDTH,
        )  # fmt: skip
        opened = gated(relvalue, gate, own, real, GATED, COLUMNS, WIDTH)
        changes = product(grad, tl.trans(value), PRECISION)
        changes += tl.sum(grad.to(tl.float32)[:, None, :] * opened, axis=2)
        slopes = weights * (changes - change[:, None])
        dvalue += product(tl.trans(weights), grad, PRECISION)
        dkey += product(tl.trans(slopes), query, PRECISION)
        if GATED:
            dopen += tl.sum(weights[:, :, None] * grad.to(tl.float32)[:, None, :] * relvalue, axis=0)
    put_rows(dk, own, 3 * size, real, dkey * scale, COLUMNS, WIDTH)
    put_rows(dv, own, 3 * size, real, dvalue, COLUMNS, WIDTH)
    if GATED:
        put_rows(dgate, own, size, real, dopen, COLUMNS, WIDTH)


@triton.jit(do_not_specialize=["num_tokens", "num_pairs"])
def attend_backward(
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
    dout,
    dqkv,
    dkeys,
    dvalues,
    dgate,
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
    key_numbers,
    value_numbers,
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
    COPIES: tl.constexpr,
):
    """The gradient of `rogue_net.kernels.cuda.relative_kernels.attend`.

    Args:
        dkeys, dvalues: (COPIES, rows, K) fp32, added to.
        dgate: (E, H, K) fp32, written if GATED: what each head leaves in the gradient of the gate.
        key_numbers, value_numbers: rows * K of the tables.
        others: see `relative_kernels.attend` and `attention_kernels.attend_backward`.
    """
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    num_pairs = num_pairs.to(tl.int64)
    own = tile * QUERIES + tl.arange(0, QUERIES)
    real = own < num_tokens
    low, high = neighbours(first, last, tile * QUERIES, num_tokens, QUERIES)
    size = num_heads * WIDTH
    q, k, v = q + head * q_head, k + head * k_head, v + head * v_head
    out, dout, norms = out + head * WIDTH, dout + head * WIDTH, norms + head * num_tokens
    dq = dqkv + head * WIDTH
    copy = (tile + head) % COPIES
    backward_of_queries(
        q, k, v, keys, values, gate, first, last, visible, pairs, types, places, coefficients, out, norms, dout,
        dq, dkeys + copy * key_numbers, dvalues + copy * value_numbers,
        own, real, low, high, size, num_pairs, q_token, k_token, v_token, scale, HIDES, GATED, KEY_BLOCK, VALUE_BLOCK, BUCKETS,
        KEY_PROJECTED, VALUE_PROJECTED, NUM_BUCKETS, WIDTH, COLUMNS, QUERIES, KEYS, PRECISION,
    )  # fmt: skip
    backward_of_keys(
        q, k, v, keys, values, gate, first, last, visible, pairs, types, places, coefficients, out, norms, dout,
        dq + size, dq + 2 * size, dgate + head * WIDTH,
        own, real, low, high, size, num_pairs, q_token, k_token, v_token, scale, HIDES, GATED, KEY_BLOCK, VALUE_BLOCK, BUCKETS,
        KEY_PROJECTED, VALUE_PROJECTED, NUM_BUCKETS, WIDTH, COLUMNS, QUERIES, KEYS, PRECISION,
    )  # fmt: skip
