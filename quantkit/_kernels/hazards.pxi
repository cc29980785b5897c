# Waiting for tasks: until bytes may be read or written, or until one is over.
from time import monotonic

from cpython.exc cimport PyErr_CheckSignals

# A wait looks for signals this often, so that Ctrl-C ends it.
cdef int64_t SLICE = 50_000_000


cdef qk_hazards *hazards_at(qk_hazards **slot) except NULL:
    if slot[0] == NULL:
        slot[0] = <qk_hazards *>calloc(1, sizeof(qk_hazards))
        if slot[0] == NULL:
            raise OutOfMemory("no memory for the hazards of a storage")
    return slot[0]


cdef void free_hazards(qk_hazards *hazards) noexcept:
    if hazards != NULL:
        if qk_hazards_clear(hazards):
            ask_to_reap()
        free(hazards)


cdef int settle(qk_hazards *hazards, bint writes) except -1:
    """Wait until bytes may be read, or written too; raise the error of the task that should have written them."""
    cdef qk_task *task
    cdef void *failed
    if hazards == NULL:
        return 0
    while True:
        task = qk_hazards_next(hazards, writes)
        if task == NULL:
            break
        try:
            wait_for(task, -1)
        finally:
            qk_task_unref(task)
    failed = qk_hazards_failed(hazards)
    if failed != NULL:
        (<Task>failed).throw()
    return 0


cdef tuple swallowed = (0, 0, None)


cdef int settle_export(qk_hazards *hazards, bint writes) except -1:
    """`settle` for a buffer. NumPy goes on to __array__ when that fails, and forgets why: also that it was Ctrl-C."""
    global swallowed
    if hazards == NULL:
        return 0
    try:
        return settle(hazards, writes)
    except QuantkitError:
        raise
    except BaseException as error:
        swallowed = (<uintptr_t>hazards, monotonic(), error)
        raise


cdef int raise_swallowed(qk_hazards *hazards) except -1:
    """Raise what interrupted the export that NumPy asked for a moment ago."""
    global swallowed
    if hazards == NULL or swallowed[0] != <uintptr_t>hazards:
        return 0
    (_, when, error), swallowed = swallowed, (0, 0, None)
    if monotonic() - when < 0.01:
        raise error
    return 0


cdef int wait_for(qk_task *task, double seconds) except -1:
    """1 when the task is over, 0 when the time is up (never, where it is negative)."""
    cdef int64_t left = <int64_t>(min(seconds, 1e9) * 1e9), now
    cdef int status
    while True:
        now = SLICE if seconds < 0 or left > SLICE else left
        with nogil:
            status = qk_task_wait(task, now)
        if status > 0:
            reap()
            return 1
        if status < 0:
            raise StreamError("a callable on a stream waits for work that comes after it, which would never end")
        PyErr_CheckSignals()
        left -= now
        if seconds >= 0 and left <= 0:
            return 0
