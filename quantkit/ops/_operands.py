"""What every verb does with its arguments before a kernel sees them."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from quantkit import _kernels
from quantkit.errors import InvalidArgument, InvalidDType, InvalidQParams, OutOfMemory, ShapeMismatch, StorageError
from quantkit.qparams import QDType, as_scale, as_zero_point, check_zero_point, qint8, quint8
from quantkit.text import told


def as_array(x: Any, verb: str, name: str) -> np.ndarray[Any, Any]:
    """Return `x` as an ndarray; what NumPy cannot read, ragged lists among it, is one clear error."""
    try:
        return np.asarray(x)
    except StorageError as error:  # bytes elsewhere, as on a GPU: it says what to do
        raise StorageError(f"{verb}: {name}: {error}") from None
    except (TypeError, ValueError) as error:
        raise InvalidDType(f"{verb}: {name} cannot be read as an array: {error}") from None


def empty(verb: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return an array for a result; one that cannot be had is an `OutOfMemory` that says how large it would be."""
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError):  # ValueError: more than can be addressed
        raise OutOfMemory(f"{verb}: no memory for a result of {dtype} {shape}") from None


def as_number(value: Any, verb: str, name: str) -> float:
    """Return one real number; arrays of several, complex numbers and what is no number are one clear error."""
    try:
        if np.ndim(value) or np.asarray(value).dtype.kind in "cSUMm":
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise InvalidDType(f"{verb}: {name} must be a real number, got {told(value)}") from None
    except OverflowError:
        raise InvalidArgument(f"{verb}: {name} must be finite in float32, got {told(value)}") from None


def as_floats(x: Any, verb: str) -> tuple[Any, bool]:
    """Return `x` as an array of a float dtype, and whether it is bfloat16 (then as a uint16 view).

    Python numbers and lists become float32; arrays keep their dtype, and are copied where they are not aligned.
    """
    if type(x) is not np.ndarray:
        plain = isinstance(x, (int, float, list, tuple))
        x = as_array(x, verb, "x")
        if plain and x.dtype.kind in "iuf":
            x = x.astype(np.float32)
    dtype = x.dtype
    if not x.flags.aligned:
        x = x.copy()
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return (x if dtype.isnative else x.astype(dtype.newbyteorder("="))), False
    if dtype.name == "bfloat16":
        return x.view(np.uint16), True
    raise InvalidDType(f"{verb}: x must be float16, bfloat16, float32 or float64, got {dtype}")


def as_codes(q: Any, verb: str) -> np.ndarray[Any, Any]:
    """Return `q` as a uint8, int8 or int32 array, copied where it is not aligned."""
    if type(q) is not np.ndarray:
        q = as_array(q, verb, "q")
    if q.dtype.kind not in "iu" or (q.dtype.kind, q.dtype.itemsize) not in {("u", 1), ("i", 1), ("i", 4)}:
        raise InvalidDType(f"{verb}: q must be uint8, int8 or int32, got {q.dtype}")
    codes: np.ndarray[Any, Any] = q if q.dtype.isnative else q.astype(q.dtype.newbyteorder("="))
    return codes if codes.flags.aligned else codes.copy()


def plain(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return `x` as the unsigned integers of its item size, whose buffers every kernel that only moves them reads."""
    return x if x.dtype.kind in "biuf" and x.dtype.isnative else x.view(f"u{x.dtype.itemsize}")


def copied(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a copy of `x` in its memory order, made by a kernel: at once, or in its turn on a stream."""
    made = np.empty_like(x, subok=False)
    _kernels.copy(plain(x), plain(made))
    return made


def normalize_axis(axis: Any, ndim: int, verb: str) -> int:
    """Return `axis` in [0, ndim)."""
    try:
        index = operator.index(axis)
    except TypeError:
        raise InvalidDType(f"{verb}: axis must be an integer or None, got {axis!r}") from None
    if not -ndim <= index < ndim:
        raise ShapeMismatch(f"{verb}: axis {index} is out of range for an array of {ndim} dimensions")
    return index % ndim


def zero_points(verb: str, name: str, value: Any, is_signed: bool, count: int = 1, axis: int | None = None) -> Any:
    """Return a zero point of 8-bit codes as an int, or as `count` int32 values: one a row, column or output.

    ONNX gives those of a product as (count,), or with the dimensions of the operand and 1 in all but `axis`.
    """
    values = as_array(value, verb, name)
    if values.ndim > 1:
        if axis is not None and any(n != 1 for i, n in enumerate(values.shape) if i != values.ndim + axis):
            raise ShapeMismatch(
                f"{verb}: {name} of shape {values.shape} differs along a batch; wanted {counted(count)}"
            )
        values = values.reshape(-1)
    codes = as_zero_point(values, f"{verb}: {name}")
    if codes.dtype.kind == "f":
        raise InvalidQParams(f"{verb}: {name} must be an integer (requantize a tensor with a float one first)")
    check_zero_point(codes, qint8 if is_signed else quint8, f"{verb}: {name}")
    if codes.size == 1:
        return int(codes.reshape(()))
    if codes.size != count:
        raise ShapeMismatch(f"{verb}: wanted {counted(count)} of {name}, got {codes.size}")
    return np.ascontiguousarray(codes)


def multiplier(verb: str, count: int, given: Any, over: Any = None) -> np.ndarray[Any, Any]:
    """Return the product of two scales, over a third, in float32 step by step, `count` values of it.

    Each comes as ``(name, value, how many values it may have)``.
    """
    scales = []
    for name, value, most in (*given, *(() if over is None else (over,))):
        scale = np.ravel(as_scale(np.ravel(value) if np.ndim(value) > 1 else value, f"{verb}: {name}"))
        if scale.size not in (1, most):
            raise ShapeMismatch(f"{verb}: wanted {counted(most)} of {name}, got {scale.size}")
        scales.append(scale)
    product = scales[0] * scales[1]
    if over is not None:
        product = product / scales[2]
    return np.ascontiguousarray(np.broadcast_to(product, (count,)), np.float32)


def whole_bias(verb: str, bias: Any, count: int) -> np.ndarray[Any, Any]:
    """Return a bias as `count` int32 values, which enter where sums begin."""
    bias = as_array(bias, verb, "bias")
    if bias.dtype != np.int32:
        raise InvalidDType(f"{verb}: bias must be int32, got {bias.dtype}")
    if bias.shape != (count,):
        raise ShapeMismatch(f"{verb}: wanted bias of shape ({count},), got {bias.shape}")
    return np.ascontiguousarray(bias)


def counted(count: int) -> str:
    return "one value" if count == 1 else f"1 or {count} values"


def parameters(
    verb: str,
    shape: tuple[int, ...],
    scale: Any,
    zero_point: Any,
    axis: int | None,
    dtype: QDType | None,
    prefix: str = "",
) -> tuple[Any, Any, int]:
    """Check scale and zero point against the shape and the codes' dtype, and return them as the kernels take them.

    Returns ``(scale, zero_point, axis)``: two numbers and axis -1, or two contiguous arrays of one value a channel.
    `dtype` None stands for int32 codes, whose zero point may be any int32. `prefix` begins the names in messages.
    """
    scale_name, zero_name = f"{prefix}scale", f"{prefix}zero_point"
    scales, zero_points = as_scale(scale, f"{verb}: {scale_name}"), as_zero_point(zero_point, f"{verb}: {zero_name}")
    if dtype is not None:
        check_zero_point(zero_points, dtype, f"{verb}: {zero_name}")
    elif zero_points.dtype.kind == "f" and not np.isfinite(zero_points).all():
        raise InvalidQParams(f"{verb}: {zero_name} must be finite, got {zero_point!r}")
    if axis is None:
        # A single value in an array of one is still one for all.
        if scales.size != 1 or zero_points.size != 1:
            count = max(scales.size, zero_points.size)
            raise ShapeMismatch(f"{verb}: {count} scales or zero points need axis=, got axis=None")
        return float(scales.reshape(())), zero_points.reshape(()).item(), -1
    index = normalize_axis(axis, len(shape), verb)
    channels = shape[index]
    for name, values in ((scale_name, scales), (zero_name, zero_points)):
        if values.ndim == 1 and values.size not in (1, channels):
            raise ShapeMismatch(
                f"{verb}: axis {index} of shape {shape} wants {channels} values of {name}, got {values.size}"
            )
    return (
        np.ascontiguousarray(np.broadcast_to(scales, (channels,))),
        np.ascontiguousarray(np.broadcast_to(zero_points, (channels,))),
        index,
    )
