# Quantizing with an account of what it lost, and CRC-32: one call of the C driver each.
from quantkit.errors import InvalidQParams


def quantize_measured(x, codes, const float[::1] scale, const int32_t[::1] zero_point, tuple box, account,
                      bint x_is_bf16=False):
    """codes = quantize(x), and add to `account` what they lost.

    `x` (float32, float16 or bfloat16, finite) and `codes` (uint8 or int8) are contiguous, of outer * channels * inner
    elements, which `box` says; `scale` and `zero_point` have one value, or one a channel. `account` is a writable buffer
    of three float64 and an int64: sums of squares of the values and of their errors, the largest error, CRC-32 of the
    codes.
    """
    cdef Py_buffer xb, yb, ab
    cdef qk_call call
    cdef int held = 0
    cdef int64_t outer, channels, inner, i
    outer, channels, inner = box
    PyObject_GetBuffer(x, &xb, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)
    try:
        PyObject_GetBuffer(codes, &yb, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
        held = 1
        PyObject_GetBuffer(account, &ab, PyBUF_WRITABLE)
        held = 2
        call.run = qk_run_coded
        call.coded.dtype = float_dtype(x, &xb, x_is_bf16)
        if call.coded.dtype == QK_F64 or dtype_of(&yb, False) not in (QK_U8, QK_S8):
            raise InvalidDType("wanted float32, float16 or bfloat16, and codes of 8 bits")
        check_aligned("x", &xb)
        if min(outer, channels, inner) < 1 or element_count(&xb) != outer * channels * inner:
            raise ShapeMismatch(f"wanted {outer} * {channels} * {inner} values, got {element_count(&xb)}")
        if element_count(&yb) != element_count(&xb) or overlaps(&xb, &yb):
            raise ShapeMismatch(f"wanted as many codes as values, elsewhere, got {element_count(&yb)}")
        if zero_point.shape[0] != scale.shape[0] or scale.shape[0] not in (1, channels):
            raise ShapeMismatch(f"wanted one scale and zero point, or {channels}, got {scale.shape[0]} and "
                                f"{zero_point.shape[0]}")
        for i in range(scale.shape[0]):
            if not 0 < scale[i] < INFINITY:
                raise InvalidQParams(f"wanted scales that are finite and > 0, got {scale[i]} for channel {i}")
            if not (-128 if dtype_of(&yb, False) == QK_S8 else 0) <= zero_point[i] <= 255:
                raise InvalidQParams(f"wanted zero points that are codes, got {zero_point[i]} for channel {i}")
        if ab.len != 32 or <uintptr_t>ab.buf % sizeof(double):
            raise ShapeMismatch("wanted an account of 32 bytes on a boundary of 8")
        call.coded.x, call.coded.codes = <const char *>xb.buf, <char *>yb.buf
        call.coded.is_signed = dtype_of(&yb, False) == QK_S8
        call.coded.outer, call.coded.channels, call.coded.inner = outer, channels, inner
        call.coded.parameters = scale.shape[0]
        call.coded.scale, call.coded.zero_point = &scale[0], &zero_point[0]
        call.coded.account = <qk_account *>ab.buf
        perform(&call, (x, codes, scale, zero_point, account))
    finally:
        PyBuffer_Release(&xb)
        if held >= 1:
            PyBuffer_Release(&yb)
        if held >= 2:
            PyBuffer_Release(&ab)


def crc32(data, uint32_t crc=0):
    """CRC-32 of the bytes of `data` after those that gave `crc`: as zlib.crc32, several times as fast."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            crc = qk_crc32(view.buf, view.len, crc)
    finally:
        PyBuffer_Release(&view)
    return crc
