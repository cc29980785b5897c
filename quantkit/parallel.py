"""One map for work on many items: in order, bounded, on several threads."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from quantkit.cpu import num_threads
from quantkit.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

T = TypeVar("T")
R = TypeVar("R")


class _NotBegun(Exception):
    pass


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
        Called on threads of this process.
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
    return _run(fn, iter(items), count, ahead, return_exceptions)


def _run(fn: Callable[[T], Any], items: Iterator[T], workers: int, ahead: int, collect: bool) -> Iterator[Any]:
    stopped = threading.Event()

    def call(item: T) -> Any:
        if stopped.is_set():
            raise _NotBegun
        try:
            return fn(item)
        except BaseException:
            if not collect:
                stopped.set()  # at once, and not only when its turn comes
            raise

    pool = ThreadPoolExecutor(workers, thread_name_prefix="quantkit")
    waiting: deque[Future[Any]] = deque()
    try:
        exhausted = False
        while True:
            while not exhausted and not stopped.is_set() and len(waiting) < ahead:
                try:
                    item = next(items)
                except StopIteration:
                    exhausted = True
                else:
                    waiting.append(pool.submit(call, item))
            if not waiting:
                return
            future = waiting.popleft()
            try:
                result = future.result()
            except _NotBegun:
                continue  # a later item failed: its turn comes
            except Exception as error:
                if not collect:
                    raise
                result = error
            yield result
            del future, result
    finally:
        stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)
