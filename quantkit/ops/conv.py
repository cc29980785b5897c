"""Convolutions of 8-bit codes: conv_integer and qlinear_conv.

docs/convolution.md shows how a convolution becomes a product of rows that lie in pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit.errors import InvalidArgument
from quantkit.ops._conv_call import Made, Part, check_input, codes_dtype, codes_plan, convolve, sums_plan
from quantkit.ops._conv_weights import PackedConv
from quantkit.ops._devices import cuda_products, on_gpu
from quantkit.ops.conv_geometry import geometry
from quantkit.streams.queue import current, queued

if TYPE_CHECKING:
    from numpy.typing import NDArray


def _operands(
    verb: str, x: NDArray[Any], w: Any, group: Any, attributes: tuple[Any, ...]
) -> tuple[PackedConv, Any, tuple[int, ...]]:
    """Check the operands; return the packed weights, the geometry and the shape that comes out."""
    if not isinstance(w, PackedConv):
        w = PackedConv(verb, w, group)
    elif group not in (w.group, 1):
        raise InvalidArgument(f"{verb}: w was packed with group={w.group}, got group={group}")
    check_input(verb, x, len(w.shape), w.channels, f"w of shape {w.shape} with group={w.group}")
    at = geometry(verb, x.shape[2:], w.shape[2:], *attributes)
    return w, at, (x.shape[0], w.shape[0], *at.out)


def _sums(x: NDArray[Any], w: Any, out: Any, given: tuple[Any, ...]) -> tuple[PackedConv, Made]:
    verb = "conv_integer"
    group, strides, pads, dilations, auto_pad, *zero_points = given
    packed, at, shape = _operands(verb, x, w, group, (strides, pads, dilations, auto_pad))
    plan = sums_plan(verb, packed, x.dtype, *zero_points)
    return packed, Made((Part(plan, at.strides, at.begins, at.dilations, None),), shape, np.dtype(np.int32))


def _codes(x: NDArray[Any], w: Any, out: Any, given: tuple[Any, ...]) -> tuple[PackedConv, Made]:
    verb = "qlinear_conv"
    group, strides, pads, dilations, auto_pad, *parameters = given
    packed, at, shape = _operands(verb, x, w, group, (strides, pads, dilations, auto_pad))
    dtype = codes_dtype(x, parameters[5], out)
    plan = codes_plan(verb, packed, x.dtype, dtype, *parameters)
    return packed, Made((Part(plan, at.strides, at.begins, at.dilations, None),), shape, dtype)


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
    if (type(x) is not np.ndarray or type(w) is not PackedConv) and on_gpu(x, w, out):
        attributes = (strides, pads, dilations, auto_pad)
        return cuda_products.conv_integer(x, w, x_zero_point, w_zero_point, attributes, group, out)
    if (stream := current()) is not None:
        named = {"strides": strides, "pads": pads, "dilations": dilations, "group": group, "auto_pad": auto_pad}
        return queued(stream, conv_integer, (x,), (w, x_zero_point, w_zero_point), out, **named)

    given = (group, strides, pads, dilations, auto_pad, x_zero_point, w_zero_point)
    return convolve("conv_integer", x, w, PackedConv, given, out, _sums)


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
    if (type(x) is not np.ndarray or type(w) is not PackedConv) and on_gpu(x, w, out):
        parameters = (x_scale, x_zero_point, w_scale, w_zero_point, y_scale, y_zero_point, bias)
        attributes = (strides, pads, dilations, auto_pad)
        return cuda_products.qlinear_conv(x, w, parameters, attributes, group, out)
    if (stream := current()) is not None:
        values = (x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, bias)
        named = {"strides": strides, "pads": pads, "dilations": dilations, "group": group, "auto_pad": auto_pad}
        return queued(stream, qlinear_conv, (x,), values, out, **named)

    given = (
        group,
        strides,
        pads,
        dilations,
        auto_pad,
        x_scale,
        x_zero_point,
        w_scale,
        w_zero_point,
        y_scale,
        y_zero_point,
    )
    return convolve("qlinear_conv", x, w, PackedConv, (*given, bias), out, _codes)
