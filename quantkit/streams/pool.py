"""StreamPool: one queue of callables for several streams, and a bounded map over it."""

from __future__ import annotations

import operator
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Sized
from typing import TYPE_CHECKING, Any, TypeVar

from quantkit.cpu import usable_cpus
from quantkit.errors import InvalidArgument, StreamError, StreamForked
from quantkit.streams import trace
from quantkit.streams.stream import Stream, StreamFuture, _Job, _name_of, fail_in_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self

T = TypeVar("T")
R = TypeVar("R")
_here = threading.local()  # .pool: the pool whose item this thread is running
_pools: weakref.WeakSet[StreamPool] = weakref.WeakSet()


class _Item:
    __slots__ = ("future", "job", "name", "queued")

    def __init__(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.future: StreamFuture[Any] = StreamFuture()
        self.job, self.name, self.queued = _Job(self.future, fn, args, kwargs), name, time.monotonic_ns()


def _count(what: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise InvalidArgument(f"StreamPool: wanted {what} >= 1, got {value!r}")
    return number


def _bytes_of(item: Any) -> int:
    size = getattr(item, "nbytes", 0)
    return int(size() if callable(size) else size)


class StreamPool:
    """Several streams that take callables from one queue: whichever is free takes the next.

    Each callable runs on one thread, verbs and all, so that `n` streams use `n` CPUs. They take the GIL for Python
    code and give it up in kernels, in NumPy and in input and output.

    Parameters
    ----------
    n : int, optional
        Number of streams; by default one for each usable CPU.

    Examples
    --------
    >>> import quantkit as qk
    >>> with qk.StreamPool(2) as pool:
    ...     list(pool.map(lambda x: x * x, range(5)))
    [0, 1, 4, 9, 16]
    """

    def __init__(self, n: int | None = None) -> None:
        self.size = usable_cpus() if n is None else _count("a number of streams", n)
        self.streams = tuple([Stream() for _ in range(self.size)])
        self._lock = threading.Lock()
        self._items: deque[_Item] = deque()
        self._running: dict[Stream, _Item] = {}
        self._idle = list(self.streams)
        self._closed = False
        _pools.add(self)

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> StreamFuture[R]:
        """Queue a call, and return its future."""
        return self._put(_name_of(fn), fn, args, kwargs)

    def _put(
        self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> StreamFuture[Any]:
        item = _Item(name, fn, args, kwargs)
        with self._lock:
            if self._closed:
                raise StreamError("StreamPool: the pool is closed")
            self._items.append(item)
            free = self._idle.pop() if self._idle else None
        if free is not None:
            free.submit(self._drain, free)
        return item.future

    def _drain(self, stream: Stream) -> None:
        _here.pool = self
        while True:
            with self._lock:
                self._running.pop(stream, None)
                if not self._items:
                    self._idle.append(stream)
                    _here.pool = None
                    return
                item = self._running[stream] = self._items.popleft()
            started = time.monotonic_ns()
            item.job()
            trace.recorded(stream.name, item.name, item.queued, started, time.monotonic_ns())
            del item  # and its result with it

    def map(
        self,
        fn: Callable[[T], R],
        items: Iterable[T],
        *,
        ordered: bool = True,
        in_flight: int | None = None,
        bytes_in_flight: int | None = None,
        nbytes: Callable[[T], int] = _bytes_of,
        progress: Callable[[int, int | None], None] | None = None,
        return_exceptions: bool = False,
    ) -> Iterator[Any]:
        """Call `fn` on every item, several at a time, and yield the results.

        Parameters
        ----------
        fn : callable
        items : iterable
            Taken one by one on the caller's thread, never further ahead than the bounds allow.
        ordered : bool, default True
            Yield in the order of the items; False: as they are done.
        in_flight : int, optional
            Most items that are taken and whose result is not yet yielded; by default one more than there are streams.
        bytes_in_flight : int, optional
            Most bytes of such items; an item that is larger than that runs alone.
        nbytes : callable, optional
            Bytes of an item; by default its ``nbytes``, or 0.
        progress : callable, optional
            Called on the caller's thread with the number of results yielded, and that of all items where it is known.
        return_exceptions : bool, default False
            Yield what `fn` raised in the place of the result, instead of raising it.

        Raises
        ------
        InvalidArgument
            For bounds below 1.
        Exception
            The first error, in the order of the items (of completion, where not `ordered`). Items that have not begun
            never do then, and those that run are waited for. The same happens when the caller stops iterating.
        """
        ahead = self.size + 1 if in_flight is None else _count("in_flight", in_flight)
        room = None if bytes_in_flight is None else _count("bytes_in_flight", bytes_in_flight)
        total = len(items) if isinstance(items, Sized) else None
        if getattr(_here, "pool", None) is self:  # an item that maps: its streams may all be busy with such
            return _map_here(fn, iter(items), total, progress, return_exceptions)
        flight = _Flight(self, fn, iter(items), ordered, ahead, room, nbytes, return_exceptions)
        return self._map(flight, total, progress, return_exceptions)

    def _map(self, flight: _Flight, total: int | None, progress: Any, collect: bool) -> Iterator[Any]:
        done = 0
        try:
            while (future := flight.next()) is not None:
                error = future.exception()
                if error is not None and not (collect and isinstance(error, Exception)):
                    raise error
                result = future.result() if error is None else error
                del future, error  # nothing here keeps the result alive
                done += 1
                if progress is not None:
                    progress(done, total)
                yield result
                del result
        except KeyboardInterrupt:
            flight.stop(self._withdraw, wait=False)  # whoever is in a hurry does not wait for what runs
            raise
        finally:
            flight.stop(self._withdraw)

    def _withdraw(self, futures: set[StreamFuture[Any]]) -> None:
        """Take items that have not begun out of the queue."""
        with self._lock:
            kept = [item for item in self._items if item.future not in futures]
            self._items.clear()
            self._items.extend(kept)
        for future in futures:
            future.cancel()

    def close(self) -> None:
        """Take no more work, wait for what is queued, and end the threads."""
        with self._lock:
            self._closed = True
        for stream in self.streams:
            stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fork(self) -> None:
        error = StreamForked("StreamPool: queued by the parent of this process, which forked; the child has no result")
        self._lock = threading.Lock()
        items, self._items, self._running = [*self._running.values(), *self._items], deque(), {}
        self._idle = list(self.streams)
        _here.pool = None
        for item in items:
            fail_in_child(item.future, error)
        for flight in list(_flights):
            flight.fork(error)


def _map_here(
    fn: Callable[[T], R], items: Iterator[T], total: int | None, progress: Any, collect: bool
) -> Iterator[Any]:
    for done, item in enumerate(items, 1):
        try:
            result: Any = fn(item)
        except Exception as error:
            if not collect:
                raise
            result = error
        if progress is not None:
            progress(done, total)
        yield result


class _Flight:
    """The items of one map between being taken and being yielded."""

    def __init__(
        self,
        pool: StreamPool,
        fn: Callable[[Any], Any],
        items: Iterator[Any],
        ordered: bool,
        ahead: int,
        room: int | None,
        nbytes: Callable[[Any], int],
        collect: bool,
    ) -> None:
        self.pool, self.fn, self.items, self.collect = pool, fn, items, collect
        self.ordered, self.ahead, self.room, self.nbytes = ordered, ahead, room, nbytes
        self.name = _name_of(fn)
        self.sizes: dict[StreamFuture[Any], int] = {}  # in the order of the items
        self.done: queue.SimpleQueue[StreamFuture[Any]] = queue.SimpleQueue()
        self.bytes = 0
        self.held: list[Any] = []  # an item that was taken and has no room yet
        self.exhausted = self.stopped = False
        self.last: StreamFuture[Any] | None = None
        _flights.add(self)

    def _fill(self) -> None:
        while not self.exhausted and not self.stopped and len(self.sizes) < self.ahead:
            if not self.held:
                try:
                    self.held.append(next(self.items))
                except StopIteration:
                    self.exhausted = True
                    return
            size = self.nbytes(self.held[0]) if self.room is not None else 0
            if self.room is not None and self.sizes and self.bytes + size > self.room:
                return
            item = self.held.pop()
            future = self.pool._put(self.name, self._call, (item,), {})
            del item
            self.sizes[future] = size
            self.bytes += size
            if not self.ordered:
                future.add_done_callback(self._done)

    def _call(self, item: Any) -> Any:
        try:
            return self.fn(item)
        except BaseException as error:
            if not (self.collect and isinstance(error, Exception)):
                self.stopped = True  # at once, and not only when its turn comes
            raise

    def _done(self, future: Any) -> None:
        self.done.put(future)

    def next(self) -> StreamFuture[Any] | None:
        """The next future to yield, or None at the end; the one before counts as yielded."""
        if self.last is not None:
            self.bytes -= self.sizes.pop(self.last)
            self.last = None
        self._fill()
        if not self.sizes:
            return None
        self.last = next(iter(self.sizes)) if self.ordered else self.done.get()
        return self.last

    def stop(self, withdraw: Callable[[set[StreamFuture[Any]]], None], wait: bool = True) -> None:
        """Drop what has not begun, and wait for what runs."""
        self.stopped = True
        withdraw(set(self.sizes))
        for future in self.sizes:
            if wait and not future.cancelled():
                future.exception()
        self.sizes.clear()
        self.held.clear()

    def fork(self, error: StreamForked) -> None:
        for future in self.sizes:
            if not future.done():
                fail_in_child(future, error)


_flights: weakref.WeakSet[_Flight] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_pools):
        pool._fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
