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
