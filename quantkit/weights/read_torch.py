"""Weights in files of ``torch.save``, the zip form and the one before it; torch is not needed."""

from __future__ import annotations

import io
import mmap
import os
from typing import IO, TYPE_CHECKING, Any, Literal, cast

import numpy as np

from quantkit.errors import FormatError
from quantkit.files import DTYPES
from quantkit.weights.pickle_machine import UNTYPED, Machine, Storage, Tensor
from quantkit.weights.source import Source, SourceTensor, allocate, check_names, open_array
from quantkit.weights.zip_members import ZipMembers

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

MAX_PICKLE = 64 << 20  # bytes; a pickle of 300,000 tensors has fewer
MAX_DEPTH = 64  # of containers in containers
MAX_VALUES = 4_000_000  # containers may stand in several places; this bounds how often they are walked
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


def open_torch_zip(path: str) -> Source:
    """Open a file that ``torch.save`` wrote since version 1.6.

    Raises
    ------
    FormatError
        When it is none, when its pickle asks for anything but tensors and plain containers, or when a tensor
        reaches outside its storage.
    """
    members = ZipMembers(path)
    pickles = [name for name in members if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise FormatError(f"{path}: wanted a file of torch.save with one data.pkl, found {len(pickles)}")
    prefix = pickles[0].removesuffix("data.pkl")
    if f"{prefix}constants.pkl" in members:
        raise FormatError(f"{path}: is a TorchScript archive; save the weights by torch.save(module.state_dict(), ...)")
    order: Literal["<", ">"] = "<"
    if f"{prefix}byteorder" in members:
        text = members.read(f"{prefix}byteorder", 16)
        if text not in (b"little", b"big"):
            raise FormatError(f"{path}: byte order {text!r} is neither little nor big")
        order = "<" if text == b"little" else ">"
    value = Machine(path).run(io.BytesIO(members.read(pickles[0], MAX_PICKLE)))

    def size_of(storage: Storage) -> int:
        name = f"{prefix}data/{storage.key}"
        if name not in members:
            raise FormatError(f"{path}: storage {storage.key!r} is missing")
        return members.size(name)

    def bytes_of(storage: Storage) -> Any:
        name = f"{prefix}data/{storage.key}"
        if members.is_stored(name):
            return members.mapped(name)
        data = allocate(members.size(name), np.dtype(np.uint8), f"{path}: deflated storage {storage.key!r}")
        with members.open(name) as stream:
            members.read_into(name, stream, data.data)
        return data

    return _source(path, value, order, size_of, bytes_of)


def open_torch_legacy(path: str) -> Source:
    """Open a file that ``torch.save`` wrote before version 1.6: pickles, and the storages one after another."""
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    stream = cast(IO[bytes], mapped)
    machine = Machine(path).run
    if machine(stream) != _LEGACY_MAGIC or machine(stream) != 1001:
        raise FormatError(f"{path}: is a pickle, but none of torch.save")
    system = machine(stream)
    little = system.get("little_endian") if isinstance(system, dict) else None
    if not isinstance(little, bool):
        raise FormatError(f"{path}: does not tell its byte order")
    value = Machine(path).run(stream)
    keys = Machine(path).run(stream)
    if not isinstance(keys, list) or not all(isinstance(k, str) for k in keys) or len(set(keys)) < len(keys):
        raise FormatError(f"{path}: wanted the list of storages")
    counts = {s.key: s for s in _storages(path, value)}
    at, spans, total = mapped.tell(), dict[str, tuple[int, int]](), len(mapped)
    for key in keys:
        count = int.from_bytes(mapped[at : at + 8], "little" if little else "big")
        at += 8
        if key not in counts:
            raise FormatError(f"{path}: storage {key!r} belongs to no tensor, so its size is not known")
        nbytes = count * _itemsize(counts[key])
        if at + nbytes > total:
            raise FormatError(
                f"{path}: storage {key!r} is cut short: {nbytes} bytes wanted, {max(total - at, 0)} there"
            )
        spans[key] = (at, at + nbytes)
        at += nbytes
    view = memoryview(mapped)

    def size_of(storage: Storage) -> int:
        if storage.key not in spans:
            raise FormatError(f"{path}: storage {storage.key!r} is missing")
        start, stop = spans[storage.key]
        return stop - start

    def bytes_of(storage: Storage) -> Any:
        start, stop = spans[storage.key]
        return view[start:stop]

    return _source(path, value, "<" if little else ">", size_of, bytes_of)


def _itemsize(storage: Storage) -> int:
    return 1 if storage.dtype == UNTYPED else DTYPES[storage.dtype].itemsize


def _storages(path: str, value: Any) -> list[Storage]:
    return [tensor.storage for _, tensor in _flatten(path, value, [])]


def _flatten(path: str, value: Any, notes: list[str]) -> list[tuple[str, Tensor]]:
    """Return the tensors of nested containers, each named by its keys joined with dots."""
    found: list[tuple[str, Tensor]] = []
    others = walked = 0
    # Depth first, in order; `inside` are the containers around the present value.
    waiting: list[tuple[str, Any, tuple[int, ...]]] = [("", value, ())]
    while waiting:
        name, value, inside = waiting.pop()
        walked += 1
        if walked > MAX_VALUES:
            raise FormatError(f"{path}: holds more than {MAX_VALUES} values")
        if isinstance(value, Tensor):
            found.append((name or "tensor", value))
        elif isinstance(value, dict | list | tuple):
            if id(value) in inside:
                raise FormatError(f"{path}: the container {name!r} contains itself")
            if len(inside) >= MAX_DEPTH:
                raise FormatError(f"{path}: containers are nested more than {MAX_DEPTH} deep at {name[:80]!r}")
            items = value.items() if isinstance(value, dict) else enumerate(value)
            around = (*inside, id(value))
            children = [(f"{name}.{_key(k)}" if name else _key(k), v, around) for k, v in items]
            waiting.extend(reversed(children))
        else:
            others += 1
    if others:
        notes.append(f"{path}: left out {others} values that are no tensors")
    return found


def _key(key: Any) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)


def _source(
    path: str,
    value: Any,
    order: Literal["<", ">"],
    size_of: Callable[[Storage], int],
    bytes_of: Callable[[Storage], Any],
) -> Source:
    source = Source(path, [], files=[os.fspath(path)])
    tensors = _flatten(path, value, source.notes)
    check_names(path, [name for name, _ in tensors])
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in tensors:
        _check(path, name, tensor, size_of(tensor.storage))
        view = (tensor.storage.key, tensor.dtype, tensor.offset, tensor.shape, tensor.strides)
        if view in first:
            source.ties[name] = first[view]
            continue
        first[view] = name
        dtype = DTYPES[tensor.dtype].newbyteorder(order)
        source.tensors.append(SourceTensor(name, tensor.dtype, tensor.shape, _opener(tensor, dtype, bytes_of)))
    return source


def _opener(tensor: Tensor, dtype: np.dtype[Any], bytes_of: Callable[[Storage], Any]) -> Any:
    def load() -> NDArray[Any]:
        strides = [s * dtype.itemsize for s in tensor.strides]
        offset = tensor.offset * dtype.itemsize
        if 0 in tensor.shape:
            return np.empty(tensor.shape, dtype)
        return np.ndarray(tensor.shape, dtype, bytes_of(tensor.storage), offset, strides)

    return open_array(load)


def _check(path: str, name: str, tensor: Tensor, nbytes: int) -> None:
    itemsize = DTYPES[tensor.dtype].itemsize
    if tensor.storage.count * _itemsize(tensor.storage) > nbytes:
        raise FormatError(
            f"{path}: storage {tensor.storage.key!r} should have {tensor.storage.count * _itemsize(tensor.storage)} "
            f"bytes, and has {nbytes} (cut short?)"
        )
    if len(tensor.shape) > 32:
        raise FormatError(f"{path}: tensor {name!r} has {len(tensor.shape)} dimensions, more than 32")
    if 0 in tensor.shape:
        return
    last = tensor.offset + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))
    if (last + 1) * itemsize > nbytes:
        raise FormatError(
            f"{path}: tensor {name!r} of shape {tensor.shape} reaches to byte {(last + 1) * itemsize} of its storage, "
            f"which has {nbytes}"
        )
