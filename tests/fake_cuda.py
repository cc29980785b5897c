"""A CUDA driver without a GPU: the functions of cuda.bindings.driver that quantkit calls, over host memory.

It is as asynchronous as the real one may be: work on a stream is done when somebody waits for it, or at random; a wait
for an event that was not recorded yet is no wait, an address that was freed is an error, and so is a pointer that the
call does not take. Kernels run as host C++ (tests/on_cpu.py).
"""

import ctypes
import gc
import itertools
import mmap
import os
import random
import tempfile
import threading
from collections import deque

import on_cpu

from quantkit.cuda import calls

SUCCESS, INVALID, NO_MEMORY, NOT_READY, INVALID_HANDLE = 0, 1, 2, 600, 400
NAMES = {
    0: "SUCCESS",
    1: "INVALID_VALUE",
    2: "OUT_OF_MEMORY",
    400: "INVALID_HANDLE",
    600: "NOT_READY",
    201: "INVALID_CONTEXT",
}


class _Names:
    """Enumerations, by name."""

    def __getattr__(self, name):
        return name


class _Opaque:
    """A struct of the driver that only has an address."""

    def __init__(self, data):
        self.buffer = ctypes.create_string_buffer(data, 64)

    def getPtr(self):
        return ctypes.addressof(self.buffer)


class Driver:
    """The machine: its GPUs, their memory, and what is on its way."""

    def __init__(self, devices=2, memory=256 << 20, seed=0, tensor_cores=True):
        self.count, self.free = devices, [memory] * devices
        self.dice = random.Random(seed)
        self.tensor_cores = tensor_cores
        self.numbers = itertools.count(1000)
        self.threads = threading.local()
        self.memory = {}  # address -> (buffer, device, bytes)
        self.pinned = {}
        self.files, self.opened = {}, set()
        self.streams = {}  # handle -> queue of work
        self.events = {}  # handle -> [stream, position] of its last record
        self.done = {}  # stream -> how much of it is done
        self.queued = {}  # stream -> how much was ever queued
        self.functions = {}
        self.launched = []
        self.CUdevice_attribute = self.CUmemPool_attribute = self.CUfunction_attribute = self.CUpointer_attribute = (
            _Names()
        )
        self.cuuint64_t = int
        self.clock = 0.0

    # ---- what is on its way ----

    def _stream(self, handle):
        if handle == 1:  # the legacy stream of the current context
            handle = ("legacy", self._device())
        elif handle not in self.streams:
            return None
        self.streams.setdefault(handle, deque())
        self.done.setdefault(handle, 0)
        self.queued.setdefault(handle, 0)
        return handle

    def _push(self, handle, work):
        handle = self._stream(handle)
        if handle is None:
            return (INVALID_HANDLE,)
        self.streams[handle].append(work)
        self.queued[handle] += 1
        while self.dice.random() < 0.2 and any(self.streams.values()):
            self._step(self.dice.choice([h for h, q in self.streams.items() if q]))
        return (SUCCESS,)

    def _step(self, handle):
        work = self.streams[handle][0]
        if isinstance(work, tuple):  # a wait for a place in another stream
            other, place = work
            while self.done[other] < place:
                self._step(other)
        else:
            work()
        self.streams[handle].popleft()
        self.done[handle] += 1

    def _finish(self, handle, place=None):
        place = self.queued[handle] if place is None else place
        while self.done[handle] < place:
            self._step(handle)

    @property
    def contexts(self):
        """Of this thread."""
        return self.threads.__dict__.setdefault("contexts", [])

    def _device(self):
        assert self.contexts, "a call without a context"
        return self.contexts[-1]

    def _holds(self, address, nbytes):
        for table in (self.memory, self.pinned):
            for base, (_, _, size) in table.items():
                if base <= address and address + nbytes <= base + size:
                    return True
        return False

    # ---- devices and contexts ----

    def cuInit(self, flags):
        return (SUCCESS,)

    def cuGetErrorName(self, code):
        return SUCCESS, f"CUDA_ERROR_{NAMES.get(int(code), code)}".encode()

    def cuDeviceGetCount(self):
        return SUCCESS, self.count

    def cuDeviceGet(self, index):
        return SUCCESS, index

    def cuDeviceGetName(self, length, device):
        return SUCCESS, f"Stand-in {device}".encode() + b"\0" * 8

    def cuDeviceGetUuid(self, device):
        return SUCCESS, _Opaque(b"%16d" % device)

    def cuDeviceGetAttribute(self, name, device):
        known = {"COMPUTE_CAPABILITY_MAJOR": 8, "COMPUTE_CAPABILITY_MINOR": 0, "MULTIPROCESSOR_COUNT": 2}
        return SUCCESS, known.get(name.removeprefix("CU_DEVICE_ATTRIBUTE_"), 1)

    def cuDevicePrimaryCtxRetain(self, device):
        return SUCCESS, device

    def cuDeviceGetDefaultMemPool(self, device):
        return SUCCESS, device

    def cuMemPoolSetAttribute(self, pool, name, value):
        return (SUCCESS,)

    def cuCtxPushCurrent(self, context):
        self.contexts.append(context)
        return (SUCCESS,)

    def cuCtxPopCurrent(self):
        return SUCCESS, self.contexts.pop()

    # ---- memory ----

    def _allocate(self, nbytes, buffer):
        device = self._device()
        if nbytes > self.free[device]:
            return NO_MEMORY, None
        address = -(-ctypes.addressof(ctypes.c_ubyte.from_buffer(buffer)) // 256) * 256
        self.memory[address] = buffer, device, nbytes
        self.free[device] -= nbytes
        return SUCCESS, address

    def cuMemAllocAsync(self, nbytes, stream):
        if self._stream(stream) is None:
            return INVALID_HANDLE, None
        if nbytes > self.free[self._device()]:
            return NO_MEMORY, None
        code, address = self._allocate(nbytes, bytearray(b"\xcd") * (nbytes + 256))
        return code, address

    def cuMemAlloc(self, nbytes):  # in a file, so that other processes may open it
        fd, path = tempfile.mkstemp(dir=os.environ.get("QUANTKIT_TEST_IPC"))
        with os.fdopen(fd, "w+b") as file:
            file.truncate(nbytes)
            code, address = self._allocate(nbytes, mmap.mmap(file.fileno(), nbytes))
        self.files[address] = path
        return code, address

    def cuMemFree(self, address):
        for handle in list(self.streams):
            self._finish(handle)
        return self._drop(address)

    def _drop(self, address):
        if address not in self.memory:
            return (INVALID,)
        _, device, nbytes = self.memory.pop(address)
        if (path := self.files.pop(address, None)) is not None:
            os.unlink(path)
        self.free[device] += nbytes
        return (SUCCESS,)

    def cuMemFreeAsync(self, address, stream):
        if address not in self.memory:
            return (INVALID,)
        return self._push(stream, lambda: self._drop(address))

    def cuMemGetInfo(self):
        device = self._device()
        used = sum(n for _, d, n in self.memory.values() if d == device)
        return SUCCESS, self.free[device], self.free[device] + used

    def cuMemHostAlloc(self, nbytes, flags):
        buffer = (ctypes.c_ubyte * nbytes)()
        self.pinned[ctypes.addressof(buffer)] = buffer, None, nbytes
        return SUCCESS, ctypes.addressof(buffer)

    def cuMemcpyAsync(self, target, source, nbytes, stream):
        ours = [self._holds(p, nbytes) for p in (target, source)]
        if not any(ours):
            return (INVALID,)
        if not ours[1]:  # pageable memory is read at once
            source = ctypes.create_string_buffer(ctypes.string_at(source, nbytes), nbytes)

        def work():
            assert not ours[0] or self._holds(target, nbytes), "a copy to memory that was freed"
            assert not ours[1] or self._holds(source, nbytes), "a copy from memory that was freed"
            ctypes.memmove(target, source, nbytes)

        return self._push(stream, work)

    def cuMemsetD8Async(self, target, byte, nbytes, stream):
        if not self._holds(target, nbytes):
            return (INVALID,)
        return self._push(stream, lambda: ctypes.memset(target, byte, nbytes))

    def cuPointerGetAttribute(self, name, address):
        for base, (_, device, size) in self.memory.items():
            if base <= address < base + size:
                return SUCCESS, device
        return INVALID, None

    # ---- streams and events ----

    def cuStreamCreate(self, flags):
        handle = next(self.numbers)
        self.streams[handle] = deque()
        self._stream(handle)
        return SUCCESS, handle

    def cuStreamDestroy(self, handle):
        self._finish(handle)
        del self.streams[handle]
        return (SUCCESS,)

    def cuStreamSynchronize(self, handle):
        if (handle := self._stream(handle)) is None:
            return (INVALID_HANDLE,)
        self._finish(handle)
        return (SUCCESS,)

    def cuStreamQuery(self, handle):
        handle = self._stream(handle)
        if self.streams[handle]:
            self._step(handle)  # time passes
            return (NOT_READY,)
        return (SUCCESS,)

    def cuEventCreate(self, flags):
        handle = next(self.numbers)
        self.events[handle] = None
        return SUCCESS, handle

    def cuEventDestroy(self, handle):
        del self.events[handle]
        return (SUCCESS,)

    def cuEventRecord(self, event, stream):
        if event not in self.events or (stream := self._stream(stream)) is None:
            return (INVALID_HANDLE,)
        self.clock += 1.0
        self.events[event] = stream, self.queued[stream], self.clock
        return (SUCCESS,)

    def cuStreamWaitEvent(self, stream, event, flags):
        if event not in self.events:
            return (INVALID_HANDLE,)
        recorded = self.events[event]
        return (SUCCESS,) if recorded is None else self._push(stream, recorded[:2])

    def cuEventQuery(self, event):
        recorded = self.events[event]
        if recorded is None or self.done[recorded[0]] >= recorded[1]:
            return (SUCCESS,)
        self._step(recorded[0])  # time passes
        return (NOT_READY,)

    def cuEventSynchronize(self, event):
        if event not in self.events:
            return (INVALID_HANDLE,)
        if self.events[event] is not None:
            self._finish(*self.events[event][:2])
        return (SUCCESS,)

    def cuEventElapsedTime(self, begin, end):
        return SUCCESS, self.events[end][2] - self.events[begin][2]

    # ---- kernels ----

    def cuModuleLoadData(self, image):
        assert isinstance(image, bytes)
        return SUCCESS, next(self.numbers)

    def cuModuleGetFunction(self, module, name):
        handle = next(self.numbers)
        self.functions[handle] = [name.decode(), 48 << 10]
        return SUCCESS, handle

    def cuFuncSetAttribute(self, function, attribute, value):
        assert attribute == "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
        self.functions[function][1] = value
        return (SUCCESS,)

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
        name, most = self.functions[function]
        if shared > most or (by, bz) != (1, 1) or not 0 < bx <= 1024:
            return (INVALID,)
        # One parameter, of which the driver makes a copy.
        address = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))[0]
        struct = calls.ARGUMENTS[name]
        argument = struct.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(struct)))
        self.launched.append(name)
        return self._push(stream, lambda: on_cpu.launch(name, (gx, gy, gz), bx, argument, shared, self.tensor_cores))

    # ---- other processes ----

    def CUipcMemHandle(self):
        return _Opaque(b"")

    def cuIpcGetMemHandle(self, address):
        if address not in self.files:
            return INVALID, None
        return SUCCESS, _Opaque(self.files[address].encode())

    def cuIpcOpenMemHandle(self, handle, flags):
        path = ctypes.string_at(handle.getPtr(), 64).rstrip(b"\0").decode()
        if path in self.files.values():  # the process that made it
            return INVALID, None
        try:
            with open(path, "r+b") as file:
                view = mmap.mmap(file.fileno(), 0)
        except OSError:
            return INVALID, None
        code, address = self._allocate(len(view), view)
        self.opened.add(address)
        return code, address

    def cuIpcCloseMemHandle(self, address):
        if address not in self.opened:
            return (INVALID,)
        self.opened.remove(address)
        return self.cuMemFree(address)


def _forget():
    """Drop what was made for one driver before there is another."""
    from quantkit.cuda import driver, memory, module, queue
    from quantkit.ops import cuda_operands
    from quantkit.streams import cuda as streams

    for cached in (
        streams.default,
        cuda_operands._constant,
        module.kernels,
        memory._stage,
        queue.default_queue,
        driver.device,
    ):
        cached.cache_clear()


def install(monkeypatch, **options):
    """Put a stand-in in the place of the driver for one test; returns it."""
    from quantkit.cuda import driver, module, queue

    made = Driver(**options)
    _forget()
    monkeypatch.setattr(driver, "_probed", (made, None))
    monkeypatch.setattr(module, "cubin", lambda arch: b"cubin of " + arch.encode())
    monkeypatch.setattr(queue.Queue, "several", False)
    return made


def remove():
    """Let go of what belongs to a stand-in, before the real driver is back."""
    _forget()
    gc.collect()  # what still belongs to it must not meet another driver


def in_this_process(**options):
    """Put a stand-in in the place of the driver for as long as this process lives."""
    import pytest

    patch = pytest.MonkeyPatch()
    return install(patch, **options)
