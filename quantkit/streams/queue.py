"""How a verb puts itself on the current stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quantkit._kernels._core import current, queue, recording
from quantkit.storage.array import Array
from quantkit.storage.dtypes import element_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["current", "queued", "recording"]


def _pending(array: NDArray[Any]) -> Array:
    etype = element_type(array.dtype)
    return Array._over(array if etype.wire is etype.dtype else array.view(etype.wire), etype, exclusive=True)


def queued(
    stream: Any, verb: Callable[..., Any], operands: tuple[Any, ...], parameters: tuple[Any, ...], out: Any, **rest: Any
) -> Any:
    """Queue ``verb(*operands, *parameters, **rest, out=out)`` and return its results as pending Arrays.

    The verb runs now, with `recording()` true: it checks its arguments, and its kernel calls are kept instead of
    executed. `operands` may have no values yet, so that the verb may look at their shapes and dtypes only, and moves
    values by kernels alone. `parameters` are read now.
    """
    return queue(stream, verb, operands, parameters, rest, out, _pending)
