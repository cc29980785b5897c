"""How much memory and how many descriptors are left, and errors that say which limit was met."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from quantkit.errors import OutOfMemory, QuantkitError, StorageError

_CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # missing, or "max"
        return None


def _reclaimable(path: Path, key: str) -> int:
    try:
        return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(f"{key} "))
    except (OSError, StopIteration):
        return 0


def _cgroup_left() -> list[tuple[int, str]]:
    """Return what every memory cgroup above this process has left, for version 2 and version 1."""
    try:
        lines = (_PROC / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    left = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots, names = [_CGROUPS, _CGROUPS / "unified"], ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            roots = [_CGROUPS / "memory"]
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        for root in roots:
            here = root / path.lstrip("/")
            for folder in [here, *here.parents]:
                if root not in {folder, *folder.parents}:
                    break
                limit, used = _number(folder / names[0]), _number(folder / names[1])
                if limit is not None and used is not None:
                    left.append((limit - used + _reclaimable(folder / "memory.stat", names[2]), str(folder / names[0])))
    return left


def _system_left() -> list[tuple[int, str]]:
    try:
        lines = (_PROC / "meminfo").read_text().splitlines()
    except OSError:
        return []
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
    if "MemAvailable" not in sizes:
        return []
    return [(sizes["MemAvailable"] + sizes.get("SwapFree", 0), "the memory of this machine")]


def check_memory(nbytes: int) -> None:
    """Raise `OutOfMemory`, naming the limit, when `nbytes` more of shared memory cannot be had.

    The kernel does not fail such an allocation: it kills a process of the group.
    """
    left, limit = min(_cgroup_left() + _system_left(), default=(sys.maxsize, ""))
    if nbytes > left:
        raise OutOfMemory(f"cannot allocate {nbytes} bytes of shared memory: {limit} leaves {max(left, 0)}")


def reserve(fd: int, start: int, end: int, what: str) -> None:
    """Give the file its blocks up to `end` now: a full disk or memory is an error here, not a SIGBUS later."""
    if start >= end:
        return
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, start, end - start)
        else:
            for at in range(start, end, 1 << 20):
                os.pwrite(fd, bytes(min(1 << 20, end - at)), at)
    except OSError as error:
        raise explain(error, f"cannot allocate {end - start} bytes for {what}") from error


def explain(error: OSError, what: str) -> QuantkitError:
    """Return the error of quantkit for a failed system call: `OutOfMemory`, or `StorageError` naming the limit."""
    if error.errno in {errno.ENOMEM, errno.ENOSPC, errno.EFBIG, errno.EDQUOT}:
        return OutOfMemory(f"{what}: {os.strerror(error.errno)}")
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return StorageError(
            f"{what}: no file descriptor left; each shared storage and each mapped file holds one, and this process "
            f"may have {limit} (RLIMIT_NOFILE, ulimit -n)"
        )
    return StorageError(f"{what}: {error.strerror or error}")
