"""One map for work on many items: in order, bounded, on several threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from quantkit.cpu import num_threads
from quantkit.errors import InvalidArgument
from quantkit.streams import StreamPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")
R = TypeVar("R")


@overload
def ordered_map(
    fn: Callable[[T], R],
    items: Iterable[T],
    *,
    workers: int | None = None,
    in_flight: int | None = None,
    return_exceptions: Literal[False] = False,
) -> Iterator[R]: ...
@overload
def ordered_map(
    fn: Callable[[T], R],
    items: Iterable[T],
    *,
    workers: int | None = None,
    in_flight: int | None = None,
    return_exceptions: Literal[True],
) -> Iterator[R | Exception]: ...
def ordered_map(
    fn: Callable[[T], Any],
    items: Iterable[T],
    *,
    workers: int | None = None,
    in_flight: int | None = None,
    return_exceptions: bool = False,
) -> Iterator[Any]:
    """Call `fn` on every item, several at a time, and yield the results in the order of the items.

    Parameters
    ----------
    fn : callable
        Called on streams of this process, each of which counts as one thread for the kernels.
    items : iterable
        Taken one by one, on the caller's thread, never further ahead than `in_flight`.
    workers : int, optional
        How many run at a time; by default one for each usable CPU.
    in_flight : int, optional
        Most items taken and not yet yielded: bounds the memory. By default ``workers + 1``.
    return_exceptions : bool, default False
        Yield what an item raised in its place, instead of raising it.

    Raises
    ------
    Exception
        The first error, in the order of the items; items that have not begun never do, and those that run are waited
        for. The same happens when the caller stops iterating.
    """
    count = num_threads() if workers is None else workers
    ahead = count + 1 if in_flight is None else in_flight
    if count < 1 or ahead < 1:
        raise InvalidArgument(f"wanted at least one worker and one item in flight, got {count} and {ahead}")
    return _run(fn, items, count, ahead, return_exceptions)


def _run(fn: Callable[[T], Any], items: Iterable[T], workers: int, ahead: int, collect: bool) -> Iterator[Any]:
    with StreamPool(workers) as pool:
        yield from pool.map(fn, items, in_flight=ahead, return_exceptions=collect)
