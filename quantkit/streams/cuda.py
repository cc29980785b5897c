"""Streams of a GPU, with the interface of those of the CPU."""

from __future__ import annotations

import functools
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from quantkit.cuda import driver
from quantkit.cuda import queue as gpu
from quantkit.errors import InvalidArgument, InvalidDType, StreamError
from quantkit.storage.dtypes import device_index
from quantkit.streams.stream import Stream, StreamFuture, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from quantkit.streams.event import Event

R = TypeVar("R")


class CudaMark:
    """A place in a stream of a GPU, as an event keeps it."""

    def __init__(self, queue: gpu.Queue, timing: bool) -> None:
        self._queue, self._timing = queue, timing
        with queue.device:
            self._event = driver.new_event(timing)
            driver.record(self._event, queue.handle)

    @property
    def is_over(self) -> bool:
        """Whether the stream has come to this place."""
        with self._queue.device:
            return driver.event_is_over(self._event)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the stream has come here, at most `timeout` seconds."""
        if timeout is not None:
            return _poll(lambda: self.is_over, timeout)
        with self._queue.device:
            driver.synchronize_event(self._event)
        return True

    def hold(self, queue: gpu.Queue) -> None:
        """Let a queue wait for this place."""
        with queue.device:
            driver.wait_event(queue.handle, self._event)

    def elapsed(self, end: Any) -> float:
        """Return the milliseconds from here to another mark of a GPU."""
        if not isinstance(end, CudaMark):
            raise StreamError("elapsed_time: one event was recorded on a GPU, the other on the CPU")
        with self._queue.device:
            return driver.elapsed(self._event, end._event)

    def __del__(self) -> None:
        event, self._event = getattr(self, "_event", 0), 0
        if event and not self._timing:
            self._queue.events.append(event)
        elif event:
            try:
                with self._queue.device:
                    driver.free_event(event)
            except Exception:
                pass


def _poll(is_over: Callable[[], bool], timeout: float) -> bool:
    end, pause = time.monotonic() + timeout, 20e-6
    while not is_over():
        if time.monotonic() >= end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 1e-3)
    return True


class CudaStream(Stream):
    """An ordered queue of work on a GPU: what ``Stream(device="cuda:0")`` makes.

    Inside ``with qk.stream(s)`` work on Arrays of this GPU goes to its end; work on the CPU is not touched by it. An
    Array is there at once, and whatever reads or changes it, on any stream, waits for what it must.
    """

    def __init__(
        self, device: Any = "cuda", *, threads: int = 1, name: str | None = None, queue: gpu.Queue | None = None
    ) -> None:
        if threads != 1:
            raise InvalidArgument(f"Stream: threads belong to streams of the CPU, got {threads} for {device}")
        index = device_index(device)
        if index is None:
            raise InvalidArgument(f"Stream: wanted a GPU, got {device!r}")
        self._queue = gpu.Queue(index) if queue is None else queue
        self.device, self.threads = f"cuda:{index}", 1
        self._name = f"{self.device}-stream-{self._queue.handle:x}" if name is None else name
        self._host: Stream | None = None
        self._turn: StreamFuture[Any] | None = None

    @property
    def name(self) -> str:  # type: ignore[override]
        """What errors, traces and debuggers call it."""
        return self._name

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version of this protocol, and the handle: what CuPy, torch and others take."""
        return (0, self._queue.handle)

    def _enter(self) -> Any:
        return gpu.enter(self._queue)

    def _leave(self, token: Any) -> None:
        gpu.leave(token)

    def _open_queue(self) -> gpu.Queue:
        if not self._queue.handle:
            raise StreamError(f"stream {self.name!r} is closed")
        return self._queue

    def synchronize(self) -> None:
        """Wait until all that is queued now is over; raises the first error of a callable that nobody has seen."""
        if self._host is not None:
            self._host.synchronize()
        if self._queue.handle:
            self._queue.synchronize()

    def wait_completion(self, timeout: float | None = None) -> bool:
        """Wait like `synchronize`, at most `timeout` seconds; return whether all is over."""
        timeout = seconds(timeout)
        if timeout is not None and not _poll(self.query, timeout):
            return False
        self.synchronize()
        return True

    def query(self) -> bool:
        """Return whether all that was queued is over, without waiting."""
        return (self._host is None or self._host.query()) and (not self._queue.handle or self._queue.is_idle())

    def _wait(self, timeout: float | None = None) -> bool:
        return self.wait_completion(timeout)

    def record_event(self, event: Event | None = None) -> Event:
        """Mark this place in the queue, and return the event that is complete when the stream has come to it."""
        from quantkit.streams.event import Event

        made = Event() if event is None else event
        self._pass_gate()
        made._task = CudaMark(self._open_queue(), made.enable_timing)
        return made

    def wait_event(self, event: Event) -> None:
        """Let all that is queued from now on wait for an event; for one of the CPU, the caller waits."""
        self._pass_gate()
        if isinstance(event._task, CudaMark):
            event._task.hold(self._open_queue())
        elif event._task is not None:
            event._task.wait()

    def wait_stream(self, other: Stream) -> None:
        """Let all that is queued from now on wait for what another stream has now; for the CPU's the caller waits."""
        if isinstance(other, CudaStream):
            self.wait_event(other.record_event())
        else:
            other._wait()

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> StreamFuture[R]:
        """Queue a call of a Python function, which a thread makes when the GPU has come to it.

        Work that is queued after it, from any thread but its own, waits on the host until the call has returned.
        """
        if self._host is None:
            self._host = Stream(name=self.name)
        self._pass_gate()
        place = CudaMark(self._open_queue(), False)
        future: StreamFuture[R]

        def call() -> R:
            place.wait()
            self._worker = threading.get_ident()
            return fn(*args, **kwargs)

        self._turn = future = self._host.submit(call)
        self._queue.gate = self._pass_gate
        return future

    def _pass_gate(self) -> None:
        """Wait for the callable before; its own work, and that of others once it is over, goes on at once."""
        turn = self._turn
        if turn is None or threading.get_ident() == getattr(self, "_worker", None):
            return
        turn._await_turn(None)
        turn_is_over = threading.Event()
        turn.add_done_callback(lambda _: turn_is_over.set())
        turn_is_over.wait()
        if self._turn is turn:
            self._turn = self._queue.gate = None

    def cancel(self) -> int:
        """Drop callables that have not begun, and return how many that were; work of the GPU cannot be dropped."""
        return 0 if self._host is None else self._host.cancel()

    def close(self) -> None:
        """Take no more work, and `synchronize`."""
        self.synchronize()
        if self._host is not None:
            self._host.close()
        self._queue.close()

    def _raise(self) -> None:
        if self._host is not None:
            self._host._raise()


class _DefaultCuda(CudaStream):
    """The stream of a GPU outside of all contexts: the legacy one."""

    def close(self) -> None:
        raise InvalidArgument("the default stream of a GPU cannot be closed")


@functools.cache
def default(index: int) -> CudaStream:
    """Return the stream of a GPU outside of all contexts: the legacy stream, as in torch and CuPy."""
    return _DefaultCuda(f"cuda:{index}", name=f"cuda:{index}-default", queue=gpu.default_queue(index))


def current(index: int) -> CudaStream:
    """Return the stream that work on a GPU goes to here."""
    queue = gpu.current_queue(index)
    return default(index) if queue is gpu.default_queue(index) else _around(queue)


def _around(queue: gpu.Queue) -> CudaStream:
    return CudaStream(f"cuda:{queue.device.index}", queue=queue)


def external(stream: Any) -> CudaStream:
    """Return a stream of torch, CuPy or anybody as one of quantkit's; it stays theirs.

    Raises
    ------
    InvalidDType
        When it is no stream of a GPU.
    """
    if hasattr(stream, "cuda_stream"):  # torch
        handle, device = stream.cuda_stream, getattr(stream, "device", None)
        index = getattr(device, "index", None)
    elif hasattr(stream, "ptr"):  # CuPy
        handle, index = stream.ptr, getattr(stream, "device_id", None)
    elif hasattr(stream, "__cuda_stream__"):
        told = stream.__cuda_stream__
        handle, index = (told() if callable(told) else told)[1], getattr(stream, "device_id", None)
    else:
        raise InvalidDType(f"StreamContext: wanted a Stream, or one of torch or CuPy, got {type(stream).__name__}")
    index = gpu.current_device() if index is None or index < 0 else int(index)
    if handle in (0, driver.LEGACY_STREAM):
        return default(index)
    return CudaStream(f"cuda:{index}", queue=gpu.Queue(index, int(handle), stream))
