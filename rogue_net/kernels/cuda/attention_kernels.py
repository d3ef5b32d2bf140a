"""Attention among the entities of a frame, forward and backward, in Triton.

    s_ij = q_i · k_j / sqrt(K),   p_ij = softmax_j(s_ij),   y_i = sum_j p_ij v_j

A program computes one head of a tile of consecutive tokens: several short frames, or a part of a long one. Token i attends
within first_i:last_i, its frame, so that the keys of the tile are in the range from the first of its first token to the last
of its last one, whatever the lengths of frames; pairs of different frames are masked. Nothing but the numbers of tokens and
heads decides how many programs there are. A token whose range is empty gets 0, and has no gradient.

The softmax is made key tile by key tile, with a running maximum (Milakov and Gimelshein 2018, arXiv 1805.02867). Backward, p
comes from its logarithm's normalizer (Dao 2023, arXiv 2307.08691, algorithm 2), and since a tile's tokens are seen by tokens
of the same range only, one program makes dq, dk and dv of its tile: sums have one order, always.

    dv_j = sum_i p_ij dy_i,   ds_ij = p_ij (dy_i · v_j - dy_i · y_i),   dq_i = sum_j ds_ij k_j / sqrt(K),
    dk_j = sum_i ds_ij q_i / sqrt(K)

Exponentials are powers of 2. Softmax and sums are in fp32, products as PRECISION says: of ieee (fp32), tf32 or bf16
numbers.

Shapes: E tokens, H heads, K = WIDTH, padded to COLUMNS, a power of 2; tiles of QUERIES times KEYS.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(float("-inf"))
NOT_A_NUMBER = tl.constexpr(float("nan"))


@triton.jit
def rows(pointer, tokens, stride, inside, COLUMNS: tl.constexpr, WIDTH: tl.constexpr):
    """(tokens, COLUMNS) of the rows that begin at `pointer + tokens * stride`; 0 where not `inside`."""
    columns = tl.arange(0, COLUMNS)
    places = pointer + tokens.to(tl.int64)[:, None] * stride + columns[None, :]
    return tl.load(places, mask=inside[:, None] & (columns < WIDTH)[None, :], other=0.0)


@triton.jit
def put_rows(pointer, tokens, stride, inside, values, COLUMNS: tl.constexpr, WIDTH: tl.constexpr):
    """The opposite of `rows`, in the type that `pointer` points to."""
    columns = tl.arange(0, COLUMNS)
    places = pointer + tokens.to(tl.int64)[:, None] * stride + columns[None, :]
    tl.store(places, values.to(pointer.dtype.element_ty), mask=inside[:, None] & (columns < WIDTH)[None, :])


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """The matrix product of a and b, in fp32."""
    if PRECISION == "bf16":
        result = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    elif PRECISION == "rounded":  # the same for Triton's interpreter, which cannot multiply bf16
        result = tl.dot(a.to(tl.bfloat16).to(tl.float32), b.to(tl.bfloat16).to(tl.float32), input_precision="ieee")
    else:
        result = tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=PRECISION)
    return result


@triton.jit
def are_visible(visible, tokens, inside, HIDES: tl.constexpr):
    """Which tokens are visible. Without hidden ones `visible` points to nothing, and they all are."""
    if HIDES:
        seen = tl.load(visible + tokens, mask=inside, other=0) != 0
    else:
        seen = inside
    return seen


@triton.jit
def may_attend(first, last, i_visible, j, j_visible, HIDES: tl.constexpr):
    """(i, j): whether the queries, whose frames are first:last, attend to the keys."""
    allowed = (j[None, :] >= first[:, None]) & (j[None, :] < last[:, None])
    if HIDES:
        allowed = allowed & (j_visible[None, :] | (i_visible == 0)[:, None])
    return allowed


@triton.jit
def neighbours(first, last, begin, num_tokens, SIZE: tl.constexpr):
    """low:high, the tokens of all frames that the SIZE tokens from `begin` on belong to."""
    low = tl.load(first + begin)
    high = tl.load(last + tl.minimum(begin + SIZE, num_tokens) - 1)
    return low, high


@triton.jit
def finite(values):
    """(rows, COLUMNS) values with 0 in place of NaN and infinities, and which rows have none of these.

    Tokens of other frames are multiplied by weights of 0, and 0 * NaN is NaN.
    """
    is_finite = tl.abs(values.to(tl.float32)) < float("inf")
    return tl.where(is_finite, values, tl.zeros_like(values)), tl.min(is_finite.to(tl.int32), axis=1) != 0


@triton.jit
def masked(scores, allowed, are_finite):
    """Scores of the pairs that are allowed, NaN where the value of the key is not finite; -inf for other pairs."""
    return tl.where(allowed, tl.where(are_finite[None, :], scores, NOT_A_NUMBER), NOTHING)


@triton.jit
def fold(scores, top, total):
    """A tile more of the softmax: its weights, by how much what was added up before fades, the new maximum and total."""
    higher = tl.maximum(top, tl.max(scores, axis=1))
    shift = tl.where(higher == NOTHING, 0.0, higher)  # nothing allowed yet: exp2(-inf - 0) is 0
    weights = tl.exp2(scores - shift[:, None])
    fade = tl.exp2(top - shift)
    return weights, fade, higher, total * fade + tl.sum(weights, axis=1)


@triton.jit
def normalized(mean, total):
    """What was added up with the weights, divided by their total; 0 where nothing is seen. NaN is not 0, and stays."""
    return mean / tl.where(total != 0.0, total, 1.0)[:, None]


@triton.jit
def normalizer(top, total):
    """log2 sum_j exp s_ij; 0 where nothing is seen."""
    return tl.where(total != 0.0, top + tl.log2(tl.where(total != 0.0, total, 1.0)), 0.0)


@triton.jit
def mean_change(out, grad):
    """dy_i · y_i of each row."""
    return tl.sum(out.to(tl.float32) * grad.to(tl.float32), axis=1)


@triton.jit(do_not_specialize=["num_tokens"])
def attend(
    q,
    k,
    v,
    first,
    last,
    visible,
    out,
    norms,
    num_tokens,
    num_heads,
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    scale,
    HIDES: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attend.

    Args:
        q, k, v: (E, H, K) with the strides that follow, in elements; K is contiguous.
        first, last: (E,) int32.
        visible: (E,) uint8, read if HIDES.
        out: (E, H, K) contiguous, written.
        norms: (H, E) fp32, written: log2 sum_j exp s_ij.
        num_tokens, num_heads: E, H.
        scale: 1 / sqrt(K).
    """
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
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
        j_visible = are_visible(visible, j, near, HIDES)
        allowed = may_attend(i_first, i_last, i_visible, j, j_visible, HIDES)
        scores = product(query, tl.trans(key), PRECISION) * (scale * LOG2_E)
        weights, fade, top, total = fold(masked(scores, allowed, are_finite), top, total)
        mean = mean * fade[:, None] + product(weights, value, PRECISION)

    put_rows(out + head * WIDTH, i, num_heads * WIDTH, real, normalized(mean, total), COLUMNS, WIDTH)
    tl.store(norms + head * num_tokens + i, normalizer(top, total), mask=real)


@triton.jit
def backward_of_queries(
    q,
    k,
    v,
    first,
    last,
    visible,
    out,
    norms,
    dout,
    dq,
    own,
    real,
    low,
    high,
    size,
    q_token,
    k_token,
    v_token,
    scale,
    HIDES: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write dq of the tokens `own`, where they are `real`. All pointers are at the head; `low:high` are keys to look at."""
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
        scores = product(query, tl.trans(key), PRECISION) * (scale * LOG2_E)
        weights = tl.exp2(tl.where(allowed, scores - norm[:, None], NOTHING))
        slopes = weights * (product(grad, tl.trans(value), PRECISION) - change[:, None])
        dquery += product(slopes, key, PRECISION)
    put_rows(dq, own, 3 * size, real, dquery * scale, COLUMNS, WIDTH)


@triton.jit
def backward_of_keys(
    q,
    k,
    v,
    first,
    last,
    visible,
    out,
    norms,
    dout,
    dk,
    dv,
    own,
    real,
    low,
    high,
    size,
    q_token,
    k_token,
    v_token,
    scale,
    HIDES: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write dk and dv of the tokens `own`, as `backward_of_queries` does: those who see them are in the same range."""
    own_visible = are_visible(visible, own, real, HIDES)
    key = rows(k, own, k_token, real, COLUMNS, WIDTH)
    value = rows(v, own, v_token, real, COLUMNS, WIDTH)
    dkey = tl.zeros([QUERIES, COLUMNS], tl.float32)
    dvalue = tl.zeros([QUERIES, COLUMNS], tl.float32)
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
        scores = product(query, tl.trans(key), PRECISION) * (scale * LOG2_E)
        weights = tl.exp2(tl.where(allowed, scores - norm[:, None], NOTHING))
        slopes = weights * (product(grad, tl.trans(value), PRECISION) - change[:, None])
        dvalue += product(tl.trans(weights), grad, PRECISION)
        dkey += product(tl.trans(slopes), query, PRECISION)
    put_rows(dk, own, 3 * size, real, dkey * scale, COLUMNS, WIDTH)
    put_rows(dv, own, 3 * size, real, dvalue, COLUMNS, WIDTH)


@triton.jit(do_not_specialize=["num_tokens"])
def attend_backward(
    q,
    k,
    v,
    first,
    last,
    visible,
    out,
    norms,
    dout,
    dqkv,
    num_tokens,
    num_heads,
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    scale,
    HIDES: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradient of `attend`.

    Args:
        out, norms: its results.
        dout: (E, H, K) contiguous, gradient of out.
        dqkv: (E, 3, H, K) contiguous, written.
        others: see `attend`.
    """
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    own = tile * QUERIES + tl.arange(0, QUERIES)
    real = own < num_tokens
    low, high = neighbours(first, last, tile * QUERIES, num_tokens, QUERIES)
    size = num_heads * WIDTH
    q, k, v = q + head * q_head, k + head * k_head, v + head * v_head
    out, dout, norms = out + head * WIDTH, dout + head * WIDTH, norms + head * num_tokens
    dq = dqkv + head * WIDTH
    backward_of_queries(
        q, k, v, first, last, visible, out, norms, dout, dq, own, real, low, high, size, q_token, k_token, v_token, scale,
        HIDES, WIDTH, COLUMNS, QUERIES, KEYS, PRECISION,
    )  # fmt: skip
    backward_of_keys(
        q, k, v, first, last, visible, out, norms, dout, dq + size, dq + 2 * size, own, real, low, high, size, q_token,
        k_token, v_token, scale, HIDES, WIDTH, COLUMNS, QUERIES, KEYS, PRECISION,
    )  # fmt: skip
