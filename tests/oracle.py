"""The numbers of quantkit, stated in NumPy. Slow, plain, never optimised; product code never imports it.

Every kernel must equal these exactly, on every instruction set and for any number of threads.
"""

import numpy as np

LIMITS = {np.dtype(np.uint8): (0, 255), np.dtype(np.int8): (-128, 127)}


def _along(values, axis, ndim):
    """Per-channel values in the shape that broadcasts along `axis`."""
    values = np.asarray(values)
    if axis is None or values.ndim == 0:
        return values.reshape(())
    shape = [1] * ndim
    shape[axis] = -1
    return values.reshape(shape)


def quantize_linear(x, scale, zero_point=0, axis=None, dtype=np.uint8):
    """Saturate(round_half_even(x / scale) + zero_point); a float zero point is added before rounding.

    float64 is divided in float64, everything else in float32; the scale is a float32. NaN gives the lowest code.
    """
    x = np.asarray(x)
    real = np.float64 if x.dtype == np.float64 else np.float32
    low, high = LIMITS[np.dtype(dtype)]
    scale = _along(np.asarray(scale, np.float32), axis, x.ndim).astype(real)
    zero_point = _along(zero_point, axis, x.ndim)
    with np.errstate(all="ignore"):
        q = x.astype(real) / scale
        if zero_point.dtype.kind == "f":
            q = np.rint(q + zero_point.astype(np.float32).astype(real))
        else:
            q = np.rint(q).astype(np.float64) + zero_point
    q = np.where(np.isnan(q), low, np.clip(q, low, high))
    return q.astype(dtype)


def dequantize_linear(q, scale, zero_point=0, axis=None, dtype=np.float32):
    """(q - zero_point) * scale in float32 (in float64 for that), rounded once to float16 or bfloat16.

    The difference of integers wraps in int32.
    """
    q = np.asarray(q)
    real = np.float64 if dtype == np.float64 else np.float32
    scale = _along(np.asarray(scale, np.float32), axis, q.ndim).astype(real)
    zero_point = _along(zero_point, axis, q.ndim)
    with np.errstate(all="ignore"):
        if zero_point.dtype.kind == "f":
            difference = q.astype(real) - zero_point.astype(np.float32).astype(real)
        else:
            difference = (q.astype(np.int64) - zero_point).astype(np.int32).astype(real)
        return (difference * scale).astype(dtype)


def dynamic_qparams(x):
    """Scale and zero point of DynamicQuantizeLinear, in float32 throughout."""
    x = np.asarray(x)
    low = np.float32(min(x.min(initial=0), 0))
    high = np.float32(max(x.max(initial=0), 0))
    if low == high:
        return np.float32(1), np.uint8(0)
    scale = np.float32(high - low) / np.float32(255)
    zero_point = np.clip(np.rint(np.float32(0) - low / scale), 0, 255)
    return scale, np.uint8(zero_point)


def finite_range(x, axis=None):
    """(low, high, nonfinite) of the finite values; inf and -inf where there are none."""
    x = np.asarray(x).astype(np.float64)
    finite = np.isfinite(x)
    others = None if axis is None else tuple(d for d in range(x.ndim) if d != axis % x.ndim)
    low = np.min(np.where(finite, x, np.inf), axis=others, initial=np.inf)
    high = np.max(np.where(finite, x, -np.inf), axis=others, initial=-np.inf)
    return low, high, int((~finite).sum())


def histogram(x, low, high, bins):
    """Counts of floor((x - low) * (bins / (high - low))) in float32; values outside go to the edge bins."""
    x = np.asarray(x).astype(np.float32).ravel()
    x = x[np.isfinite(x)]
    low = np.float32(low)
    per_unit = np.float32(bins / (float(np.float32(high)) - float(low)))
    with np.errstate(all="ignore"):
        at = np.clip((x - low) * per_unit, np.float32(0), np.float32(bins - 1)).astype(np.int64)
    return np.bincount(at, minlength=bins).astype(np.int64)


def matmul_integer(a, b, a_zero_point=0, b_zero_point=0):
    """Sum over k of (a - a_zero_point) * (b - b_zero_point), modulo 2^32; zero points one a row of a, a column of b."""
    a_zero_point, b_zero_point = np.asarray(a_zero_point), np.asarray(b_zero_point)
    if a_zero_point.ndim == 1:
        a_zero_point = a_zero_point[:, None]
    product = (np.asarray(a, np.int64) - a_zero_point) @ (np.asarray(b, np.int64) - b_zero_point)
    return product.astype(np.int32)  # NumPy's conversion wraps


def requantize(accumulator, multiplier, zero_point, dtype, low=None, high=None):
    """Saturate(round_half_even(float32(accumulator) * multiplier) + zero_point), in float32."""
    limits = LIMITS[np.dtype(dtype)]
    scaled = np.rint(np.asarray(accumulator, np.int32).astype(np.float32) * np.asarray(multiplier, np.float32))
    q = scaled.astype(np.float64) + zero_point
    return np.clip(q, limits[0] if low is None else low, limits[1] if high is None else high).astype(dtype)


def multiplier(x_scale, w_scale, y_scale):
    """f32(f32(x_scale * w_scale) / y_scale)."""
    return np.float32(x_scale) * np.asarray(w_scale, np.float32) / np.float32(y_scale)


def qlinear_add(a, a_scale, a_zero_point, b, b_scale, b_zero_point, c_scale, c_zero_point, dtype):
    """f32(a_scale / c_scale) * (a - a_zero_point) + the same of b, each step rounded to float32; then as quantize."""
    a_ratio, b_ratio = np.float32(a_scale) / np.float32(c_scale), np.float32(b_scale) / np.float32(c_scale)
    left = a_ratio * (np.asarray(a, np.int32) - a_zero_point).astype(np.float32)
    right = b_ratio * (np.asarray(b, np.int32) - b_zero_point).astype(np.float32)
    return np.clip(np.rint(left + right) + c_zero_point, *LIMITS[np.dtype(dtype)]).astype(dtype)


def conv_integer(x, w, x_zero_point=0, w_zero_point=0, strides=None, pads=None, dilations=None, group=1):
    """Sums of (x - x_zero_point) * (w - w_zero_point) modulo 2^32, tap after tap; x (N, C, ...), zero beyond its edges.

    Pads are those at the beginnings, then those at the ends; one zero point of w for all, or one an output.
    """
    dims = x.ndim - 2
    strides, dilations, pads = strides or (1,) * dims, dilations or (1,) * dims, pads or (0,) * (2 * dims)
    x = np.pad(x.astype(np.int64) - x_zero_point, [(0, 0), (0, 0), *zip(pads[:dims], pads[dims:], strict=True)])
    w = w.astype(np.int64) - np.asarray(w_zero_point, np.int64).reshape(-1, *[1] * (dims + 1))
    size = [
        (n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(x.shape[2:], w.shape[2:], dilations, strides, strict=True)
    ]
    images, outputs = x.shape[0], w.shape[0]
    y = np.zeros((images, group, outputs // group, *size), np.int64)
    w = w.reshape(group, outputs // group, *w.shape[1:])
    for tap in np.ndindex(*w.shape[3:]):
        part = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilations, size, strides, strict=True)
        )
        seen = x[(slice(None), slice(None), *part)].reshape(images, group, -1, *size)
        y += np.einsum("ngc...,gmc->ngm...", seen, w[(slice(None), slice(None), slice(None), *tap)])
    return y.reshape(images, outputs, *size).astype(np.int32)


def conv_transpose_integer(
    x, w, x_zero_point=0, w_zero_point=0, strides=None, pads=None, dilations=None, group=1, output_padding=None
):
    """Each input pixel adds its products with every tap, modulo 2^32; pads are cut off, output_padding is added."""
    dims = x.ndim - 2
    strides, dilations, pads = strides or (1,) * dims, dilations or (1,) * dims, pads or (0,) * (2 * dims)
    images, channels, size = x.shape[0], x.shape[1], x.shape[2:]
    outputs, kernel = w.shape[1] * group, w.shape[2:]
    zeros = np.broadcast_to(np.asarray(w_zero_point, np.int64), outputs).reshape(group, 1, -1, *[1] * dims)
    w = w.astype(np.int64).reshape(group, channels // group, -1, *kernel) - zeros
    x = (x.astype(np.int64) - x_zero_point).reshape(images, group, channels // group, *size)
    whole = [
        (n - 1) * s + (k - 1) * d + 1 + more
        for n, s, k, d, more in zip(size, strides, kernel, dilations, output_padding or (0,) * dims, strict=True)
    ]
    y = np.zeros((images, group, outputs // group, *whole), np.int64)
    for tap in np.ndindex(*kernel):
        part = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilations, size, strides, strict=True)
        )
        y[(..., *part)] += np.einsum("ngc...,gcm->ngm...", x, w[(..., *tap)])
    y = y.reshape(images, outputs, *whole)
    y = y[(..., *(slice(b, n - e) for b, e, n in zip(pads[:dims], pads[dims:], whole, strict=True)))]
    return y.astype(np.int32)


def lookup(q, table):
    """The table's entry for the byte of each code."""
    return np.asarray(table)[np.asarray(q).view(np.uint8)]


def requantize_codes(q, scale, zero_point, new_scale, new_zero_point, axis=None, dtype=np.uint8):
    """Quantize what the codes stand for, both steps in float32."""
    return quantize_linear(dequantize_linear(q, scale, zero_point, axis), new_scale, new_zero_point, axis, dtype)


# Recurrent layers. Every operation is one of float32, rounded once, in the order in which it stands here.
F32 = np.float32


def exp_negative(x):
    """Exp of x <= 0; below -87 that of -87. Cody and Waite's reduction, the polynomial of Cephes' expf."""
    x = np.where(x < F32(-87), F32(-87), x)
    magic = F32(2**23 * 1.5 + 127)
    t = x * F32(1.4426950216293335) + magic
    n = t - magic
    r = x - n * F32(0.693359375)
    r = r - n * F32(-2.12194440e-4)
    p = F32(1.9875691500e-4) * r + F32(1.3981999507e-3)
    for c in (8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + F32(c)
    p = p * (r * r) + r + F32(1)
    return p * (t.view(np.uint32) << np.uint32(23)).view(F32)


def sigmoid(x):
    e = exp_negative(-np.abs(x))
    return np.where(x < 0, e, F32(1)) / (F32(1) + e)


def tanh(x):
    """Near 0 the polynomial of Cephes' tanhf, else (1 - e) / (1 + e) with e = exp(-2 |x|)."""
    a = np.abs(x)
    e = exp_negative(F32(-2) * a)
    z = x * x
    p = F32(-5.70498872745e-3) * z + F32(2.06390887954e-2)
    for c in (-5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1):
        p = p * z + F32(c)
    return np.where(a < F32(0.625), p * z * x + x, np.copysign((F32(1) - e) / (F32(1) + e), x))


def elu(x, alpha):
    t = tanh(F32(0.5) * np.where(x < 0, x, F32(0)))
    return np.where(x < 0, alpha * (F32(2) * t / (F32(1) - t)), x)


def softplus(x):
    """max(x, 0) + log(1 + exp(-|x|)), the logarithm by the series of 2 artanh(s)."""
    e = exp_negative(-np.abs(x))
    s = e / (F32(2) + e)
    z = s * s
    p = F32(1 / 15) * z + F32(1 / 13)
    for n in (11, 9, 7, 5, 3):
        p = p * z + F32(1 / n)
    return np.where(x < 0, F32(0), x) + F32(2) * (p * z * s + s)


def hard_sigmoid(x, alpha, beta):
    y = alpha * x + beta
    z = np.where(y < 0, F32(0), y)
    return np.where(z > 1, F32(1), z)


ACTIVATIONS = {
    "Relu": lambda x, a, b: np.where(x < 0, F32(0), x),
    "Tanh": lambda x, a, b: tanh(x),
    "Sigmoid": lambda x, a, b: sigmoid(x),
    "Affine": lambda x, a, b: a * x + b,
    "LeakyRelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "ThresholdedRelu": lambda x, a, b: np.where(x < a, F32(0), x),
    "ScaledTanh": lambda x, a, b: a * tanh(b * x),
    "HardSigmoid": hard_sigmoid,
    "Elu": lambda x, a, b: elu(x, a),
    "Softsign": lambda x, a, b: x / (F32(1) + np.abs(x)),
    "Softplus": lambda x, a, b: softplus(x),
}
ALPHA = {"Affine": 1, "LeakyRelu": 0.01, "ThresholdedRelu": 1, "ScaledTanh": 1, "HardSigmoid": 0.2, "Elu": 1}
BETA = {"Affine": 0, "ScaledTanh": 1, "HardSigmoid": 0.5}


def activation_functions(names, alpha=(), beta=()):
    """The functions of all directions; those that take alpha or beta take the next value, or their default."""
    alpha, beta = iter(alpha), iter(beta)
    made = []
    for name in names:
        a = F32(next(alpha, ALPHA[name])) if name in ALPHA else F32(0)
        b = F32(next(beta, BETA[name])) if name in BETA else F32(0)
        made.append(lambda x, name=name, a=a, b=b: ACTIVATIONS[name](x, a, b))
    return made


def fused_multiply_add(a, b, c):
    """Of float32, a * b + c rounded once: the product is exact in float64, the sum is rounded there to odd, then again.

    (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008.)
    """
    p, c = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    s = p + c
    t = s - p
    error = (p - (s - t)) + (c - t)  # what s lacks, exactly
    even = (s.view(np.int64) & 1) == 0
    odd = np.where((error != 0) & even & np.isfinite(s), np.nextafter(s, np.copysign(np.inf, error)), s)
    return odd.astype(F32)


def weights_product(a, w, scale=None, zero_point=0):
    """Rows a [M, K] times w [N, K] transposed, of float32: k after k, beginning with 0, by fused multiply-adds.

    Of codes (with scales): each row of a is quantized for itself, as DynamicQuantizeLinear does; the sum of integers is
    exact, and its float32 is multiplied by f32(row's scale * scale of the row of w). (onnxruntime's DynamicQuantizeLSTM
    has one scale for all rows of a step, and one for all steps of its inputs.)
    """
    if scale is None:
        acc = np.zeros((a.shape[0], w.shape[0]), F32)
        for k in range(a.shape[1]):
            acc = fused_multiply_add(a[:, k, None], w[None, :, k], acc)
        return acc
    scale = np.broadcast_to(np.asarray(scale, F32), w.shape[0])
    zero_point = np.broadcast_to(zero_point, w.shape[0])
    out = np.empty((a.shape[0], w.shape[0]), F32)
    for m, row in enumerate(a):
        row_scale, row_zero = dynamic_qparams(row)
        codes = quantize_linear(row, row_scale, row_zero)
        sums = matmul_integer(codes[None], w.T, int(row_zero), zero_point)[0]
        out[m] = sums.astype(F32) * (row_scale * scale)
    return out


def recurrent(
    cell,
    x,
    w,
    r,
    b=None,
    lengths=None,
    h=None,
    c=None,
    p=None,
    *,
    w_scale=None,
    w_zero=0,
    r_scale=None,
    r_zero=0,
    direction="forward",
    activations=None,
    alpha=(),
    beta=(),
    clip=np.inf,
    input_forget=0,
    linear_before_reset=0,
):
    """Y, Y_h and Y_c of ONNX RNN, LSTM and GRU with layout 0, one row of the batch after the other."""
    seq, batch, _ = x.shape
    directions, _, hidden = r.shape
    gates = {"rnn": 1, "lstm": 4, "gru": 3}[cell]
    defaults = {"rnn": ["Tanh"], "lstm": ["Sigmoid", "Tanh", "Tanh"], "gru": ["Sigmoid", "Tanh"]}[cell]
    names, each = activations or defaults * directions, len(defaults)
    functions = activation_functions(names, alpha, beta)
    b = np.zeros((directions, 2 * gates * hidden), F32) if b is None else b
    y = np.zeros((seq, directions, batch, hidden), F32)
    y_h = np.zeros((directions, batch, hidden), F32) if h is None else h.copy()
    y_c = np.zeros((directions, batch, hidden), F32) if c is None else c.copy()
    lengths = np.full(batch, seq) if lengths is None else lengths
    spread = (directions, gates * hidden)
    scales = [None if s is None else np.broadcast_to(np.asarray(s, F32), spread) for s in (w_scale, r_scale)]
    zeros = [np.broadcast_to(z, spread) for z in (w_zero, r_zero)]

    def bounded(v):
        v = np.where(v < F32(-clip), F32(-clip), v)
        return np.where(v > F32(clip), F32(clip), v)

    for d in range(directions):
        f, g, out = (functions[d * each : (d + 1) * each] * 3)[:3]  # LSTM alone has all three
        bias, bias_h = b[d].reshape(2, gates, hidden)
        backwards = direction == "reverse" or d == 1
        scale_w, scale_r = (None if s is None else s[d] for s in scales)
        for n in range(batch):
            h, c = y_h[d, n], y_c[d, n]
            for step in range(lengths[n]):
                t = lengths[n] - 1 - step if backwards else step
                xg = weights_product(x[t, n][None], w[d], scale_w, zeros[0][d]).reshape(gates, hidden)
                hg = weights_product(h[None], r[d], scale_r, zeros[1][d]).reshape(gates, hidden)
                pre = (xg + (bias + bias_h)) + hg
                if cell == "rnn":
                    h = f(bounded(pre[0]))
                elif cell == "lstm":
                    pi, po, pf = (F32(0),) * 3 if p is None else p[d].reshape(3, hidden)
                    peeped = (lambda v, q, c: v) if p is None else (lambda v, q, c: v + q * c)
                    i = f(bounded(peeped(pre[0], pi, c)))
                    forget = F32(1) - i if input_forget else f(bounded(peeped(pre[2], pf, c)))
                    c = forget * c + i * g(bounded(pre[3]))
                    h = f(bounded(peeped(pre[1], po, c))) * out(c)  # c is not clipped, as in onnxruntime
                else:
                    z, reset = f(bounded(pre[0])), f(bounded(pre[1]))
                    if linear_before_reset:
                        new = g(bounded((xg[2] + bias[2]) + reset * (hg[2] + bias_h[2])))
                    else:
                        hg = weights_product((reset * h)[None], r[d], scale_r, zeros[1][d]).reshape(gates, hidden)
                        new = g(bounded((xg[2] + (bias + bias_h)[2]) + hg[2]))
                    h = (F32(1) - z) * new + z * h
                y[t, d, n] = h
            y_h[d, n], y_c[d, n] = h, c
    return (y, y_h, y_c) if cell == "lstm" else (y, y_h)
