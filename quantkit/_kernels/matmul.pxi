# Integer products: packed right operands, what happens to the sums, and one call of the C driver each.
from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdlib cimport calloc, free

cdef extern from "qk_pool.h" nogil:
    void qk_set_num_threads(int threads)
    int qk_num_threads()


def set_num_threads(int threads):
    """How many threads the pool may use, the caller's included."""
    qk_set_num_threads(threads)


def num_threads():
    """How many threads the pool may use, the caller's included."""
    return qk_num_threads()


cdef class PackedBytes:
    """The memory of a packed operand, shared by its owner and by every plan over it."""

    cdef qk_packed_matmul p

    def __dealloc__(self):
        free(self.p.data)


cdef class PackedMatmul:
    """A right operand in the order in which the kernels read it; serves every instruction set.

    Attributes
    ----------
    shape : tuple of int
        (K, N) of the matrix that was packed.
    is_signed : bool
        Whether its codes were int8.
    nbytes : int
        Bytes held.
    plans : dict
        Plans that verbs keep for the next call with the same parameters.
    """

    cdef PackedBytes held
    cdef readonly dict plans
    cdef readonly bint is_signed
    cdef readonly size_t nbytes

    def __cinit__(self, b):
        cdef Py_buffer bb
        cdef void *memory
        cdef qk_packed_matmul *p
        cdef int dtype
        cdef size_t data_bytes, all_bytes
        self.plans = {}
        self.held = PackedBytes()
        if b is None:
            return
        p = &self.held.p
        PyObject_GetBuffer(b, &bb, PyBUF_FORMAT | PyBUF_STRIDES)
        try:
            dtype = dtype_of(&bb, False)
            if bb.ndim != 2 or (dtype != QK_U8 and dtype != QK_S8):
                raise InvalidDType(f"wanted a 2-d uint8 or int8 matrix to pack, got {getattr(b, 'dtype', type(b))} "
                                   f"of shape {shape_of(&bb)}")
            self.is_signed = dtype == QK_S8
            p.k = bb.shape[0]
            p.n = bb.shape[1]
            data_bytes = (<size_t>qk_packed_bytes(p.k, p.n) + 64) // 64 * 64  # never nothing
            all_bytes = data_bytes + <size_t>qk_padded_columns(p.n) * 4
            # On huge pages where large: weights that a row at a time is multiplied with are read at the speed of
            # address translation.
            memory = aligned_memory(all_bytes)
            if memory == NULL:
                raise OutOfMemory(f"no memory for a packed matrix of {all_bytes} bytes")
            p.data = <int8_t *>memory
            p.colsum = <int32_t *>(<char *>memory + data_bytes)
            self.nbytes = all_bytes
            with nogil:
                qk_pack_matmul(p, <const char *>bb.buf, bb.strides[0], bb.strides[1], dtype == QK_U8)
        finally:
            PyBuffer_Release(&bb)

    @staticmethod
    def to_come(int64_t k, int64_t n, bint is_signed):
        """Stand for right operands that `MatmulPlan.run_batch` packs on the way; it holds no codes."""
        cdef PackedMatmul made = PackedMatmul(None)
        made.held.p.k = k
        made.held.p.n = n
        made.is_signed = is_signed
        return made

    @property
    def shape(self):
        return self.held.p.k, self.held.p.n

    def __repr__(self):
        return f"PackedMatmul(shape={self.shape}, dtype={'int8' if self.is_signed else 'uint8'})"


cdef class MatmulPlan:
    """A packed right operand with everything that happens to its products, prepared once for any number of runs.

    Parameters
    ----------
    b : PackedMatmul
    a_is_signed : bool
    a_zero_point : int
        Of every row, unless `run` gets one a row.
    b_zero_point : int or None, or C-contiguous buffer of int32 (N)
    bias : C-contiguous buffer of int32 (N), added to the sums, or None
        For a float32 output also of float32, added to the scaled sums.
    out : "int32", "uint8", "int8" or "float32"
    scale : C-contiguous buffer of float32 (N), not for int32
    zero_point, low, high : int
        Of the output codes, and their bounds.
    table : buffer of 256 bytes or None
        Codes that replace the output codes, read by their byte.
    """

    cdef PackedBytes b
    cdef qk_epilogue e
    cdef int32_t *memory
    cdef bint a_is_signed
    cdef int32_t a_zero
    cdef uint8_t table[256]
    cdef int out_dtype

    def __cinit__(self, PackedMatmul b not None, bint a_is_signed, a_zero_point, b_zero_point, bias, str out, scale,
                  int zero_point=0, int low=0, int high=255, table=None):
        cdef int64_t n = b.held.p.n, padded = qk_padded_columns(b.held.p.n), i
        cdef const int32_t *colsum = b.held.p.colsum
        cdef int32_t flip = 0 if b.is_signed else 128
        cdef int32_t *start
        cdef int32_t *zeros
        cdef float *scales
        cdef float *biases
        cdef const int32_t[::1] ints
        cdef const float[::1] floats
        cdef const uint8_t[::1] codes
        self.b = b.held
        self.a_is_signed = a_is_signed
        self.a_zero = <int32_t>a_zero_point + (128 if a_is_signed else 0)
        self.memory = <int32_t *>calloc(max(padded, 16) * 4, 4)
        if self.memory == NULL:
            raise OutOfMemory(f"no memory for the parameters of {n} columns")
        start = self.memory
        zeros = self.memory + padded
        scales = <float *>(self.memory + 2 * padded)
        biases = <float *>(self.memory + 3 * padded)
        self.e.out = {"int32": QK_OUT_I32, "uint8": QK_OUT_U8, "int8": QK_OUT_S8, "float32": QK_OUT_F32}[out]
        self.out_dtype = {"int32": QK_I32, "uint8": QK_U8, "int8": QK_S8, "float32": QK_F32}[out]
        if colsum != NULL:
            for i in range(n):
                start[i] = <int32_t>(0 - <uint32_t>self.a_zero * <uint32_t>colsum[i])
            self.e.start = start
            self.e.colsum = colsum
        if isinstance(b_zero_point, int):
            if b_zero_point - flip:
                for i in range(n):
                    zeros[i] = b_zero_point - flip
                self.e.b_zero = zeros
        elif b_zero_point is not None:
            ints = b_zero_point
            check_length("b_zero_point", ints.shape[0], n)
            for i in range(n):
                zeros[i] = ints[i] - flip
                if zeros[i]:
                    self.e.b_zero = zeros
        if bias is not None and out == "float32" and memoryview(bias).format == "f":
            floats = bias
            check_length("bias", floats.shape[0], n)
            for i in range(n):
                biases[i] = floats[i]
            self.e.bias = biases
        elif bias is not None:
            ints = bias
            check_length("bias", ints.shape[0], n)
            for i in range(n):
                start[i] = <int32_t>(<uint32_t>start[i] + <uint32_t>ints[i])
        if scale is not None:
            floats = scale
            check_length("scale", floats.shape[0], n)
            for i in range(n):
                scales[i] = floats[i]
            self.e.scale = scales
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

    def run(self, a, out, a_zero_points=None, residual=None, float own_ratio=0, int own_zero_point=0,
            float residual_ratio=0, int residual_zero_point=0, int threads=0):
        """out[M, N] = the product of a[M, K], both of any strides with `out` contiguous along N.

        `a_zero_points`: C-contiguous int32 buffer of M, in place of the plan's one. `residual`: codes [M, N] that are
        added to the requantized product, own_ratio * (q - own_zero_point) + residual_ratio * (r -
        residual_zero_point), before the plan's zero point; the product itself is requantized to `own_zero_point`.
        """
        cdef Py_buffer ab, cb, rb
        cdef qk_call call
        cdef const int32_t[::1] zeros
        cdef object row_zeros = None
        cdef int dtype, held = 1
        cdef int64_t item
        PyObject_GetBuffer(a, &ab, PyBUF_FORMAT | PyBUF_STRIDES)
        try:
            PyObject_GetBuffer(out, &cb, PyBUF_FORMAT | PyBUF_STRIDES | PyBUF_WRITABLE)
            held = 2
            dtype = dtype_of(&ab, False)
            if self.b.p.data == NULL:
                raise InvalidArgument("this plan has no right operand of its own; use run_batch")
            if ab.ndim != 2 or ab.shape[1] != self.b.p.k or dtype != (QK_S8 if self.a_is_signed else QK_U8):
                raise ShapeMismatch(f"wanted a of {'int8' if self.a_is_signed else 'uint8'} [M, {self.b.p.k}], got "
                                    f"{getattr(a, 'dtype', type(a))} {shape_of(&ab)}")
            item = cb.itemsize
            if (cb.ndim != 2 or cb.shape[0] != ab.shape[0] or cb.shape[1] != self.b.p.n
                    or dtype_of(&cb, False) != self.out_dtype or (cb.strides[1] != item and cb.shape[1] > 1)):
                raise ShapeMismatch(f"wanted out of shape [{ab.shape[0]}, {self.b.p.n}], contiguous along its rows, got "
                                    f"{getattr(out, 'dtype', type(out))} {shape_of(&cb)}")
            call.matmul.a = <const uint8_t *>ab.buf
            call.matmul.a_stride = ab.strides[0]
            call.matmul.a_column_stride = ab.strides[1]
            call.matmul.m = ab.shape[0]
            call.matmul.flip_a = self.a_is_signed
            call.matmul.a_zero_point = self.a_zero
            call.matmul.b = &self.b.p
            call.matmul.c = cb.buf
            call.matmul.c_stride = cb.strides[0]
            call.matmul.e = self.e
            call.matmul.threads = threads if threads > 0 else qk_num_threads()
            if a_zero_points is not None:
                zeros = a_zero_points
                check_length("a_zero_point", zeros.shape[0], ab.shape[0])
                row_zeros = self.row_zeros(zeros)
                call.matmul.e.a_zero = <int32_t *>PyByteArray_AS_STRING(row_zeros)
            if residual is not None:
                PyObject_GetBuffer(residual, &rb, PyBUF_FORMAT | PyBUF_STRIDES)
                held = 3
                dtype = dtype_of(&rb, False)
                if not same_shape(&rb, &cb) or rb.strides[1] != 1 or (dtype != QK_U8 and dtype != QK_S8):
                    raise ShapeMismatch(f"wanted a residual of 8-bit codes {shape_of(&cb)}, contiguous along its rows, "
                                        f"got {getattr(residual, 'dtype', type(residual))} {shape_of(&rb)}")
                call.matmul.e.residual = <const uint8_t *>rb.buf
                call.matmul.e.residual_stride = rb.strides[0]
                call.matmul.e.residual_is_signed = dtype == QK_S8
                call.matmul.e.own_ratio = own_ratio
                call.matmul.e.own_zero_point = own_zero_point
                call.matmul.e.residual_ratio = residual_ratio
                call.matmul.e.residual_zero_point = residual_zero_point
            call.run = qk_run_matmul
            perform(&call, (self, a, out, row_zeros, residual))
        finally:
            PyBuffer_Release(&ab)
            if held >= 2:
                PyBuffer_Release(&cb)
            if held >= 3:
                PyBuffer_Release(&rb)

    cdef object row_zeros(self, const int32_t[::1] zeros):
        """What each row's zero point is less than the plan's own, which is in its start already."""
        cdef int64_t i
        cdef object held = bytearray(4 * max(zeros.shape[0], 1))
        cdef int32_t *made = <int32_t *>PyByteArray_AS_STRING(held)
        for i in range(zeros.shape[0]):
            made[i] = self.a_zero - (zeros[i] + (128 if self.a_is_signed else 0))
        return held

    def run_plain(self, a, out):
        """The common call, with as little around the kernel as there can be: `run` without anything optional.

        Returns False, with nothing written, for anything out of the ordinary, wrong arguments included.
        """
        cdef Py_buffer ab, cb
        cdef qk_call call
        cdef int status = -1
        try:
            PyObject_GetBuffer(a, &ab, PyBUF_FORMAT | PyBUF_STRIDES)
        except (BufferError, ValueError, TypeError):
            return False
        try:
            PyObject_GetBuffer(out, &cb, PyBUF_FORMAT | PyBUF_STRIDES | PyBUF_WRITABLE)
        except (BufferError, ValueError, TypeError):
            PyBuffer_Release(&ab)
            return False
        if (ab.ndim == 2 and cb.ndim == 2 and ab.shape[1] == self.b.p.k and cb.shape[1] == self.b.p.n
                and ab.shape[0] == cb.shape[0] and dtype_of(&ab, False) == (QK_S8 if self.a_is_signed else QK_U8)
                and dtype_of(&cb, False) == self.out_dtype and cb.strides[1] == cb.itemsize
                and self.b.p.data != NULL and element_count(&ab) and element_count(&cb) and not overlaps(&ab, &cb)):
            call.matmul.a = <const uint8_t *>ab.buf
            call.matmul.a_stride = ab.strides[0]
            call.matmul.a_column_stride = ab.strides[1]
            call.matmul.m = ab.shape[0]
            call.matmul.flip_a = self.a_is_signed
            call.matmul.a_zero_point = self.a_zero
            call.matmul.b = &self.b.p
            call.matmul.c = cb.buf
            call.matmul.c_stride = cb.strides[0]
            call.matmul.e = self.e
            call.matmul.threads = qk_num_threads()
            call.run = qk_run_matmul
            if qk_recorder != NULL:
                status = (<Task>qk_recorder).record(&call, (self, a, out))
            else:
                with nogil:
                    status = call.run(&call)
        PyBuffer_Release(&ab)
        PyBuffer_Release(&cb)
        return status == 0

    def run_batch(self, a, b, out, a_zero_points=None):
        """out[..., M, N] = a[..., M, K] times b[..., K, N], which is packed on the way; for a plan over `to_come`.

        All three have the same batch dimensions, at least one; `out` is C-contiguous.
        """
        cdef Py_buffer ab, bb, cb
        cdef qk_call call
        cdef const int32_t[::1] zeros
        cdef object row_zeros = None, places
        cdef int64_t *offsets
        cdef int64_t i, rest, at, count = 1
        cdef int d, last, held = 1
        PyObject_GetBuffer(a, &ab, PyBUF_FORMAT | PyBUF_STRIDES)
        try:
            PyObject_GetBuffer(b, &bb, PyBUF_FORMAT | PyBUF_STRIDES)
            held = 2
            PyObject_GetBuffer(out, &cb, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
            held = 3
            last = ab.ndim - 2
            if last < 1 or bb.ndim != ab.ndim or cb.ndim != ab.ndim or bb.shape[last] != self.b.p.k:
                raise ShapeMismatch(f"wanted three batches, got {shape_of(&ab)}, {shape_of(&bb)} and {shape_of(&cb)}")
            for d in range(last):
                count *= ab.shape[d]
                if bb.shape[d] != ab.shape[d] or cb.shape[d] != ab.shape[d]:
                    raise ShapeMismatch(f"wanted batches of one shape, got {shape_of(&ab)} and {shape_of(&bb)}")
            if (ab.shape[last + 1] != self.b.p.k or bb.shape[last + 1] != self.b.p.n or cb.shape[last] != ab.shape[last]
                    or cb.shape[last + 1] != self.b.p.n or self.b.p.data != NULL
                    or dtype_of(&ab, False) != (QK_S8 if self.a_is_signed else QK_U8)
                    or dtype_of(&cb, False) != self.out_dtype):
                raise ShapeMismatch(f"the plan does not fit {shape_of(&ab)}, {shape_of(&bb)} and {shape_of(&cb)}")
            places = bytearray(16 * max(count, 1))
            offsets = <int64_t *>PyByteArray_AS_STRING(places)
            for i in range(count):
                rest = i
                for d in range(last - 1, -1, -1):
                    at = rest % ab.shape[d]
                    rest //= ab.shape[d]
                    offsets[i] += at * ab.strides[d]
                    offsets[count + i] += at * bb.strides[d]
            call.batch.one.a = <const uint8_t *>ab.buf
            call.batch.one.a_stride = ab.strides[last]
            call.batch.one.a_column_stride = ab.strides[last + 1]
            call.batch.one.m = ab.shape[last]
            call.batch.one.flip_a = self.a_is_signed
            call.batch.one.a_zero_point = self.a_zero
            call.batch.one.b = &self.b.p
            call.batch.one.c = cb.buf
            call.batch.one.c_stride = cb.itemsize * self.b.p.n
            call.batch.one.e = self.e
            call.batch.one.threads = qk_num_threads()
            call.batch.count = count
            call.batch.a_offsets = offsets
            call.batch.b_offsets = offsets + count
            call.batch.c_offset = call.batch.one.c_stride * call.batch.one.m
            call.batch.b = <const char *>bb.buf
            call.batch.b_row_stride = bb.strides[last]
            call.batch.b_column_stride = bb.strides[last + 1]
            call.batch.flip_b = dtype_of(&bb, False) == QK_U8
            if a_zero_points is not None:
                zeros = a_zero_points
                check_length("a_zero_point", zeros.shape[0], ab.shape[last])
                row_zeros = self.row_zeros(zeros)
                call.batch.one.e.a_zero = <int32_t *>PyByteArray_AS_STRING(row_zeros)
            call.run = qk_run_batch
            perform(&call, (self, a, b, out, places, row_zeros))
        finally:
            PyBuffer_Release(&ab)
            if held >= 2:
                PyBuffer_Release(&bb)
            if held >= 3:
                PyBuffer_Release(&cb)


cdef int check_length(str name, int64_t got, int64_t wanted) except -1:
    if got != wanted:
        raise ShapeMismatch(f"wanted {wanted} values of {name}, got {got}")
    return 0
