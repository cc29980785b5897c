# Streams as Python sees them: recording a verb into a task, waiting, and what becomes of tasks that are over.
#
# Workers never touch Python objects, except to run a job (a Python callable). What a task keeps alive is let go of by
# `reap`, which every call here makes on its way, and which the main thread is asked to make when a stream falls idle.
from contextvars import ContextVar
from time import monotonic

from cpython.contextvars cimport get_value
from cpython.exc cimport PyErr_CheckSignals
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject

import numpy

from quantkit.errors import QuantkitError

cdef extern from *:
    """
    #include <stdatomic.h>
    static _Thread_local int qk_attached;
    static atomic_flag qk_reap_is_due = ATOMIC_FLAG_INIT;
    /* A worker gets its Python thread state with its first job, and keeps it: thread-locals must last. */
    static void qk_attach(void) {
        if (qk_attached) return;
        qk_attached = 1;
        PyGILState_Ensure();
        PyEval_SaveThread();
    }
    static void qk_detach(void) {
        if (!qk_attached) return;
        PyEval_RestoreThread(PyGILState_GetThisThreadState());
        PyGILState_Release(PyGILState_UNLOCKED);
    }
    static int qk_reap_due(void) { return !atomic_flag_test_and_set(&qk_reap_is_due); }
    static void qk_reap_done(void) { atomic_flag_clear(&qk_reap_is_due); }
    """
    void qk_attach() nogil
    void qk_detach() noexcept nogil
    int qk_reap_due() nogil
    void qk_reap_done() nogil

cdef extern from "Python.h":
    int Py_AddPendingCall(int (*call)(void *) noexcept, void *argument) nogil
    ctypedef struct PyFrameObject:
        pass
    PyFrameObject *PyEval_GetFrame()
    void PyErr_SetObject(object type, object value)
    void PyErr_WriteUnraisable(object obj)

cdef enum:
    MAX_ACCESSES = 32

# A wait looks for signals this often, so that Ctrl-C ends it.
cdef int64_t SLICE = 50_000_000

cdef object CURRENT = ContextVar("quantkit_stream", default=None)
cdef bint streams_in_use = False  # whether any context was ever entered: until then nobody needs to look
cdef str PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
cdef list profiled = None
CANCELLED = object()  # what a job returns that was not to run


cdef bint on_stream():
    return qk_recorder == NULL and get_value(CURRENT, None) is not None


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


@cython.final
cdef class Unready:
    """Exports an Array's elements as they are, without waiting for the tasks that write them."""

    cdef ArrayBase array

    def __cinit__(self, ArrayBase array not None):
        self.array = array

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        self.array.export(self, buffer, flags)

    def __releasebuffer__(self, Py_buffer *buffer):
        self.array._bytes.unpin()


cdef object unready(ArrayBase array):
    view = numpy.asarray(memoryview(Unready(array)))
    return view if array._type.dtype is array._type.wire else view.view(array._type.dtype)


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


def reap():
    """Let go of what tasks that are over kept alive, and note those that failed."""
    cdef qk_task *first = qk_take_finished()
    cdef qk_task *task = first
    cdef qk_task *next
    cdef Task owner
    cdef int dead
    while task != NULL:  # at once, before anything can run that looks for failures
        owner = <Task>qk_task_owner(task, &dead)
        if not dead:
            owner.note()
        task = qk_task_next(task)
    task = first
    while task != NULL:
        next = qk_task_next(task)
        owner = <Task>qk_task_owner(task, &dead)
        if dead or owner.outcome.state == QK_DONE:
            qk_task_drop_owner(task)
            qk_task_unref(task)
            if not dead:
                owner.over()
            Py_DECREF(owner)
        else:
            owner.over()
            qk_task_unref(task)
        task = next


@cython.final
cdef class Task:
    """One verb or job on a stream. `c` is set until it is over and noted; then `outcome` says how it went."""

    cdef qk_task *c
    cdef qk_outcome outcome
    cdef readonly str name
    cdef readonly StreamBase stream
    cdef list keep
    cdef list failures
    cdef object code
    cdef int instruction
    cdef object job
    cdef Task cause
    cdef object error
    cdef object traceback
    cdef bint noted
    cdef public bint reported
    cdef readonly str stream_name

    def __cinit__(self, StreamBase stream not None, str name not None, job=None):
        cdef object frame = None
        cdef PyFrameObject *at = PyEval_GetFrame()
        self.c = qk_task_new(<void *>self, &run_job if job is not None else NULL)
        if self.c == NULL:
            raise OutOfMemory("no memory for a task of a stream")
        self.stream = stream
        self.stream_name = stream.name
        self.failures = stream.failures
        self.name = name
        self.job = job
        self.keep = []
        if at != NULL:
            frame = <object>at
            while frame.f_code.co_filename.startswith(PACKAGE) and frame.f_back is not None:
                frame = frame.f_back
            self.code = frame.f_code
            self.instruction = frame.f_lasti

    def __dealloc__(self):
        if self.c != NULL:
            qk_task_unref(self.c)

    def __del__(self):
        self.tell()

    cdef int record(self, const qk_call *call, object operands) except -1:
        if qk_task_add(self.c, call) < 0:
            raise OutOfMemory(f"no memory for a call of {self.name}")
        self.keep.append(operands)
        return 0

    cdef int push(self, qk_access *accesses, int count) except -1:
        cdef int status
        if self.stream.c == NULL:
            raise StreamError(f"{self.stream_name} is closed")
        Py_INCREF(self)
        status = qk_stream_push(self.stream.c, self.c, accesses, count)
        if status < 0:
            Py_DECREF(self)
            if status == -1:
                raise OutOfMemory(f"no memory to queue {self.name}")
            if status == -2:
                raise StreamError(f"{self.stream_name} is closed: {self.name} cannot be queued on it")
            raise StreamError(f"{self.stream_name}: the system gives no more threads")
        return 0

    cdef void note(self):
        # Only what runs no Python code: see reap.
        cdef qk_task *c = self.c
        self.outcome = qk_task_outcome(c)
        if self.outcome.cause != NULL:
            self.cause = <Task>self.outcome.cause
        self.c = NULL
        qk_task_unref(c)
        if self.outcome.state == QK_FAILED or self.outcome.state == QK_POISONED or self.outcome.state == QK_FORKED:
            self.failures.append(self)

    cdef void over(self):
        job = self.job
        if profiled is not None and self.outcome.started:
            profiled.append((self.stream_name, self.name, self.outcome.queued, self.outcome.started,
                             self.outcome.finished, self.place, self.state))
        self.job = self.stream = self.failures = None
        self.keep = None
        if job is not None and self.outcome.state in (QK_CANCELLED, QK_FORKED):
            job.drop(self.exception())

    @property
    def state(self):
        """"queued", "running", "done", "failed", "poisoned", "cancelled" or "forked"."""
        return ("queued", "running", "done", "failed", "poisoned", "cancelled", "forked")[self.look().state]

    cdef qk_outcome look(self):
        return self.outcome if self.c == NULL else qk_task_outcome(self.c)

    @property
    def is_over(self):
        return self.look().state >= QK_DONE

    @property
    def finished(self):
        """When it was over, in nanoseconds of the monotonic clock."""
        return self.look().finished

    def wait(self, timeout=None):
        """Wait until it is over; whether it is, within `timeout` seconds."""
        cdef qk_task *c = self.c
        if c == NULL:
            return True
        qk_task_ref(c)
        try:
            return bool(wait_for(c, -1 if timeout is None else max(timeout, 0)))
        finally:
            qk_task_unref(c)

    def after(self, Task other not None):
        """Begin only when `other` is over. Before it is queued."""
        if other.c != NULL and qk_task_after(self.c, other.c) < 0:
            raise OutOfMemory(f"no memory to queue {self.name}")

    def after_stream(self, StreamBase other not None):
        """Begin only when all is over that is queued on `other` now. Before it is queued."""
        cdef qk_task *tail = NULL if other.c == NULL else qk_stream_tail(other.c)
        cdef int status
        if tail != NULL:
            status = qk_task_after(self.c, tail)
            qk_task_unref(tail)
            if status < 0:
                raise OutOfMemory(f"no memory to queue {self.name}")

    def queue(self):
        """Put it at the end of its stream."""
        self.push(NULL, 0)

    @property
    def place(self):
        """Where it was queued: "file:line, in function"."""
        if self.code is None:
            return "an unknown place"
        for start, end, line in self.code.co_lines():
            if start <= self.instruction < end and line is not None:
                return f"{self.code.co_filename}:{line}, in {self.code.co_name}"
        return f"{self.code.co_filename}, in {self.code.co_name}"

    def exception(self):
        """The error that it ended with, or None."""
        cdef int state
        cdef const char *fault
        if self.c != NULL:
            reap()  # so that the outcome is noted
        state = self.look().state
        fault = self.outcome.fault
        if self.error is None and state > QK_DONE:
            if state == QK_FAILED:
                self.error = failure(self.outcome.status, fault)
            elif state == QK_POISONED:
                cause = self.cause.exception()
                self.error = type(cause)(*cause.args) if isinstance(cause, QuantkitError) else cause
                self.error.add_note(self.cause.line())
            elif state == QK_CANCELLED:
                self.error = StreamCancelled(f"{self.name} was cancelled on {self.stream_name} before it began")
            else:
                self.error = StreamForked(f"{self.name} was queued on {self.stream_name} by the parent of this process "
                                          "and not done when it forked; the child has no result")
        if self.error is not None and not self.noted:
            self.error.add_note(self.line())
            self.traceback = self.error.__traceback__
            self.noted = True
        return self.error

    def line(self):
        """The line of an error that says who queued this."""
        return f"{self.name}, queued on {self.stream_name} at {self.place}"

    def throw(self):
        """Raise the error that it ended with."""
        error = self.exception()
        self.reported = True
        if self.cause is not None:
            self.cause.reported = True
        raise error.with_traceback(self.traceback)

    def tell(self):
        """Print the error, where it never reached anybody."""
        if self.outcome.state == QK_FAILED and not self.reported:
            self.reported = True
            error, line = self.exception(), self.line()
            PyErr_SetObject(type(error), error)
            PyErr_WriteUnraisable(line)


cdef qk_state run_job(void *owner) noexcept nogil:
    qk_attach()
    return run_job_of(owner)


cdef qk_state run_job_of(void *owner) noexcept with gil:
    cdef Task task = <Task>owner
    try:
        found = task.job()
    except BaseException as error:
        found = error
    if found is CANCELLED:
        return QK_CANCELLED
    task.error = found
    return QK_DONE if found is None else QK_FAILED


cdef void ask_to_reap() noexcept nogil:
    if qk_reap_due() and Py_AddPendingCall(&reap_when_asked, NULL) < 0:
        qk_reap_done()


cdef int reap_when_asked(void *unused) noexcept:
    qk_reap_done()
    reap()
    return 0


def reap_in_child():
    """After a fork: what the parent had queued is over."""
    qk_reap_done()
    reap()


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


def queue(StreamBase stream not None, verb, tuple operands, tuple rest, dict options, out, wrap):
    """Record `verb(*operands, *rest, **options, out=out)`, queue it, and return its results, pending.

    `operands` are what it reads; Arrays among them, and as `out`, are not waited for. `wrap` makes an Array of an
    ndarray that the verb made.
    """
    global qk_recorder
    cdef Task task = Task(stream, verb.__name__.lstrip("_"))
    cdef qk_access accesses[MAX_ACCESSES]
    cdef int count = 0
    cdef ArrayBase array
    cdef bint synchronous = False
    views = []
    reap()
    for operand in operands:
        if isinstance(operand, CodesBase):
            operand = (<CodesBase>operand)._codes
        if isinstance(operand, ArrayBase):
            array = operand
            accesses[count] = qk_access(hazards_at(&array._bytes.hazards), QK_READS)
            count += 1
            operand = unready(array)
        views.append(operand)
    target = view = out
    if out is not None:
        if isinstance(out, CodesBase):
            target = (<CodesBase>out)._codes
        if isinstance(target, ArrayBase):
            array = target
            view = unready(array)
            accesses[count] = qk_access(
                hazards_at(&array._bytes.hazards),
                QK_WRITES_ALL if view.nbytes == array._bytes.memory.nbytes else QK_WRITES_PART)
            count += 1
        else:
            synchronous = True
        options = {**options, "out": view}
    qk_recorder = <void *>task
    try:
        result = verb(*views, *rest, **options)
    finally:
        qk_recorder = NULL
    if out is not None and result is view:
        result = out
    else:
        parts = []
        for part in result if type(result) is tuple else (result,):
            part = array = wrap(part)
            accesses[count] = qk_access(hazards_at(&array._bytes.hazards), QK_WRITES_ALL)
            count += 1
            parts.append(part)
        result = tuple(parts) if type(result) is tuple else parts[0]
    task.keep.append((operands, out))
    task.push(accesses, count)
    if synchronous:
        task.wait()
        if task.outcome.state > QK_DONE:
            task.throw()
    return result


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
