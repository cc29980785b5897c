# NumPy arrays and quantkit Arrays as operands of the drivers, through the buffer protocol.
from libc.string cimport strcmp

from quantkit.errors import InvalidDType, ShapeMismatch


cdef int dtype_of(const Py_buffer *view, bint is_bf16) noexcept:
    """qk_dtype of a buffer, or -1. NumPy gives bfloat16 no format, so it comes as uint16 with a flag."""
    cdef const char *f = view.format
    if f == NULL:
        return QK_U8
    if f[0] == b"<" or f[0] == b"=" or f[0] == b"@":
        f += 1
    if f[0] == 0 or f[1] != 0:
        return -1
    if is_bf16:
        return QK_BF16 if f[0] == b"H" else -1
    if f[0] == b"f":
        return QK_F32
    if f[0] == b"B":
        return QK_U8
    if f[0] == b"b":
        return QK_S8
    if f[0] == b"e":
        return QK_F16
    if f[0] == b"d":
        return QK_F64
    if (f[0] == b"i" or f[0] == b"l") and view.itemsize == 4:
        return QK_I32
    return -1


cdef int64_t element_count(const Py_buffer *view) noexcept:
    cdef int64_t count = 1
    cdef int d
    for d in range(view.ndim):
        count *= view.shape[d]
    return count


cdef void extent(const Py_buffer *view, uintptr_t *first, uintptr_t *end) noexcept:
    """Bounds of the bytes that a non-empty buffer touches."""
    cdef int d
    cdef Py_ssize_t reach
    first[0] = <uintptr_t>view.buf
    end[0] = first[0] + view.itemsize
    for d in range(view.ndim):
        reach = view.strides[d] * (view.shape[d] - 1)
        if reach < 0:
            first[0] += reach
        else:
            end[0] += reach


cdef bint overlaps(const Py_buffer *a, const Py_buffer *b) noexcept:
    cdef uintptr_t a0, a1, b0, b1
    extent(a, &a0, &a1)
    extent(b, &b0, &b1)
    return a0 < b1 and b0 < a1


cdef int make_layout_or_not(qk_layout *layout, const Py_buffer *x, const Py_buffer *y, int axis) noexcept:
    """Layout of one or two operands of equal shape, y may be NULL; -1 where too many dimensions stay apart."""
    cdef const int64_t *strides[2]
    strides[0] = <const int64_t *>x.strides
    if y != NULL:
        strides[1] = <const int64_t *>y.strides
    return qk_layout_init(layout, x.ndim, <const int64_t *>x.shape, 1 if y == NULL else 2, strides, axis)


cdef int make_layout(qk_layout *layout, const Py_buffer *x, const Py_buffer *y, int axis) except -1:
    if make_layout_or_not(layout, x, y, axis) < 0:
        raise ShapeMismatch(f"wanted at most {QK_MAX_NDIM} dimensions that do not merge, got strides "
                            f"{tuple([x.strides[d] for d in range(x.ndim)])}")
    return 0


cdef int check_axis(const Py_buffer *view, int axis) except -1:
    """An axis of -1 is none."""
    if not -1 <= axis < view.ndim:
        raise ShapeMismatch(f"axis {axis} is out of range for {view.ndim} dimensions")
    return 0


cdef tuple shape_of(const Py_buffer *view):
    return tuple([view.shape[d] for d in range(view.ndim)])


cdef bint same_shape(const Py_buffer *a, const Py_buffer *b) noexcept:
    cdef int d
    if a.ndim != b.ndim:
        return False
    for d in range(a.ndim):
        if a.shape[d] != b.shape[d]:
            return False
    return True


cdef bint is_aligned(const Py_buffer *view) noexcept:
    """Whether every element lies on a boundary of its size, as C wants it."""
    cdef int d
    if view.itemsize <= 1:
        return True
    if <uintptr_t>view.buf % <uintptr_t>view.itemsize:
        return False
    for d in range(view.ndim):
        if view.shape[d] > 1 and view.strides[d] % view.itemsize:
            return False
    return True


cdef int check_aligned(str name, const Py_buffer *view) except -1:
    if not is_aligned(view):
        raise InvalidArgument(f"wanted {name} whose elements lie on boundaries of their {view.itemsize} bytes, got one "
                              f"that is not aligned")
    return 0
