# One verb or job on a stream, and what becomes of it when it is over.
#
# Workers never touch Python objects, except to run a job (a Python callable). What a task keeps alive is let go of by
# `reap`, which every call to a stream makes on its way, and which the main thread is asked to make when a stream falls
# idle.
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject

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
    static PyObject *qk_frame_code(PyFrameObject *frame) { return (PyObject *)PyFrame_GetCode(frame); }
    static PyFrameObject *qk_frame_back(PyFrameObject *frame) { return (PyFrameObject *)PyFrame_GetBack(frame); }
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
    int PyFrame_GetLasti(PyFrameObject *frame)
    object qk_frame_code(PyFrameObject *frame)
    PyFrameObject *qk_frame_back(PyFrameObject *frame)  # a new reference
    void PyErr_SetObject(object type, object value)
    void PyErr_WriteUnraisable(object obj)

cdef str PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
cdef list profiled = None
CANCELLED = object()  # what a job returns that was not to run
cdef dict own_files = {}  # file name of a frame: whether it is of this package


cdef bint is_own(code) except -1:
    cdef str name = code.co_filename
    found = own_files.get(name)
    if found is None:
        if len(own_files) > 10_000:  # code that is made while the program runs may have any number of names
            own_files.clear()
        own_files[name] = found = name.startswith(PACKAGE)
    return found


@cython.final
cdef class Task:
    """One verb or job on a stream. `c` is set until it is over and noted; then `outcome` says how it went."""

    cdef qk_task *c
    cdef qk_outcome outcome
    cdef object verb  # or its name
    cdef readonly StreamBase stream
    cdef object operands, out, kept  # what must live until it is over
    cdef list more
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

    def __cinit__(self, StreamBase stream not None, verb not None, job=None):
        self.c = qk_task_new(<void *>self, &run_job if job is not None else NULL)
        if self.c == NULL:
            raise OutOfMemory("no memory for a task of a stream")
        self.stream = stream
        self.stream_name = stream.name
        self.failures = stream.failures
        self.verb = verb
        self.job = job
        self.find_place()

    def __dealloc__(self):
        if self.c != NULL:
            qk_task_unref(self.c)

    def __del__(self):
        self.tell()

    @property
    def name(self):
        """What it is called in errors and traces."""
        return self.verb if type(self.verb) is str else self.verb.__name__.lstrip("_")

    cdef int find_place(self) except -1:
        """Note the innermost frame that is not of this package."""
        cdef PyFrameObject *frame = PyEval_GetFrame()
        cdef PyFrameObject *outer
        if frame == NULL:
            return 0
        Py_INCREF(<object>frame)
        while True:
            self.code = qk_frame_code(frame)
            outer = qk_frame_back(frame) if is_own(self.code) else NULL
            if outer == NULL:
                break
            Py_DECREF(<object>frame)
            frame = outer
        self.instruction = PyFrame_GetLasti(frame)
        Py_DECREF(<object>frame)
        return 0

    cdef int record(self, const qk_call *call, object operands) except -1:
        if qk_task_add(self.c, call) < 0:
            raise OutOfMemory(f"no memory for a call of {self.name}")
        if self.kept is None:
            self.kept = operands
        else:
            if self.more is None:
                self.more = []
            self.more.append(operands)
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
        self.operands = self.out = self.kept = self.more = None
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
        if type(self.verb) is str:
            raise error.with_traceback(self.traceback)
        # Another one each time: the frames that it passes through may hold the very array whose hazards hold this task.
        fresh = type(error)(*error.args)
        fresh.__notes__ = list(error.__notes__)
        raise fresh

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
