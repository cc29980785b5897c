# Integer convolutions: packed weights, what happens to the sums, and one call of the C driver each.


cdef class PackedTaps:
    """Weights of a convolution in the order in which the kernels read them.

    Parameters
    ----------
    matrices : sequence of 2-d arrays of uint8 or int8
        One a group, K rows by as many columns as the group has outputs; depthwise a single one with a column an output.
    kernel : tuple of up to 3 int
    channels, group : int
    form : "taps", "columns" or "depthwise"
        What K runs over: taps times channels padded to a multiple of 4; taps times channels; the taps in `order`.
    order : C-contiguous buffer of int32, for "depthwise"
        The tap of each row, -1 for none; its length is a multiple of 4.
    square : int
        3 or 5 where `order` is the one that the kernels of whole rows want, else 0.
    """

    cdef qk_packed_conv c
    cdef tuple held
    cdef object order_held
    cdef qk_packed_matmul *groups
    cdef readonly bint is_signed
    cdef readonly size_t nbytes

    def __cinit__(self, matrices, tuple kernel, int64_t channels, int64_t group, str form, order=None, int square=0):
        cdef const int32_t[::1] taps
        cdef PackedMatmul p
        cdef int i
        self.held = tuple([PackedMatmul(m) for m in matrices])
        self.groups = <qk_packed_matmul *>calloc(len(self.held), sizeof(qk_packed_matmul))
        if self.groups == NULL:
            raise OutOfMemory(f"no memory for {len(self.held)} groups")
        self.c.form = {"taps": QK_CONV_TAPS, "columns": QK_CONV_COLUMNS, "depthwise": QK_CONV_DEPTHWISE}[form]
        for i, p in enumerate(self.held):
            self.groups[i] = p.held.p
            self.nbytes += p.nbytes
            self.is_signed = p.is_signed
            self.c.outputs += p.held.p.n
        self.c.packed = self.groups
        self.c.channels = channels
        self.c.group = group
        for i in range(3):
            self.c.kernel[i] = 1
        for i in range(len(kernel)):
            self.c.kernel[3 - len(kernel) + i] = kernel[i]
        if order is not None:
            taps = order
            check_length("order", taps.shape[0], (self.groups[0].k + 3) // 4 * 4)
            self.order_held = order
            self.c.order = &taps[0]
            self.c.square = square

    def __dealloc__(self):
        free(self.groups)


cdef class ConvPlan:
    """Packed weights with everything that happens to their products, prepared once for any number of runs.

    Parameters
    ----------
    w : PackedTaps
    x_is_signed : bool
    x_zero_point : int
    w_zero_point : int or C-contiguous buffer of int32, one an output; 0 for depthwise, which is packed without one
    bias, out, scale, zero_point, low, high, table
        As in `MatmulPlan`, one value an output.
    """

    cdef PackedTaps w
    cdef qk_epilogue e
    cdef int32_t *memory
    cdef bint x_is_signed
    cdef int32_t x_zero
    cdef uint8_t table[256]
    cdef int out_dtype

    def __cinit__(self, PackedTaps w not None, bint x_is_signed, int x_zero_point, w_zero_point, bias, str out, scale,
                  int zero_point=0, int low=0, int high=255, table=None):
        cdef int64_t outputs = w.c.outputs, groups = len(w.held), n = outputs // groups, total, padded, g, i, at
        cdef int32_t flip = 0 if w.is_signed else 128
        cdef int32_t *start
        cdef int32_t *zeros
        cdef float *floats_out
        cdef const int32_t[::1] ints
        cdef const float[::1] floats
        cdef const uint8_t[::1] codes
        cdef bint one_zero = isinstance(w_zero_point, int)
        cdef int32_t zero = 0
        self.w = w
        self.x_is_signed = x_is_signed
        self.x_zero = x_zero_point + (128 if x_is_signed else 0)
        padded = qk_padded_columns(n)
        total = max(groups * padded, 16)
        self.memory = <int32_t *>calloc(total * 4, 4)
        if self.memory == NULL:
            raise OutOfMemory(f"no memory for the parameters of {outputs} outputs")
        start = self.memory
        zeros = self.memory + total
        self.e.out = {"int32": QK_OUT_I32, "uint8": QK_OUT_U8, "int8": QK_OUT_S8, "float32": QK_OUT_F32}[out]
        self.out_dtype = {"int32": QK_I32, "uint8": QK_U8, "int8": QK_S8, "float32": QK_F32}[out]
        self.e.start = start
        if one_zero:
            zero = w_zero_point
        else:
            ints = w_zero_point
            check_length("w_zero_point", ints.shape[0], outputs)
        for i in range(outputs):
            g = i // n
            at = g * padded + i % n
            start[at] = <int32_t>(0 - <uint32_t>self.x_zero * <uint32_t>w.groups[g].colsum[i % n])
            zeros[at] = (zero if one_zero else ints[i]) - flip
            if zeros[at]:
                self.e.b_zero = zeros
        if bias is not None and out != "float32":
            ints = bias
            check_length("bias", ints.shape[0], outputs)
            for i in range(outputs):
                at = i // n * padded + i % n
                start[at] = <int32_t>(<uint32_t>start[at] + <uint32_t>ints[i])
        if scale is not None:
            floats = scale
            check_length("scale", floats.shape[0], outputs)
            floats_out = <float *>(self.memory + 2 * total)
            for i in range(outputs):
                floats_out[i // n * padded + i % n] = floats[i]
            self.e.scale = floats_out
        if bias is not None and out == "float32":
            floats = bias
            check_length("bias", floats.shape[0], outputs)
            floats_out = <float *>(self.memory + 3 * total)
            for i in range(outputs):
                floats_out[i // n * padded + i % n] = floats[i]
            self.e.bias = floats_out
        self.e.zero_point = zero_point
        self.e.low = low
        self.e.high = high
        if table is not None:
            codes = table
            check_length("table", codes.shape[0], 256)
            for i in range(256):
                self.table[i] = codes[i]
            self.e.table = self.table

    def __dealloc__(self):
        free(self.memory)

    def run(self, x, out, tuple strides, tuple pads, tuple dilations, residual=None, float own_ratio=0,
            int own_zero_point=0, float residual_ratio=0, int residual_zero_point=0, int threads=0):
        """out[N, M, ...] = the convolution of x[N, C, ...], both of any strides.

        `strides`, `dilations` and `pads` (at the beginnings) have one value a spatial dimension; pads at the ends
        follow from the shape of `out`. `residual`: codes of the shape and layout of `out`, both with their channels
        contiguous and their pixels evenly spaced, added as `MatmulPlan.run` does.
        """
        cdef Py_buffer xb, yb, rb
        cdef qk_call call
        cdef int dtype, held = 1, d, s, dims
        memset(&call.conv, 0, sizeof(call.conv))
        PyObject_GetBuffer(x, &xb, PyBUF_FORMAT | PyBUF_STRIDES)
        try:
            PyObject_GetBuffer(out, &yb, PyBUF_FORMAT | PyBUF_STRIDES | PyBUF_WRITABLE)
            held = 2
            dims = xb.ndim - 2
            dtype = dtype_of(&xb, False)
            if (not 1 <= dims <= QK_SPATIAL or xb.shape[1] != self.w.c.channels
                    or dtype != (QK_S8 if self.x_is_signed else QK_U8)):
                raise ShapeMismatch(f"wanted x of {'int8' if self.x_is_signed else 'uint8'} [N, {self.w.c.channels}, "
                                    f"...], got {getattr(x, 'dtype', type(x))} {shape_of(&xb)}")
            if (yb.ndim != xb.ndim or yb.shape[0] != xb.shape[0] or yb.shape[1] != self.w.c.outputs
                    or dtype_of(&yb, False) != self.out_dtype):
                raise ShapeMismatch(f"wanted out [{xb.shape[0]}, {self.w.c.outputs}, ...], got "
                                    f"{getattr(out, 'dtype', type(out))} {shape_of(&yb)}")
            if not len(strides) == len(pads) == len(dilations) == dims:
                raise ShapeMismatch(f"wanted {dims} strides, pads and dilations")
            for d in range(3):
                s = d - 3 + xb.ndim
                call.conv.size_in[d] = call.conv.size_out[d] = call.conv.stride[d] = call.conv.dilation[d] = 1
                if s >= 2:
                    call.conv.size_in[d] = xb.shape[s]
                    call.conv.size_out[d] = yb.shape[s]
                    call.conv.x_stride[d] = xb.strides[s]
                    call.conv.y_stride[d] = yb.strides[s]
                    call.conv.stride[d] = strides[s - 2]
                    call.conv.dilation[d] = dilations[s - 2]
                    call.conv.pad[d] = pads[s - 2]
            call.conv.x = <const uint8_t *>xb.buf
            call.conv.x_batch_stride = xb.strides[0]
            call.conv.x_channel_stride = xb.strides[1]
            call.conv.flip = self.x_is_signed
            call.conv.x_zero = self.x_zero
            call.conv.batch = xb.shape[0]
            call.conv.w = &self.w.c
            call.conv.y = yb.buf
            call.conv.y_batch_stride = yb.strides[0]
            call.conv.y_channel_stride = yb.strides[1]
            call.conv.e = self.e
            call.conv.threads = threads if threads > 0 else qk_num_threads()
            if residual is not None:
                PyObject_GetBuffer(residual, &rb, PyBUF_FORMAT | PyBUF_STRIDES)
                held = 3
                dtype = dtype_of(&rb, False)
                if (not same_shape(&rb, &yb) or (dtype != QK_U8 and dtype != QK_S8)
                        or not evenly_spaced(&rb) or not evenly_spaced(&yb)):
                    raise ShapeMismatch(f"wanted a residual of 8-bit codes {shape_of(&yb)}, channels-last like out, got "
                                        f"{getattr(residual, 'dtype', type(residual))} {shape_of(&rb)}")
                call.conv.e.residual = <const uint8_t *>rb.buf
                call.conv.e.residual_stride = rb.strides[rb.ndim - 1]
                call.conv.residual_batch_stride = rb.strides[0]
                call.conv.e.residual_is_signed = dtype == QK_S8
                call.conv.e.own_ratio = own_ratio
                call.conv.e.own_zero_point = own_zero_point
                call.conv.e.residual_ratio = residual_ratio
                call.conv.e.residual_zero_point = residual_zero_point
            call.run = qk_run_conv
            perform(&call, (self, x, out, residual))
        finally:
            PyBuffer_Release(&xb)
            if held >= 2:
                PyBuffer_Release(&yb)
            if held >= 3:
                PyBuffer_Release(&rb)


cdef bint evenly_spaced(const Py_buffer *view) noexcept:
    """Channels contiguous, and pixels in their order at one distance."""
    cdef int d
    if view.shape[1] > 1 and view.strides[1] != view.itemsize:
        return False
    for d in range(2, view.ndim - 1):
        if view.strides[d] != view.strides[d + 1] * view.shape[d + 1]:
            return False
    return True


def call_key(tuple values):
    """What tells calls apart: arrays by their bytes, numbers by type and value; None where nothing does."""
    cdef list key = []
    cdef object v, n, kind
    for v in values:
        kind = type(v)
        if v is None or kind is int or kind is float or kind is str:
            key.append(kind)
            key.append(v)
        elif kind is tuple or kind is list:
            for n in v:
                if type(n) is not int:
                    return None
            key.append(tuple(v))
        elif hasattr(v, "tobytes") and hasattr(v, "dtype") and not v.dtype.hasobject:
            key.append(v.dtype.str)
            key.append(v.shape)
            key.append(v.tobytes())
        else:
            return None
    return key
