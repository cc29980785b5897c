"""The members of a zip file, mapped where they are stored and streamed where they are deflated.

Nothing is ever extracted, so a member's name is a key and never a path.
"""

from __future__ import annotations

import mmap
import struct
import zipfile
import zlib
from typing import IO, TYPE_CHECKING

from quantkit.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOCAL = struct.Struct("<4s5H3I2H")  # signature, ..., length of the name, length of the extra field
# Deflate makes at most 1032 bytes of one; a member that claims more lies.
_MOST_PER_BYTE = 1032
_CORRUPT = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError)


class ZipMembers:
    """A zip file of which every member was checked to lie inside it, apart from the others.

    Raises
    ------
    FormatError
        When it is no zip file, is cut short, or has members that overlap, share a name, are encrypted or packed in
        another way than stored and deflated.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
            with open(path, "rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except _CORRUPT as e:
            raise FormatError(f"{path}: is no zip file, or is cut short: {e}") from None
        self._view = memoryview(self._map)
        self._infos: dict[str, zipfile.ZipInfo] = {}
        self._spans: dict[str, tuple[int, int]] = {}
        for info in self._zip.infolist():
            if info.filename in self._infos:
                self._bad(info.filename, "stands there twice")
            self._infos[info.filename] = info
            self._spans[info.filename] = self._span(info)
        end, before = 0, ""
        for name, (start, stop) in sorted(self._spans.items(), key=lambda item: item[1]):
            if start < end:
                self._bad(name, f"its bytes overlap those of {before!r}")
            end, before = stop, name

    def _bad(self, member: str, what: str) -> None:
        raise FormatError(f"{self.path}: member {member!r}: {what}")

    def _span(self, info: zipfile.ZipInfo) -> tuple[int, int]:
        name = info.filename
        if info.flag_bits & 0x1:
            self._bad(name, "is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            self._bad(name, f"is packed by method {info.compress_type}; wanted stored or deflated")
        if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
            self._bad(name, f"is stored, but claims {info.compress_size} bytes for {info.file_size}")
        if info.file_size > info.compress_size * _MOST_PER_BYTE:
            self._bad(name, f"claims {info.file_size} bytes out of {info.compress_size}, which no deflate gives")
        head = self._map[info.header_offset : info.header_offset + _LOCAL.size]
        if info.header_offset < 0 or len(head) != _LOCAL.size or head[:4] != b"PK\3\4":
            self._bad(name, "has no header where the directory says")
        *_, name_length, extra_length = _LOCAL.unpack(head)
        start = info.header_offset + _LOCAL.size + name_length + extra_length
        if start + info.compress_size > len(self._map):
            self._bad(name, "reaches beyond the end of the file (cut short?)")
        return start, start + info.compress_size

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def size(self, name: str) -> int:
        """Bytes of a member, unpacked."""
        return self._infos[name].file_size

    def is_stored(self, name: str) -> bool:
        """Whether a member lies in the file as it is."""
        return self._infos[name].compress_type == zipfile.ZIP_STORED

    def crc(self, name: str) -> int:
        """CRC-32 that the directory gives for a member."""
        return self._infos[name].CRC

    def mapped(self, name: str) -> memoryview:
        """Return the bytes of a stored member, without reading them."""
        start, stop = self._spans[name]
        return self._view[start:stop]

    def open(self, name: str) -> IO[bytes]:
        """Open a member for reading from its start; several may be open on several threads."""
        try:
            return self._zip.open(name)
        except _CORRUPT as e:
            raise FormatError(f"{self.path}: member {name!r}: cannot be read: {e}") from None

    def read_into(self, name: str, stream: IO[bytes], buffer: memoryview) -> None:
        """Fill `buffer` from an open member; `FormatError` when it ends early or is damaged."""
        filled = 0
        try:
            while filled < len(buffer):
                count = stream.readinto(buffer[filled:])  # type: ignore[attr-defined]
                if not count:
                    raise EOFError("ends early")
                filled += count
        except _CORRUPT as e:
            raise FormatError(f"{self.path}: member {name!r}: cannot be read: {e}") from None

    def read(self, name: str, limit: int) -> bytes:
        """Return all bytes of a member that has at most `limit`."""
        if self.size(name) > limit:
            self._bad(name, f"has {self.size(name)} bytes; at most {limit} were expected")
        try:
            return self._zip.read(name)
        except _CORRUPT as e:
            raise FormatError(f"{self.path}: member {name!r}: cannot be read: {e}") from None
