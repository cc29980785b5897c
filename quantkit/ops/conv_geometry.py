"""Where a kernel lies on its input: strides, pads, dilations and the shape that comes out."""

from __future__ import annotations

import itertools
import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from quantkit.errors import InvalidArgument, ShapeMismatch

if TYPE_CHECKING:
    from collections.abc import Sequence

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


class Geometry(NamedTuple):
    """One value a spatial dimension, outermost first; `begins` are the pads before the first pixel."""

    strides: tuple[int, ...]
    begins: tuple[int, ...]
    dilations: tuple[int, ...]
    out: tuple[int, ...]


def integers(verb: str, name: str, value: Any, count: int, default: int, lowest: int) -> tuple[int, ...]:
    """Return `value` as `count` integers of at least `lowest`; None stands for the default."""
    if value is None:
        return (default,) * count
    try:
        numbers = tuple(operator.index(v) for v in value)
    except TypeError:
        raise InvalidArgument(f"{verb}: {name} must be a sequence of integers, got {value!r}") from None
    if len(numbers) != count:
        raise ShapeMismatch(f"{verb}: wanted {count} values of {name}, got {len(numbers)}: {numbers}")
    if any(n < lowest for n in numbers):
        raise InvalidArgument(f"{verb}: {name} must be >= {lowest}, got {numbers}")
    if any(n > 1 << 30 for n in numbers):
        raise InvalidArgument(f"{verb}: {name} must be at most {1 << 30}, got {numbers}")
    return numbers


def as_group(verb: str, group: Any) -> int:
    """Return `group` as an int of at least 1."""
    try:
        number = operator.index(group)
    except TypeError:
        raise InvalidArgument(f"{verb}: group must be an integer, got {group!r}") from None
    if number < 1:
        raise ShapeMismatch(f"{verb}: group must be >= 1, got {number}")
    return number


def same_pads(size: int, stride: int, reach: int, auto_pad: str) -> tuple[int, int]:
    """Return the pads before and after `size` pixels under SAME_UPPER or SAME_LOWER, of a kernel over `reach`."""
    return _halves(max((-(-size // stride) - 1) * stride + reach - size, 0), auto_pad)


def _halves(total: int, auto_pad: str) -> tuple[int, int]:
    before = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
    return before, total - before


def _pad_values(verb: str, pads: Any, dims: int, auto_pad: Any) -> tuple[tuple[int, ...], str]:
    given = integers(verb, "pads", pads, 2 * dims, 0, 0)
    if isinstance(auto_pad, bytes):
        auto_pad = auto_pad.decode(errors="replace")
    if auto_pad not in AUTO_PADS:
        raise InvalidArgument(f"{verb}: auto_pad must be one of {', '.join(AUTO_PADS)}, got {auto_pad!r}")
    if auto_pad != "NOTSET" and any(given):
        raise InvalidArgument(f"{verb}: wanted pads or auto_pad, got pads={given} and auto_pad={auto_pad!r}")
    return given, auto_pad


def geometry(
    verb: str,
    size: Sequence[int],
    kernel: Sequence[int],
    strides: Any,
    pads: Any,
    dilations: Any,
    auto_pad: Any = "NOTSET",
) -> Geometry:
    """Check the attributes of an ONNX convolution against the spatial `size` of its input and its `kernel`.

    Raises
    ------
    InvalidArgument, ShapeMismatch
        Naming the attribute and the dimension.
    """
    dims = len(size)
    steps = integers(verb, "strides", strides, dims, 1, 1)
    spread = integers(verb, "dilations", dilations, dims, 1, 1)
    given, auto_pad = _pad_values(verb, pads, dims, auto_pad)
    begins, out = [], []
    for d in range(dims):
        reach = (kernel[d] - 1) * spread[d] + 1
        begin, end = given[d], given[dims + d]
        if auto_pad.startswith("SAME"):
            begin, end = same_pads(size[d], steps[d], reach, auto_pad)
        padded = begin + size[d] + end
        if padded < reach:
            raise ShapeMismatch(
                f"{verb}: a kernel of {kernel[d]} with dilation {spread[d]} reaches over {reach} pixels, more than the "
                f"{padded} of the padded input along spatial dimension {d}"
            )
        begins.append(begin)
        out.append((padded - reach) // steps[d] + 1)
    return Geometry(steps, tuple(begins), spread, tuple(out))


class Phase(NamedTuple):
    """The outputs of a transposed convolution that the same taps reach, and the ordinary convolution that they are.

    One entry a spatial dimension. Output pixels ``out[d]`` are the convolution, of stride 1, of the input with every
    ``every[d]``-th tap of the kernel from ``first[d]`` on, last one first, `dilations` apart, after `begins` pixels of
    padding (fewer than 0: pixels left out).
    """

    first: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    out: tuple[slice, ...]


class TransposedGeometry(NamedTuple):
    """The shape that comes out, and the phases that it is made of."""

    out: tuple[int, ...]
    phases: tuple[Phase, ...]


def first_taps(kernel: int, stride: int, dilation: int) -> tuple[dict[int, int], int]:
    """Return the first tap for each remainder of an output coordinate by `stride` that has one, and their distance.

    Tap k adds input pixel i to output pixel i * stride + k * dilation.
    """
    every = stride // math.gcd(stride, dilation)
    return {tap * dilation % stride: tap for tap in range(min(every, kernel))}, every


def transposed_geometry(
    verb: str,
    size: Sequence[int],
    kernel: Sequence[int],
    strides: Any,
    pads: Any,
    dilations: Any,
    auto_pad: Any = "NOTSET",
    output_padding: Any = None,
    output_shape: Any = None,
) -> TransposedGeometry:
    """Check the attributes of an ONNX transposed convolution and cut its output into phases.

    Raises
    ------
    InvalidArgument, ShapeMismatch
        Naming the attribute and the dimension.
    """
    dims = len(size)
    steps = integers(verb, "strides", strides, dims, 1, 1)
    spread = integers(verb, "dilations", dilations, dims, 1, 1)
    more = integers(verb, "output_padding", output_padding, dims, 0, 0)
    wanted = None if output_shape is None else integers(verb, "output_shape", output_shape, dims, 0, 1)
    given, auto_pad = _pad_values(verb, pads, dims, auto_pad)
    shape, ways = [], []
    for d in range(dims):
        if more[d] >= max(steps[d], spread[d]):
            raise InvalidArgument(
                f"{verb}: output_padding {more[d]} along spatial dimension {d} must be less than the stride {steps[d]} "
                f"or the dilation {spread[d]}"
            )
        whole = (size[d] - 1) * steps[d] + more[d] + (kernel[d] - 1) * spread[d] + 1
        begin, end = given[d], given[dims + d]
        out = whole - begin - end
        if wanted is not None or auto_pad.startswith("SAME"):
            out = size[d] * steps[d] if wanted is None else wanted[d]
            begin, _ = _halves(max(whole - out, 0), auto_pad)
        if out < 1:
            raise ShapeMismatch(
                f"{verb}: pads {begin} and {end} leave nothing of the {whole} pixels of the output along spatial "
                f"dimension {d}"
            )
        shape.append(out)
        ways.append(_phases(kernel[d], steps[d], spread[d], begin, out))
    phases = [Phase(*zip(*choice, strict=True)) for choice in itertools.product(*ways)]
    return TransposedGeometry(tuple(shape), tuple(phases))


def _phases(kernel: int, stride: int, dilation: int, pad: int, out: int) -> list[tuple[int, int, int, slice]]:
    """Return the phases along one dimension: first tap, distance of taps, pixels of padding, pixels of the output."""
    firsts, every = first_taps(kernel, stride, dilation)
    apart, phases = dilation * every // stride, []
    for at in range(min(stride, out)):
        q, remainder = divmod(at + pad, stride)
        first = firsts.get(remainder)
        if first is None:  # no tap reaches these pixels: any that lies outside of the input will do
            first, begin = 0, out + kernel * dilation
        else:
            last = first + (kernel - 1 - first) // every * every
            begin = (last * dilation - remainder) // stride - q
        phases.append((first, apart, begin, slice(at, None, stride)))
    return phases
