# Ranges and histograms: one call of the C driver each.
from libc.stdlib cimport free, malloc

cdef extern from "qk_statistics.h" nogil:
    ctypedef struct qk_range:
        double lo
        double hi
        int64_t nonfinite
    ctypedef struct qk_statistics_call:
        qk_layout layout
        const char *x
        int dtype
    int qk_range_run(const qk_statistics_call *call, qk_range *ranges)
    int qk_histogram_run(const qk_statistics_call *call, float lo, float per_unit, int32_t bins, int64_t *counts)


def value_range(x, int axis=-1, bint x_is_bf16=False):
    """(low, high, nonfinite): floats, or lists of them with an `axis` >= 0. low = inf, high = -inf of no values."""
    cdef Py_buffer xb
    cdef qk_statistics_call call
    cdef qk_range *ranges = NULL
    cdef int64_t channels, i
    cdef int status = 0
    PyObject_GetBuffer(x, &xb, PyBUF_FORMAT | PyBUF_STRIDES)
    try:
        call.dtype = float_dtype(x, &xb, x_is_bf16)
        channels = xb.shape[axis] if axis >= 0 else 1
        ranges = <qk_range *>malloc(max(channels, 1) * sizeof(qk_range))
        if ranges == NULL:
            raise OutOfMemory(f"no memory for the ranges of {channels} channels")
        for i in range(channels):
            ranges[i] = qk_range(INFINITY, -INFINITY, 0)
        if element_count(&xb):
            make_layout(&call.layout, &xb, NULL, axis)
            call.x = <const char *>xb.buf
            with nogil:
                status = qk_range_run(&call, ranges)
            if status < 0:
                raise OutOfMemory("no memory for the ranges of the columns")
        if axis < 0:
            return ranges[0].lo, ranges[0].hi, ranges[0].nonfinite
        return ([ranges[i].lo for i in range(channels)], [ranges[i].hi for i in range(channels)],
                ranges[0].nonfinite if channels else 0)
    finally:
        free(ranges)
        PyBuffer_Release(&xb)


def histogram(x, float low, float per_unit, int64_t[::1] counts, bint x_is_bf16=False):
    """counts[clamp(floor((x - low) * per_unit), 0, bins - 1)] += 1 for each finite x, in float32."""
    cdef Py_buffer xb
    cdef qk_statistics_call call
    cdef int32_t bins = <int32_t>counts.shape[0]
    cdef int status = 0
    PyObject_GetBuffer(x, &xb, PyBUF_FORMAT | PyBUF_STRIDES)
    try:
        call.dtype = float_dtype(x, &xb, x_is_bf16)
        if element_count(&xb):
            make_layout(&call.layout, &xb, NULL, -1)
            call.x = <const char *>xb.buf
            with nogil:
                status = qk_histogram_run(&call, low, per_unit, bins, &counts[0])
            if status < 0:
                raise OutOfMemory(f"no memory for {bins} bins")
    finally:
        PyBuffer_Release(&xb)


cdef int float_dtype(x, const Py_buffer *view, bint is_bf16) except -1:
    cdef int dtype = dtype_of(view, is_bf16)
    if dtype != QK_F16 and dtype != QK_BF16 and dtype != QK_F32 and dtype != QK_F64:
        raise InvalidDType(f"wanted float16, bfloat16, float32 or float64, got {getattr(x, 'dtype', type(x))}")
    return dtype
