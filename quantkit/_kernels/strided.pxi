# Strided views of a storage: shape, strides and bounds, exported through the buffer protocol.

cdef extern from *:
    bint mul_overflow "__builtin_mul_overflow"(Py_ssize_t a, Py_ssize_t b, Py_ssize_t *result) nogil
    bint add_overflow "__builtin_add_overflow"(Py_ssize_t a, Py_ssize_t b, Py_ssize_t *result) nogil

cdef enum:
    MAX_NDIM = 64  # as NumPy


@cython.final
cdef class ElementType:
    """The type of an Array's elements.

    dtype: what users see. wire: the dtype of the same size whose buffer format NumPy understands; the two differ for
    bfloat16, which has no buffer format and travels as uint16.
    """

    cdef readonly str name
    cdef readonly object dtype
    cdef readonly object wire
    cdef readonly Py_ssize_t itemsize
    cdef bytes format

    def __cinit__(self, str name, dtype, wire):
        self.name = name
        self.dtype = dtype
        self.wire = wire
        self.itemsize = wire.itemsize
        self.format = wire.char.encode()


cdef class ArrayBase:
    """The part of Array that knows addresses: a storage, an offset in bytes, a shape and strides in bytes.

    Holds no pointer: the address is computed, and the bounds are checked, at each export, so an Array follows its
    storage wherever that moves, and one that a resize left behind is an error.
    """

    cdef readonly StorageBase _bytes
    cdef readonly ElementType _type
    cdef readonly tuple shape
    cdef readonly tuple strides         # in bytes
    cdef readonly Py_ssize_t _offset
    cdef readonly Py_ssize_t size
    cdef readonly int ndim
    cdef Py_ssize_t low, high           # the reach of the elements, in bytes from the start of the storage
    cdef bint c_contiguous, f_contiguous
    cdef Py_ssize_t *dims               # shape, then strides

    def __cinit__(self, StorageBase storage not None, ElementType type not None, tuple shape not None,
                  Py_ssize_t offset=0, tuple strides=None):
        self._bytes = storage
        self._type = type
        self._lay_out(shape, offset, strides)

    cdef int _lay_out(self, tuple shape, Py_ssize_t offset, tuple strides) except -1:
        cdef int ndim = len(shape), i
        cdef Py_ssize_t size = 1, step = self._type.itemsize, low = offset, high = offset, reach, total
        cdef Py_ssize_t *dims
        cdef Py_ssize_t *end
        if ndim > MAX_NDIM or (strides is not None and len(strides) != ndim):
            raise StorageError(f"wanted at most {MAX_NDIM} dimensions and a stride for each, got {shape}, {strides}")
        dims = <Py_ssize_t *>PyMem_Malloc(sizeof(Py_ssize_t) * (2 * ndim + 1))
        if dims == NULL:
            raise MemoryError
        try:
            for i in range(ndim - 1, -1, -1):
                dims[i] = shape[i]
                if dims[i] < 0:
                    raise StorageError(f"wanted a shape of sizes >= 0, got {shape}")
                dims[ndim + i] = step if strides is None else strides[i]
                if mul_overflow(step, dims[i] if dims[i] else 1, &step):
                    raise OutOfMemory(f"shape {shape} of {self._type.name} is more than this machine can address")
                size *= dims[i]
            if mul_overflow(size, self._type.itemsize, &total):
                raise OutOfMemory(f"shape {shape} of {self._type.name} is more than this machine can address")
            if size:
                if offset < 0 or add_overflow(offset, self._type.itemsize, &high):
                    raise StorageError(f"wanted an offset from 0 within the storage, got {offset}")
                for i in range(ndim):
                    end = &low if dims[ndim + i] < 0 else &high
                    if mul_overflow(dims[i] - 1, dims[ndim + i], &reach) or add_overflow(end[0], reach, end):
                        raise StorageError(f"strides {strides} of shape {shape} reach beyond any storage")
            if low < 0 or high > self._bytes.memory.nbytes:
                raise StorageError(
                    f"shape {shape} of {self._type.name} at offset {offset} needs bytes {low} to {high}, "
                    f"the storage has {self._bytes.memory.nbytes}"
                )
        except BaseException:
            PyMem_Free(dims)
            raise
        PyMem_Free(self.dims)
        self.dims = dims
        self.shape = shape
        self.strides = tuple([dims[ndim + i] for i in range(ndim)]) if strides is None else strides
        self.ndim = ndim
        self.size = size
        self._offset = offset
        self.low, self.high = low, high
        self.c_contiguous = self._is_contiguous(ndim - 1, -1, -1)
        self.f_contiguous = self._is_contiguous(0, ndim, 1)
        return 0

    cdef bint _is_contiguous(self, int first, int end, int direction) noexcept:
        cdef Py_ssize_t step = self._type.itemsize
        cdef int i = first
        if self.size == 0:
            return True
        while i != end:
            if self.dims[i] != 1 and self.dims[self.ndim + i] != step:
                return False
            step *= self.dims[i]
            i += direction
        return True

    def __dealloc__(self):
        PyMem_Free(self.dims)

    cdef int export(self, owner, Py_buffer *buffer, int flags) except -1:
        # Pinned first: neither the bytes nor the layout change from here on.
        cdef char *ptr = self._bytes.pin()
        try:
            self.check_export(flags)
        except BaseException:
            self._bytes.unpin()
            raise
        buffer.buf = ptr + self._offset
        buffer.obj = owner
        buffer.len = self.size * self._type.itemsize
        buffer.itemsize = self._type.itemsize
        buffer.readonly = not self._bytes.memory.writable
        buffer.format = <char *>self._type.format if flags & PyBUF_FORMAT else NULL
        buffer.ndim = self.ndim
        buffer.shape = self.dims if flags & PyBUF_ND else NULL
        buffer.strides = self.dims + self.ndim if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        buffer.suboffsets = NULL
        buffer.internal = NULL
        return 0

    cdef int check_export(self, int flags) except -1:
        cdef bint c_wanted = flags & PyBUF_C_CONTIGUOUS == PyBUF_C_CONTIGUOUS
        cdef bint f_wanted = flags & PyBUF_F_CONTIGUOUS == PyBUF_F_CONTIGUOUS
        cdef bint any_wanted = flags & PyBUF_ANY_CONTIGUOUS == PyBUF_ANY_CONTIGUOUS
        if flags & PyBUF_WRITABLE and not self._bytes.memory.writable:
            raise BufferError("these bytes are read-only")
        if flags & PyBUF_STRIDES != PyBUF_STRIDES:
            c_wanted = True  # a consumer that does not ask for strides takes C order for granted
        if not (
            (self.c_contiguous or not c_wanted)
            and (self.f_contiguous or not f_wanted)
            and (self.c_contiguous or self.f_contiguous or not any_wanted)
        ):
            raise BufferError("these elements are not contiguous; work on a clone()")
        if self.high > self._bytes.memory.nbytes:
            raise StorageError(
                f"this view reaches byte {self.high} of a storage that was resized to {self._bytes.memory.nbytes}"
            )
        return 0

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if flags & PyBUF_FORMAT and self._type.dtype is not self._type.wire:
            # NumPy turns to __array__ now, and gets the right dtype there.
            raise BufferError(f"{self._type.name} has no buffer format; use np.asarray, or its bytes by .storage()")
        # NumPy and memoryview (PyBUF_INDIRECT) give what they get to anybody, also for writing; kernels only read.
        settle_export(self._bytes.hazards, flags & PyBUF_WRITABLE or flags & PyBUF_INDIRECT == PyBUF_INDIRECT)
        self.export(self, buffer, flags)

    def __releasebuffer__(self, Py_buffer *buffer):
        self._bytes.unpin()

    @property
    def _contiguous(self):
        return self.c_contiguous

    def data_ptr(self):
        """Address of the first element; it holds until the bytes move."""
        settle(self._bytes.hazards, True)
        return <size_t>(self._bytes.memory.ptr + self._offset)

    def _reshape_in_place(self, tuple shape):
        """Take a new shape, contiguous, at the same offset; exports point at the old one, so there must be none."""
        with cython.critical_section(self._bytes):
            self._bytes.check_free("resize_")
            self._lay_out(shape, self._offset, None)

    def _view(self, object part):
        """The Array over `part`, an ndarray over some of this Array's elements; None if `part` lies elsewhere."""
        cdef Py_buffer view
        cdef char *start = self._bytes.memory.ptr
        cdef Py_ssize_t offset
        PyObject_GetBuffer(part, &view, PyBUF_STRIDES)
        try:
            offset = <char *>view.buf - start
            if not 0 <= offset < self._bytes.memory.nbytes and not (view.len == 0 and offset == self.high):
                return None
            shape = tuple([view.shape[i] for i in range(view.ndim)])
            strides = tuple([view.strides[i] for i in range(view.ndim)])
        finally:
            PyBuffer_Release(&view)
        return type(self)._make(self._bytes, self._type, shape, offset, strides)

    @classmethod
    def _make(cls, storage, type, shape, offset=0, strides=None):
        if (<StorageBase?>storage).memory.home == ON_DEVICE:
            cls = cls._device_class
        return ArrayBase.__new__(cls, storage, type, shape, offset, strides)


@cython.final
cdef class Wire:
    """Exports an Array's elements in their wire dtype, for quantkit's own use."""

    cdef ArrayBase array

    def __cinit__(self, ArrayBase array not None):
        self.array = array

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        settle_export(self.array._bytes.hazards, True)
        self.array.export(self, buffer, flags)

    def __releasebuffer__(self, Py_buffer *buffer):
        self.array._bytes.unpin()


cdef class CodesBase:
    """The part of QTensor that exports its codes.

    NumPy and memoryview ask alike for any layout (PyBUF_INDIRECT), and NumPy would go on to cast the codes to
    whatever dtype it was asked for: np.asarray(t, float32) would be wrong in silence. That request is refused, so
    that NumPy turns to __array__, which sees the dtype. Every other consumer of buffers gets the codes.
    """

    cdef readonly ArrayBase _codes

    def __cinit__(self, ArrayBase codes not None, *args):
        self._codes = codes

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if flags & PyBUF_INDIRECT == PyBUF_INDIRECT:
            raise BufferError("a QTensor has no memoryview of its own; take memoryview(t.storage()), its codes")
        settle_export(self._codes._bytes.hazards, True)
        self._codes.export(self, buffer, flags)

    def __releasebuffer__(self, Py_buffer *buffer):
        self._codes._bytes.unpin()
