# What happens to the sums of products and convolutions: parameters that are checked, and copied to where kernels read.
from libc.stdlib cimport calloc, free


cdef class Epilogue:
    """Base of the plans: what their parameters mean in common.

    The values of one output each lie in a group of padded columns, one group of packed weights after another.
    """

    cdef qk_epilogue e
    cdef int32_t *memory
    cdef bint a_is_signed
    cdef int32_t a_zero
    cdef uint8_t table[256]
    cdef int out_dtype

    def __dealloc__(self):
        free(self.memory)

    cdef int prepare(self, const qk_packed_matmul *packed, int64_t groups, bint b_is_signed, bint a_is_signed,
                     a_zero_point, b_zero_point, bias, str out, scale, int zero_point, int low, int high,
                     table) except -1:
        cdef int64_t n = packed.n, padded = qk_padded_columns(n), total = max(groups * padded, 16), g, i
        cdef uint32_t flip = 0 if b_is_signed else 128, zero
        cdef uint32_t *start
        cdef uint32_t *zeros
        cdef const int32_t *colsum
        self.memory = <int32_t *>calloc(total, 4 * 4)
        if self.memory == NULL:
            raise OutOfMemory(f"no memory for the parameters of {groups * n} columns")
        start = <uint32_t *>self.memory
        zeros = start + total
        self.a_is_signed = a_is_signed
        self.a_zero = code("the zero point of the left operand", a_zero_point, a_is_signed) + (128 if a_is_signed else 0)
        if out not in ("int32", "uint8", "int8", "float32"):
            raise InvalidArgument(f"wanted out='int32', 'uint8', 'int8' or 'float32', got {out!r}")
        self.e.out = {"int32": QK_OUT_I32, "uint8": QK_OUT_U8, "int8": QK_OUT_S8, "float32": QK_OUT_F32}[out]
        self.out_dtype = {"int32": QK_I32, "uint8": QK_U8, "int8": QK_S8, "float32": QK_F32}[out]
        if bias is not None and out == "float32" and buffer_dtype(bias) == QK_F32:
            self.e.bias = <float *>self.memory + 3 * total
            copy_values("bias", bias, QK_F32, groups, n, padded, <void *>self.e.bias)
        elif bias is not None:
            if packed.data == NULL:
                raise InvalidArgument("a bias needs a right operand that is packed before, not on the way")
            copy_values("bias", bias, QK_I32, groups, n, padded, start)
        # All of it wraps, as the sums do: docs/kernels.md, equation (2).
        if packed.data != NULL:
            for g in range(groups):
                colsum = packed[g].colsum
                for i in range(n):
                    start[g * padded + i] -= <uint32_t>self.a_zero * <uint32_t>colsum[i]
            self.e.start = <int32_t *>start
        if isinstance(b_zero_point, int):
            zero = <uint32_t>code("the zero point of the right operand", b_zero_point, b_is_signed)
            for g in range(groups):
                for i in range(n):
                    zeros[g * padded + i] = zero
        else:
            copy_values("the zero point of the right operand", b_zero_point, QK_I32, groups, n, padded, zeros)
        for g in range(groups):
            for i in range(g * padded, g * padded + n):
                zeros[i] -= flip
                if zeros[i]:
                    self.e.b_zero = <int32_t *>zeros
        if scale is not None:
            self.e.scale = <float *>self.memory + 2 * total
            copy_values("scale", scale, QK_F32, groups, n, padded, <void *>self.e.scale)
        elif out != "int32":
            raise InvalidArgument(f"wanted {groups * n} values of scale for out={out!r}, got None")
        if self.out_dtype == QK_U8 or self.out_dtype == QK_S8:
            self.e.zero_point = code("zero_point", zero_point, out == "int8")
            self.e.low = code("low", low, out == "int8")
            self.e.high = code("high", high, out == "int8")
            if low > high:
                raise InvalidArgument(f"wanted low <= high, got {low} and {high}")
        elif table is not None:
            raise InvalidArgument(f"wanted a table for 8-bit codes alone, got one for out={out!r}")
        if table is not None:
            copy_table(table, self.table)
            self.e.table = self.table
        return 0

    cdef int add_residual(self, qk_epilogue *e, object residual, const Py_buffer *r, const Py_buffer *y,
                          float own_ratio, int own_zero_point, float residual_ratio,
                          int residual_zero_point) except -1:
        """What is common of a residual; its strides are the caller's."""
        cdef int dtype = dtype_of(r, False)
        if not same_shape(r, y) or (dtype != QK_U8 and dtype != QK_S8):
            raise ShapeMismatch(f"wanted a residual of 8-bit codes {shape_of(y)}, got "
                                f"{getattr(residual, 'dtype', type(residual))} {shape_of(r)}")
        if self.out_dtype != QK_U8 and self.out_dtype != QK_S8:
            raise InvalidArgument("wanted a residual for 8-bit codes alone")
        e.residual = <const uint8_t *>r.buf
        e.residual_is_signed = dtype == QK_S8
        e.own_ratio = own_ratio
        e.own_zero_point = within("own_zero_point", own_zero_point, -128, 255)
        e.residual_ratio = residual_ratio
        e.residual_zero_point = within("residual_zero_point", residual_zero_point, -128, 255)
        return 0


cdef int code(str name, value, bint is_signed) except? -1000:
    return within(name, value, -128, 127) if is_signed else within(name, value, 0, 255)


cdef int within(str name, value, int low, int high) except? -1000:
    """An integer within bounds, or InvalidArgument."""
    if not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgument(f"wanted {name} from {low} to {high}, got {value!r}")
    return value


cdef int buffer_dtype(values) except -2:
    """qk_dtype of a buffer's elements, or -1."""
    cdef Py_buffer view
    cdef int dtype
    PyObject_GetBuffer(values, &view, PyBUF_FORMAT | PyBUF_STRIDES)
    dtype = dtype_of(&view, False)
    PyBuffer_Release(&view)
    return dtype


cdef int copy_values(str name, values, int dtype, int64_t groups, int64_t n, int64_t padded, void *to) except -1:
    """Copy groups x n elements of 4 bytes, each group to its place in `to`, from memory on any boundary."""
    cdef Py_buffer view
    cdef int64_t g
    try:
        PyObject_GetBuffer(values, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)
    except (BufferError, ValueError, TypeError):
        raise InvalidDType(f"wanted {name} in contiguous memory, got {type(values).__name__}") from None
    try:
        if view.ndim != 1 or dtype_of(&view, False) != dtype:
            raise InvalidDType(f"wanted {name} of {'int32' if dtype == QK_I32 else 'float32'} in one dimension, got "
                               f"{getattr(values, 'dtype', type(values))} {shape_of(&view)}")
        check_length(name, view.shape[0], groups * n)
        for g in range(groups):
            memcpy(<char *>to + 4 * padded * g, <const char *>view.buf + 4 * n * g, 4 * n)
    finally:
        PyBuffer_Release(&view)
    return 0


cdef int copy_table(table, uint8_t *to) except -1:
    cdef const uint8_t[::1] codes = table
    check_length("table", codes.shape[0], 256)
    memcpy(to, &codes[0], 256)
    return 0


cdef int check_length(str name, int64_t got, int64_t wanted) except -1:
    if got != wanted:
        raise ShapeMismatch(f"wanted {wanted} values of {name}, got {got}")
    return 0
