"""Everything that quantkit asks of the CUDA driver, in raw pointers and handles; the only file that talks to it.

Calls go to the C interface of the driver as cuda-bindings, a part of cuda-core, passes it on. A device is entered by
its primary context, which it shares with torch and CuPy; the context that a thread had before is given back.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from typing import TYPE_CHECKING, Any

from quantkit.errors import CudaError, CudaUnavailable, OutOfMemory

if TYPE_CHECKING:
    from types import TracebackType

INSTALL = "pip install 'quantkit[cuda]' (CUDA 13), or 'quantkit[cuda12]'"
PATIENCE = 30.0  # seconds that a driver may take to answer for the first time
OLDEST = (6, 1)  # the first architecture with dot products of bytes
LEGACY_STREAM = 1  # the stream that torch and CuPy use unless they are told otherwise
_NOT_READY = 600

_forked = False
_probed: tuple[Any, str | None] | None = None
_lock = threading.Lock()


def _after_fork() -> None:
    global _forked, _lock
    _forked, _lock = _forked or (_probed is not None and _probed[0] is not None), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _load() -> Any:
    from cuda.bindings import driver

    return driver


def _name(api: Any, code: Any) -> str:
    try:
        return str(api.cuGetErrorName(code)[1].decode())
    except Exception:
        return f"error {int(code)}"


def _probe() -> tuple[Any, str | None]:
    try:
        api = _load()
    except ImportError as error:
        return None, f"cuda-core is not installed ({error}); {INSTALL}"
    except Exception as error:
        return None, f"cuda-core cannot be loaded: {error}"
    try:
        (code, *_) = api.cuInit(0)
        if int(code):
            return None, f"the NVIDIA driver does not start: {_name(api, code)}"
        code, count = api.cuDeviceGetCount()
    except Exception as error:
        return None, f"no NVIDIA driver: {error}"
    if int(code) or not count:
        return None, "the NVIDIA driver sees no GPU"
    return api, None


def _answer() -> tuple[Any, str | None]:
    """Ask once, on a thread, because a broken driver may never answer."""
    global _probed  # noqa: PLW0603
    if _forked:
        return None, "this process was forked after CUDA was in use; start processes with spawn or forkserver"
    if _probed is None:
        with _lock:
            if _probed is None:
                found: list[tuple[Any, str | None]] = []
                worker = threading.Thread(target=lambda: found.append(_probe()), name="quantkit-cuda", daemon=True)
                worker.start()
                worker.join(PATIENCE)
                _probed = found[0] if found else (None, f"the NVIDIA driver did not answer for {PATIENCE:.0f} s")
    return _probed


def why_not() -> str | None:
    """Return why CUDA cannot be used here, or None where it can. Never raises, and waits for at most 30 s."""
    return _answer()[1]


def interface() -> Any:
    """Return the functions of the driver; `CudaUnavailable` says why there are none."""
    api, reason = _answer()
    if api is None:
        raise CudaUnavailable(f"CUDA is not usable here: {reason}")
    return api


def call(name: str, *arguments: Any) -> Any:
    """Call a function of the driver and return what it found.

    Raises
    ------
    OutOfMemory, CudaError
        Naming the function and the driver's error.
    """
    code, *found = getattr(interface(), name)(*arguments)
    _check(name, code)
    return found[0] if len(found) == 1 else tuple(found)


def _check(name: str, code: Any) -> None:
    if int(code):
        text = f"{name}: {_name(interface(), code)}"
        if int(code) == 2:
            raise OutOfMemory(f"the GPU has no memory left for this ({text})")
        raise CudaError(f"the CUDA driver refused a call: {text}")


def device_count() -> int:
    """Return how many GPUs there are; 0 where CUDA cannot be used."""
    return int(call("cuDeviceGetCount")) if why_not() is None else 0


class Device:
    """One GPU. ``with device:`` makes its context the thread's; all methods want that."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._handle = call("cuDeviceGet", index)
        attribute = interface().CUdevice_attribute
        prefix = "CU_DEVICE_ATTRIBUTE_"
        names = (
            "COMPUTE_CAPABILITY_MAJOR",
            "COMPUTE_CAPABILITY_MINOR",
            "MULTIPROCESSOR_COUNT",
            "MEMORY_POOLS_SUPPORTED",
        )
        major, minor, self.processors, self._has_pools = (
            int(call("cuDeviceGetAttribute", getattr(attribute, prefix + name), self._handle)) for name in names
        )
        self.capability = (major, minor)
        self.name: str = call("cuDeviceGetName", 256, self._handle).split(b"\0")[0].decode()
        if self.capability < OLDEST:
            raise CudaUnavailable(
                f"cuda:{index} ({self.name}) has compute capability {major}.{minor}; wanted 6.1 or newer"
            )
        self._context = call("cuDevicePrimaryCtxRetain", self._handle)
        if self._has_pools:  # keep what was freed for the next allocation, as every framework does
            threshold = interface().CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
            value = interface().cuuint64_t(1 << 62)
            call("cuMemPoolSetAttribute", call("cuDeviceGetDefaultMemPool", self._handle), threshold, value)

    def __enter__(self) -> Device:
        call("cuCtxPushCurrent", self._context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call("cuCtxPopCurrent")

    @property
    def arch(self) -> str:
        """Return what NVRTC calls this architecture."""
        return f"sm_{self.capability[0]}{self.capability[1]}"

    def allocate(self, nbytes: int, stream: int) -> int:
        """Return the address of new memory, which work on `stream` may use from now on."""
        if self._has_pools:
            return int(call("cuMemAllocAsync", nbytes, stream))
        return int(call("cuMemAlloc", nbytes))

    def free(self, address: int, stream: int) -> None:
        """Give memory of `allocate` back when the work on `stream` is done."""
        if self._has_pools:
            call("cuMemFreeAsync", address, stream)
        else:
            call("cuMemFree", address)

    def memory(self) -> tuple[int, int]:
        """Return the bytes that are free, and all bytes of the GPU."""
        free, total = call("cuMemGetInfo")
        return int(free), int(total)


def copy(target: int, source: int, nbytes: int, stream: int) -> None:
    """Copy bytes between any two places, GPUs or pinned memory, in the order of `stream`."""
    call("cuMemcpyAsync", target, source, nbytes, stream)


def fill(target: int, byte: int, nbytes: int, stream: int) -> None:
    """Set bytes, in the order of `stream`."""
    call("cuMemsetD8Async", target, byte, nbytes, stream)


def pinned(nbytes: int) -> int:
    """Return the address of host memory that GPUs read and write by themselves."""
    return int(call("cuMemHostAlloc", nbytes, 1))  # 1: pinned for every context


def new_stream() -> int:
    """Return a stream that does not wait for the legacy stream."""
    return int(call("cuStreamCreate", 1))  # 1: non-blocking


def free_stream(stream: int) -> None:
    """Give a stream back; its work is finished first."""
    call("cuStreamDestroy", stream)


def synchronize(stream: int) -> None:
    """Wait for all work of a stream."""
    call("cuStreamSynchronize", stream)


def is_idle(stream: int) -> bool:
    """Return whether a stream has no work left."""
    return _ready("cuStreamQuery", stream)


def _ready(name: str, handle: int) -> bool:
    (code, *_) = getattr(interface(), name)(handle)
    if int(code) == _NOT_READY:
        return False
    _check(name, code)
    return True


def new_event(timing: bool = False) -> int:
    """Return an event, with or without a clock."""
    return int(call("cuEventCreate", 0 if timing else 2))


def free_event(event: int) -> None:
    """Give an event back."""
    call("cuEventDestroy", event)


def record(event: int, stream: int) -> None:
    """Let an event stand for the end of the work of a stream."""
    call("cuEventRecord", event, stream)


def wait_event(stream: int, event: int) -> None:
    """Let the work of a stream from now on wait for an event."""
    call("cuStreamWaitEvent", stream, event, 0)


def event_is_over(event: int) -> bool:
    """Return whether the work before an event is done."""
    return _ready("cuEventQuery", event)


def synchronize_event(event: int) -> None:
    """Wait for an event."""
    call("cuEventSynchronize", event)


def elapsed(begin: int, end: int) -> float:
    """Return the milliseconds between two events with clocks."""
    return float(call("cuEventElapsedTime", begin, end))


def load(image: bytes) -> int:
    """Load a cubin into the current context."""
    return int(call("cuModuleLoadData", image))


def function(module: int, name: str, shared: int) -> int:
    """Return a kernel of a module that may use `shared` bytes of shared memory."""
    found = int(call("cuModuleGetFunction", module, name.encode()))
    if shared > 48 << 10:
        attribute = interface().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call("cuFuncSetAttribute", found, attribute, shared)
    return found


def launch(
    kernel: int, grid: tuple[int, int, int], block: int, shared: int, stream: int, argument: ctypes.Structure
) -> None:
    """Launch a kernel that takes one struct by value; the driver copies it."""
    pointer = ctypes.c_void_p(ctypes.addressof(argument))
    call("cuLaunchKernel", kernel, *grid, block, 1, 1, shared, stream, ctypes.addressof(pointer), 0)


def allocate_shareable(nbytes: int) -> int:
    """Return the address of memory that other processes may open; whole pages of 2 MiB, so that it lies alone."""
    page = 2 << 20
    return int(call("cuMemAlloc", -(-max(nbytes, 1) // page) * page))


def free_shareable(address: int) -> None:
    """Give memory of `allocate_shareable` back."""
    call("cuMemFree", address)


def export_memory(address: int) -> bytes:
    """Return the handle by which other processes open memory of `allocate_shareable`."""
    made = call("cuIpcGetMemHandle", address)  # kept until it is read
    return ctypes.string_at(made.getPtr(), 64)


def open_memory(handle: bytes) -> int:
    """Open the memory behind a handle of another process."""
    made = interface().CUipcMemHandle()
    ctypes.memmove(made.getPtr(), handle, 64)
    return int(call("cuIpcOpenMemHandle", made, 1))  # 1: peers are let in when they are needed


def close_memory(address: int) -> None:
    """Close memory of `open_memory`."""
    call("cuIpcCloseMemHandle", address)


def device_of(address: int) -> int:
    """Return the number of the GPU that has an address."""
    attribute = interface().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(call("cuPointerGetAttribute", attribute, address))


def uuid(device: Device) -> bytes:
    """Return what names a GPU in every process."""
    made = call("cuDeviceGetUuid", device._handle)  # kept until it is read
    return ctypes.string_at(made.getPtr(), 16)


@functools.cache
def device(index: int) -> Device:
    """Return a GPU by its number.

    Raises
    ------
    CudaUnavailable
        When CUDA cannot be used, or there are fewer GPUs.
    """
    count = int(call("cuDeviceGetCount"))
    if index >= count:
        raise CudaUnavailable(f"there is no cuda:{index}: this machine has {count} GPU(s), cuda:0 to cuda:{count - 1}")
    return Device(index)
