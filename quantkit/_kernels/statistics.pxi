# Ranges and histograms: one call of the C driver each.
from libc.math cimport isfinite

cdef enum:
    MOST_BINS = 1 << 24  # every one of which float32 tells from the next


def value_range(x, ranges, int axis=-1, bint x_is_bf16=False):
    """Range of the finite values, and how many others there are.

    `ranges` is a writable C-contiguous buffer of (float64 low, float64 high, int64 nonfinite): one, or one a channel
    with an `axis` >= 0; all counts are in the first. Its initial values must be (inf, -inf, 0).
    """
    cdef Py_buffer xb, rb
    cdef qk_call call
    PyObject_GetBuffer(x, &xb, PyBUF_FORMAT | PyBUF_STRIDES)
    try:
        PyObject_GetBuffer(ranges, &rb, PyBUF_WRITABLE)
        try:
            call.run = qk_run_range
            call.statistics.dtype = float_dtype(x, &xb, x_is_bf16)
            check_axis(&xb, axis)
            check_aligned("x", &xb)
            if <uintptr_t>rb.buf % sizeof(double):
                raise InvalidArgument("wanted ranges whose elements lie on boundaries of 8 bytes")
            if rb.len != <Py_ssize_t>sizeof(qk_range) * (xb.shape[axis] if axis >= 0 else 1):
                raise ShapeMismatch(f"wanted ranges for axis {axis} of {shape_of(&xb)}, got {rb.len} bytes")
            if element_count(&xb):
                make_layout(&call.statistics.layout, &xb, NULL, axis)
                call.statistics.x = <const char *>xb.buf
                call.statistics.ranges = <qk_range *>rb.buf
                perform(&call, (x, ranges))
        finally:
            PyBuffer_Release(&rb)
    finally:
        PyBuffer_Release(&xb)


def histogram(x, float low, float per_unit, int64_t[::1] counts, bint x_is_bf16=False):
    """counts[clamp(floor((x - low) * per_unit), 0, bins - 1)] += 1 for each finite x, in float32."""
    cdef Py_buffer xb
    cdef qk_call call
    PyObject_GetBuffer(x, &xb, PyBUF_FORMAT | PyBUF_STRIDES)
    try:
        call.run = qk_run_histogram
        call.statistics.dtype = float_dtype(x, &xb, x_is_bf16)
        check_aligned("x", &xb)
        if <uintptr_t>&counts[0] % sizeof(int64_t):
            raise InvalidArgument("wanted counts whose elements lie on boundaries of 8 bytes")
        if counts.shape[0] > MOST_BINS or not (isfinite(low) and isfinite(per_unit) and per_unit > 0):
            raise InvalidArgument(f"wanted at most {MOST_BINS} counts, a finite low and a finite per_unit > 0, got "
                                  f"{counts.shape[0]}, {low} and {per_unit}")
        if element_count(&xb):
            make_layout(&call.statistics.layout, &xb, NULL, -1)
            call.statistics.x = <const char *>xb.buf
            call.statistics.lo = low
            call.statistics.per_unit = per_unit
            call.statistics.bins = <int32_t>counts.shape[0]
            call.statistics.counts = &counts[0]
            perform(&call, (x, counts))
    finally:
        PyBuffer_Release(&xb)


cdef int float_dtype(x, const Py_buffer *view, bint is_bf16) except -1:
    cdef int dtype = dtype_of(view, is_bf16)
    if dtype != QK_F16 and dtype != QK_BF16 and dtype != QK_F32 and dtype != QK_F64:
        raise InvalidDType(f"wanted float16, bfloat16, float32 or float64, got {getattr(x, 'dtype', type(x))}")
    return dtype
