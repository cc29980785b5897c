# Recurrent layers: packed float32 weights, a plan of what a layer does, and one call of the C driver a sequence.

# In the order of qk_cell.
cdef const char *NOT_FINITE[3]
NOT_FINITE[:] = [
    b"rnn: weights of codes want finite x and states, got %d values that are NaN or infinite",
    b"lstm: weights of codes want finite x and states, got %d values that are NaN or infinite",
    b"gru: weights of codes want finite x and states, got %d values that are NaN or infinite",
]


@cython.final
cdef class PackedFloats:
    """A float32 matrix of N rows and K columns in the order in which the kernels read it.

    Attributes
    ----------
    shape : tuple of int
        (K, N), as that of `PackedMatmul`.
    nbytes : int
        Bytes held.
    """

    cdef float *data
    cdef int64_t k, n
    cdef readonly size_t nbytes

    def __cinit__(self, w):
        cdef Py_buffer wb
        PyObject_GetBuffer(w, &wb, PyBUF_FORMAT | PyBUF_STRIDES)
        try:
            if wb.ndim != 2 or dtype_of(&wb, False) != QK_F32 or (wb.strides[1] != 4 and wb.shape[1] > 1):
                raise InvalidDType(f"wanted a 2-d float32 matrix, contiguous along its rows, to pack, got "
                                   f"{getattr(w, 'dtype', type(w))} {shape_of(&wb)}")
            check_aligned("w", &wb)
            self.n, self.k = wb.shape[0], wb.shape[1]
            if (<double>self.k + 4) * (<double>self.n + 16) > <double>(1 << 58):
                raise OutOfMemory(f"a packed matrix of {self.k} x {self.n} is more than this machine can address")
            self.nbytes = <size_t>(qk_padded_columns(self.n) * self.k) * 4
            self.data = <float *>aligned_memory(self.nbytes + 64)
            if self.data == NULL:
                raise OutOfMemory(f"no memory for a packed matrix of {self.nbytes} bytes")
            with nogil:
                qk_pack_floats(self.data, <const float *>wb.buf, wb.strides[0] // 4, self.k, self.n)
        finally:
            PyBuffer_Release(&wb)

    def __dealloc__(self):
        free(self.data)

    @property
    def shape(self):
        return self.k, self.n


@cython.final
cdef class RnnPlan:
    """A recurrent layer with its weights and parameters, prepared once for any number of sequences.

    Parameters
    ----------
    cell : "rnn", "lstm" or "gru"
    reverse : tuple of bool
        One a direction.
    w, r : tuple of (weights, scale, zero_point)
        One a direction: `PackedFloats`, None, None; or `PackedMatmul` with C-contiguous buffers of float32 and int32 (N).
    bias, bias_h, peephole : C-contiguous buffers of float32
        A direction after the other: N values of `bias`, then `hidden` of `bias_h` (zeros where it means nothing), and 3 *
        `hidden` of `peephole`, or None.
    activations : tuple of (kind, alpha, beta)
        As many as the cell has a direction.
    """

    cdef qk_rnn_call call
    cdef qk_rnn_direction directions[2]
    cdef float *memory
    cdef int64_t used, room
    cdef tuple held

    def __cinit__(self, str cell not None, tuple reverse not None, tuple w not None, tuple r not None, bias, bias_h, peephole,
                  tuple activations not None, float clip, bint linear_before_reset, bint input_forget):
        cdef int d, i, count = len(reverse), each
        cdef int64_t gates, hidden, n
        cdef qk_rnn_direction *one
        if cell not in ("rnn", "lstm", "gru") or not 1 <= count <= 2 or len(w) != count or len(r) != count:
            raise InvalidArgument(f"wanted a cell of 1 or 2 directions, got {cell!r} of {count}")
        gates, each = {"rnn": (1, 1), "lstm": (4, 3), "gru": (3, 2)}[cell]
        if len(activations) != count * each:
            raise InvalidArgument(f"wanted {count * each} activations, got {len(activations)}")
        self.held = (w, r)
        hidden, n = r[0][0].shape
        if n != gates * hidden or hidden < 1 or not clip > 0:
            raise ShapeMismatch(f"wanted {gates} gates of a state of {hidden} and a clip > 0, got {n} columns and {clip}")
        self.call.cell = {"rnn": QK_CELL_RNN, "lstm": QK_CELL_LSTM, "gru": QK_CELL_GRU}[cell]
        self.call.linear_before_reset = linear_before_reset
        self.call.input_forget = input_forget
        self.call.clip = clip
        self.call.hidden = hidden
        self.call.input = w[0][0].shape[0]
        self.call.directions = count
        self.call.direction = self.directions
        self.room = count * (n + 4 * hidden + 4 * qk_padded_columns(n) + 8 * 16)
        self.memory = <float *>aligned_memory(4 * self.room)
        if self.memory == NULL:
            raise OutOfMemory(f"no memory for the parameters of {n} columns")
        memset(self.memory, 0, 4 * self.room)
        for d in range(count):
            one = &self.directions[d]
            one.reverse = reverse[d]
            self.weights("w", &one.w, w[d], self.call.input, n)
            self.weights("r", &one.r, r[d], hidden, n)
            one.bias = self.values("bias", bias, d, count, n)
            one.bias_h = self.values("bias_h", bias_h, d, count, hidden)
            if peephole is not None:
                one.peephole = self.values("peephole", peephole, d, count, 3 * hidden)
            for i in range(each):
                kind, alpha, beta = activations[d * each + i]
                one.activation[i] = qk_activation(within("an activation", kind, 0, QK_ACTIVATIONS - 1), alpha, beta)

    def __dealloc__(self):
        free(self.memory)

    cdef float *take(self, int64_t count) except NULL:
        cdef float *part = self.memory + self.used
        self.used += qk_padded_columns(count)  # each begins on a boundary of a vector
        if self.used > self.room:
            raise InvalidArgument("more parameters than a layer has")
        return part

    cdef float *values(self, str name, given, int d, int count, int64_t n) except NULL:
        """Direction d's share of a buffer."""
        cdef float *part = self.take(n)
        cdef const float[::1] all_values = given
        check_length(name, all_values.shape[0], count * n)
        memcpy(part, &all_values[d * n], 4 * n)
        return part

    cdef int weights(self, str name, qk_rnn_weights *to, tuple given, int64_t k, int64_t n) except -1:
        cdef int64_t padded = qk_padded_columns(n), i
        cdef int32_t *zero
        if given[0].shape != (k, n):
            raise ShapeMismatch(f"wanted {name} of {k} x {n}, got {given[0].shape}")
        to.k = k
        to.n = n
        if isinstance(given[0], PackedFloats):
            to.values = (<PackedFloats>given[0]).data
            return 0
        if not isinstance(given[0], PackedMatmul) or (<PackedMatmul>given[0]).held.p.data == NULL:
            raise InvalidDType(f"wanted {name} packed, got {type(given[0]).__name__}")
        to.codes = &(<PackedMatmul>given[0]).held.p
        to.scale = self.take(padded)
        copy_values("scale", given[1], QK_F32, 1, n, padded, <void *>to.scale)
        zero = <int32_t *>self.take(padded)
        copy_values("zero_point", given[2], QK_I32, 1, n, padded, zero)
        for i in range(n):
            zero[i] = within("zero_point", zero[i], -128, 255) - (0 if (<PackedMatmul>given[0]).is_signed else 128)
            if zero[i]:
                to.zero = zero
        return 0

    def run(self, x, h0, c0, lengths, y, y_h, y_c):
        """Walk through x[T, B, input] and fill y[T, D, B, hidden] and y_h, y_c[D, B, hidden]; h0, c0, y_c may be None.

        All float32; x of any strides, the others contiguous along their last dimension. `lengths`: C-contiguous int32
        buffer of B, or None.
        """
        cdef Py_buffer buffers[6]
        cdef qk_call call
        cdef qk_rnn_call *c = &call.rnn
        cdef object kept = None
        cdef int i, d, held = 0
        cdef int64_t batch
        cdef tuple operands = (x, h0, c0, y, y_h, y_c)
        cdef const int32_t[::1] given
        cdef const char *names[6]
        names[:] = [b"x", b"initial_h", b"initial_c", b"y", b"y_h", b"y_c"]
        cdef int64_t wanted[4]
        memset(buffers, 0, sizeof(buffers))
        try:
            for i in range(6):
                if operands[i] is None:
                    if i in (0, 3, 4) or (i == 5 and self.call.cell == QK_CELL_LSTM):
                        raise InvalidArgument(f"wanted {names[i].decode()}, got None")
                    continue
                PyObject_GetBuffer(operands[i], &buffers[i], PyBUF_FORMAT | PyBUF_STRIDES | (PyBUF_WRITABLE if i > 2 else 0))
            if buffers[0].ndim != 3 or buffers[0].shape[2] != self.call.input:
                raise ShapeMismatch(f"wanted x of (seq, batch, {self.call.input}), got {shape_of(&buffers[0])}")
            batch = buffers[0].shape[1]
            for i in range(6):
                if operands[i] is None:
                    continue
                if dtype_of(&buffers[i], False) != QK_F32:
                    raise InvalidDType(f"wanted {names[i].decode()} of float32, got "
                                       f"{getattr(operands[i], 'dtype', type(operands[i]))}")
                check_aligned(names[i].decode(), &buffers[i])
                if i == 0:
                    continue
                wanted[:] = [buffers[0].shape[0], self.call.directions, batch, self.call.hidden]
                d = 0 if i == 3 else 1
                if buffers[i].ndim != 4 - d or any([buffers[i].shape[k] != wanted[k + d] for k in range(4 - d)]):
                    raise ShapeMismatch(f"wanted {names[i].decode()} of {tuple([wanted[k] for k in range(d, 4)])}, got "
                                        f"{shape_of(&buffers[i])}")
                if buffers[i].shape[3 - d] > 1 and buffers[i].strides[3 - d] != 4:
                    raise ShapeMismatch(f"wanted {names[i].decode()} contiguous along its last dimension")
            c[0] = self.call
            c.seq = buffers[0].shape[0]
            c.batch = batch
            c.threads = qk_num_threads()
            c.x = <const char *>buffers[0].buf
            c.x_t, c.x_b, c.x_i = buffers[0].strides[0], buffers[0].strides[1], buffers[0].strides[2]
            if h0 is not None:
                c.h0 = <const char *>buffers[1].buf
                c.h0_d, c.h0_b = buffers[1].strides[0], buffers[1].strides[1]
            if c0 is not None:
                c.c0 = <const char *>buffers[2].buf
                c.c0_d, c.c0_b = buffers[2].strides[0], buffers[2].strides[1]
            c.y = <char *>buffers[3].buf
            c.y_t, c.y_d, c.y_b = buffers[3].strides[0], buffers[3].strides[1], buffers[3].strides[2]
            c.y_h = <char *>buffers[4].buf
            c.yh_d, c.yh_b = buffers[4].strides[0], buffers[4].strides[1]
            if y_c is not None:
                c.y_c = <char *>buffers[5].buf
                c.yc_d, c.yc_b = buffers[5].strides[0], buffers[5].strides[1]
            if lengths is not None:
                given = lengths
                check_length("sequence_lens", given.shape[0], batch)
                kept = bytes(memoryview(lengths).cast("B")) if batch else b"\0\0\0\0"
                c.lengths = <const int32_t *><const char *>kept
                for i in range(batch):
                    if not 0 <= c.lengths[i] <= c.seq:
                        raise InvalidArgument(f"wanted sequence_lens from 0 to {c.seq}, got {c.lengths[i]} for row {i}")
            call.run = qk_run_rnn
            call.fault = NOT_FINITE[c.cell]
            perform(&call, (self, operands, kept))
        finally:
            for i in range(6):
                PyBuffer_Release(&buffers[i])  # nothing where there was none
