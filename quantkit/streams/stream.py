"""Stream: an ordered queue of verbs and callables on a thread of its own."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import itertools
import os
import threading
import weakref
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from quantkit._kernels import _core
from quantkit.errors import InvalidArgument, StreamForked
from quantkit.storage.dtypes import device_index
from quantkit.text import told

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from quantkit.streams.event import Event

R = TypeVar("R")
MOST_THREADS = 256  # as the pool has at most
_numbers = itertools.count(1)
_streams: weakref.WeakSet[Stream] = weakref.WeakSet()


class StreamFuture(Future[R], Generic[R]):
    """The result of a callable on a stream: a `concurrent.futures.Future` that can also be awaited."""

    _task: Any = None

    def _await_turn(self, timeout: float | None) -> None:
        # A worker must not wait for what comes after its own callable; the task knows.
        if self._task is not None and _core.on_worker() and not self.done():
            self._task.wait(timeout)

    def _seen(self) -> None:
        if self._task is not None and self.done():
            self._task.reported = True

    def result(self, timeout: float | None = None) -> R:
        """Wait, and return what the callable returned, or raise what it raised."""
        self._await_turn(timeout)
        try:
            return super().result(timeout)
        finally:
            self._seen()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return what the callable raised, or None."""
        self._await_turn(timeout)
        try:
            return super().exception(timeout)
        finally:
            self._seen()

    def __await__(self) -> Generator[Any, None, R]:
        try:
            return (yield from asyncio.wrap_future(self).__await__())
        finally:
            self._seen()


class _Job:
    """A callable in its turn: run by a worker, or dropped where it never comes to that."""

    __slots__ = ("args", "context", "fn", "future", "kwargs", "told")

    def __init__(
        self, future: StreamFuture[Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.future, self.fn, self.args, self.kwargs, self.told = future, fn, args, kwargs, False
        self.context = contextvars.copy_context()
        if _core.current() is not None:
            self.context.run(_core.enter, None)  # verbs in the callable run at once: it is in its turn

    def __call__(self) -> Any:
        future = self.future
        if not future.set_running_or_notify_cancel():
            self.told = True
            return _core.CANCELLED
        try:
            result = self.context.run(self.fn, *self.args, **self.kwargs)
        except BaseException as error:
            future.set_exception(error)
            return error
        future.set_result(result)
        return None

    def drop(self, error: BaseException) -> None:
        future = self.future
        if isinstance(error, StreamForked):
            fail_in_child(future, error)
        elif not self.told and future.cancel():
            future.set_running_or_notify_cancel()  # wakes those that wait


def fail_in_child(future: Future[Any], error: BaseException) -> None:
    """Give a future that a thread of the parent would have fulfilled the error."""
    future._condition = threading.Condition()  # a thread that is gone may have held it
    with contextlib.suppress(InvalidStateError):
        future.set_exception(error)


def seconds(timeout: Any) -> float | None:
    """Return a time to wait, None for as long as it takes; `InvalidArgument` for what is none."""
    if timeout is None:
        return None
    if not isinstance(timeout, int | float | np.integer | np.floating) or not timeout >= 0:
        raise InvalidArgument(f"wait_completion: wanted timeout in seconds, 0 or more, or None, got {told(timeout)}")
    return min(float(timeout), threading.TIMEOUT_MAX)


class Stream(_core.StreamBase):
    """An ordered queue of work on a C thread of its own.

    Inside ``with qk.stream(s)`` the verbs of `quantkit.ops` put themselves at its end and return pending Arrays, whose
    shape and dtype are known at once and whose values are waited for when they are read. Work on different streams
    runs side by side, except where one uses what another makes or changes: that is waited for. The GIL is not held.

    Parameters
    ----------
    device : str, default "cpu"
        "cuda:0" makes a stream of a GPU, for work on Arrays there (docs/cuda.md).
    threads : int, default 1
        On how many threads each verb may run, those of the shared pool included; 0 for as many as there are.
    name : str, optional
        For errors, traces and debuggers.

    Raises
    ------
    InvalidArgument, CudaUnavailable
        For another device, or a number of threads outside 0 to 256; where there is no such GPU.

    Examples
    --------
    >>> import numpy as np
    >>> import quantkit as qk
    >>> s = qk.Stream()
    >>> with qk.stream(s):
    ...     y = qk.ops.quantize_linear(np.float32([0.5, 1.0]), 0.5)
    >>> y.shape
    (2,)
    >>> np.asarray(y).tolist()
    [1, 2]
    """

    def __new__(cls, device: Any = "cpu", **options: Any) -> Any:
        if cls is Stream and device_index(device) is not None:
            from quantkit.streams.cuda import CudaStream as cls
        return super().__new__(cls)

    def __init__(self, device: Any = "cpu", *, threads: int = 1, name: str | None = None) -> None:
        if not isinstance(threads, int | np.integer) or not 0 <= threads <= MOST_THREADS:
            raise InvalidArgument(f"Stream: wanted threads from 0 to {MOST_THREADS}, got {told(threads)}")
        self.device = "cpu"
        self.threads = threads = int(threads)
        self._open(f"stream-{next(_numbers)}" if name is None else name, threads)
        _streams.add(self)

    def synchronize(self) -> None:
        """Wait until all that is queued now is over.

        Raises
        ------
        Exception
            The first error of work on this stream that nobody has seen yet, with the line that queued it; others are
            noted on it.
        StreamError
            When a callable waits for its own stream.
        """
        self._wait()
        self._raise()

    def wait_completion(self, timeout: float | None = None) -> bool:
        """Wait like `synchronize`, at most `timeout` seconds (0 or more); return whether all is over."""
        if not self._wait(seconds(timeout)):
            return False
        self._raise()
        return True

    def query(self) -> bool:
        """Return whether all that was queued is over, without waiting."""
        return self._is_idle()

    def _enter(self) -> Any:
        """Make this the current stream; returns what `_leave` wants back."""
        return _core.enter(None if self is _default else self)

    def _leave(self, token: Any) -> None:
        _core.leave(token)

    def _mark(self, name: str) -> Any:
        return _core.Task(self, name)

    def record_event(self, event: Event | None = None) -> Event:
        """Mark this place in the queue, and return the event that is complete when the stream has come to it."""
        from quantkit.streams.event import Event

        made = Event() if event is None else event
        task = self._mark("record_event")
        task.queue()
        made._task = task
        return made

    def wait_event(self, event: Event) -> None:
        """Let all that is queued from now on wait for an event; does nothing when that was never recorded."""
        if isinstance(event._task, _core.Task):
            task = self._mark("wait_event")
            task.after(event._task)
            task.queue()
        elif event._task is not None:  # of a GPU
            self.submit(event._task.wait)

    def wait_stream(self, other: Stream) -> None:
        """Let all that is queued from now on wait for what is queued on another stream now."""
        if other.device != "cpu":
            self.submit(other.synchronize)
            return
        task = self._mark("wait_stream")
        task.after_stream(other)
        task.queue()

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> StreamFuture[R]:
        """Queue a call of any Python function, which runs on the stream's thread with the GIL.

        It sees the context variables of here. Verbs in it run at once. Arrays in its arguments are waited for when it
        reads them, except for work that waits for this call itself.

        Returns
        -------
        StreamFuture
            A `concurrent.futures.Future`, which can also be awaited. An error that nobody asks it for is raised by
            the next `synchronize`.
        """
        future: StreamFuture[R] = StreamFuture()
        task = _core.Task(self, _name_of(fn), _Job(future, fn, args, kwargs))
        future._task = task
        task.queue()
        return future

    def cancel(self) -> int:
        """Drop all that has not begun, and return how much that was.

        Reading its results raises `StreamCancelled`, and so does what other streams make of them; futures are
        cancelled. What runs now is finished.
        """
        return self._cancel()

    def close(self) -> None:
        """Take no more work, and `synchronize`; the thread ends."""
        self._close()
        self.synchronize()

    def __await__(self) -> Generator[Any, None, None]:
        future = self.submit(_nothing)
        yield from future.__await__()
        future._task.wait()  # the worker has still to put it away
        self._raise()

    def __repr__(self) -> str:
        return f"<Stream {self.name!r} on {self.device}, {'idle' if self.query() else 'busy'}>"


def _nothing() -> None:
    pass


def _name_of(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__name__", None)
    return name if type(name) is str else type(fn).__name__


class _Default(Stream):
    """The stream outside of all contexts: the calling thread. Work is done when its call returns."""

    def __init__(self) -> None:
        self.device, self.threads = "cpu", 0
        self._open("default", 0)

    def wait_event(self, event: Event) -> None:
        if event._task is not None:
            event._task.wait()

    def wait_stream(self, other: Stream) -> None:
        other._wait()

    def record_event(self, event: Event | None = None) -> Event:
        made = super().record_event(event)
        made._task.wait()
        return made

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> StreamFuture[R]:
        future: StreamFuture[R] = StreamFuture()
        _Job(future, fn, args, kwargs)()
        return future

    def close(self) -> None:
        raise InvalidArgument("the default stream is the calling thread: it cannot be closed")


_default = _Default()


def default_stream(device: Any = "cpu") -> Stream:
    """Return the stream outside of all contexts: the calling thread, on which verbs return ndarrays.

    That of a GPU is its legacy stream, which is the default one of torch and CuPy as well.
    """
    if (index := device_index(device)) is None:
        return _default
    from quantkit.streams.cuda import default

    return default(index)


@atexit.register
def _finish() -> None:
    """Do what is queued, end the workers, and print errors that nobody has seen."""
    streams = [*_streams, _default]
    try:
        for s in streams:
            s._wait()
    except KeyboardInterrupt:
        for s in streams:
            s._cancel()
        _core.stop_streams(0.1)
    else:
        _core.stop_streams(1)
    _core.reap()
    for s in streams:
        s._tell()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_core.reap_in_child)
