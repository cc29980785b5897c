"""Event: a place in a stream's queue that others can wait for, and measure time between."""

from __future__ import annotations

from typing import Any

from quantkit.errors import InvalidArgument, StreamError
from quantkit.streams.context import current_stream
from quantkit.streams.stream import Stream


class Event:
    """A place in a stream's queue.

    Parameters
    ----------
    enable_timing : bool, default False
        Whether `elapsed_time` will be asked for.

    Examples
    --------
    >>> import quantkit as qk
    >>> s = qk.Stream()
    >>> begin, end = qk.Event(enable_timing=True), qk.Event(enable_timing=True)
    >>> _ = s.record_event(begin), s.submit(sum, [1, 2]), s.record_event(end)
    >>> begin.elapsed_time(end) >= 0
    True
    """

    def __init__(self, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing
        self._task: Any = None

    def record(self, stream: Stream | None = None) -> None:
        """Mark the end of a stream's queue, by default the current one's. The mark before is forgotten."""
        (current_stream() if stream is None else stream).record_event(self)

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream, by default the current one, wait for this event before what is queued on it from now on."""
        (current_stream() if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        """Return whether the stream has come to this event; True when it was never recorded."""
        return self._task is None or bool(self._task.is_over)

    def synchronize(self) -> None:
        """Wait until the stream has come to this event."""
        if self._task is not None:
            self._task.wait()

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds from this event to another, both of which are waited for.

        Raises
        ------
        StreamError
            When one of them was not recorded.
        InvalidArgument
            When one of them was made without ``enable_timing``.
        """
        for event in (self, end):
            if not event.enable_timing:
                raise InvalidArgument("elapsed_time: both events want Event(enable_timing=True)")
            if event._task is None:
                raise StreamError("elapsed_time: both events must be recorded first")
            event.synchronize()
        if hasattr(self._task, "elapsed"):  # of a GPU, whose clock it is
            return float(self._task.elapsed(end._task))
        return float(end._task.finished - self._task.finished) / 1e6

    def __repr__(self) -> str:
        state = "not recorded" if self._task is None else "complete" if self.query() else "pending"
        return f"<Event, {state}>"
