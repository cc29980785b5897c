"""Weights in .npz files: stored members mapped, deflated ones streamed."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from quantkit.errors import FormatError, InvalidDType
from quantkit.files import DTYPES, dtype_name
from quantkit.weights.source import Read, Source, SourceTensor, allocate, check_names, open_array
from quantkit.weights.zip_members import ZipMembers

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_HEAD = 1 << 16  # bytes of an .npy header that can matter
_STEP = 1 << 20


def is_npz(path: str) -> bool:
    """Whether a zip file holds .npy members and no pickle of torch."""
    if path.lower().endswith(".npz"):
        return True
    try:
        with zipfile.ZipFile(path) as file:
            names = file.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False
    return any(n.endswith(".npy") for n in names) and not any(n.endswith("data.pkl") for n in names)


def open_npz(path: str) -> Source:
    """Open a file that ``numpy.savez`` or ``savez_compressed`` wrote."""
    members = ZipMembers(path)
    source = Source(path, [], files=[path])
    for name in members:
        if name.endswith(".npy"):
            source.tensors.append(_tensor(members, name))
        elif not name.endswith("/"):
            source.notes.append(f"{path}: left out {name!r}, which is no .npy member")
    check_names(path, [t.name for t in source.tensors])
    return source


def _tensor(members: ZipMembers, member: str) -> SourceTensor:
    name = member.removesuffix(".npy")
    with members.open(member) as stream:
        head = io.BytesIO(_head(members, member, stream))
    try:
        version = np.lib.format.read_magic(cast(Any, head))
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(cast(Any, head))
        else:
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(cast(Any, head))
    except Exception as e:  # the parsers behind it have many kinds of their own
        raise FormatError(f"{members.path}: member {member!r} is no .npy data: {_line(e)}") from None
    if any(n < 0 for n in shape):
        raise FormatError(f"{members.path}: tensor {name!r} has a negative size: {shape}")
    start = head.tell()
    try:
        label = dtype_name(name, dtype)
    except InvalidDType:
        return SourceTensor(name, "Python objects" if dtype.hasobject else str(dtype), shape, _none)
    size = start + math.prod(shape) * dtype.itemsize
    if members.size(member) != size:
        raise FormatError(
            f"{members.path}: tensor {name!r} of shape {shape} and dtype {dtype} makes {size} bytes, the member has "
            f"{members.size(member)}"
        )
    if members.is_stored(member):
        crc_checked = False

        def load() -> NDArray[Any]:
            nonlocal crc_checked
            data = members.mapped(member)
            if not crc_checked:
                _check_crc(members, member, data)
                crc_checked = True
            flat = np.frombuffer(data[start:], dtype)
            return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)

        return SourceTensor(name, label, shape, open_array(load))
    if fortran and len(shape) > 1:

        def unpack() -> NDArray[Any]:
            flat = allocate(math.prod(shape), dtype, f"{members.path}: tensor {name!r}, deflated in Fortran order,")
            with members.open(member) as stream:
                _skip(members, member, stream, start)
                members.read_into(member, stream, flat.view(np.uint8).data)
            return flat.reshape(shape[::-1]).T

        return SourceTensor(name, label, shape, open_array(unpack))
    return SourceTensor(name, label, shape, lambda: _stream(members, member, start, dtype, DTYPES[label]))


def _none() -> Read:
    raise AssertionError  # never opened: such a tensor is refused or dropped before


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _head(members: ZipMembers, member: str, stream: IO[bytes]) -> bytes:
    head = bytearray(min(_MAX_HEAD, members.size(member)))
    members.read_into(member, stream, memoryview(head))
    return bytes(head)


def _skip(members: ZipMembers, member: str, stream: IO[bytes], count: int) -> None:
    members.read_into(member, stream, memoryview(bytearray(count)))


def _check_crc(members: ZipMembers, member: str, data: memoryview) -> None:
    crc = 0
    for i in range(0, len(data), _STEP):
        crc = zlib.crc32(data[i : i + _STEP], crc)
    if crc != members.crc(member):
        raise FormatError(f"{members.path}: member {member!r} is damaged: its CRC-32 is wrong")


def _stream(members: ZipMembers, member: str, start: int, dtype: np.dtype[Any], little: np.dtype[Any]) -> Read:
    stream = members.open(member)
    _skip(members, member, stream, start)

    def read(first: int, stop: int) -> NDArray[Any]:
        part = np.empty(stop - first, dtype)
        members.read_into(member, stream, part.view(np.uint8).data)
        return part.astype(little, copy=False)

    return read
