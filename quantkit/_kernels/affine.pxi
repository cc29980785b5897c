# quantize and dequantize: one call of the C driver each.
from libc.math cimport INFINITY

cdef extern from "qk_affine.h" nogil:
    ctypedef struct qk_affine_call:
        qk_layout layout
        const char *x
        char *y
        int x_dtype
        int y_dtype
        const float *scale
        const int32_t *zero_point
        const float *zero_point_f
    int qk_affine_supported(int x_dtype, int y_dtype)
    int qk_affine_run(const qk_affine_call *call)


# Below this many elements the kernels are done before another thread could take the GIL.
cdef int64_t KEEP_GIL = 1 << 14


def affine_plain(x, y, scale, zero_point):
    """The common call, with as little around the kernel as there can be: y = quantize(x) or dequantize(x).

    `x` and `y` export buffers of the same shape, `scale` is a float and `zero_point` an int. Returns False, with
    nothing written, for anything out of the ordinary, wrong arguments included: `affine` then has the last word.
    """
    cdef Py_buffer xb, yb
    cdef qk_affine_call call
    cdef float scale_value
    cdef long zero_point_value
    cdef int32_t zero_point_code
    cdef int x_dtype, y_dtype, low, high, status = -1
    if type(scale) is not float or type(zero_point) is not int:
        return False
    scale_value = scale
    zero_point_value = zero_point if -128 <= zero_point <= 255 else 1000
    zero_point_code = <int32_t>zero_point_value
    try:
        PyObject_GetBuffer(x, &xb, PyBUF_FORMAT | PyBUF_STRIDES)
    except (BufferError, ValueError, TypeError):
        return False
    try:
        PyObject_GetBuffer(y, &yb, PyBUF_FORMAT | PyBUF_STRIDES | PyBUF_WRITABLE)
    except (BufferError, ValueError, TypeError):
        PyBuffer_Release(&xb)
        return False
    x_dtype = dtype_of(&xb, False)
    y_dtype = dtype_of(&yb, False)
    if x_dtype >= 0 and y_dtype >= 0 and qk_affine_supported(x_dtype, y_dtype):
        if x_dtype == QK_S8 or y_dtype == QK_S8:
            low, high = -128, 127
        else:
            low, high = 0, 255
        if (x_dtype != QK_I32 and 0 < scale_value < INFINITY and low <= zero_point_value <= high
                and same_shape(&xb, &yb) and element_count(&xb) and not overlaps(&xb, &yb)):
            if make_layout_or_not(&call.layout, &xb, &yb, -1) == 0:
                call.x_dtype = x_dtype
                call.y_dtype = y_dtype
                call.x = <const char *>xb.buf
                call.y = <char *>yb.buf
                call.scale = &scale_value
                call.zero_point = &zero_point_code
                call.zero_point_f = NULL
                if element_count(&xb) <= KEEP_GIL:
                    status = qk_affine_run(&call)
                else:
                    with nogil:
                        status = qk_affine_run(&call)
    PyBuffer_Release(&xb)
    PyBuffer_Release(&yb)
    return status == 0


def affine(x, y, scale, zero_point, int axis=-1, bint x_is_bf16=False, bint y_is_bf16=False):
    """y = quantize(x) or dequantize(x), after the dtypes of the two.

    `x` and `y` export buffers of one shape. `scale` and `zero_point` are a float and an int (or float), or, with an
    `axis` >= 0, C-contiguous buffers of float32 and of int32 (or float32) values, one a channel. The parameters are
    checked by the caller. Returns False, with nothing written, where x and y overlap: the caller copies x then.
    """
    cdef Py_buffer xb, yb, sb, zb
    cdef qk_affine_call call
    cdef float scale_value, zero_point_f_value
    cdef int32_t zero_point_value
    cdef int x_dtype, y_dtype
    cdef int status = 0
    cdef int held = 0
    PyObject_GetBuffer(x, &xb, PyBUF_FORMAT | PyBUF_STRIDES)
    try:
        try:
            PyObject_GetBuffer(y, &yb, PyBUF_FORMAT | PyBUF_STRIDES | PyBUF_WRITABLE)
        except (BufferError, ValueError):
            raise InvalidDType("out is read-only; wanted a writable array") from None
        held = 1
        x_dtype = dtype_of(&xb, x_is_bf16)
        y_dtype = dtype_of(&yb, y_is_bf16)
        if x_dtype < 0 or y_dtype < 0 or not qk_affine_supported(x_dtype, y_dtype):
            raise InvalidDType(f"no kernel from {getattr(x, 'dtype', type(x))} to {getattr(y, 'dtype', type(y))}")
        if not same_shape(&xb, &yb):
            raise ShapeMismatch(f"wanted out of shape {shape_of(&xb)}, got {shape_of(&yb)}")
        if element_count(&xb) == 0:
            return True
        if overlaps(&xb, &yb):
            return False
        make_layout(&call.layout, &xb, &yb, axis)
        call.x_dtype = x_dtype
        call.y_dtype = y_dtype
        call.x = <const char *>xb.buf
        call.y = <char *>yb.buf
        call.zero_point = NULL
        call.zero_point_f = NULL
        if axis < 0:
            scale_value = scale
            call.scale = &scale_value
            if type(zero_point) is float:
                zero_point_f_value = zero_point
                call.zero_point_f = &zero_point_f_value
            else:
                zero_point_value = zero_point
                call.zero_point = &zero_point_value
            with nogil:
                status = qk_affine_run(&call)
        else:
            PyObject_GetBuffer(scale, &sb, PyBUF_FORMAT | PyBUF_STRIDES)
            held = 2
            PyObject_GetBuffer(zero_point, &zb, PyBUF_FORMAT | PyBUF_STRIDES)
            held = 3
            if element_count(&sb) != xb.shape[axis] or element_count(&zb) != xb.shape[axis]:
                raise ShapeMismatch(f"wanted {xb.shape[axis]} scales and zero points, got {element_count(&sb)} and "
                                    f"{element_count(&zb)}")
            call.scale = <const float *>sb.buf
            if zb.format[0] == b"f":
                call.zero_point_f = <const float *>zb.buf
            else:
                call.zero_point = <const int32_t *>zb.buf
            with nogil:
                status = qk_affine_run(&call)
        if status < 0:
            raise OutOfMemory("no memory for the scratch table of channel parameters")
        return True
    finally:
        PyBuffer_Release(&xb)
        if held >= 1:
            PyBuffer_Release(&yb)
        if held >= 2:
            PyBuffer_Release(&sb)
        if held >= 3:
            PyBuffer_Release(&zb)
