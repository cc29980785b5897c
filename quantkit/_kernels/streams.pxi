# Streams as Python sees them: which one is current, its queue, and its end.
from contextvars import ContextVar

from cpython.contextvars cimport get_value

cdef object CURRENT = ContextVar("quantkit_stream", default=None)
cdef bint streams_in_use = False  # whether any context was ever entered: until then nobody needs to look


def current():
    """The stream that verbs queue themselves on here, or None where they run at once."""
    return get_value(CURRENT, None) if streams_in_use and qk_recorder == NULL else None


def enter(stream):
    """Make `stream` (None for none) the current one of this context; returns what `leave` wants back."""
    global streams_in_use
    streams_in_use = True
    return CURRENT.set(stream)


def leave(token):
    """End what `enter` began."""
    CURRENT.reset(token)


def recording():
    """Whether a verb is being recorded: its operands may have no values yet, and its results are arrays."""
    return qk_recorder != NULL


def on_worker():
    """Whether this thread is the worker of a stream."""
    return bool(qk_on_worker())


cdef class StreamBase:
    """The part of Stream that has a queue."""

    cdef qk_stream *c
    cdef readonly str name
    cdef list failures

    def __cinit__(self, *args, **kwargs):
        self.failures = []

    def _open(self, str name not None, int threads):
        self.name = name
        self.c = qk_stream_new(name.encode("utf-8", "replace"), threads)
        if self.c == NULL:
            raise OutOfMemory("no memory for a stream")

    def __dealloc__(self):
        if self.c != NULL:
            qk_stream_drop(self.c)

    def _close(self):
        qk_stream_close(self.c)

    def _cancel(self):
        cdef int count = qk_stream_cancel(self.c)
        reap()
        return count

    def _is_idle(self):
        cdef qk_task *tail = qk_stream_tail(self.c)
        if tail != NULL:
            qk_task_unref(tail)
        reap()
        return tail == NULL

    def _wait(self, timeout=None):
        """Wait for all that is queued now; whether it is over within `timeout` seconds."""
        cdef qk_task *tail = qk_stream_tail(self.c)
        if tail == NULL:
            reap()
            return True
        try:
            return bool(wait_for(tail, -1 if timeout is None else max(timeout, 0)))
        finally:
            qk_task_unref(tail)

    def _raise(self):
        """Raise the first error that nobody has seen, with the others that nobody has seen as notes."""
        cdef Task task
        reap()
        found = [task for task in self.failures if not task.reported]
        self.failures.clear()
        if not found:
            return
        task = found[0]
        seen = [task, task.cause]
        error = task.exception()
        for task in found[1:]:
            if (<Task>task).cause is None or (<Task>task).cause not in seen:
                error.add_note(f"and also: {task.exception()!r} ({task.line()})")
                seen.append(task)
            task.reported = True
        (<Task>found[0]).throw()

    def _tell(self):
        """Print the errors that nobody has seen."""
        failures = list(self.failures)
        self.failures.clear()
        for task in failures:
            task.tell()


def stop_streams(double seconds):
    """End the workers of idle streams; how many are left after so many seconds."""
    cdef int left
    cdef int64_t nanoseconds = <int64_t>(seconds * 1e9)
    with nogil:
        left = qk_streams_stop(nanoseconds)
    return left


def profile_into(list events):
    """Append a row for each task that is over from now on; None for no more."""
    global profiled
    reap()
    profiled = events


qk_stream_hooks(ask_to_reap, qk_detach)
