"""Convolutions of 8-bit codes: conv_integer and qlinear_conv.

docs/kernels.md shows how a convolution becomes a product of rows that lie in pieces.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from quantkit import _kernels
from quantkit._kernels import ConvPlan, call_key
from quantkit.errors import InvalidArgument, InvalidDType, InvalidQParams, ShapeMismatch
from quantkit.ops._conv_geometry import Geometry, geometry
from quantkit.ops._conv_weights import PackedConv
from quantkit.ops.matmul import check_depth
from quantkit.qparams import as_qdtype, as_scale, as_zero_point, check_zero_point
from quantkit.storage import Array
from quantkit.streams.queue import current, queued

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_CODES = (np.dtype(np.uint8), np.dtype(np.int8))


def _operands(verb: str, x: Any, w: Any, group: Any) -> tuple[NDArray[Any], PackedConv]:
    x = np.asarray(x)
    if x.dtype not in _CODES:
        raise InvalidDType(f"{verb}: x must be uint8 or int8, got {x.dtype}")
    if not isinstance(w, PackedConv):
        w = PackedConv(verb, w, group)
    elif group not in (w.group, 1):
        raise InvalidArgument(f"{verb}: w was packed with group={w.group}, got group={group}")
    if x.ndim != len(w.shape):
        raise ShapeMismatch(
            f"{verb}: w of shape {w.shape} wants x of {len(w.shape)} dimensions (N, C, ...), got shape {x.shape}"
        )
    if x.shape[1] != w.channels:
        raise ShapeMismatch(
            f"{verb}: w of shape {w.shape} with group={w.group} wants {w.channels} channels, got x of shape {x.shape}"
        )
    return x, w


def _zero_point(verb: str, name: str, value: Any, is_signed: bool, count: int = 1) -> Any:
    """Return a zero point as an int, or as int32 values of one an output."""
    values = np.asarray(value)
    codes = as_zero_point(values.reshape(-1) if values.ndim > 1 else values, f"{verb}: {name}")
    if codes.dtype.kind == "f":
        raise InvalidQParams(f"{verb}: {name} must be an integer (requantize a tensor with a float one first)")
    check_zero_point(codes, as_qdtype(np.int8 if is_signed else np.uint8), f"{verb}: {name}")
    if codes.size == 1:
        return int(codes.reshape(()))
    if codes.size != count:
        raise ShapeMismatch(f"{verb}: wanted {_counted(count)} of {name}, got {codes.size}")
    return np.ascontiguousarray(codes)


def _scale(verb: str, name: str, value: Any, count: int = 1) -> NDArray[np.float32]:
    scale = as_scale(np.ravel(value) if np.ndim(value) > 1 else value, f"{verb}: {name}").reshape(-1)
    if scale.size not in (1, count):
        raise ShapeMismatch(f"{verb}: wanted {_counted(count)} of {name}, got {scale.size}")
    return scale


def _counted(count: int) -> str:
    return "one value" if count == 1 else f"1 or {count} values"


def _bias(verb: str, bias: Any, outputs: int) -> Any:
    if bias is None:
        return None
    bias = np.asarray(bias)
    if bias.dtype != np.int32:
        raise InvalidDType(f"{verb}: bias must be int32, got {bias.dtype}")
    if bias.shape != (outputs,):
        raise ShapeMismatch(f"{verb}: wanted bias of shape ({outputs},), got {bias.shape}")
    return np.ascontiguousarray(bias)


def is_channels_last(x: NDArray[Any]) -> bool:
    """Whether the channels of x (N, C, ...) lie together, pixel after pixel."""
    channels, item = x.shape[1], x.itemsize
    return (
        channels > 1
        and x.strides[1] == item
        and all(s >= channels * item for s, n in zip(x.strides[2:], x.shape[2:], strict=True) if n > 1)
        and any(n > 1 for n in x.shape[2:])
    )


def empty_like_layout(shape: tuple[int, ...], dtype: np.dtype[Any], channels_last: bool) -> NDArray[Any]:
    """Return an array (N, C, ...) whose memory is in that order, or channels-last."""
    if channels_last:
        return np.moveaxis(np.empty((shape[0], *shape[2:], shape[1]), dtype), -1, 1)
    return np.empty(shape, dtype)


class _Made(NamedTuple):
    """What was made of the arguments of a call."""

    plan: ConvPlan
    at: Geometry
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def _convolve(
    verb: str,
    x: Any,
    w: Any,
    group: Any,
    attributes: tuple[Any, ...],
    parameters: tuple[Any, ...],
    out: Any,
    make: Callable[[NDArray[Any], PackedConv], tuple[ConvPlan, np.dtype[Any]]],
) -> NDArray[Any]:
    """Run the plan of the last call of packed weights where all was the same, else that of `make`.

    A layer is called with the same arguments but x again and again, and to check and arrange them takes longer than a
    small convolution.
    """
    x = np.asarray(x)
    key, made = None, None
    if isinstance(w, PackedConv):
        given = (verb, group, x.dtype.str, x.shape, getattr(getattr(out, "dtype", None), "str", None))
        key = call_key((*given, *attributes, *parameters))
        if key is not None and w.last[0] == key:
            made = w.last[1]
    if made is None:
        x, w = _operands(verb, x, w, group)
        plan, dtype = make(x, w)
        at = geometry(verb, x.shape[2:], w.shape[2:], *attributes)
        made = _Made(plan, at, (x.shape[0], w.shape[0], *at.out), dtype)
        w.last = (key, made)
    plan, at, shape, dtype = made
    filled_out = out
    if isinstance(out, Array):
        out = np.asarray(out)
    if out is not None and (not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != dtype):
        what = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise ShapeMismatch(f"{verb}: wanted out of {dtype} {shape}, got {what}")
    result: Any = out
    if out is None or np.may_share_memory(out, x):
        result = empty_like_layout(shape, dtype, is_channels_last(x))
    plan.run(x, result, at.strides, at.begins, at.dilations)
    if out is not None and result is not out:
        _kernels.copy(result, out)
    filled: NDArray[Any] = result if out is None else filled_out
    return filled


def conv_integer(
    x: Any,
    w: Any,
    x_zero_point: Any = 0,
    w_zero_point: Any = 0,
    *,
    strides: Any = None,
    pads: Any = None,
    dilations: Any = None,
    group: int = 1,
    auto_pad: str = "NOTSET",
    out: Any = None,
) -> Any:
    """Convolve codes exactly: sums of ``(x - x_zero_point) * (w - w_zero_point)`` (ONNX ConvInteger).

    Parameters
    ----------
    x : array of uint8 or int8, shape (N, C, *size), size of 1 to 3 dimensions
        Any strides. Where the channels lie together (channels-last memory), the result has that order too.
    w : array of uint8 or int8, shape (M, C / group, *kernel), or PackedConv
    x_zero_point : int
        Also the code of what lies outside of the image.
    w_zero_point : int, or array of M
    strides, dilations : sequence of int, one a spatial dimension, default 1
    pads : sequence of int, default 0
        Pixels before the image along each spatial dimension, then pixels after it.
    group : int, default 1
    auto_pad : {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"}
        In place of `pads`.
    out : int32 array of any strides, optional

    Returns
    -------
    ndarray of int32, shape (N, M, *size of the output)
        Sums beyond int32 wrap, which takes more than 65,793 products.

    Raises
    ------
    InvalidDType, ShapeMismatch, InvalidQParams, InvalidArgument
        Naming the argument, what was wanted and what came.
    """
    if (stream := current()) is not None:
        named = {"strides": strides, "pads": pads, "dilations": dilations, "group": group, "auto_pad": auto_pad}
        return queued(stream, conv_integer, (x,), (w, x_zero_point, w_zero_point), out, **named)
    verb = "conv_integer"

    def make(x: NDArray[Any], w: PackedConv) -> tuple[ConvPlan, np.dtype[Any]]:
        signed = x.dtype == np.int8
        x_zero = _zero_point(verb, "x_zero_point", x_zero_point, signed)
        packed, w_zero = w.for_zero_point(_zero_point(verb, "w_zero_point", w_zero_point, w.is_signed, w.shape[0]))
        return ConvPlan(packed, signed, x_zero, w_zero, None, "int32", None), np.dtype(np.int32)

    attributes = (strides, pads, dilations, auto_pad)
    return _convolve(verb, x, w, group, attributes, (x_zero_point, w_zero_point), out, make)


def qlinear_conv(
    x: Any,
    x_scale: Any,
    x_zero_point: Any,
    w: Any,
    w_scale: Any,
    w_zero_point: Any,
    y_scale: Any,
    y_zero_point: Any,
    bias: Any = None,
    *,
    strides: Any = None,
    pads: Any = None,
    dilations: Any = None,
    group: int = 1,
    auto_pad: str = "NOTSET",
    out: Any = None,
) -> Any:
    """Convolve codes and quantize the result (ONNX QLinearConv).

    ``y = saturate(round_half_even((sum + bias) * (x_scale * w_scale / y_scale)) + y_zero_point)`` where `sum` is that
    of `conv_integer`; the multiplier is evaluated in float32, the int32 sums never go to memory.

    Parameters
    ----------
    x, w, strides, pads, dilations, group, auto_pad
        As in `conv_integer`.
    x_scale, x_zero_point : float, int
    w_scale, w_zero_point : float, int, or arrays of M
    y_scale, y_zero_point : float, int
    bias : array of int32, shape (M,), optional
        In units of ``x_scale * w_scale``.
    out : array of uint8 or int8, of any strides, optional

    Returns
    -------
    ndarray, shape (N, M, *size of the output)
        Of the dtype of `out`, else of `y_zero_point` where that is an array or NumPy scalar, else of `x`.

    Raises
    ------
    InvalidArgument
        When so many products make a sum that it could leave int32 (at most 65,793); for bad attributes.
    InvalidDType, ShapeMismatch, InvalidQParams
        Naming the argument, what was wanted and what came.
    """
    if (stream := current()) is not None:
        values = (x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, bias)
        named = {"strides": strides, "pads": pads, "dilations": dilations, "group": group, "auto_pad": auto_pad}
        return queued(stream, qlinear_conv, (x,), values, out, **named)
    verb = "qlinear_conv"

    def make(x: NDArray[Any], w: PackedConv) -> tuple[ConvPlan, np.dtype[Any]]:
        outputs, depth, signed = w.shape[0], math.prod(w.shape[1:]), x.dtype == np.int8
        given = getattr(out, "dtype", None) or getattr(y_zero_point, "dtype", x.dtype)
        dtype = np.dtype(given) if given in _CODES else x.dtype
        qdtype = as_qdtype(dtype)
        x_zero = _zero_point(verb, "x_zero_point", x_zero_point, signed)
        w_zero = _zero_point(verb, "w_zero_point", w_zero_point, w.is_signed, outputs)
        y_zero = _zero_point(verb, "y_zero_point", y_zero_point, dtype == np.int8)
        check_depth(verb, depth, (signed, x_zero), (w.is_signed, w_zero))
        scales = _scale(verb, "x_scale", x_scale) * _scale(verb, "w_scale", w_scale, outputs)
        multiplier = np.broadcast_to(scales / _scale(verb, "y_scale", y_scale), (outputs,))
        multiplier = np.ascontiguousarray(multiplier, np.float32)
        addend = _bias(verb, bias, outputs)
        packed, w_zero = w.for_zero_point(w_zero)
        low, high = qdtype.qmin, qdtype.qmax
        return ConvPlan(packed, signed, x_zero, w_zero, addend, dtype.name, multiplier, y_zero, low, high), dtype

    attributes = (strides, pads, dilations, auto_pad)
    parameters = (x_scale, x_zero_point, w_scale, w_zero_point, y_scale, y_zero_point, bias)
    return _convolve(verb, x, w, group, attributes, parameters, out, make)
