"""Shared memory without a name: nothing that could leak, nothing to unlink.

The bytes live in an unnamed file of the kernel's (a memfd on Linux), and live as long as somebody maps it or holds a
descriptor of it. When processes die, also by SIGKILL, the kernel drops both. On Linux the file is sealed against a
change of size, so that no peer can cut it off under a map. Elsewhere it is an unlinked temporary file.
"""

from __future__ import annotations

import contextlib
import os

from quantkit._kernels._core import Memory
from quantkit.errors import OutOfMemory
from quantkit.storage.limits import check_memory, explain, reserve

try:
    from fcntl import F_ADD_SEALS, F_GET_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, fcntl

    _SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL
except ImportError:
    _SEALS = 0


def _create() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("quantkit", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def is_sealed(fd: int) -> bool:
    """Whether nobody can change the size of the file."""
    with contextlib.suppress(OSError):
        return bool(_SEALS) and fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK != 0
    return False


def allocate(nbytes: int, *, reserved: bool = True) -> Memory:
    """Return `nbytes` zero bytes of shared memory.

    They are all had now when `reserved`; else the caller writes them all through the file, which gets them.

    Raises
    ------
    OutOfMemory
        When a limit leaves too little; names it.
    StorageError
        When the process has no file descriptor left.
    """
    check_memory(nbytes)
    what = f"{nbytes} bytes of shared memory"
    try:
        fd = _create()
    except OSError as error:
        raise explain(error, f"cannot create {what}") from error
    try:
        if reserved:
            reserve(fd, 0, nbytes, "shared memory")
        else:
            os.ftruncate(fd, nbytes)
        if hasattr(os, "memfd_create"):
            fcntl(fd, F_ADD_SEALS, _SEALS)
    except OutOfMemory:
        os.close(fd)
        raise
    except OSError as error:
        os.close(fd)
        raise explain(error, f"cannot create {what}") from error
    try:
        return Memory.map(fd, 0, nbytes, True, True, "shared memory", not is_sealed(fd))
    except OSError as error:
        raise explain(error, f"cannot map {what}") from error
