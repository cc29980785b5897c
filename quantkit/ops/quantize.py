"""quantize_linear, dequantize_linear and dynamic_quantize_linear, as ONNX defines them.

The formula stands in `quantkit.qparams`; docs/numerics.md has the fine print.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit import _kernels
from quantkit.errors import InvalidDType
from quantkit.ops._devices import cuda_elements, on_gpu
from quantkit.ops._operands import as_codes, as_floats, copied, parameters
from quantkit.qparams import as_qdtype, qint8, quint8
from quantkit.streams.queue import current, queued, recording

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

_affine = _kernels.affine
_plain = _kernels.affine_plain
_U8 = np.dtype(np.uint8)
_F32 = np.dtype(np.float32)
_QDTYPES = {np.dtype(np.uint8): quint8, np.dtype(np.int8): qint8}


def _out_is_bf16(out: Any, verb: str, wanted: str, accepted: tuple[str, ...]) -> bool:
    """Check the dtype of `out`, and say whether it is bfloat16."""
    name = getattr(getattr(out, "dtype", None), "name", type(out).__name__)
    if name not in accepted:
        raise InvalidDType(f"{verb}: wanted out of {wanted}, got {name}")
    return bool(name == "bfloat16")


def quantize_linear(
    x: Any,
    scale: Any,
    zero_point: Any = 0,
    *,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
) -> NDArray[Any]:
    """Quantize real values: ``saturate(round_half_even(x / scale) + zero_point)``.

    Parameters
    ----------
    x : array_like of float16, bfloat16, float32 or float64
        Any shape and strides. Python numbers and lists count as float32. float16 and bfloat16 are divided in float32.
    scale : float or array_like of shape (channels,)
        Finite and > 0; used in float32.
    zero_point : int, float, or array_like of shape (channels,), default 0
        Integer: a code of `dtype`. Float: ``round_half_even(x / scale + zero_point)``.
    axis : int, optional
        The axis that `scale` and `zero_point` run along; None for one value for all.
    dtype : numpy.uint8 or numpy.int8 (or quint8, qint8), optional
        dtype of the codes. Without it: that of `out`, else int8 for an int8 `zero_point`, else uint8.
    out : array of the codes, optional
        Filled and returned; any strides. It may not have another shape or dtype.

    Returns
    -------
    ndarray of uint8 or int8
        Of the shape of `x`, in its memory order; `out` where it was given. NaN gives the lowest code.

    Raises
    ------
    InvalidQParams
        Scale not finite or not > 0, zero point not a code of `dtype`; names the channel.
    InvalidDType, ShapeMismatch
        Naming what was wanted and what came.
    """
    stream = current()
    if stream is None and axis is None:  # the common call: one number for all, checked and run in one go
        y: NDArray[Any] | None = out if dtype is None else None
        if out is None and type(x) is np.ndarray:
            y = np.empty_like(x, dtype=_U8 if dtype is None else as_qdtype(dtype).codes, subok=False)
        if y is not None and _plain(x, y, scale, zero_point):
            return y
    if on_gpu(x, out):
        there: NDArray[Any] = cuda_elements.quantize_linear(x, scale, zero_point, axis, dtype, out)
        return there
    if stream is not None:
        made: NDArray[Any] = queued(stream, quantize_linear, (x,), (scale, zero_point), out, axis=axis, dtype=dtype)
        return made
    verb = "quantize_linear"
    x, is_bf16 = as_floats(x, verb)
    if dtype is not None:
        qdtype = as_qdtype(dtype)
    elif out is not None:
        qdtype = _QDTYPES.get(getattr(out, "dtype", _U8), quint8)
    else:
        qdtype = qint8 if getattr(zero_point, "dtype", None) == np.int8 else quint8
    scale, zero_point, index = parameters(verb, x.shape, scale, zero_point, axis, qdtype)
    codes: NDArray[Any] = np.empty_like(x, dtype=qdtype.codes, subok=False) if out is None else out
    if getattr(codes, "dtype", None) != qdtype.codes:
        _out_is_bf16(codes, verb, qdtype.codes.name, (qdtype.codes.name,))
    if not _affine(x, codes, scale, zero_point, index, is_bf16):
        _affine(copied(x), codes, scale, zero_point, index, is_bf16)
    return codes


def dequantize_linear(
    q: Any,
    scale: Any,
    zero_point: Any = 0,
    *,
    axis: int | None = None,
    out: Any = None,
) -> NDArray[Any]:
    """Return the real values of codes: ``(q - zero_point) * scale``.

    Parameters
    ----------
    q : array_like of uint8, int8 or int32
        Any shape and strides.
    scale : float or array_like of shape (channels,)
        Finite and > 0; used in float32.
    zero_point : int, float, or array_like of shape (channels,), default 0
    axis : int, optional
        The axis that `scale` and `zero_point` run along; None for one value for all.
    out : array of float16, bfloat16, float32 or float64, optional
        Filled and returned; any strides.

    Returns
    -------
    ndarray
        Of the shape of `q`, in its memory order: float32, or float16 or bfloat16 where `scale` is an array of that
        (computed in float32, rounded once); `out` where it was given (float64: computed in float64).

    Raises
    ------
    InvalidQParams, InvalidDType, ShapeMismatch
        Naming what was wanted and what came.
    """
    stream = current()
    if stream is None and axis is None:  # the common call: one number for all, checked and run in one go
        y: NDArray[Any] | None = out
        if out is None and type(q) is np.ndarray:
            y = np.empty_like(q, dtype=_F32, subok=False)
        if y is not None and _plain(q, y, scale, zero_point):
            return y
    if on_gpu(q, out):
        there: NDArray[Any] = cuda_elements.dequantize_linear(q, scale, zero_point, axis, out)
        return there
    if stream is not None:
        made: NDArray[Any] = queued(stream, dequantize_linear, (q,), (scale, zero_point), out, axis=axis)
        return made
    verb = "dequantize_linear"
    q = as_codes(q, verb)
    real = getattr(scale, "dtype", _F32)
    if real.name not in ("float16", "bfloat16"):
        real = _F32
    scale, zero_point, index = parameters(verb, q.shape, scale, zero_point, axis, _QDTYPES.get(q.dtype))
    values: NDArray[Any] = np.empty_like(q, dtype=real, subok=False) if out is None else out
    reals = ("float16", "bfloat16", "float32", "float64")
    is_bf16 = _out_is_bf16(values, verb, "float16, bfloat16, float32 or float64", reals)
    stored = values.view(np.uint16) if is_bf16 else values
    if not _affine(q, stored, scale, zero_point, index, False, is_bf16):
        _affine(copied(q), stored, scale, zero_point, index, False, is_bf16)
    return values


def dynamic_quantize_linear(x: Any) -> Any:
    """Quantize to uint8 by the range of `x` itself, widened to hold 0 (ONNX DynamicQuantizeLinear).

    Parameters
    ----------
    x : array_like of float16, bfloat16, float32 or float64
        Finite.

    Returns
    -------
    q : ndarray of uint8
    scale : numpy.float32
        ``(max - min) / 255``; 1 where `x` is all zero or empty.
    zero_point : numpy.uint8

    Raises
    ------
    InvalidArgument
        When a value is NaN or infinite: one scale cannot serve it.
    """
    if on_gpu(x):
        return cuda_elements.dynamic_quantize_linear(x)
    if (stream := current()) is not None:
        return queued(stream, dynamic_quantize_linear, (x,), (), None)
    floats, is_bf16 = as_floats(x, "dynamic_quantize_linear")
    q = np.empty_like(floats, dtype=np.uint8, subok=False)
    scale, zero_point = np.empty(1, np.float32), np.empty(1, np.uint8)
    _kernels.dynamic_quantize(floats, q, scale, zero_point, is_bf16)
    if recording():
        return q, scale.reshape(()), zero_point.reshape(())
    return q, scale[0], zero_point[0]
