# quantize and dequantize: one call of the C driver each.

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
    cdef int status = 0
    cdef int held = 0
    PyObject_GetBuffer(x, &xb, PyBUF_FORMAT | PyBUF_STRIDES)
    try:
        try:
            PyObject_GetBuffer(y, &yb, PyBUF_FORMAT | PyBUF_STRIDES | PyBUF_WRITABLE)
        except (BufferError, ValueError):
            raise InvalidDType("out is read-only; wanted a writable array") from None
        held = 1
        call.x_dtype = dtype_of(&xb, x_is_bf16)
        call.y_dtype = dtype_of(&yb, y_is_bf16)
        if call.x_dtype < 0 or call.y_dtype < 0 or not qk_affine_supported(call.x_dtype, call.y_dtype):
            raise InvalidDType(f"no kernel from {getattr(x, 'dtype', type(x))} to {getattr(y, 'dtype', type(y))}")
        if not same_shape(&xb, &yb):
            raise ShapeMismatch(f"wanted out of shape {shape_of(&xb)}, got {shape_of(&yb)}")
        if element_count(&xb) == 0:
            return True
        if overlaps(&xb, &yb):
            return False
        make_layout(&call.layout, &xb, &yb, axis)
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


cdef bint same_shape(const Py_buffer *a, const Py_buffer *b) noexcept:
    cdef int d
    if a.ndim != b.ndim:
        return False
    for d in range(a.ndim):
        if a.shape[d] != b.shape[d]:
            return False
    return True
