"""How bytes on a GPU get from one process to another: a CUDA IPC handle, and a token that says who uses them.

The token is one byte of shared memory that travels with the handle, in the ways of transport.py: a message that is on
its way keeps a map of it, which keeps the bytes. Whoever opens the bytes holds a lock on the token, which the kernel
lets go of when that process ends, in whatever way. The owner gives bytes back when nobody holds a lock any more.
The lock is one of flock, on a description of the token that nothing else uses: a record lock (lockf) would be gone as
soon as the process closes any descriptor of the token, as it does after it has sent the bytes on.

CUDA does not survive a fork; a child made by fork is refused by the driver's door (`CudaUnavailable`).
"""

from __future__ import annotations

import fcntl
import os
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NamedTuple

from quantkit._kernels._core import Memory
from quantkit.cuda import driver
from quantkit.cuda import memory as gpu
from quantkit.cuda.memory import Block
from quantkit.errors import StorageError
from quantkit.storage import transport
from quantkit.storage.array import Array
from quantkit.storage.bytestorage import ByteStorage
from quantkit.storage.cuda import CudaArray, CudaQUInt8Storage, CudaStorage
from quantkit.storage.dtypes import as_shape, element_type
from quantkit.storage.limits import explain

if TYPE_CHECKING:
    from quantkit.storage.quint8 import QUInt8Storage


class CudaHandle(NamedTuple):
    """Which bytes of which GPU, and the token that keeps them."""

    token: transport.Handle
    gpu: bytes
    memory: bytes
    nbytes: int


_known: weakref.WeakValueDictionary[bytes, CudaStorage] = weakref.WeakValueDictionary()
_in_use: list[Block] = []  # bytes without an owner that other processes still have open


class _Lock:
    """A lock on a token. A child made by fork has no part in it.

    Raises
    ------
    OSError
        BlockingIOError where `how` does not wait.
    """

    def __init__(self, token: ByteStorage, how: int) -> None:
        self._fd = os.open(f"/proc/self/fd/{token._memory.fd}", os.O_RDWR)
        _locks.add(self)
        try:
            fcntl.flock(self._fd, how)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        _locks.discard(self)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_locks: set[_Lock] = set()


def _after_fork() -> None:
    while _locks:  # the descriptions are shared: closed here, they stay locked for the parent, and for it alone
        _locks.pop().close()


os.register_at_fork(after_in_child=_after_fork)


def _is_open_elsewhere(token: ByteStorage) -> bool:
    try:
        _Lock(token, fcntl.LOCK_EX | fcntl.LOCK_NB).close()
    except OSError:  # or no descriptor is left to find out: a later call will
        return True
    return False


def _release(block: Block) -> None:
    """Give shared bytes back, or keep them for as long as another process has them open."""
    _in_use.append(block)
    for waiting in list(_in_use):
        if not _is_open_elsewhere(waiting.token[0]):
            _in_use.remove(waiting)
            waiting.wait()
            with driver.device(waiting.index):
                driver.free_shareable(waiting.address)


def share(storage: CudaStorage) -> None:
    """Move a storage into memory that other processes may open (`share_memory_`)."""
    while not (memory := storage._memory).shared:
        storage._check_free("share_memory_")
        index, nbytes, source = storage._block.index, len(storage), storage._block
        with driver.device(index):
            address = driver.allocate_shareable(nbytes)
            handle = driver.export_memory(address)
        block = Block(index, address, nbytes, None, shared=True)
        token = ByteStorage.full(1, 0).share_memory_()
        block.token, block._release = (token, handle), _release
        if nbytes:
            gpu.copy(block, 0, source, 0, nbytes)
            block.wait()
        storage._exchange(Memory.on_device(block), memory, "share_memory_")
    _known.setdefault(storage._block.token[1], storage)


def handle_of(storage: CudaStorage) -> CudaHandle:
    """Return a handle that holds nothing (`ByteStorage.handle`)."""
    if not storage.is_shared():
        raise StorageError("handle: these bytes are not shared; call share_memory_() first")
    token, memory = storage._block.token
    storage._block.wait()
    return CudaHandle(token.handle(), driver.uuid(driver.device(storage._block.index)), memory, len(storage))


def attach(handle: Any) -> CudaStorage:
    """Return the storage behind a handle."""
    try:
        token, gpu_name, memory, nbytes = handle
    except (TypeError, ValueError):
        raise StorageError(f"wanted a handle of shared bytes on a GPU, got {handle!r}") from None
    return _known.get(memory) or _open(ByteStorage.from_handle(token), gpu_name, memory, nbytes)


def _open(token: ByteStorage, gpu_name: bytes, memory: bytes, nbytes: int) -> CudaStorage:
    if (found := _known.get(memory)) is not None:
        return found
    for kept in _in_use:
        if kept.token[1] == memory:  # made here, let go of here, and still open elsewhere: it comes back
            _in_use.remove(kept)
            block = Block(kept.index, kept.address, nbytes, _release, shared=True)
            block.token = kept.token
            return _known.setdefault(memory, CudaStorage._of(Memory.on_device(block)))
    index = next((i for i in range(driver.device_count()) if driver.uuid(driver.device(i)) == gpu_name), None)
    if index is None:
        driver.interface()  # says why, where there is no CUDA at all
        raise StorageError("the GPU of these shared bytes is not visible to this process (CUDA_VISIBLE_DEVICES)")
    try:
        lock = _Lock(token, fcntl.LOCK_SH)
    except OSError as error:
        raise explain(error, "cannot lock shared bytes on a GPU") from error
    try:
        with driver.device(index):
            address = driver.open_memory(memory)
    except BaseException:
        lock.close()
        raise

    def release(block: Block) -> None:
        block.wait()
        with driver.device(index):
            driver.close_memory(address)
        lock.close()

    block = Block(index, address, nbytes, release, shared=True)
    block.token = (token, memory)
    made = CudaStorage._of(Memory.on_device(block))
    return _known.setdefault(memory, made)


def array_handle_of(array: CudaArray) -> transport.ArrayHandle:
    """Return a handle that holds nothing (`Array.handle`)."""
    dtype = "quint8" if isinstance(array, CudaQUInt8Storage) else array._type.name
    return transport.ArrayHandle(handle_of(array._bytes), dtype, array.shape, array._offset, array.strides)  # type: ignore[arg-type]


def _reduce(storage: CudaStorage) -> tuple[Any, ...]:
    if not storage.is_shared():
        return storage.__reduce_ex__(4)
    block = storage._block
    token, memory = block.token
    block.wait()
    transport.register(token)
    # A map for this message alone: it keeps the bytes, which do not know of it, until the message is received.
    in_flight = Memory.map(os.dup(token._memory.fd), 0, 1, True, True, "shared memory", False)
    in_flight.keep(block)
    token.handle()
    handle = transport._server.offer(in_flight, hold=True)
    return _receive, (tuple(handle), driver.uuid(driver.device(block.index)), memory, len(storage))


def _receive(handle: Any, gpu_name: bytes, memory: bytes, nbytes: int) -> CudaStorage:
    handle = transport.Handle(*handle)
    made = _open(transport.attach(handle), gpu_name, memory, nbytes)
    transport.attach(handle, transport.TAKE)  # the lock is held: the message may let go
    return made


def _reduce_array(array: CudaArray) -> tuple[Any, ...]:
    if not array.is_shared():
        return array.__reduce_ex__(4)
    cls: type[Array | QUInt8Storage] = type(array)
    return _receive_array, (cls, array._type.name, array._bytes, array.shape, array._offset, array.strides)


def _receive_array(cls: Any, dtype: str, storage: ByteStorage, shape: Any, offset: int, strides: Any) -> Array:
    made: Array = cls._make(storage, element_type(dtype), as_shape(shape), offset, tuple(strides))
    return made


ForkingPickler.register(CudaStorage, _reduce)
ForkingPickler.register(CudaArray, _reduce_array)
ForkingPickler.register(CudaQUInt8Storage, _reduce_array)
