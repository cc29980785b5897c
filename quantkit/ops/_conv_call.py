"""What the convolution verbs share: their parameters as plans, and plans that are kept from call to call."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from quantkit import _kernels
from quantkit._kernels import ConvPlan, KeptCall
from quantkit.errors import InvalidDType, ShapeMismatch
from quantkit.ops._conv_weights import PackedConv
from quantkit.ops._depth import check_depth
from quantkit.ops._operands import as_array, empty, multiplier, whole_bias, zero_points
from quantkit.qparams import as_qdtype
from quantkit.storage import Array

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

CODES = (np.dtype(np.uint8), np.dtype(np.int8))


def is_channels_last(x: NDArray[Any]) -> bool:
    """Whether the channels of x (N, C, ...) lie together, pixel after pixel."""
    channels, item = x.shape[1], x.itemsize
    return (
        channels > 1
        and x.strides[1] == item
        and all(s >= channels * item for s, n in zip(x.strides[2:], x.shape[2:], strict=True) if n > 1)
        and any(n > 1 for n in x.shape[2:])
    )


def empty_like_layout(verb: str, shape: tuple[int, ...], dtype: np.dtype[Any], channels_last: bool) -> NDArray[Any]:
    """Return an array (N, C, ...) whose memory is in that order, or channels-last."""
    if channels_last:
        return np.moveaxis(empty(verb, (shape[0], *shape[2:], shape[1]), dtype), -1, 1)
    return empty(verb, shape, dtype)


def sums_plan(verb: str, w: PackedConv, x_dtype: np.dtype[Any], x_zero_point: Any, w_zero_point: Any) -> ConvPlan:
    """Return the plan of a convolution to int32."""
    signed = x_dtype == np.int8
    x_zero = zero_points(verb, "x_zero_point", x_zero_point, signed)
    packed, w_zero = w.for_zero_point(zero_points(verb, "w_zero_point", w_zero_point, w.is_signed, w.shape[0]))
    return ConvPlan(packed, signed, x_zero, w_zero, None, "int32", None)


def codes_dtype(x: NDArray[Any], y_zero_point: Any, out: Any) -> np.dtype[Any]:
    """Return the dtype of quantized results: that of `out`, of `y_zero_point` or of `x`."""
    given = getattr(out, "dtype", None) or getattr(y_zero_point, "dtype", x.dtype)
    return np.dtype(given) if given in CODES else x.dtype


def codes_plan(
    verb: str,
    w: PackedConv,
    x_dtype: np.dtype[Any],
    y_dtype: np.dtype[Any],
    x_scale: Any,
    x_zero_point: Any,
    w_scale: Any,
    w_zero_point: Any,
    y_scale: Any,
    y_zero_point: Any,
    bias: Any,
) -> ConvPlan:
    """Return the plan of a convolution to codes of `y_dtype`."""
    outputs, depth, signed = w.shape[0], math.prod(w.shape[1:]), x_dtype == np.int8
    qdtype = as_qdtype(y_dtype)
    x_zero = zero_points(verb, "x_zero_point", x_zero_point, signed)
    w_zero = zero_points(verb, "w_zero_point", w_zero_point, w.is_signed, outputs)
    y_zero = zero_points(verb, "y_zero_point", y_zero_point, y_dtype == np.int8)
    check_depth(verb, depth, (signed, x_zero), (w.is_signed, w_zero))
    given = (("x_scale", x_scale, 1), ("w_scale", w_scale, outputs))
    scales = multiplier(verb, outputs, given, ("y_scale", y_scale, 1))
    addend = None if bias is None else whole_bias(verb, bias, outputs)
    packed, w_zero = w.for_zero_point(w_zero)
    return ConvPlan(packed, signed, x_zero, w_zero, addend, y_dtype.name, scales, y_zero, qdtype.qmin, qdtype.qmax)


def _check_out(verb: str, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse an `out` that is not an array of this shape and dtype."""
    if not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != dtype:
        what = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise ShapeMismatch(f"{verb}: wanted out of {dtype} {shape}, got {what}")


class Part(NamedTuple):
    """One run of a plan: where it lies on the input, and which pixels of the output it makes (None: all)."""

    plan: ConvPlan
    strides: tuple[int, ...]
    begins: tuple[int, ...]
    dilations: tuple[int, ...]
    out: tuple[slice, ...] | None


class Made(NamedTuple):
    """What was made of the arguments of a call."""

    parts: tuple[Part, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def convolve(
    verb: str,
    x: Any,
    w: Any,
    packed: type[Any],
    given: tuple[Any, ...],
    out: Any,
    make: Callable[[NDArray[Any], Any, Any, tuple[Any, ...]], tuple[Any, Made]],
) -> NDArray[Any]:
    """Run the plans of the last call of packed weights where all that was `given` is the same, else those of `make`,
    which takes x, w, out and what was given, and returns the packed weights as well.

    A layer is called with the same arguments but x again and again, and to check and arrange them takes longer than a
    small convolution.
    """
    made: Made | None = None
    if type(x) is not np.ndarray:
        x = as_array(x, verb, "x")
    if is_packed := isinstance(w, packed):
        # Of `out`, the dtype alone decides what is made.
        kind = None if out is None else getattr(getattr(out, "dtype", None), "char", None)
        values = (verb, x.dtype.char, x.shape, kind, *given)
        # Read once: another thread may put its own call there at any time.
        last = w.last
        if last is not None and last.holds(values):
            made = last.made
    if made is None:
        packed_w, made = make(x, w, out, given)
        if is_packed:
            packed_w.last = KeptCall(values, made)
    parts, shape, dtype = made
    result: Any = out
    if out is None:
        result = empty_like_layout(verb, shape, dtype, is_channels_last(x))
    elif isinstance(out, Array):
        result = np.asarray(out)
    if type(result) is not np.ndarray or result.shape != shape or result.dtype is not dtype:
        _check_out(verb, result, shape, dtype)
    if len(parts) == 1:
        plan, strides, begins, dilations, _ = parts[0]
        apart = plan.run(x, result, strides, begins, dilations)
    elif apart := not np.may_share_memory(result, x):
        _run_parts(parts, x, result)
    if not apart:
        own = empty_like_layout(verb, shape, dtype, is_channels_last(x))
        _run_parts(parts, x, own)
        _kernels.copy(own, result)
    filled: NDArray[Any] = result if out is None else out
    return filled


def _run_parts(parts: tuple[Part, ...], x: NDArray[Any], out: Any) -> None:
    for plan, strides, begins, dilations, pixels in parts:
        plan.run(x, out if pixels is None else out[(..., *pixels)], strides, begins, dilations)


def check_input(verb: str, x: NDArray[Any], dims: int, channels: int, weights: str) -> None:
    """Refuse an `x` that does not fit what is said of the `weights`."""
    if x.dtype not in CODES:
        raise InvalidDType(f"{verb}: x must be uint8 or int8, got {x.dtype}")
    if x.ndim != dims:
        raise ShapeMismatch(f"{verb}: {weights} wants x of {dims} dimensions (N, C, ...), got shape {x.shape}")
    if x.shape[1] != channels:
        raise ShapeMismatch(f"{verb}: {weights} wants {channels} channels, got x of shape {x.shape}")
