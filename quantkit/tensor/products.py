"""conv2d, conv_transpose2d and matmul: products of QTensors, to QTensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit import ops
from quantkit.errors import InvalidArgument, InvalidDType, InvalidQParams, ShapeMismatch
from quantkit.ops.conv_geometry import as_group
from quantkit.qparams import QDType, QParams, as_qdtype, check_zero_point
from quantkit.storage import Array
from quantkit.tensor.factories import as_tensor, quantize
from quantkit.tensor.qtensor import QTensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


def _pair(verb: str, name: str, value: Any) -> tuple[Any, Any]:
    if isinstance(value, (int, np.integer)):
        return value, value
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return value[0], value[1]
    raise InvalidArgument(f"{verb}: {name} must be an integer or two of them, got {value!r}")


def _operand(verb: str, name: str, value: Any, axis: int | None) -> QTensor:
    if not isinstance(value, QTensor):
        raise InvalidDType(f"{verb}: {name} must be a QTensor, got {type(value).__name__}; use quantkit.quantize")
    if value.ndim != 4:
        raise ShapeMismatch(f"{verb}: {name} must have 4 dimensions, got shape {value.shape}")
    if value.axis is not None and value.axis != axis:
        wanted = "one scale" if axis is None else f"one scale, or one for each index of axis {axis}"
        raise InvalidQParams(f"{verb}: {name} must have {wanted}, got scales along axis {value.axis}")
    return value


def _whole_bias(verb: str, bias: Any, steps: NDArray[np.float32], count: int) -> NDArray[np.int32] | None:
    """Return a real bias in whole steps of the sums, one an output."""
    if bias is None:
        return None
    values = np.asarray(bias.dequantize() if isinstance(bias, QTensor) else bias, np.float64)
    if values.shape != (count,) or not np.isfinite(values).all():
        raise ShapeMismatch(f"{verb}: wanted bias of {count} finite numbers, got shape {values.shape}")
    info = np.iinfo(np.int32)
    whole: NDArray[np.int32] = np.clip(np.rint(values / steps), info.min, info.max).astype(np.int32)
    return whole


def _output_parameters(verb: str, kind: QDType, scale: Any, zero_point: Any) -> QParams | None:
    """Return the parameters that a result was asked for in; None where they are to be chosen."""
    if scale is None:
        if zero_point is not None:
            raise InvalidArgument(f"{verb}: zero_point was given without scale")
        return None
    qparams = QParams(scale, 0 if zero_point is None else zero_point)
    if isinstance(qparams.zero_point, float) or qparams.axis is not None:
        raise InvalidQParams(f"{verb}: wanted one scale and an integer zero_point, got zero_point={zero_point!r}")
    check_zero_point(np.asarray(qparams.zero_point), kind, f"{verb}: zero_point")
    return qparams


def conv2d(
    t: QTensor,
    w: QTensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    *,
    scale: Any = None,
    zero_point: Any = None,
    dtype: Any = None,
) -> QTensor:
    """Convolve a quantized image with quantized weights, in integers.

    Parameters
    ----------
    t : QTensor, shape (N, C, H, W)
        One scale. Where its channels lie together in memory (a permuted NHWC tensor), those of the result do too.
    w : QTensor, shape (M, C / groups, kernel height, kernel width)
        One scale, or one an output (axis 0).
    bias : array of M real numbers, optional
        Rounded to steps of ``t.scale * w.scale``.
    stride, dilation : int or pair of int, default 1
    padding : int, pair of int, "valid" or "same", default 0
        Pixels of real value zero on both sides. "same" wants stride 1 and keeps height and width.
    groups : int, default 1
    scale, zero_point : float, int, optional
        Parameters of the result; without `scale` they are chosen from its values, which takes a second pass.
    dtype : quint8 or qint8, optional
        Of the result; that of `t` by default.

    Returns
    -------
    QTensor, shape (N, M, H', W')

    Raises
    ------
    InvalidDType, ShapeMismatch, InvalidQParams, InvalidArgument
        Naming the argument, what was wanted and what came.

    Examples
    --------
    >>> import quantkit as qk
    >>> t = qk.quantize([[[[0.0, 1.0], [2.0, 3.0]]]], scale=0.25)
    >>> w = qk.quantize([[[[1.0, -1.0]]]], scale=0.5, dtype=qk.qint8)
    >>> qk.conv2d(t, w, scale=0.5, dtype=qk.qint8)
    QTensor([[[[-1.],
               [-1.]]]], dtype=qint8, scale=0.5, zero_point=0)
    """
    _operand("conv2d", "t", t, None)
    _operand("conv2d", "w", w, 0)
    kind = t.dtype if dtype is None else as_qdtype(dtype)
    attributes: dict[str, Any] = {
        "strides": _pair("conv2d", "stride", stride),
        "dilations": _pair("conv2d", "dilation", dilation),
        "group": groups,
    }
    if padding == "same":
        if attributes["strides"] != (1, 1):
            raise InvalidArgument(f"conv2d: padding='same' wants stride 1, got {stride!r}")
        attributes["auto_pad"] = "SAME_UPPER"
    elif padding != "valid":
        attributes["pads"] = _pair("conv2d", "padding", padding) * 2
    verbs = (ops.conv_integer, ops.qlinear_conv)
    return _convolved("conv2d", verbs, t, w, (w.scale, w.shape[0]), bias, kind, (scale, zero_point), attributes)


def conv_transpose2d(
    t: QTensor,
    w: QTensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
    *,
    scale: Any = None,
    zero_point: Any = None,
    dtype: Any = None,
) -> QTensor:
    """Convolve a quantized image with quantized weights the other way round (upsampling), in integers.

    Parameters
    ----------
    t : QTensor, shape (N, C, H, W)
        One scale. Where its channels lie together in memory (a permuted NHWC tensor), those of the result do too.
    w : QTensor, shape (C, M / groups, kernel height, kernel width)
        One scale, or one for each index of axis 1, the same for all groups.
    bias : array of M real numbers, optional
        Rounded to steps of ``t.scale * w.scale``.
    stride, dilation : int or pair of int, default 1
    padding : int or pair of int, default 0
        Pixels that are taken off the result on both sides.
    output_padding : int or pair of int, default 0
        Pixels that are added below and to the right.
    groups : int, default 1
    scale, zero_point : float, int, optional
        Parameters of the result; without `scale` they are chosen from its values, which takes a second pass.
    dtype : quint8 or qint8, optional
        Of the result; that of `t` by default.

    Returns
    -------
    QTensor, shape (N, M, H', W')

    Raises
    ------
    InvalidDType, ShapeMismatch, InvalidQParams, InvalidArgument
        Naming the argument, what was wanted and what came.

    Examples
    --------
    >>> import quantkit as qk
    >>> t = qk.quantize([[[[0.0, 1.0], [2.0, 3.0]]]], scale=0.25)
    >>> w = qk.quantize([[[[1.0, 0.5]]]], scale=0.5, dtype=qk.qint8)
    >>> qk.conv_transpose2d(t, w, stride=(1, 2), scale=0.5, dtype=qk.qint8)
    QTensor([[[[0. , 0. , 1. , 0.5],
               [2. , 1. , 3. , 1.5]]]], dtype=qint8, scale=0.5, zero_point=0)
    """
    verb = "conv_transpose2d"
    _operand(verb, "t", t, None)
    _operand(verb, "w", w, 1)
    kind = t.dtype if dtype is None else as_qdtype(dtype)
    attributes: dict[str, Any] = {
        "strides": _pair(verb, "stride", stride),
        "dilations": _pair(verb, "dilation", dilation),
        "pads": _pair(verb, "padding", padding) * 2,
        "output_padding": _pair(verb, "output_padding", output_padding),
        "group": as_group(verb, groups),
    }
    outputs = w.shape[1] * attributes["group"]
    w_scale = w.scale if w.axis is None else np.tile(w.scale, attributes["group"])
    verbs = (ops.conv_transpose_integer, ops.qlinear_conv_transpose)
    return _convolved(verb, verbs, t, w, (w_scale, outputs), bias, kind, (scale, zero_point), attributes)


def _convolved(
    verb: str,
    verbs: tuple[Callable[..., Any], Callable[..., Any]],
    t: QTensor,
    w: QTensor,
    each_output: tuple[Any, int],
    bias: Any,
    kind: QDType,
    wanted: tuple[Any, Any],
    attributes: dict[str, Any],
) -> QTensor:
    """Run one of two verbs: with wanted parameters that to codes, else that to sums, from which they are chosen.

    `each_output` is the scale of the weights, one an output or one for all, and how many outputs there are.
    """
    w_scale, outputs = each_output
    sums_of, codes_of = verbs
    steps = np.ravel(np.float32(t.scale) * np.asarray(w_scale, np.float32))
    whole = _whole_bias(verb, bias, steps, outputs)
    x, weights = t.int_repr(), w.int_repr()
    qparams = _output_parameters(verb, kind, *wanted)
    w_zero = w.zero_point if np.ndim(w.zero_point) == 0 else np.resize(w.zero_point, outputs)
    if qparams is None:
        sums = sums_of(x, weights, t.zero_point, w_zero, **attributes)
        each = (-1, 1, 1)
        exact = np.asarray(sums.cpu() if isinstance(sums, Array) else sums, np.float64)
        exact = exact + (0 if whole is None else whole.reshape(each))
        return quantize((exact * steps.reshape(each)).astype(np.float32), dtype=kind).to(t.device)
    out = kind.codes.type(qparams.zero_point)
    codes = codes_of(x, t.scale, t.zero_point, weights, w_scale, w_zero, qparams.scale, out, whole, **attributes)
    made: QTensor = as_tensor(codes, kind, scale=qparams.scale, zero_point=qparams.zero_point)
    return made


def _factor(name: str, value: Any, axes: tuple[int | None, ...], wanted: str) -> QTensor:
    if not isinstance(value, QTensor):
        raise InvalidDType(f"matmul: {name} must be a QTensor, got {type(value).__name__}; use quantkit.quantize")
    if value.axis not in axes:
        raise InvalidQParams(f"matmul: {name} must have {wanted}, got scales along axis {value.axis}")
    if value.qparams.has_float_zero_point:
        raise InvalidQParams(f"matmul: {name} has a float zero_point; requantize it to an integer one first")
    return value


def matmul(
    t: QTensor, w: QTensor, bias: Any = None, *, scale: Any = None, zero_point: Any = None, dtype: Any = None
) -> QTensor:
    """Multiply quantized matrices, in integers; batches and vectors as NumPy's matmul.

    Parameters
    ----------
    t : QTensor, shape (..., M, K) or (K,)
        One scale.
    w : QTensor, shape (..., K, N) or (K,)
        One scale, or one a column (the last axis).
    bias : array of N real numbers, optional
        Rounded to steps of ``t.scale * w.scale``; `w` is then a matrix.
    scale, zero_point : float, int, optional
        Parameters of the result. Without `scale` they are chosen from the range of its real values, which are computed
        in float32 first: a second pass over the result, and float32 memory for it.
    dtype : quint8 or qint8, optional
        Of the result; that of `t` by default.

    Returns
    -------
    QTensor, shape (..., M, N)

    Raises
    ------
    InvalidArgument
        When K > 65,793, where sums could leave int32, and for a zero_point without scale.
    InvalidDType, ShapeMismatch, InvalidQParams
        Naming the argument, what was wanted and what came.

    Examples
    --------
    >>> import quantkit as qk
    >>> t = qk.quantize([[1.0, 2.0]], scale=0.25)
    >>> w = qk.quantize([[1.0, -1.0], [0.5, 2.0]], scale=0.5, dtype=qk.qint8)
    >>> qk.matmul(t, w, [0.5, 0.0], scale=0.5, dtype=qk.qint8)
    QTensor([[2.5, 3. ]], dtype=qint8, scale=0.5, zero_point=0)
    """
    _factor("t", t, (None,), "one scale")
    _factor(
        "w", w, (None, *([w.ndim - 1] if isinstance(w, QTensor) and w.ndim > 1 else [])), "one scale or one a column"
    )
    if bias is not None and w.ndim != 2:
        raise ShapeMismatch(f"matmul: a bias wants a matrix w of 2 dimensions, got shape {w.shape}")
    kind = t.dtype if dtype is None else as_qdtype(dtype)
    qparams = _output_parameters("matmul", kind, scale, zero_point)
    steps = np.ravel(np.float32(t.scale) * np.asarray(w.scale, np.float32))
    whole = _whole_bias("matmul", bias, steps, w.shape[-1])
    x, weights = t.int_repr(), w.int_repr()
    if qparams is None:
        real = ops.matmul_integer_to_float(x, weights, t.scale, w.scale, t.zero_point, w.zero_point, whole)
        return quantize(real, dtype=kind)
    out = kind.codes.type(qparams.zero_point)
    codes = ops.qlinear_matmul(x, t.scale, t.zero_point, weights, w.scale, w.zero_point, qparams.scale, out, bias=whole)
    made: QTensor = as_tensor(codes, kind, scale=qparams.scale, zero_point=qparams.zero_point)
    return made
