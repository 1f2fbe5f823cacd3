# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""What a program on the GPU computes: point-wise attention, forward and backward, in Triton.

Without row maximum, sum of exponentials and rescaling, a block of keys just adds its share. The backward
pass needs nothing of the forward one but its inputs. It is two kernels, one per block of keys and one per block of
queries, and so needs no atomic additions: its results are the same bits every time.

Shapes: N queries, L keys, D channels of queries and keys, E of values; a program has M rows and reads J columns at a
time. A tensor [B, heads, ., D] comes as a pointer and the strides of an image, a head and a row.
"""

import triton
import triton.language as tl


@triton.jit
def _weigh(s, H: tl.constexpr):
    """Return h of scores in float32. No h hides a NaN."""
    if H == "relu":
        w = tl.maximum(s, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif H == "relu2":
        w = tl.maximum(s, 0.0, propagate_nan=tl.PropagateNan.ALL)
        w = w * w
    elif H == "gelu":
        w = 0.5 * s * (1.0 + tl.erf(s * 0.7071067811865476))
    elif H == "gelu_tanh":
        # (1 + tanh u) / 2 is the sigmoid of 2 u
        w = s / (1.0 + tl.exp(-1.5957691216057308 * (s + 0.044715 * s * s * s)))
    elif H == "softplus":
        w = tl.maximum(s, 0.0, propagate_nan=tl.PropagateNan.ALL) + tl.log(1.0 + tl.exp(-tl.abs(s)))
    elif H == "relu6":
        w = tl.maximum(s, 0.0, propagate_nan=tl.PropagateNan.ALL)
        w = tl.minimum(w, 6.0, propagate_nan=tl.PropagateNan.ALL)
    elif H == "sigmoid":
        w = 1.0 / (1.0 + tl.exp(-s))
    else:
        w = s
    return w


@triton.jit
def _slope(g, s, H: tl.constexpr):
    """Return g h'(s) in float32."""
    if H == "relu":
        d = tl.where(s <= 0, 0.0, g)
    elif H == "relu2":
        d = tl.where(s <= 0, 0.0, 2.0 * s * g)
    elif H == "gelu":
        d = g * (0.5 * (1.0 + tl.erf(s * 0.7071067811865476)) + s * 0.3989422804014327 * tl.exp(-0.5 * s * s))
    elif H == "gelu_tanh":
        p = 1.0 / (1.0 + tl.exp(-1.5957691216057308 * (s + 0.044715 * s * s * s)))
        d = g * (p + s * p * (1.0 - p) * 1.5957691216057308 * (1.0 + 0.134145 * s * s))
    elif H == "softplus":
        d = g / (1.0 + tl.exp(-s))
    elif H == "relu6":
        d = tl.where((s <= 0) | (s >= 6), 0.0, g)
    elif H == "sigmoid":
        w = 1.0 / (1.0 + tl.exp(-s))
        d = g * w * (1.0 - w)
    else:
        d = g
    return d


@triton.jit
def _scores(x, y, scale, SCALED: tl.constexpr, PRECISION: tl.constexpr):
    """Return scale x y^T in float32, or without the scale where the caller applies it."""
    s = tl.dot(x, tl.trans(y), input_precision=PRECISION)
    if SCALED:
        s *= scale
    return s


@triton.jit
def _at(base, pair, heads, of_image, of_head):
    """Return the pointer to a head of an image; `pair` counts both."""
    return base + (pair // heads).to(tl.int64) * of_image + (pair % heads).to(tl.int64) * of_head


@triton.jit
def _read(base, rows, of_row, count, D: tl.constexpr, EVEN: tl.constexpr):
    """Read rows [., D]; zeros behind the last, which then add nothing to any product."""
    places = base + rows[:, None].to(tl.int64) * of_row + tl.arange(0, D)[None, :]
    if EVEN:  # noqa: SIM108  (Triton compiles one of the two)
        x = tl.load(places)
    else:
        x = tl.load(places, mask=rows[:, None] < count, other=0.0)
    return x


@triton.jit
def _write(base, rows, of_row, count, x, D: tl.constexpr):
    places = base + rows[:, None].to(tl.int64) * of_row + tl.arange(0, D)[None, :]
    tl.store(places, x.to(base.dtype.element_ty), mask=rows[:, None] < count)


@triton.jit
def forward(
    q, q_image, q_head, q_row, k, k_image, k_head, k_row, v, v_image, v_head, v_row,
    out, out_image, out_head, out_row, heads, N, L, scale, of_weights, of_scores,
    H: tl.constexpr, SCALED: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr, J: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute out = of_weights h(scale q k^T) v for M queries."""
    blocks = tl.cdiv(N, M)
    pair, rows = tl.program_id(0) // blocks, tl.program_id(0) % blocks * M + tl.arange(0, M)
    queries = _read(_at(q, pair, heads, q_image, q_head), rows, q_row, N, D, False)
    k = _at(k, pair, heads, k_image, k_head)
    v = _at(v, pair, heads, v_image, v_head)
    total = tl.zeros((M, E), tl.float32)
    for first in range(0, L, J):
        columns = first + tl.arange(0, J)
        keys = _read(k, columns, k_row, L, D, EVEN)
        values = _read(v, columns, v_row, L, E, EVEN)
        weights = _weigh(_scores(queries, keys, scale, SCALED, PRECISION), H)
        total = tl.dot(weights.to(values.dtype), values, total, input_precision=PRECISION)
    _write(_at(out, pair, heads, out_image, out_head), rows, out_row, N, total * of_weights, E)


@triton.jit
def backward_keys(
    q, q_image, q_head, q_row, k, k_image, k_head, k_row, v, v_image, v_head, v_row, g, g_image, g_head, g_row,
    dk, dk_image, dk_head, dk_row, dv, dv_image, dv_head, dv_row, heads, N, L, scale, of_weights, of_scores,
    H: tl.constexpr, SCALED: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr, J: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of M keys and values."""
    blocks = tl.cdiv(L, M)
    pair, rows = tl.program_id(0) // blocks, tl.program_id(0) % blocks * M + tl.arange(0, M)
    keys = _read(_at(k, pair, heads, k_image, k_head), rows, k_row, L, D, False)
    values = _read(_at(v, pair, heads, v_image, v_head), rows, v_row, L, E, False)
    q = _at(q, pair, heads, q_image, q_head)
    g = _at(g, pair, heads, g_image, g_head)
    of_keys, of_values = tl.zeros((M, D), tl.float32), tl.zeros((M, E), tl.float32)
    for first in range(0, N, J):
        columns = first + tl.arange(0, J)
        queries = _read(q, columns, q_row, N, D, EVEN)
        grads = _read(g, columns, g_row, N, E, EVEN)
        scores = _scores(keys, queries, scale, SCALED, PRECISION)
        weights = _weigh(scores, H).to(grads.dtype)
        of_values = tl.dot(weights, grads, of_values, input_precision=PRECISION)
        slopes = _slope(tl.dot(values, tl.trans(grads), input_precision=PRECISION), scores, H).to(queries.dtype)
        of_keys = tl.dot(slopes, queries, of_keys, input_precision=PRECISION)
    _write(_at(dk, pair, heads, dk_image, dk_head), rows, dk_row, L, of_keys * of_scores, D)
    _write(_at(dv, pair, heads, dv_image, dv_head), rows, dv_row, L, of_values * of_weights, E)


@triton.jit
def backward_queries(
    q, q_image, q_head, q_row, k, k_image, k_head, k_row, v, v_image, v_head, v_row, g, g_image, g_head, g_row,
    dq, dq_image, dq_head, dq_row, heads, N, L, scale, of_weights, of_scores,
    H: tl.constexpr, SCALED: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr, J: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of M queries."""
    blocks = tl.cdiv(N, M)
    pair, rows = tl.program_id(0) // blocks, tl.program_id(0) % blocks * M + tl.arange(0, M)
    queries = _read(_at(q, pair, heads, q_image, q_head), rows, q_row, N, D, False)
    grads = _read(_at(g, pair, heads, g_image, g_head), rows, g_row, N, E, False)
    k = _at(k, pair, heads, k_image, k_head)
    v = _at(v, pair, heads, v_image, v_head)
    total = tl.zeros((M, D), tl.float32)
    for first in range(0, L, J):
        columns = first + tl.arange(0, J)
        keys = _read(k, columns, k_row, L, D, EVEN)
        values = _read(v, columns, v_row, L, E, EVEN)
        scores = _scores(queries, keys, scale, SCALED, PRECISION)
        slopes = _slope(tl.dot(grads, tl.trans(values), input_precision=PRECISION), scores, H).to(keys.dtype)
        total = tl.dot(slopes, keys, total, input_precision=PRECISION)
    _write(_at(dq, pair, heads, dq_image, dq_head), rows, dq_row, N, total * of_scores, D)
