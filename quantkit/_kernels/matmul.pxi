# Integer products: packed right operands, what happens to the sums, and one call of the C driver each.
from cpython.bytearray cimport PyByteArray_AS_STRING

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
    plans : KeptPlans
        Those of verbs that were called with it.
    half_range : bool
        Whether all codes lie in [-64, 63] of int8 (uint8: [64, 191]), which AVX2 multiplies faster.
    """

    cdef PackedBytes held
    cdef readonly KeptPlans plans
    cdef readonly bint is_signed
    cdef readonly size_t nbytes

    def __cinit__(self, b):
        cdef Py_buffer bb
        cdef void *memory
        cdef qk_packed_matmul *p
        cdef int dtype
        cdef size_t data_bytes, all_bytes
        self.plans = KeptPlans()
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
            if (<double>p.k + 4) * (<double>p.n + 16) > <double>(1 << 60):
                raise OutOfMemory(f"a packed matrix of {p.k} x {p.n} is more than this machine can address")
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
        if k < 0 or n < 0 or (<double>k + 4) * (<double>n + 16) > <double>(1 << 60):
            raise ShapeMismatch(f"wanted the shape of a matrix, got {k} x {n}")
        made.held.p.k = k
        made.held.p.n = n
        made.is_signed = is_signed
        return made

    @property
    def shape(self):
        return self.held.p.k, self.held.p.n

    @property
    def half_range(self):
        return self.held.p.half_range != 0

    def __repr__(self):
        return f"PackedMatmul(shape={self.shape}, dtype={'int8' if self.is_signed else 'uint8'})"


cdef class MatmulPlan(Epilogue):
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
    cdef bint b_is_signed

    def __cinit__(self, PackedMatmul b not None, bint a_is_signed, a_zero_point, b_zero_point, bias, str out, scale,
                  int zero_point=0, int low=0, int high=255, table=None):
        self.b = b.held
        self.b_is_signed = b.is_signed
        self.prepare(&b.held.p, 1, b.is_signed, a_is_signed, a_zero_point, b_zero_point, bias, out, scale, zero_point,
                     low, high, table)
        self.e.colsum = b.held.p.colsum

    def run(self, a, out, a_zero_points=None, residual=None, float own_ratio=0, int own_zero_point=0,
            float residual_ratio=0, int residual_zero_point=0, int threads=0):
        """out[M, N] = the product of a[M, K], both of any strides with `out` contiguous along N.

        `a_zero_points`: C-contiguous int32 buffer of M, in place of the plan's one. `residual`: codes [M, N] that are
        added to the requantized product, own_ratio * (q - own_zero_point) + residual_ratio * (r -
        residual_zero_point), before the plan's zero point; the product itself is requantized to `own_zero_point`.
        """
        cdef Py_buffer ab, cb, rb
        cdef qk_call call
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
            check_aligned("out", &cb)
            self.fill(&call.matmul, &ab, &cb)
            if threads > 0:
                call.matmul.threads = threads
            if a_zero_points is not None:
                row_zeros = self.row_zeros(a_zero_points, ab.shape[0])
                call.matmul.e.a_zero = <int32_t *>PyByteArray_AS_STRING(row_zeros)
            if residual is not None:
                PyObject_GetBuffer(residual, &rb, PyBUF_FORMAT | PyBUF_STRIDES)
                held = 3
                self.add_residual(&call.matmul.e, residual, &rb, &cb, own_ratio, own_zero_point, residual_ratio,
                                  residual_zero_point)
                if rb.strides[1] != 1 and rb.shape[1] > 1:
                    raise ShapeMismatch("wanted a residual that is contiguous along its rows")
                call.matmul.e.residual_stride = rb.strides[0]
            call.run = qk_run_matmul
            perform(&call, (self, a, out, row_zeros, residual))
        finally:
            PyBuffer_Release(&ab)
            if held >= 2:
                PyBuffer_Release(&cb)
            if held >= 3:
                PyBuffer_Release(&rb)

    cdef void fill(self, qk_matmul_call *call, const Py_buffer *a, const Py_buffer *c) noexcept:
        """The call for the matrices a[M, K] and c[M, N]."""
        call.a = <const uint8_t *>a.buf
        call.a_stride = a.strides[0]
        call.a_column_stride = a.strides[1]
        call.m = a.shape[0]
        call.flip_a = self.a_is_signed
        call.a_zero_point = self.a_zero
        call.b = &self.b.p
        call.c = c.buf
        call.c_stride = c.strides[0]
        call.e = self.e
        call.threads = qk_num_threads()

    cdef object row_zeros(self, zeros, int64_t rows):
        """What each row's zero point is less than the plan's own, which is in its start already."""
        cdef object held = bytearray(4 * max(rows, 1))
        cdef uint32_t *made = <uint32_t *>PyByteArray_AS_STRING(held)
        cdef int64_t i
        copy_values("a_zero_point", zeros, QK_I32, 1, rows, rows, made)
        for i in range(rows):
            made[i] = <uint32_t>self.a_zero - (made[i] + <uint32_t>(128 if self.a_is_signed else 0))
        return held

    cpdef bint run_plain(self, a, out) except -1:
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
                and self.b.p.data != NULL and element_count(&ab) and element_count(&cb) and is_aligned(&cb) and not overlaps(&ab, &cb)):
            self.fill(&call.matmul, &ab, &cb)
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
                    or dtype_of(&cb, False) != self.out_dtype
                    or dtype_of(&bb, False) != (QK_S8 if self.b_is_signed else QK_U8)):
                raise ShapeMismatch(f"the plan does not fit {shape_of(&ab)}, {shape_of(&bb)} and {shape_of(&cb)}")
            check_aligned("out", &cb)
            if element_count(&cb) == 0:
                return
            places = bytearray(16 * count)
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
            call.batch.flip_b = not self.b_is_signed
            if a_zero_points is not None:
                row_zeros = self.row_zeros(a_zero_points, ab.shape[last])
                call.batch.one.e.a_zero = <int32_t *>PyByteArray_AS_STRING(row_zeros)
            call.run = qk_run_batch
            perform(&call, (self, a, b, out, places, row_zeros))
        finally:
            PyBuffer_Release(&ab)
            if held >= 2:
                PyBuffer_Release(&bb)
            if held >= 3:
                PyBuffer_Release(&cb)


cdef class KeptPlans:
    """Plans of the last calls, found by their parameters: to check and arrange these takes longer than a small product.

    Parameters are tuples of numbers and dtypes, of which a kept plan has the values and the types.
    """

    cdef tuple kept  # of (parameters, plan); replaced, never changed, since calls on other threads may walk it

    def __cinit__(self):
        self.kept = ()

    def add(self, tuple parameters not None, MatmulPlan plan not None):
        """Keep a plan; the eight of before go where there is no room."""
        self.kept = (*(self.kept if len(self.kept) < 8 else ()), (parameters, plan))

    def find(self, tuple parameters not None):
        """A plan, or None."""
        for given, plan in self.kept:
            if same_numbers(<tuple>given, parameters):
                return plan
        return None

    def run(self, tuple parameters not None, a, out):
        """`MatmulPlan.run_plain` of a plan with these parameters that fits `a` and `out`; False where there is none."""
        for given, plan in self.kept:
            if same_numbers(<tuple>given, parameters) and (<MatmulPlan>plan).run_plain(a, out):
                return True
        return False


cdef bint same_numbers(tuple a, tuple b) except -1:
    cdef Py_ssize_t i
    if len(a) != len(b):
        return False
    for i in range(len(a)):
        if a[i] is not b[i] and (type(a[i]) is not type(b[i]) or a[i] != b[i]):
            return False
    return True
