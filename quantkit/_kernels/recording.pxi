# A verb on a stream: it runs at once, with its kernel calls recorded into a task instead of executed.
import numpy

from cpython.ref cimport PyObject

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_new)(PyTypeObject *type, object arguments, PyObject *keywords)

cdef enum:
    MAX_ACCESSES = 32

# What `pending_arrays` sets: Array, ByteStorage and element_type, which stand above this module.
cdef object array_class, storage_class, find_element_type
cdef dict element_types = {}


def pending_arrays(array, storage, element_type):
    """Set the classes of what verbs return on streams, and the function that gives the `ElementType` of a dtype."""
    global array_class, storage_class, find_element_type
    array_class, storage_class, find_element_type = array, storage, element_type


@cython.freelist(8)
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


cdef ArrayBase pending(part):
    """The Array over an ndarray that a verb made, and that nobody else holds."""
    cdef Memory memory
    cdef Py_ssize_t offset
    cdef ElementType etype
    dtype = part.dtype
    found = element_types.get(dtype)
    if found is None:
        found = element_types[dtype] = find_element_type(dtype)
    etype = found
    memory = borrow(part if etype.dtype is etype.wire else part.view(etype.wire), True, &offset)
    shape = tuple([memory.source.shape[i] for i in range(memory.source.ndim)])
    strides = tuple([memory.source.strides[i] for i in range(memory.source.ndim)])
    # Past the constructors in Python, which check what is known to be right.
    storage = (<PyTypeObject *>StorageBase).tp_new(<PyTypeObject *>storage_class, (memory,), NULL)
    return (<PyTypeObject *>ArrayBase).tp_new(<PyTypeObject *>array_class, (storage, etype, shape, offset, strides), NULL)


def queued(StreamBase stream not None, verb, tuple operands, tuple parameters, out, **rest):
    """Queue ``verb(*operands, *parameters, **rest, out=out)`` and return its results as pending Arrays.

    The verb runs now, with `recording()` true: it checks its arguments, and its kernel calls are kept instead of
    executed. `operands` may have no values yet, so that the verb may look at their shapes and dtypes only, and moves
    values by kernels alone. `parameters` are read now.
    """
    global qk_recorder
    cdef Task task = Task(stream, verb)
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
                QK_WRITES_ALL if array.size * array._type.itemsize == array._bytes.memory.nbytes else QK_WRITES_PART)
            count += 1
        else:
            synchronous = True
        rest["out"] = view
    views.extend(parameters)
    qk_recorder = <void *>task
    try:
        result = verb(*views, **rest)
    finally:
        qk_recorder = NULL
    if out is not None and result is view:
        result = out
    elif type(result) is tuple:
        parts = []
        for part in result:
            array = pending(part)
            accesses[count] = qk_access(hazards_at(&array._bytes.hazards), QK_WRITES_ALL)
            count += 1
            parts.append(array)
        result = tuple(parts)
    else:
        array = result = pending(result)
        accesses[count] = qk_access(hazards_at(&array._bytes.hazards), QK_WRITES_ALL)
        count += 1
    task.operands, task.out = operands, out
    task.push(accesses, count)
    if synchronous:
        task.wait()
        if task.outcome.state > QK_DONE:
            task.throw()
    return result
