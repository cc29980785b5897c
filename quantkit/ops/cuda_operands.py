"""What the verbs do with their arguments before a kernel on a GPU sees them."""

from __future__ import annotations

import functools
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from quantkit.cuda.queue import Work, current_queue
from quantkit.errors import InvalidArgument, InvalidDType, ShapeMismatch
from quantkit.storage import Array, ByteStorage
from quantkit.storage.cuda import CudaArray, CudaStorage, empty_array, moved
from quantkit.storage.cuda_layout import from_other, strided_copy
from quantkit.storage.dtypes import element_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_CODES = ("uint8", "int8")


class Packed:
    """What was packed on a GPU for the verbs of one kind."""

    device: str


class Flat(NamedTuple):
    """An array whose elements lie side by side in some order of its dimensions."""

    array: Any
    order: tuple[int, ...]  # dimensions, outermost first


def operands(verb: str, packed: Mapping[str, type[Packed]] = MappingProxyType({}), /, **given: Any) -> Any:
    """Return operands as Arrays, all on one GPU; None stays None, and so does what is `packed` as that operand may be.

    Raises
    ------
    InvalidDType
        For an operand that was packed for other verbs.
    InvalidArgument
        Where they are on different devices; says how to bring them together.
    """
    found: dict[str, Any] = {}
    for name, x in given.items():
        codes = getattr(x, "_codes", x)  # of a QTensor
        if isinstance(codes, Packed) and not isinstance(codes, packed.get(name, ())):
            raise InvalidDType(f"{verb}: {name} must be uint8 or int8, got {codes!r}")
        if isinstance(codes, CudaArray | Packed) or codes is None:
            found[name] = codes
        elif isinstance(codes, CudaStorage):
            found[name] = codes._flat()
        elif isinstance(codes, np.ndarray | Array | ByteStorage) or not hasattr(codes, "__cuda_array_interface__"):
            found[name] = "cpu"
        else:
            found[name] = from_other(codes)
    devices = {name: x if isinstance(x, str) else x.device for name, x in found.items() if x is not None}
    if len(set(devices.values())) > 1:
        gpu = next(d for d in devices.values() if d != "cpu")
        first = next(name for name, d in devices.items() if d != gpu)
        listed = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise InvalidArgument(f"{verb}: wanted operands on one device, got {listed}; use {first}.to({gpu!r}) or .cpu()")
    return tuple(found.values())


def codes_of(verb: str, name: str, x: CudaArray) -> CudaArray:
    """Refuse what does not hold 8-bit codes."""
    if x._type.name not in _CODES:
        raise InvalidDType(f"{verb}: {name} must be uint8 or int8, got {x._type.name}")
    return x


def is_signed(x: CudaArray) -> bool:
    """Return whether codes are int8."""
    return x._type.name == "int8"


@functools.lru_cache(maxsize=512)
def _constant(index: int, dtype: str, data: bytes) -> CudaArray:
    made: CudaArray = moved(Array._over(np.frombuffer(data, dtype), element_type(dtype), exclusive=False), index)
    return made


def constant(index: int, values: NDArray[Any]) -> CudaArray:
    """Return parameters on a GPU; those of the last calls are there already."""
    return _constant(index, values.dtype.name, values.tobytes())


def address(x: CudaArray | None) -> int | None:
    """Return the address of the first element, or None."""
    return None if x is None else x._block.address + x._offset


def new(like: CudaArray, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a new Array on the GPU of another."""
    return empty_array(like._block.index, Array, shape, element_type(dtype))


def flat(x: CudaArray) -> Flat:
    """Return `x`, or a copy in C order where its elements do not lie side by side."""
    order = tuple(sorted(range(x.ndim), key=lambda d: (-x.strides[d], d)))
    step = x.itemsize
    for d in reversed(order):
        if x.shape[d] != 1:
            if x.strides[d] != step:
                return Flat(x.clone(), tuple(range(x.ndim)))
            step *= x.shape[d]
    return Flat(x, order)


def new_like(x: Flat, dtype: Any) -> Any:
    """Return a new Array in the order of another."""
    made = new(x.array, tuple([x.array.shape[d] for d in x.order]), dtype)
    back = sorted(range(len(x.order)), key=x.order.__getitem__)
    return made.permute(*back) if x.order != tuple(range(len(x.order))) else made


def result(verb: str, x: Flat, dtype: str, out: Any) -> tuple[Any, Any]:
    """Return where a kernel writes elements in the order of `x`, and `out` where that is elsewhere."""
    if out is None:
        return new_like(x, dtype), None
    check_out(verb, out, x.array.shape, dtype)
    strides = tuple([s // x.array.itemsize * out.itemsize for s in x.array.strides])
    if out.strides == strides and (out._bytes is not x.array._bytes or out.itemsize == x.array.itemsize):
        return out, None
    return new_like(x, dtype), out


def check_out(verb: str, out: Any, shape: tuple[int, ...], dtype: str) -> None:
    """Refuse an `out` of another shape or dtype."""
    if out._type.name != dtype:
        raise InvalidDType(f"{verb}: wanted out of {dtype}, got {out._type.name}")
    if out.shape != shape:
        raise ShapeMismatch(f"{verb}: wanted out of {dtype} {shape}, got {out._type.name} {out.shape}")
    out._check_writable()


def deliver(made: Any, out: Any) -> Any:
    """Return `made`, or `out` with its elements."""
    if out is None:
        return made
    strided_copy(made, out)
    return out


def work(reads: list[Any], writes: list[Any]) -> Work:
    """Begin work in the current queue, ordered by the blocks of Arrays."""
    blocks = [[a._block for a in arrays if a is not None] for arrays in (reads, writes)]
    return Work(current_queue(blocks[1][0].index), *blocks)
