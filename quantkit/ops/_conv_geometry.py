"""Where a kernel lies on its input: strides, pads, dilations and the shape that comes out."""

from __future__ import annotations

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
    given = integers(verb, "pads", pads, 2 * dims, 0, 0)
    if isinstance(auto_pad, bytes):
        auto_pad = auto_pad.decode(errors="replace")
    if auto_pad not in AUTO_PADS:
        raise InvalidArgument(f"{verb}: auto_pad must be one of {', '.join(AUTO_PADS)}, got {auto_pad!r}")
    if auto_pad != "NOTSET" and any(given):
        raise InvalidArgument(f"{verb}: wanted pads or auto_pad, got pads={given} and auto_pad={auto_pad!r}")
    begins, out = [], []
    for d in range(dims):
        reach = (kernel[d] - 1) * spread[d] + 1
        begin, end = given[d], given[dims + d]
        if auto_pad.startswith("SAME"):
            total = max((-(-size[d] // steps[d]) - 1) * steps[d] + reach - size[d], 0)
            begin = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            end = total - begin
        padded = begin + size[d] + end
        if padded < reach:
            raise ShapeMismatch(
                f"{verb}: a kernel of {kernel[d]} with dilation {spread[d]} reaches over {reach} pixels, more than the "
                f"{padded} of the padded input along spatial dimension {d}"
            )
        begins.append(begin)
        out.append((padded - reach) // steps[d] + 1)
    return Geometry(steps, tuple(begins), spread, tuple(out))
