"""Layouts of elements on a GPU: views, copies between layouts, and how they are shown to torch and CuPy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit._kernels._core import Memory, open_capsule
from quantkit.cuda import driver
from quantkit.cuda import memory as gpu
from quantkit.cuda.calls import Copy
from quantkit.cuda.queue import Queue, Work, current_queue
from quantkit.errors import InvalidArgument, InvalidDType, ShapeMismatch, StorageError
from quantkit.storage.dtypes import element_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from quantkit.cuda.memory import Block
    from quantkit.storage.cuda import CudaArray

TYPE_CODES = {
    "int8": 0,
    "int32": 0,
    "int64": 0,
    "uint8": 1,
    "float16": 2,
    "float32": 2,
    "float64": 2,
    "bfloat16": 4,
    "bool": 6,
}
_TYPES = {(0, 8): "int8", (0, 32): "int32", (0, 64): "int64", (1, 8): "uint8", (2, 16): "float16", (2, 32): "float32"}
_TYPES |= {(2, 64): "float64", (4, 16): "bfloat16", (6, 8): "bool"}


class _Elements:
    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], address: int, dtype: np.dtype[Any]) -> None:
        self.__array_interface__ = {
            "version": 3, "shape": shape, "strides": strides, "typestr": dtype.str, "data": (address, True),
        }  # fmt: skip


def ghost(array: CudaArray) -> NDArray[Any]:
    """Return an ndarray over the addresses of an Array on a GPU, for making views; its elements must not be read."""
    address = array._block.address + array._offset
    return np.asarray(_Elements(array.shape, array.strides, address, array._type.wire))


def basic_key(key: Any) -> bool:
    """Return whether a key makes a view: integers, slices, `...` and None."""
    return all(
        (isinstance(k, slice | int | np.integer) and not isinstance(k, bool)) or k is None or k is Ellipsis
        for k in (key if isinstance(key, tuple) else (key,))
    )


def merged(shape: tuple[int, ...], *strides: tuple[int, ...]) -> tuple[list[int], list[list[int]]]:
    """Return a layout with as few dimensions as walk the same elements in the same order."""
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for d, n in enumerate(shape):
        if n == 1:
            continue
        if sizes and all(s[-1] == of[d] * n for s, of in zip(steps, strides, strict=True)):
            sizes[-1] *= n
            for s, of in zip(steps, strides, strict=True):
                s[-1] = of[d]
        else:
            sizes.append(n)
            for s, of in zip(steps, strides, strict=True):
                s.append(of[d])
    return sizes, steps


def strided_copy(source: CudaArray, target: CudaArray, flip: int = 0) -> None:
    """Copy elements, which broadcast, between layouts that do not overlap on one GPU; `flip` is xored to bytes."""
    shape, itemsize = target.shape, target._type.itemsize
    lead = len(shape) - source.ndim
    if lead < 0 or any(n not in (1, shape[lead + d]) for d, n in enumerate(source.shape)):
        raise ShapeMismatch(f"elements of shape {source.shape} do not fit shape {shape}")
    if not target.size:
        return
    steps = (0,) * lead + tuple([0 if n == 1 else s for n, s in zip(source.shape, source.strides, strict=True)])
    sizes, (xs, ys) = merged(shape, steps, target.strides)
    if not flip and (not sizes or (len(sizes) == 1 and xs[0] == ys[0] == itemsize)):
        gpu.copy(target._block, target._offset, source._block, source._offset, target.nbytes)
        return
    if len(sizes) > 8:
        raise ShapeMismatch(f"wanted at most 8 dimensions that do not merge, got shape {shape}")
    call = Copy(count=target.size, itemsize=itemsize, ndim=len(sizes), flip=flip)
    call.x, call.y = source._block.address + source._offset, target._block.address + target._offset
    for d, n in enumerate(sizes):
        call.shape[d], call.x_strides[d], call.y_strides[d] = n, xs[d], ys[d]
    with Work(current_queue(target._block.index), [source._block], [target._block]) as work:
        work.launch("copy", (-(-math.prod(shape) // 256), 1, 1), 256, call)


# ---- other libraries ---------------------------------------------------------------------------------------------


def interface(array: CudaArray) -> dict[str, Any]:
    """Return the ``__cuda_array_interface__`` of an Array, version 3: its user waits for the stream it names."""
    if array._type.name == "bfloat16":
        raise AttributeError("__cuda_array_interface__ has no bfloat16; use DLPack")
    block, queue = array._block, current_queue(array._block.index)
    with Work(queue, writes=[block]):
        pass  # the stream waits for every use of the bytes so far
    return {
        "version": 3, "shape": array.shape, "typestr": array._type.wire.str, "descr": [("", array._type.wire.str)],
        "strides": None if array._contiguous else array.strides, "stream": queue.handle,
        "data": (block.address + array._offset, array.readonly),
    }  # fmt: skip


def ready_for(block: Block, stream: Any) -> None:
    """Let a stream that a consumer of DLPack names wait for the bytes: None is the legacy one, -1 wants nothing."""
    if stream == -1:
        return
    handle = driver.LEGACY_STREAM if stream is None else int(stream)
    if handle == 0:
        raise InvalidArgument("__dlpack__: stream 0 could be two streams; give 1 or 2")
    with Work(Queue(block.index, handle), writes=[block]):
        pass


def _array_on(
    owner: Any,
    index: int,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: Any,
    writable: bool = True,
) -> Any:
    from quantkit.storage.array import Array
    from quantkit.storage.cuda import CudaStorage

    etype = element_type(dtype)
    low = sum(min((n - 1) * s, 0) for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
    high = (
        sum(max((n - 1) * s, 0) for n, s in zip(shape, strides, strict=True)) + etype.itemsize if 0 not in shape else 0
    )
    block = gpu.borrowed(index, (address + low) or 1, high - low, owner, writable=writable)
    return Array._make(CudaStorage._of(Memory.on_device(block)), etype, tuple(shape), -low, tuple(strides))


def from_other(source: Any) -> Any:
    """Return an Array that shares the memory of a torch, CuPy or other array on a GPU, in the order of its stream.

    Raises
    ------
    StorageError, InvalidDType
        When it cannot be shared; for a dtype that an Array cannot hold.
    """
    if hasattr(source, "__dlpack__"):
        _, index = source.__dlpack_device__()
        try:
            capsule = source.__dlpack__(stream=current_queue(index).handle)
        except (BufferError, RuntimeError, TypeError) as error:
            raise StorageError(f"cannot share the memory of a {type(source).__name__} by DLPack: {error}") from error
        owner, address, shape, steps, code, bits, index = open_capsule(capsule)
        if (name := _TYPES.get((code, bits))) is None:
            raise InvalidDType(f"an Array cannot hold DLPack elements of type {code} with {bits} bits")
        etype = element_type(name)
        return _array_on(owner, index, address, shape, tuple([s * etype.itemsize for s in steps]), name)
    told = source.__cuda_array_interface__
    address, readonly = told["data"]
    index = device_of(address)
    dtype, shape = np.dtype(told["typestr"]), tuple(told["shape"])
    strides = told.get("strides") or tuple([math.prod(shape[d + 1 :]) * dtype.itemsize for d in range(len(shape))])
    if (stream := told.get("stream")) is not None:
        theirs = Queue(index, int(stream), source)
        made = _array_on(source, index, address, shape, strides, dtype, not readonly)
        with Work(theirs, writes=[made._block]):
            pass
        return made
    return _array_on(source, index, address, shape, strides, dtype, not readonly)


def device_of(address: int) -> int:
    """Return the GPU that has an address."""
    return driver.device_of(address) if address else 0
