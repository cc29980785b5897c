# Pixels in the memory of another library, by Arrow's C data interface.
from cpython.pycapsule cimport PyCapsule_GetPointer

cdef extern from *:
    """
    struct qk_arrow_array { /* as Arrow's specification lays it out */
        int64_t length, null_count, offset, n_buffers, n_children;
        const void **buffers;
        struct qk_arrow_array **children, *dictionary;
        void (*release)(struct qk_arrow_array *);
        void *private_data;
    };
    """
    ctypedef struct qk_arrow_array "struct qk_arrow_array":
        int64_t length
        int64_t offset
        int64_t n_buffers
        int64_t n_children
        const void **buffers
        qk_arrow_array **children


@cython.final
cdef class ArrowPixels:
    """Read-only bytes of shape (height, width, 4); the capsule keeps them alive."""
    cdef object capsule
    cdef const uint8_t *data
    cdef Py_ssize_t shape[3]
    cdef Py_ssize_t strides[3]

    def __init__(self, capsule, Py_ssize_t height, Py_ssize_t width):
        cdef const qk_arrow_array *array = <const qk_arrow_array *>PyCapsule_GetPointer(capsule, "arrow_array")
        cdef const qk_arrow_array *bytes = array
        if array.n_children == 1 and array.offset == 0 and array.length == height * width:
            bytes = array.children[0]
        if bytes is array or bytes.offset or bytes.length != 4 * height * width or bytes.n_buffers != 2:
            raise ShapeMismatch(f"wanted {width} x {height} pixels of 4 bytes")
        self.capsule, self.data = capsule, <const uint8_t *>bytes.buffers[1]
        self.shape = [height, width, 4]
        self.strides = [4 * width, 4, 1]

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if flags & PyBUF_WRITABLE:
            raise BufferError("the pixels belong to another library and are read-only")
        buffer.buf, buffer.obj, buffer.len, buffer.readonly = <void *>self.data, self, 4 * self.shape[0] * self.shape[1], 1
        buffer.itemsize, buffer.format, buffer.ndim = 1, b"B", 3
        buffer.shape, buffer.strides, buffer.suboffsets, buffer.internal = self.shape, self.strides, NULL, NULL
