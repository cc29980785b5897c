# lookup: one call of the C driver.


def lookup(x, y, tables, int axis=-1):
    """y = tables[x], code by code, for buffers of 8-bit codes of one shape and any strides.

    `tables`: a C-contiguous buffer of 256 bytes, or, with an `axis` >= 0, of 256 for each channel. Returns False, with nothing written, where x and y overlap without being the same memory.
    """
    cdef Py_buffer xb, yb
    cdef qk_call call
    cdef const uint8_t[::1] bytes_ = tables
    cdef int d, held = 1
    cdef bint same
    PyObject_GetBuffer(x, &xb, PyBUF_FORMAT | PyBUF_STRIDES)
    try:
        try:
            PyObject_GetBuffer(y, &yb, PyBUF_FORMAT | PyBUF_STRIDES | PyBUF_WRITABLE)
        except (BufferError, ValueError):
            raise InvalidDType("out is read-only; wanted a writable array") from None
        held = 2
        if not same_shape(&xb, &yb):
            raise ShapeMismatch(f"wanted out of shape {shape_of(&xb)}, got {shape_of(&yb)}")
        if dtype_of(&xb, False) not in (QK_U8, QK_S8) or dtype_of(&yb, False) not in (QK_U8, QK_S8):
            raise InvalidDType(f"wanted codes of uint8 or int8, got {getattr(x, 'dtype', type(x))} and "
                               f"{getattr(y, 'dtype', type(y))}")
        check_axis(&xb, axis)
        check_length("tables", bytes_.shape[0], 256 * (xb.shape[axis] if axis >= 0 else 1))
        if element_count(&xb) == 0:
            return True
        same = xb.buf == yb.buf
        for d in range(xb.ndim):
            same &= xb.strides[d] == yb.strides[d]
        if not same and overlaps(&xb, &yb):
            return False
        make_layout(&call.lookup.layout, &xb, &yb, axis)
        call.lookup.x = <const uint8_t *>xb.buf
        call.lookup.y = <uint8_t *>yb.buf
        call.run = qk_run_lookup
        call.lookup.tables = &bytes_[0]
        if qk_recorder == NULL and element_count(&xb) <= KEEP_GIL:
            call.run(&call)
        else:
            perform(&call, (x, y, tables))
        return True
    finally:
        PyBuffer_Release(&xb)
        if held == 2:
            PyBuffer_Release(&yb)
