"""Errors that say nothing of the file that was read: the machine lacks something, or failed for now."""

from __future__ import annotations

import errno
import os
import resource

from quantkit.errors import MachineError, OutOfMemory

_FAULTS = {errno.EIO, errno.ESTALE}


def raise_shortage(name: str, error: BaseException) -> None:
    """Raise what an error means where it, or one that it came from, is no fault of the file `name`.

    Raises
    ------
    OutOfMemory
        For a lack of memory.
    MachineError
        For too many open files, naming the limit, and for a disk or network that failed.
    """
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, MachineError | OutOfMemory):
            raise found
        code = found.errno if isinstance(found, OSError) else None
        if isinstance(found, MemoryError) or code == errno.ENOMEM:
            raise OutOfMemory(f"{name}: cannot be read: out of memory") from error
        if code == errno.EMFILE:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            raise MachineError(
                f"{name}: cannot be read: too many open files: this process may have {limit} (ulimit -n); raise that, "
                "or use fewer streams"
            ) from error
        if code == errno.ENFILE:
            raise MachineError(
                f"{name}: cannot be read: too many open files on this machine (its limit is fs.file-max)"
            ) from error
        if code in _FAULTS:
            raise MachineError(f"{name}: cannot be read: {os.strerror(code or 0)} (of the disk or network)") from error
        found = found.__cause__ or found.__context__
