# The arguments of a call by value, to see whether the next one has the same.
from cpython.buffer cimport PyObject_CheckBuffer
from libc.string cimport memcmp

cdef class KeptCall:
    """What was made of the arguments of a call, and those arguments, which nobody can change here.

    Parameters
    ----------
    arguments : tuple
        None, numbers, texts, sequences of int, and arrays, which are copied. With anything else, or an array that is not
        contiguous, it holds for no call.
    made : object
    """

    cdef list held
    cdef bint comparable
    cdef readonly object made

    def __cinit__(self, tuple arguments not None, made):
        cdef object v, kind
        self.made = made
        self.held = []
        self.comparable = True
        for v in arguments:
            kind = type(v)
            if kind is list:
                v = tuple(v)
                kind = tuple
            if kind is tuple:
                self.comparable &= all([type(n) is int for n in v])
            elif v is not None and kind not in (int, float, str, bytes):
                try:
                    v = memoryview(v)
                    v = [(v.format.encode(), v.shape, v.tobytes())] if v.c_contiguous else None
                except (BufferError, TypeError, ValueError):
                    v = None
                self.comparable &= v is not None and v[0][0] != b"O"
            self.held.append(v)

    def holds(self, tuple arguments not None):
        """Whether a call has the same arguments."""
        cdef Py_ssize_t i, n = len(arguments)
        cdef object v, k, kind
        if not self.comparable or n != len(self.held):
            return False
        for i in range(n):
            v = <object>arguments[i]
            k = <object>self.held[i]
            kind = type(k)
            if kind is list:
                if not same_values(v, <tuple>(<list>k)[0]):
                    return False
            elif v is not k:
                if type(v) is list:
                    v = tuple(v)
                if type(v) is not kind:
                    return False
                if kind is tuple:
                    for one in <tuple>v:
                        if type(one) is not int:
                            return False
                if v != k:
                    return False
        return True


cdef bint same_values(object v, tuple kept) except -1:
    """Whether v is an array or NumPy scalar of the same type, shape and bytes."""
    cdef Py_buffer view
    cdef bint same
    cdef bytes text = <bytes>kept[0], data = <bytes>kept[2]
    cdef tuple shape = <tuple>kept[1]
    cdef int d
    if not PyObject_CheckBuffer(v) or isinstance(v, bytes):
        return False
    try:
        PyObject_GetBuffer(v, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)
    except (BufferError, ValueError, TypeError):
        return False
    same = view.ndim == len(shape) and view.len == len(data) and view.format != NULL and strcmp(view.format, text) == 0
    for d in range(view.ndim if same else 0):
        same = same and view.shape[d] == <Py_ssize_t>shape[d]
    same = same and memcmp(view.buf, <const char *>data, view.len) == 0
    PyBuffer_Release(&view)
    return same
