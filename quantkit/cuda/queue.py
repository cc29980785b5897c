"""Queues of work on a GPU, marks in them, and the order that operands enforce.

Every block of memory knows the mark after its last write and those after its reads since, whatever the queues: work
that reads waits for the write, work that writes waits for both. Waiting is the GPU's; the host goes on.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from quantkit.cuda import driver

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable, Iterable

    from quantkit.cuda.memory import Block


class Mark:
    """A place in a queue: an event, made when somebody wants it where there is only one queue."""

    __slots__ = ("_event", "queue")

    def __init__(self, queue: Queue, now: bool) -> None:
        self.queue, self._event = queue, 0
        if now:
            self.event()

    def event(self) -> int:
        """Return the event. Made late it stands for more than it had to, never for less."""
        if not self._event:
            events = self.queue.events
            with self.queue.device:
                event = events.pop() if events else driver.new_event()
                driver.record(event, self.queue.handle)
            self._event = event
        return self._event

    def __del__(self) -> None:
        if self._event:
            self.queue.events.append(self._event)


class Queue:
    """A stream of a GPU: its own, or one that somebody else made.

    Parameters
    ----------
    index : int
        Of the GPU.
    handle : int, optional
        Of a stream that exists; a new one is made without it.
    owner : object, optional
        Kept alive with it.
    """

    several = False  # whether there was ever a second queue: until then there is nobody to wait for

    def __init__(self, index: int, handle: int | None = None, owner: Any = None) -> None:
        self.device = driver.device(index)
        self.owner, self._owned = owner, handle is None
        self.events: list[int] = []
        self.gate: Callable[[], None] | None = None  # waits for what must come before any more work
        with self.device:
            self.handle = driver.new_stream() if handle is None else handle
        if handle != driver.LEGACY_STREAM:
            Queue.several = True

    def wait(self, mark: Mark) -> None:
        """Let the work from now on wait for a mark; the context is current."""
        if mark.queue is not self:
            driver.wait_event(self.handle, mark.event())

    def synchronize(self) -> None:
        """Wait for all work."""
        with self.device:
            driver.synchronize(self.handle)

    def is_idle(self) -> bool:
        """Return whether no work is left."""
        with self.device:
            return driver.is_idle(self.handle)

    def close(self) -> None:
        """Give the stream back."""
        if self._owned and self.handle:
            handle, self.handle = self.handle, 0
            with self.device:
                driver.free_stream(handle)

    def __del__(self) -> None:
        # After a fork, or when the interpreter ends, there is no driver, or no module, that could take anything back.
        try:
            events, self.events = self.events, []
            if events or (self._owned and self.handle):
                with self.device:
                    for event in events:
                        driver.free_event(event)
                self.close()
        except Exception:
            pass


class Work:
    """Work on blocks, in the order that they enforce: ``with Work(queue, reads, writes) as work: work.launch(...)``."""

    __slots__ = ("queue", "reads", "writes")

    def __init__(self, queue: Queue, reads: Iterable[Block | None] = (), writes: Iterable[Block | None] = ()) -> None:
        self.queue = queue
        self.writes = [block for block in writes if block is not None]
        self.reads = [block for block in reads if block is not None and block not in self.writes]

    def __enter__(self) -> Work:
        if self.queue.gate is not None:
            self.queue.gate()
        self.queue.device.__enter__()
        try:
            for block in (*self.reads, *self.writes):
                if block.writer is not None:
                    self.queue.wait(block.writer)
            for block in self.writes:
                for mark in tuple(block.readers.values()):
                    self.queue.wait(mark)
        except BaseException:
            self.queue.device.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            mark = Mark(self.queue, Queue.several)
            for block in self.reads:
                block.readers[id(self.queue)] = mark
            for block in self.writes:
                block.writer, block.readers = mark, {}
        finally:
            self.queue.device.__exit__(None, None, None)

    def launch(self, name: str, grid: tuple[int, int, int], block: int, argument: ctypes.Structure) -> None:
        """Launch a kernel."""
        from quantkit.cuda.module import kernels

        kernels(self.queue.device).launch(name, grid, block, argument, self.queue.handle)


@functools.cache
def default_queue(index: int) -> Queue:
    """Return the queue outside of all contexts: the legacy stream, which torch and CuPy use as well."""
    return Queue(index, driver.LEGACY_STREAM)


_current: ContextVar[tuple[Queue, ...]] = ContextVar("quantkit_cuda_queues", default=())


def enter(queue: Queue) -> Any:
    """Make a queue the current one of its GPU in this context; returns what `leave` wants back."""
    return _current.set((queue, *_current.get()))


def leave(token: Any) -> None:
    """End what `enter` began."""
    _current.reset(token)


def current_queue(index: int) -> Queue:
    """Return the queue that work on a GPU goes to here."""
    for queue in _current.get():
        if queue.device.index == index:
            return queue
    return default_queue(index)


def current_device() -> int:
    """Return the GPU that "cuda" means here: that of the innermost stream context, else 0."""
    queues = _current.get()
    return queues[0].device.index if queues else 0


def wait_for(marks: Iterable[Mark | None]) -> None:
    """Let the host wait for marks."""
    for mark in marks:
        if mark is not None:
            with mark.queue.device:
                driver.synchronize_event(mark.event())
