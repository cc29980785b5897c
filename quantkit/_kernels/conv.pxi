# Integer convolutions: packed weights, and one call of the C driver each.
import math


cdef class PackedTaps:
    """Weights of a convolution in the order in which the kernels read them.

    Parameters
    ----------
    matrices : sequence of 2-d arrays of uint8 or int8
        One a group, K rows by as many columns as the group has outputs; depthwise a single one with a column an output.
    kernel : tuple of up to 3 int
    channels, group : int
    form : "taps", "lines" or "depthwise"
        What K runs over: taps times channels padded to a multiple of 4; rows of the kernel, each its taps times
        channels padded to a multiple of 4; the taps in `order`.
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
        cdef PackedMatmul p
        cdef int32_t *taps
        cdef int64_t depth, i
        self.held = tuple([PackedMatmul(m) for m in matrices])
        if form not in ("taps", "lines", "depthwise"):
            raise InvalidArgument(f"wanted form='taps', 'lines' or 'depthwise', got {form!r}")
        self.c.form = {"taps": QK_CONV_TAPS, "lines": QK_CONV_LINES, "depthwise": QK_CONV_DEPTHWISE}[form]
        if (not 1 <= len(kernel) <= QK_SPATIAL or min(kernel) < 1 or group < 1 or channels < 1 or channels % group
                or math.prod(kernel) * channels > 1 << 48
                or len(self.held) != (1 if form == "depthwise" else group)
                or (form == "depthwise") != (order is not None) or (form == "depthwise" and channels != group)):
            raise ShapeMismatch(f"wanted matrices for kernel {kernel}, {channels} channels, group {group} and form "
                                f"{form!r}, got {len(self.held)}")
        self.groups = <qk_packed_matmul *>calloc(len(self.held), sizeof(qk_packed_matmul))
        if self.groups == NULL:
            raise OutOfMemory(f"no memory for {len(self.held)} groups")
        for i in range(3):
            self.c.kernel[i] = 1
        for i in range(len(kernel)):
            self.c.kernel[3 - len(kernel) + i] = kernel[i]
        if form == "depthwise":
            depth = memoryview(order).nbytes // 4
            if depth % 4:
                raise ShapeMismatch(f"wanted an order of a multiple of 4 taps, got {depth}")
            self.order_held = bytearray(4 * depth)
            taps = <int32_t *>PyByteArray_AS_STRING(self.order_held)
            copy_values("order", order, QK_I32, 1, depth, depth, taps)
            for i in range(depth):
                if not -1 <= taps[i] < math.prod(kernel):
                    raise InvalidArgument(f"wanted taps from -1 to {math.prod(kernel) - 1}, got {taps[i]}")
            self.c.order = taps
            if square not in (0, 3, 5) or (square and (kernel != (square, square) or depth != (12 if square == 3 else 28))):
                raise InvalidArgument(f"no kernels of whole rows for kernel {kernel} with square={square}")
            self.c.square = square
        elif form == "taps":
            depth = math.prod(kernel) * ((channels // group + 3) // 4 * 4)
        else:
            depth = math.prod(kernel[:-1]) * ((kernel[len(kernel) - 1] * channels + 3) // 4 * 4)
            if group != 1:
                raise ShapeMismatch(f"wanted a single group for form='lines', got {group}")
        for i, p in enumerate(self.held):
            self.groups[i] = p.held.p
            self.nbytes += p.nbytes
            self.is_signed = p.is_signed
            self.c.outputs += p.held.p.n
            if (p.held.p.data == NULL or p.held.p.n < 1 or p.held.p.n != self.groups[0].n or p.held.p.k != depth
                    or p.is_signed != (<PackedMatmul>self.held[0]).is_signed):
                raise ShapeMismatch(f"wanted matrices of {depth} rows, of one dtype and width each, got {p!r}")
        if self.c.outputs % group:
            raise ShapeMismatch(f"wanted outputs for group {group}, got {self.c.outputs}")
        self.c.packed = self.groups
        self.c.channels = channels
        self.c.group = group

    def __dealloc__(self):
        free(self.groups)


cdef class ConvPlan(Epilogue):
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

    def __cinit__(self, PackedTaps w not None, bint x_is_signed, x_zero_point, w_zero_point, bias, str out, scale,
                  int zero_point=0, int low=0, int high=255, table=None):
        self.w = w
        if w.c.form == QK_CONV_DEPTHWISE and not (isinstance(w_zero_point, int) and w_zero_point == 0):
            raise InvalidArgument("depthwise weights are packed without a zero point")
        self.prepare(w.groups, len(w.held), w.is_signed, x_is_signed, x_zero_point, w_zero_point, bias, out, scale,
                     zero_point, low, high, table)

    def run(self, x, out, tuple strides, tuple pads, tuple dilations, residual=None, float own_ratio=0,
            int own_zero_point=0, float residual_ratio=0, int residual_zero_point=0, int threads=0):
        """out[N, M, ...] = the convolution of x[N, C, ...], both of any strides.

        `strides`, `dilations` and `pads` (at the beginnings) have one value a spatial dimension; pads at the ends
        follow from the shape of `out`. `residual`: codes of the shape and layout of `out`, both with their channels
        contiguous and their pixels evenly spaced, added as `MatmulPlan.run` does.

        Returns False, with nothing written, where `out` may share memory with `x`.
        """
        cdef Py_buffer xb, yb, rb
        cdef qk_call call
        cdef int dtype, held = 1, d, s, dims
        cdef double reach
        memset(&call.conv, 0, sizeof(call.conv))
        PyObject_GetBuffer(x, &xb, PyBUF_FORMAT | PyBUF_STRIDES)
        try:
            PyObject_GetBuffer(out, &yb, PyBUF_FORMAT | PyBUF_STRIDES | PyBUF_WRITABLE)
            held = 2
            dims = xb.ndim - 2
            dtype = dtype_of(&xb, False)
            if (not 1 <= dims <= QK_SPATIAL or xb.shape[1] != self.w.c.channels
                    or dtype != (QK_S8 if self.a_is_signed else QK_U8)):
                raise ShapeMismatch(f"wanted x of {'int8' if self.a_is_signed else 'uint8'} [N, {self.w.c.channels}, "
                                    f"...], got {getattr(x, 'dtype', type(x))} {shape_of(&xb)}")
            if (yb.ndim != xb.ndim or yb.shape[0] != xb.shape[0] or yb.shape[1] != self.w.c.outputs
                    or dtype_of(&yb, False) != self.out_dtype):
                raise ShapeMismatch(f"wanted out [{xb.shape[0]}, {self.w.c.outputs}, ...], got "
                                    f"{getattr(out, 'dtype', type(out))} {shape_of(&yb)}")
            check_aligned("out", &yb)
            if not len(strides) == len(pads) == len(dilations) == dims:
                raise ShapeMismatch(f"wanted {dims} strides, pads and dilations")
            if element_count(&xb) and element_count(&yb) and overlaps(&xb, &yb):
                return False
            for d in range(3 - dims):
                if self.w.c.kernel[d] != 1:
                    raise ShapeMismatch(f"wanted x of {5 - d} dimensions for these weights, got {shape_of(&xb)}")
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
                    # The last tap of the last pixel, in 64 bits with room to spare.
                    reach = (<double>yb.shape[s] * <double>call.conv.stride[d]
                             + <double>self.w.c.kernel[d] * <double>call.conv.dilation[d])
                    if (call.conv.stride[d] < 1 or call.conv.dilation[d] < 1 or reach > <double>(1LL << 60)
                            or not -(1LL << 60) <= call.conv.pad[d] <= (1LL << 60)):
                        raise InvalidArgument(f"wanted strides and dilations >= 1, within reach, and pads, got "
                                              f"{strides}, {dilations} and {pads}")
            call.conv.x = <const uint8_t *>xb.buf
            call.conv.x_batch_stride = xb.strides[0]
            call.conv.x_channel_stride = xb.strides[1]
            call.conv.flip = self.a_is_signed
            call.conv.x_zero = self.a_zero
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
                self.add_residual(&call.conv.e, residual, &rb, &yb, own_ratio, own_zero_point, residual_ratio,
                                  residual_zero_point)
                if not evenly_spaced(&rb) or not evenly_spaced(&yb):
                    raise ShapeMismatch("wanted a residual and out that are both channels-last")
                call.conv.e.residual_stride = rb.strides[rb.ndim - 1]
                call.conv.residual_batch_stride = rb.strides[0]
            call.run = qk_run_conv
            perform(&call, (self, x, out, residual))
            return True
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
