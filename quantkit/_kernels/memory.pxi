# Bytes: who owns them, and the count of their exports.
#
# Memory is one run of bytes with one owner: the heap, a foreign buffer, or a map. StorageBase is what users hold: it
# keeps its identity while its Memory is exchanged for another. Memory may be exchanged only while nobody holds a raw
# pointer into it, so every raw pointer that leaves is counted: pin() and unpin() are the only two doors.
# The critical sections cost nothing with the GIL and hold the count together without it.
cimport cython
from cpython.buffer cimport (
    PyBUF_ANY_CONTIGUOUS, PyBUF_C_CONTIGUOUS, PyBUF_F_CONTIGUOUS, PyBUF_FORMAT, PyBUF_INDIRECT, PyBUF_ND,
    PyBUF_SIMPLE, PyBUF_STRIDED_RO, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.errno cimport EINTR, ENOSPC, errno
from libc.stdlib cimport free
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.string cimport memcpy, memset

from quantkit.errors import OutOfMemory, StorageBusy, StorageError

cdef extern from "unistd.h" nogil:
    int c_close "close"(int fd)
    long sysconf(int name)
    Py_ssize_t pwrite(int fd, const void *buffer, size_t size, long offset)
    int _SC_PAGESIZE

cdef extern from "sys/mman.h" nogil:
    void *mmap(void *address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void *address, size_t length)
    int madvise(void *address, size_t length, int advice)
    void *MAP_FAILED
    int PROT_READ, PROT_WRITE, MAP_SHARED, MAP_PRIVATE

cdef extern from "sys/stat.h" nogil:
    struct stat_t "stat":
        long st_size
    int fstat(int fd, stat_t *status)

cdef extern from *:
    """
    #include <fcntl.h>
    #include <stdlib.h>
    #include <sys/mman.h>
    /* Memory on a boundary of 64 bytes, a cache line and the widest vector; NULL when there is none. Large memory
     * starts on a boundary of huge pages and asks for them: a fault and an address translation for 2 MiB, not 4 KiB. */
    static void *qk_aligned_memory(size_t bytes) {
        const size_t huge = (size_t)2 << 20;
        void *memory = NULL;
        if (posix_memalign(&memory, bytes < huge ? 64 : huge, bytes ? bytes : 1)) return NULL;
    #ifdef MADV_HUGEPAGE
        if (bytes >= huge) madvise(memory, bytes, MADV_HUGEPAGE);
    #endif
        return memory;
    }
    #define QK_BYTE ((char *)"B") /* the buffer format of one byte */
    #ifndef MADV_POPULATE_WRITE /* Linux 5.14; an older kernel answers EINVAL */
    #define MADV_POPULATE_WRITE 23
    #endif
    #ifdef SYNC_FILE_RANGE_WRITE
    static void qk_write_back(int fd, long offset, long nbytes) {
        (void)!sync_file_range(fd, offset, nbytes, SYNC_FILE_RANGE_WRITE);
    }
    #else
    static void qk_write_back(int fd, long offset, long nbytes) { (void)fd, (void)offset, (void)nbytes; }
    #endif
    """
    void *aligned_memory "qk_aligned_memory"(size_t bytes) nogil
    void qk_write_back(int fd, long offset, long nbytes) nogil
    char *QK_BYTE
    int MADV_POPULATE_WRITE
    const Py_ssize_t PY_SSIZE_T_MAX

ctypedef enum home_t:
    ON_HEAP
    BORROWED
    MAPPED
    ON_DEVICE


@cython.final
cdef class Memory:
    """One run of bytes and its owner. Made by `heap`, `borrow` and `map`; never changes its address or length."""

    cdef char *ptr
    cdef readonly Py_ssize_t nbytes
    cdef readonly bint writable
    cdef readonly bint shared       # other processes that map it see the writes
    cdef readonly bint resizable    # nobody else can hold these bytes, so that a resize may abandon them
    cdef readonly int fd            # of a map: owned, for sending and for looking at the file's length; else -1
    cdef readonly long offset       # of a map: first byte in its file
    cdef readonly object origin     # of a map: what errors call it, "file 'x.bin'"
    cdef readonly object block      # of a device: what owns the bytes there; also kept alive by shared memory that tells of it
    cdef home_t home
    cdef Py_buffer source
    cdef void *map_base
    cdef size_t map_length
    cdef Py_ssize_t file_end        # of a file map: the file must still be this long; 0 for sealed bytes
    cdef object __weakref__

    def __cinit__(self):
        self.fd = -1

    @staticmethod
    def heap(size, zero=False):
        """Allocate `size` bytes on a 64-byte boundary, large ones on huge pages where the system has them."""
        cdef Py_ssize_t nbytes = check_nbytes(size)
        cdef Memory self = Memory()
        cdef void *ptr = aligned_memory(nbytes)
        if ptr == NULL:
            raise OutOfMemory(f"cannot allocate {nbytes} bytes on the heap")
        self.ptr = <char *>ptr
        self.nbytes = nbytes
        self.writable = self.resizable = True
        if zero:
            memset(ptr, 0, nbytes)
        return self

    @staticmethod
    def borrow(source, exclusive=False):
        """Use the bytes of `source`, which stays alive with them; a strided one is spanned from end to end.

        `exclusive`: nobody else holds `source`. Returns the Memory and the offset of the first element in it.
        """
        cdef Py_ssize_t offset
        return borrow(source, exclusive, &offset), offset

    @staticmethod
    def map(int fd, long offset, size, bint shared, bint writable, origin, bint may_shrink):
        """Map `size` bytes of `fd` from `offset`; owns `fd` from here on, also when it fails.

        `shared`: writes go to the file and to everyone who maps it, else they stay here. `may_shrink`: the file has
        no seal, so its length is looked at before each use. Raises OSError.
        """
        cdef Memory self = Memory()
        cdef long page = sysconf(_SC_PAGESIZE)
        cdef long skip = offset % page
        cdef void *base
        self.fd = fd
        cdef Py_ssize_t nbytes = check_nbytes(size)
        self.home = MAPPED
        self.nbytes = nbytes
        self.shared = shared
        self.writable = writable
        self.origin = origin
        self.offset = offset
        self.file_end = offset + nbytes if may_shrink else 0
        if nbytes == 0:
            self.ptr = <char *>&self.file_end  # a place to point at; nothing is read or written through it
            return self
        base = mmap(NULL, nbytes + skip, PROT_READ | PROT_WRITE if writable else PROT_READ,
                    MAP_SHARED if shared else MAP_PRIVATE, fd, offset - skip)
        if base == MAP_FAILED:
            raise OSError(errno, f"cannot map {nbytes} bytes of {origin}")
        self.map_base = base
        self.map_length = nbytes + skip
        self.ptr = <char *>base + skip
        return self

    @staticmethod
    def on_device(block):
        """Bytes that no CPU may touch: `block` owns them and has their address, nbytes, device and whether writable."""
        cdef Memory self = Memory()
        self.nbytes = check_nbytes(block.nbytes)
        self.ptr = <char *><uintptr_t>block.address
        self.home = ON_DEVICE
        self.block = block
        self.writable = block.writable
        self.shared = block.shared
        return self

    def keep(self, block):
        """Keep `block` alive with these bytes."""
        self.block = block

    def __dealloc__(self):
        if self.home == ON_HEAP:
            free(self.ptr)
        elif self.home == BORROWED:
            PyBuffer_Release(&self.source)
        elif self.map_base != NULL:
            munmap(self.map_base, self.map_length)
        if self.fd >= 0:
            c_close(self.fd)

    @property
    def where(self):
        """"heap", "borrowed" or "mapped"."""
        if self.home == BORROWED:
            return "heap" if self.resizable else "borrowed"
        return "mapped" if self.home == MAPPED else "heap" if self.home == ON_HEAP else "device"

    def prefault(self):
        """Give a map its pages now, in one go: cheaper than a fault at the first touch of each."""
        cdef void *base = self.map_base
        cdef size_t length = self.map_length
        if base != NULL:
            with nogil:
                madvise(base, length, MADV_POPULATE_WRITE)

    cdef int fill_from(self, const char *source, Py_ssize_t nbytes) except -1:
        """Copy bytes to the start of this fresh memory.

        A map of shared memory takes them through its file: that allocates the pages while it copies, twice as fast
        as a fault a page, and memory that is not there is an error here instead of a SIGBUS.
        """
        cdef Py_ssize_t done = 0, wrote
        if self.home != MAPPED:
            memcpy(self.ptr, source, nbytes)
            return 0
        while done < nbytes:
            wrote = pwrite(self.fd, source + done, nbytes - done, self.offset + done)
            if wrote < 0 and errno == EINTR:
                continue
            if wrote <= 0:
                raise OSError(errno if wrote < 0 else ENOSPC, f"cannot allocate {nbytes} bytes of {self.origin}")
            done += wrote
        return 0

    cdef int check(self) except -1:
        # A map beyond the end of its file would end the process with SIGBUS at the first touch, as would device memory.
        cdef stat_t status
        if self.home == ON_DEVICE:
            raise StorageError(f"these bytes are on {self.block.device}, where no CPU reads them; copy them by .cpu()")
        if self.file_end and (fstat(self.fd, &status) != 0 or status.st_size < self.file_end):
            raise StorageError(
                f"{self.origin} was truncated while mapped: it has {status.st_size} bytes, the map needs {self.file_end}"
            )
        return 0


cdef Memory borrow(source, bint exclusive, Py_ssize_t *offset):
    """`Memory.borrow`; `offset` is set to where the first element lies."""
    cdef Memory self = Memory()
    cdef Py_ssize_t low = 0, high, reach
    cdef int i
    try:
        PyObject_GetBuffer(source, &self.source, PyBUF_STRIDES | PyBUF_WRITABLE)
        self.writable = True
    except (BufferError, ValueError):
        PyObject_GetBuffer(source, &self.source, PyBUF_STRIDES)
        self.writable = not self.source.readonly
    self.home = BORROWED
    self.resizable = exclusive
    high = self.source.itemsize
    for i in range(self.source.ndim):
        reach = (self.source.shape[i] - 1) * self.source.strides[i]
        if self.source.shape[i] == 0:
            low = high = 0
            break
        if reach < 0:
            low += reach
        else:
            high += reach
    self.ptr = <char *>self.source.buf + low
    self.nbytes = high - low
    offset[0] = -low
    return self


def write_back(int fd, long offset, long nbytes):
    """Let the system begin to write these bytes of a file to the disk, so that a sync at the end finds less to do."""
    with nogil:
        qk_write_back(fd, offset, nbytes)


cdef Py_ssize_t check_nbytes(size) except -1:
    size = size.__index__()
    if size < 0:
        raise StorageError(f"wanted a size >= 0 in bytes, got {size}")
    if size > PY_SSIZE_T_MAX - 4096:
        raise OutOfMemory(f"cannot hold {size} bytes: more than this machine can address")
    return size


cdef class StorageBase:
    """The part of ByteStorage that hands out raw pointers: a Memory that can be exchanged, and its export count."""

    cdef Memory memory
    cdef Py_ssize_t exports
    cdef qk_hazards *hazards  # tasks of streams that use these bytes; NULL until the first

    def __cinit__(self, Memory memory not None):
        self.memory = memory

    def __dealloc__(self):
        free_hazards(self.hazards)

    cdef char *pin(self) except NULL:
        """The address of the bytes, which stay there until unpin()."""
        with cython.critical_section(self):
            self.memory.check()
            self.exports += 1
            return self.memory.ptr

    cdef void unpin(self) noexcept:
        with cython.critical_section(self):
            self.exports -= 1

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        cdef char *ptr
        settle_export(self.hazards, True)
        ptr = self.pin()
        if flags & PyBUF_WRITABLE and not self.memory.writable:
            self.unpin()
            raise BufferError("these bytes are read-only")
        buffer.buf = ptr
        buffer.obj = self
        buffer.len = self.memory.nbytes
        buffer.itemsize = 1
        buffer.readonly = not self.memory.writable
        buffer.format = QK_BYTE if flags & PyBUF_FORMAT else NULL
        buffer.ndim = 1
        buffer.shape = &self.memory.nbytes if flags & PyBUF_ND else NULL
        buffer.strides = &buffer.itemsize if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        buffer.suboffsets = NULL
        buffer.internal = NULL

    def __releasebuffer__(self, Py_buffer *buffer):
        self.unpin()

    def __len__(self):
        return self.memory.nbytes

    cdef int check_free(self, what) except -1:
        settle(self.hazards, True)
        if self.exports:
            raise StorageBusy(
                f"{what}: {self.exports} export(s) of these bytes are alive (memoryview, ndarray or DLPack); "
                "delete them, or work on a clone()"
            )
        return 0

    def _array_asked(self):
        """NumPy turned to __array__ after a buffer was refused: raise the reason where that was an interrupt."""
        raise_swallowed(self.hazards)

    def _check_free(self, what):
        """Raise StorageBusy, naming the verb `what`, while an export is alive."""
        self.check_free(what)

    def _move(self, Memory target not None, Memory source not None, what):
        """Copy what fits into `target`, which is fresh, zero the rest, and live there from now on.

        Returns False, and does nothing, when the bytes no longer live in `source`: another thread was faster. An
        OSError means that `target` could not take them, and nothing was moved.
        The copy runs with the GIL held: a thread that wrote to the old place meanwhile would lose its write.
        """
        cdef Py_ssize_t common
        with cython.critical_section(self):
            if self.memory is not source:
                return False
            self.check_free(what)
            self.memory.check()
            common = min(self.memory.nbytes, target.nbytes)
            target.fill_from(self.memory.ptr, common)
            # A fresh map is zero already; touching it again would cost as much as the copy.
            if target.home == ON_HEAP:
                memset(target.ptr + common, 0, target.nbytes - common)
            self.memory = target
            return True

    def _exchange(self, Memory target not None, Memory source not None, what):
        """Live in `target` from now on, which has what `source` had; False when another thread was faster."""
        with cython.critical_section(self):
            if self.memory is not source:
                return False
            self.check_free(what)
            self.memory = target
            return True

    @property
    def _memory(self):
        return self.memory

    @property
    def _exports(self):
        return self.exports

    cdef unsigned char *pin_byte(self, Py_ssize_t index) except NULL:
        settle(self.hazards, True)
        cdef unsigned char *ptr = <unsigned char *>self.pin()
        cdef Py_ssize_t at = index + self.memory.nbytes if index < 0 else index
        if not 0 <= at < self.memory.nbytes:
            self.unpin()
            raise IndexError(f"index {index} is out of range for a storage of {self.memory.nbytes} bytes")
        return ptr + at

    def _get(self, Py_ssize_t index):
        cdef int value = self.pin_byte(index)[0]
        self.unpin()
        return value

    def _set(self, Py_ssize_t index, unsigned char value):
        if not self.memory.writable:
            raise StorageError("these bytes are read-only")
        self.pin_byte(index)[0] = value
        self.unpin()

    def data_ptr(self):
        """Address of the first byte; it holds until the bytes move, so read it again after resize_ or share_memory_."""
        settle(self.hazards, True)
        return <size_t>self.memory.ptr
