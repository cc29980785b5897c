# DLPack of bytes on a device, in both directions; NumPy does it for bytes of the CPU.
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport uint16_t, uint64_t
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyCapsule_SetName

cdef extern from *:
    """
    #include <stdint.h>
    typedef struct qk_dl_tensor {
        void *data;
        int32_t device_type, device_id, ndim;
        uint8_t code, bits;
        uint16_t lanes;
        int64_t *shape, *strides;
        uint64_t byte_offset;
    } qk_dl_tensor;
    typedef struct qk_dl_managed {
        qk_dl_tensor t;
        void *context;
        void (*deleter)(struct qk_dl_managed *);
    } qk_dl_managed;
    """
    ctypedef struct qk_dl_tensor:
        void *data
        int32_t device_type, device_id, ndim
        uint8_t code, bits
        uint16_t lanes
        int64_t *shape
        int64_t *strides
        uint64_t byte_offset
    ctypedef struct qk_dl_managed:
        qk_dl_tensor t
        void *context
        void (*deleter)(qk_dl_managed *) noexcept

cdef extern from "Python.h":
    int Py_IsInitialized() nogil

cdef int CUDA_DEVICE = 2
cdef const char *FRESH = "dltensor"
cdef const char *USED = "used_dltensor"


cdef void end_export(qk_dl_managed *managed) noexcept nogil:
    # Called by whoever took the capsule, on any thread.
    if Py_IsInitialized():
        with gil:
            (<StorageBase>managed.context).unpin()
            Py_DECREF(<object>managed.context)
    PyMem_RawFree(managed)


cdef void end_capsule(object capsule) noexcept:
    cdef qk_dl_managed *managed
    if PyCapsule_IsValid(capsule, FRESH):  # nobody took it
        managed = <qk_dl_managed *>PyCapsule_GetPointer(capsule, FRESH)
        managed.deleter(managed)


def device_capsule(ArrayBase array not None, int device, int code):
    """The DLPack capsule of an array on CUDA device `device`, of DLPack type `code`; pins its bytes while it is in use."""
    cdef int i
    cdef qk_dl_managed *managed
    if array._bytes.memory.home != ON_DEVICE:
        raise StorageError("wanted an array on a device")
    managed = <qk_dl_managed *>PyMem_RawMalloc(sizeof(qk_dl_managed) + 2 * array.ndim * sizeof(int64_t))
    if managed == NULL:
        raise MemoryError
    managed.t.data = array._bytes.memory.ptr + array._offset
    managed.t.device_type, managed.t.device_id = CUDA_DEVICE, device
    managed.t.ndim = array.ndim
    managed.t.code, managed.t.bits, managed.t.lanes = code, 8 * array._type.itemsize, 1
    managed.t.shape = <int64_t *>(managed + 1)
    managed.t.strides = managed.t.shape + array.ndim
    managed.t.byte_offset = 0
    for i in range(array.ndim):
        managed.t.shape[i] = array.dims[i]
        managed.t.strides[i] = array.dims[array.ndim + i] // <Py_ssize_t>array._type.itemsize
    managed.context = <void *>array._bytes
    managed.deleter = <void (*)(qk_dl_managed *) noexcept>end_export
    capsule = PyCapsule_New(managed, FRESH, end_capsule)
    with cython.critical_section(array._bytes):
        array._bytes.exports += 1
    Py_INCREF(array._bytes)
    return capsule


@cython.final
cdef class Capsule:
    """Owns what a DLPack capsule carried, and lets go of it in the end."""

    cdef qk_dl_managed *managed

    def __dealloc__(self):
        if self.managed != NULL and self.managed.deleter != NULL:
            self.managed.deleter(self.managed)


def open_capsule(capsule):
    """Take what a capsule carries: ``(owner, address, shape, strides, code, bits, device)``.

    Strides count elements. `StorageError` for what is not on a CUDA device.
    """
    cdef Capsule owner
    cdef qk_dl_managed *managed
    cdef int i
    cdef int64_t step = 1
    if not PyCapsule_IsValid(capsule, FRESH):
        raise StorageError("wanted a DLPack capsule that nobody has used yet")
    managed = <qk_dl_managed *>PyCapsule_GetPointer(capsule, FRESH)
    if managed.t.device_type not in (CUDA_DEVICE, 13) or managed.t.lanes != 1:  # 13: managed memory of CUDA
        raise StorageError(f"wanted elements on a CUDA device, got DLPack device type {managed.t.device_type}")
    shape = [managed.t.shape[i] for i in range(managed.t.ndim)]
    if managed.t.strides != NULL:
        strides = [managed.t.strides[i] for i in range(managed.t.ndim)]
    else:
        strides = [0] * len(shape)
        for i in range(len(shape) - 1, -1, -1):
            strides[i] = step
            step *= managed.t.shape[i]
    PyCapsule_SetName(capsule, USED)
    owner = Capsule()
    owner.managed = managed
    address = <uintptr_t>managed.t.data + <uintptr_t>managed.t.byte_offset
    return owner, address, tuple(shape), tuple(strides), managed.t.code, managed.t.bits, managed.t.device_id
