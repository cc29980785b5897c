"""Transposed convolutions of 8-bit codes: conv_transpose_integer, qlinear_conv_transpose and pack_conv_transpose.

Output pixels whose coordinates leave the same remainders by the strides, a phase, are reached by the same taps: a phase
is an ordinary convolution with those taps, and runs as one, from the whole input into its pixels of the output.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit._kernels import KeptCall
from quantkit.errors import InvalidArgument, StorageError
from quantkit.ops._conv_call import Made, Part, check_input, codes_dtype, codes_plan, convolve, sums_plan
from quantkit.ops._conv_weights import PackedConv, as_weights
from quantkit.ops._devices import on_gpu
from quantkit.ops.conv_geometry import first_taps, integers, transposed_geometry
from quantkit.streams.queue import current, queued

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from quantkit._kernels import ConvPlan


class PackedConvTranspose:
    """Weights of a transposed convolution, packed for the phases of its output; serves every instruction set.

    Attributes
    ----------
    shape : tuple of int
        (channels, outputs / group, *kernel) of the weights that were packed.
    group : int
    strides, dilations : tuple of int
    is_signed : bool
        Whether their codes were int8.
    nbytes : int
        Bytes held.
    """

    __slots__ = ("dilations", "group", "is_signed", "last", "phases", "shape", "strides")

    def __init__(self, verb: str, w: Any, group: Any, strides: Any, dilations: Any) -> None:
        w, self.group = as_weights(verb, w, group, ("channels", "outputs / group"))
        self.shape: tuple[int, ...] = w.shape
        self.is_signed = w.dtype == np.int8
        self.strides = integers(verb, "strides", strides, w.ndim - 2, 1, 1)
        self.dilations = integers(verb, "dilations", dilations, w.ndim - 2, 1, 1)
        self.last: KeptCall | None = None
        self.phases = {}
        ways = [first_taps(*d) for d in zip(w.shape[2:], self.strides, self.dilations, strict=True)]
        turned = w.reshape(self.group, -1, *w.shape[1:]).swapaxes(1, 2).reshape(self.outputs, -1, *w.shape[2:])
        for first in itertools.product(*(firsts.values() for firsts, _ in ways)):
            taps = [slice(f, None, every) for f, (_, every) in zip(first, ways, strict=True)]
            part = turned[(..., *taps)]
            self.phases[first] = PackedConv(verb, np.flip(part, tuple(range(2, w.ndim))), self.group)

    @property
    def outputs(self) -> int:
        """Channels of the output."""
        return self.shape[1] * self.group

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(p.nbytes for p in self.phases.values())

    def __repr__(self) -> str:
        return (
            f"PackedConvTranspose(shape={self.shape}, group={self.group}, strides={self.strides}, "
            f"dilations={self.dilations}, dtype={'int8' if self.is_signed else 'uint8'})"
        )


def pack_conv_transpose(w: Any, group: int = 1, *, strides: Any = None, dilations: Any = None) -> PackedConvTranspose:
    """Pack the weights of a transposed convolution once, for any number of calls.

    Parameters
    ----------
    w : array of uint8 or int8, shape (C, M / group, *kernel), kernel of 1 to 3 dimensions
        Any strides. It is copied: later changes to `w` are not seen.
    group : int, default 1
        Must divide C.
    strides, dilations : sequence of int, one a spatial dimension, default 1
        Those of the calls: they decide which taps reach the same pixels.

    Returns
    -------
    PackedConvTranspose
        Accepted wherever `w` is, with these strides and dilations or without.

    Raises
    ------
    InvalidDType, ShapeMismatch, InvalidArgument
        For another dtype, number of dimensions, or attributes that do not fit.
    """
    _check_device("pack_conv_transpose", w=w)
    return PackedConvTranspose("pack_conv_transpose", w, group, strides, dilations)


def _packed(verb: str, x: NDArray[Any], w: Any, group: Any, strides: Any, dilations: Any) -> PackedConvTranspose:
    if not isinstance(w, PackedConvTranspose):
        packed = PackedConvTranspose(verb, w, group, strides, dilations)
    else:
        packed = w
        if group not in (w.group, 1):
            raise InvalidArgument(f"{verb}: w was packed with group={w.group}, got group={group}")
        for name, value, own in (("strides", strides, w.strides), ("dilations", dilations, w.dilations)):
            if value is not None and integers(verb, name, value, len(own), 1, 1) != own:
                raise InvalidArgument(f"{verb}: w was packed with {name}={own}, got {name}={value}")
    check_input(verb, x, len(packed.shape), packed.shape[0], f"w of shape {packed.shape}")
    return packed


def _check_device(verb: str, **given: Any) -> None:
    """Refuse operands on a GPU, which no kernel there takes yet."""
    for name, x in given.items():
        if type(x) is not PackedConvTranspose and on_gpu(x):
            raise StorageError(f"{verb}: {name} is on {x.device}, and this verb runs on the CPU; use {name}.cpu()")


# The attributes that what is given begins with.
_ATTRIBUTES = ("strides", "pads", "dilations", "group", "auto_pad", "output_padding", "output_shape")
_NAMED = len(_ATTRIBUTES)


def _made(
    verb: str,
    x: NDArray[Any],
    w: Any,
    attributes: tuple[Any, ...],
    dtype: np.dtype[Any],
    plan_of: Callable[[PackedConv], ConvPlan],
) -> tuple[PackedConvTranspose, Made]:
    strides, pads, dilations, group, *how = attributes
    packed = _packed(verb, x, w, group, strides, dilations)
    at = transposed_geometry(verb, x.shape[2:], packed.shape[2:], packed.strides, pads, packed.dilations, *how)
    plans: dict[tuple[int, ...], ConvPlan] = {}
    ones = (1,) * len(at.out)
    parts = []
    for phase in at.phases:
        if phase.first not in plans:
            plans[phase.first] = plan_of(packed.phases[phase.first])
        parts.append(Part(plans[phase.first], ones, phase.begins, phase.dilations, phase.out))
    return packed, Made(tuple(parts), (x.shape[0], packed.outputs, *at.out), dtype)


def _sums(x: NDArray[Any], w: Any, out: Any, given: tuple[Any, ...]) -> tuple[PackedConvTranspose, Made]:
    verb = "conv_transpose_integer"

    def plan_of(part: PackedConv) -> ConvPlan:
        return sums_plan(verb, part, x.dtype, *given[_NAMED:])

    return _made(verb, x, w, given[:_NAMED], np.dtype(np.int32), plan_of)


def _codes(x: NDArray[Any], w: Any, out: Any, given: tuple[Any, ...]) -> tuple[PackedConvTranspose, Made]:
    verb, parameters = "qlinear_conv_transpose", given[_NAMED:]
    dtype = codes_dtype(x, parameters[5], out)

    def plan_of(part: PackedConv) -> ConvPlan:
        return codes_plan(verb, part, x.dtype, dtype, *parameters)

    return _made(verb, x, w, given[:_NAMED], dtype, plan_of)


def conv_transpose_integer(
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
    output_padding: Any = None,
    output_shape: Any = None,
    out: Any = None,
) -> Any:
    """Convolve codes the other way round, exactly: ConvTranspose of ONNX in the integers of `conv_integer`.

    Input pixel i adds ``(x - x_zero_point) * (w - w_zero_point)`` of tap k to output pixel
    ``i * stride + k * dilation - pad``.

    Parameters
    ----------
    x : array of uint8 or int8, shape (N, C, *size), size of 1 to 3 dimensions
        Any strides. Where the channels lie together (channels-last memory), the result has that order too.
    w : array of uint8 or int8, shape (C, M / group, *kernel), or PackedConvTranspose
    x_zero_point : int
    w_zero_point : int, or array of M
    strides, dilations : sequence of int, one a spatial dimension, default 1
    pads : sequence of int, default 0
        Pixels taken off the output before the image along each spatial dimension, then pixels after it.
    group : int, default 1
    auto_pad : {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"}
        In place of `pads`. SAME: an output of the size of the input times the strides.
    output_padding : sequence of int, default 0
        Pixels added to the output after the image, less than the stride or the dilation.
    output_shape : sequence of int, one a spatial dimension, optional
        The size of the output, from which pads follow; `pads` are then not read. Pixels that no tap reaches are 0.
    out : int32 array of any strides, optional

    Returns
    -------
    ndarray of int32, shape (N, M, *size of the output)
        Sums beyond int32 wrap, which takes more than 65,793 products.

    Raises
    ------
    InvalidDType, ShapeMismatch, InvalidQParams, InvalidArgument
        Naming the argument, what was wanted and what came.

    Examples
    --------
    >>> import numpy as np
    >>> from quantkit import ops
    >>> x, w = np.array([[[1, 2, 3]]], np.uint8), np.array([[[1, 10, 100]]], np.int8)
    >>> ops.conv_transpose_integer(x, w, strides=[2])
    array([[[  1,  10, 102,  20, 203,  30, 300]]], dtype=int32)
    """
    _check_device("conv_transpose_integer", x=x, w=w, out=out)
    given = (strides, pads, dilations, group, auto_pad, output_padding, output_shape)
    if (stream := current()) is not None:
        named = dict(zip(_ATTRIBUTES, given, strict=True))
        return queued(stream, conv_transpose_integer, (x,), (w, x_zero_point, w_zero_point), out, **named)
    parameters = (x_zero_point, w_zero_point)
    return convolve("conv_transpose_integer", x, w, PackedConvTranspose, (*given, *parameters), out, _sums)


def qlinear_conv_transpose(
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
    output_padding: Any = None,
    output_shape: Any = None,
    out: Any = None,
) -> Any:
    """Convolve codes the other way round and quantize the result.

    ``y = saturate(round_half_even((sum + bias) * (x_scale * w_scale / y_scale)) + y_zero_point)`` where `sum` is that
    of `conv_transpose_integer`; the multiplier is evaluated in float32, the int32 sums never go to memory.

    Parameters
    ----------
    x, w, strides, pads, dilations, group, auto_pad, output_padding, output_shape
        As in `conv_transpose_integer`.
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
    _check_device("qlinear_conv_transpose", x=x, w=w, out=out)
    given = (strides, pads, dilations, group, auto_pad, output_padding, output_shape)
    if (stream := current()) is not None:
        values = (x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, bias)
        named = dict(zip(_ATTRIBUTES, given, strict=True))
        return queued(stream, qlinear_conv_transpose, (x,), values, out, **named)
    parameters = (x_scale, x_zero_point, w_scale, w_zero_point, y_scale, y_zero_point, bias)
    return convolve("qlinear_conv_transpose", x, w, PackedConvTranspose, (*given, *parameters), out, _codes)
