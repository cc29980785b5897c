# quantize and dequantize: one call of the C driver each.
from libc.math cimport INFINITY


# Below this many elements the kernels are done before another thread could take the GIL.
cdef int64_t KEEP_GIL = 1 << 14


def affine_plain(x, y, scale, zero_point):
    """The common call, with as little around the kernel as there can be: y = quantize(x) or dequantize(x).

    `x` and `y` export buffers of the same shape, `scale` is a float and `zero_point` an int. Returns False, with
    nothing written, for anything out of the ordinary, wrong arguments included: `affine` then has the last word.
    """
    cdef Py_buffer xb, yb
    cdef qk_call call
    cdef float scale_value
    cdef long zero_point_value
    cdef int x_dtype, y_dtype, low, high, status = -1
    if type(scale) is not float or type(zero_point) is not int:
        return False
    scale_value = scale
    zero_point_value = zero_point if -128 <= zero_point <= 255 else 1000
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
                and same_shape(&xb, &yb) and element_count(&xb) and is_aligned(&xb) and is_aligned(&yb)
                and not overlaps(&xb, &yb)):
            if make_layout_or_not(&call.affine.layout, &xb, &yb, -1) == 0:
                call.run = qk_run_affine
                call.affine.x_dtype = x_dtype
                call.affine.y_dtype = y_dtype
                call.affine.x = <const char *>xb.buf
                call.affine.y = <char *>yb.buf
                call.affine.scale = NULL
                call.affine.scale_value = scale_value
                call.affine.zero_point_value = <int32_t>zero_point_value
                call.affine.has_float_zero_point = 0
                if qk_recorder != NULL:
                    status = (<Task>qk_recorder).record(&call, (x, y))
                elif element_count(&xb) <= KEEP_GIL:
                    status = call.run(&call)
                else:
                    with nogil:
                        status = call.run(&call)
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
    cdef qk_call call
    cdef int held = 0
    PyObject_GetBuffer(x, &xb, PyBUF_FORMAT | PyBUF_STRIDES)
    try:
        try:
            PyObject_GetBuffer(y, &yb, PyBUF_FORMAT | PyBUF_STRIDES | PyBUF_WRITABLE)
        except (BufferError, ValueError):
            raise InvalidDType("out is read-only; wanted a writable array") from None
        held = 1
        call.run = qk_run_affine
        call.affine.x_dtype = dtype_of(&xb, x_is_bf16)
        call.affine.y_dtype = dtype_of(&yb, y_is_bf16)
        if (call.affine.x_dtype < 0 or call.affine.y_dtype < 0
                or not qk_affine_supported(call.affine.x_dtype, call.affine.y_dtype)):
            raise InvalidDType(f"no kernel from {getattr(x, 'dtype', type(x))} to {getattr(y, 'dtype', type(y))}")
        if not same_shape(&xb, &yb):
            raise ShapeMismatch(f"wanted out of shape {shape_of(&xb)}, got {shape_of(&yb)}")
        check_axis(&xb, axis)
        check_aligned("x", &xb)
        check_aligned("out", &yb)
        if element_count(&xb) == 0:
            return True
        if overlaps(&xb, &yb):
            return False
        make_layout(&call.affine.layout, &xb, &yb, axis)
        call.affine.x = <const char *>xb.buf
        call.affine.y = <char *>yb.buf
        call.affine.scale = NULL
        call.affine.zero_point = NULL
        call.affine.zero_point_f = NULL
        if axis < 0:
            call.affine.scale_value = scale
            call.affine.has_float_zero_point = type(zero_point) is float
            if call.affine.has_float_zero_point:
                call.affine.zero_point_f_value = zero_point
            else:
                call.affine.zero_point_value = zero_point
        else:
            PyObject_GetBuffer(scale, &sb, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)
            held = 2
            PyObject_GetBuffer(zero_point, &zb, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)
            held = 3
            check_aligned("scale", &sb)
            check_aligned("zero_point", &zb)
            if dtype_of(&sb, False) != QK_F32 or dtype_of(&zb, False) not in (QK_F32, QK_I32):
                raise InvalidDType(f"wanted scales of float32 and zero points of int32 or float32, got "
                                   f"{getattr(scale, 'dtype', type(scale))} and "
                                   f"{getattr(zero_point, 'dtype', type(zero_point))}")
            if element_count(&sb) != xb.shape[axis] or element_count(&zb) != xb.shape[axis]:
                raise ShapeMismatch(f"wanted {xb.shape[axis]} scales and zero points, got {element_count(&sb)} and "
                                    f"{element_count(&zb)}")
            call.affine.scale = <const float *>sb.buf
            if dtype_of(&zb, False) == QK_F32:
                call.affine.zero_point_f = <const float *>zb.buf
            else:
                call.affine.zero_point = <const int32_t *>zb.buf
        perform(&call, (x, y, scale, zero_point))
        return True
    finally:
        PyBuffer_Release(&xb)
        if held >= 1:
            PyBuffer_Release(&yb)
        if held >= 2:
            PyBuffer_Release(&sb)
        if held >= 3:
            PyBuffer_Release(&zb)


def copy(x, y):
    """y = x, elements of 1, 2, 4 or 8 bytes; both export buffers of one shape and item size that do not overlap."""
    cdef Py_buffer xb, yb
    cdef qk_call call
    PyObject_GetBuffer(x, &xb, PyBUF_FORMAT | PyBUF_STRIDES)
    try:
        PyObject_GetBuffer(y, &yb, PyBUF_FORMAT | PyBUF_STRIDES | PyBUF_WRITABLE)
        try:
            if not same_shape(&xb, &yb) or xb.itemsize != yb.itemsize or xb.itemsize not in (1, 2, 4, 8):
                raise ShapeMismatch(f"cannot copy {xb.itemsize}-byte elements {shape_of(&xb)} to {yb.itemsize}-byte "
                                    f"ones {shape_of(&yb)}")
            if element_count(&xb) == 0:
                return
            check_aligned("out", &yb)
            make_layout(&call.copy.layout, &xb, &yb, -1)
            call.run = qk_run_copy
            call.copy.x = <const char *>xb.buf
            call.copy.y = <char *>yb.buf
            call.copy.itemsize = xb.itemsize
            perform(&call, (x, y))
        finally:
            PyBuffer_Release(&yb)
    finally:
        PyBuffer_Release(&xb)


def dynamic_quantize(x, y, float[::1] scale, uint8_t[::1] zero_point, bint x_is_bf16=False):
    """y, scale[0], zero_point[0] = x quantized to uint8 by its own range; InvalidArgument where x is not finite."""
    cdef Py_buffer xb, yb
    cdef qk_call call
    PyObject_GetBuffer(x, &xb, PyBUF_FORMAT | PyBUF_STRIDES)
    try:
        PyObject_GetBuffer(y, &yb, PyBUF_FORMAT | PyBUF_STRIDES | PyBUF_WRITABLE)
        try:
            call.run = qk_run_dynamic
            call.fault = "dynamic_quantize_linear: wanted finite values, got %d that are NaN or infinite"
            call.dynamic.affine.x_dtype = float_dtype(x, &xb, x_is_bf16)
            call.dynamic.affine.y_dtype = dtype_of(&yb, False)
            if call.dynamic.affine.y_dtype != QK_U8 or not same_shape(&xb, &yb):
                raise ShapeMismatch(f"wanted uint8 codes of shape {shape_of(&xb)}, got {shape_of(&yb)}")
            check_aligned("x", &xb)
            call.dynamic.empty = element_count(&xb) == 0
            if not call.dynamic.empty:
                make_layout(&call.dynamic.affine.layout, &xb, &yb, -1)
            call.dynamic.affine.x = <const char *>xb.buf
            call.dynamic.affine.y = <char *>yb.buf
            call.dynamic.affine.scale = NULL
            call.dynamic.affine.has_float_zero_point = 0
            call.dynamic.scale = &scale[0]
            call.dynamic.zero_point = &zero_point[0]
            perform(&call, (x, y, scale, zero_point))
        finally:
            PyBuffer_Release(&yb)
    finally:
        PyBuffer_Release(&xb)
