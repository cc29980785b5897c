"""Bytes of a file, mapped and not read."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from quantkit._kernels._core import Memory
from quantkit.errors import InvalidArgument, QuantkitError, StorageError
from quantkit.storage.dtypes import as_shape
from quantkit.storage.limits import explain, reserve

if TYPE_CHECKING:
    from typing import Any


def map_file(path: str | os.PathLike[str], shared: bool, size: int | None, offset: int, writable: bool) -> Memory:
    """Map `size` bytes of a file from `offset` (`ByteStorage.from_file` has the rules)."""
    name = f"file {os.fspath(path)!r}"
    (offset, *rest) = as_shape((offset,) if size is None else (offset, size))
    grow = shared and writable and size is not None
    # O_NONBLOCK: opening a named pipe must not wait for its other end.
    flags = (os.O_RDWR if shared and writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK
    created = False
    try:
        fd = os.open(path, flags)
    except FileNotFoundError as error:
        if not grow:
            raise StorageError(f"{name} does not exist") from error
        fd, created = _create(path, name, flags), True
    except OSError as error:
        raise explain(error, f"cannot open {name} for {'writing' if shared and writable else 'reading'}") from error
    try:
        length = _fit(fd, name, offset, rest[0] if rest else None, grow)
        owned = os.dup(fd)  # the map closes its own, also when it fails
    except (QuantkitError, OSError) as error:
        if created:
            with contextlib.suppress(OSError):
                os.unlink(path)
        raise error if isinstance(error, QuantkitError) else explain(error, f"cannot map {name}") from error
    finally:
        os.close(fd)
    try:
        return Memory.map(owned, offset, length, shared, writable, name, True)
    except OSError as error:
        raise explain(error, f"cannot map {name}") from error


def _create(path: str | os.PathLike[str], name: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except OSError as error:
        raise explain(error, f"cannot create {name}") from error


def _fit(fd: int, name: str, offset: int, size: int | None, grow: bool) -> int:
    """Return the number of bytes to map, after growing the file where that is asked for."""
    status: Any = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise StorageError(f"{name} is not a regular file")
    if size is None:
        if offset > status.st_size:
            raise InvalidArgument(f"{name} has {status.st_size} bytes, wanted offset {offset}")
        return int(status.st_size - offset)
    if offset + size > status.st_size:
        if not grow:
            raise StorageError(f"{name} has {status.st_size} bytes, wanted {size} at offset {offset}")
        try:
            reserve(fd, status.st_size, offset + size, name)
        except QuantkitError:
            os.ftruncate(fd, status.st_size)
            raise
    return size
