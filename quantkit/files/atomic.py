"""Atomic writes: a temporary name in the target folder, synced, then renamed."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
from typing import TYPE_CHECKING, Any

from quantkit.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX, _SUFFIX = ".quantkit-", ".tmp"  # of temporary names
# What a file system answers that cannot sync a folder; the rename itself is as durable there as it gets.
_CANNOT_SYNC_FOLDER = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EBADF}


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _failed(path: str, error: OSError) -> OutputError:
    return OutputError(f"cannot write {path}: {_reason(error)}")


class OutputFile(io.FileIO):
    """The temporary file: `write` takes all it is given, and its errors name the final path.

    Attributes
    ----------
    temporary : str
        Where it lies until it is renamed, for whoever wants to check the file before that.
    """

    def __init__(self, descriptor: int, target: str, temporary: str) -> None:
        super().__init__(descriptor, "w+b")
        self._target = target
        self.temporary = temporary

    def write(self, data: Any, /) -> int:
        left = memoryview(data)
        size = left.nbytes
        left = left.cast("B") if size else memoryview(b"")
        try:
            while left:
                left = left[super().write(left) :]  # one system call takes at most 2 GiB
        except OSError as e:
            raise _failed(self._target, e) from e
        return size


def is_temporary(name: str) -> bool:
    """Whether a file's name is one that `atomic_write` gives while it writes: a killed run leaves such files behind."""
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def check_output(path: str | os.PathLike[str]) -> str:
    """Return the real path of `path` (symlinks followed) if a file can be written there.

    Cheap, so that long work can ask before it begins.

    Raises
    ------
    OutputError
        When the folder is missing, is not a folder or is not writable, or when `path` is a folder, device or pipe.
    """
    shown = os.fspath(path)
    try:
        real = os.path.realpath(shown)
        folder = os.path.dirname(real)
        if not os.path.basename(shown):
            raise OutputError(f"cannot write {shown!r}: wanted a file name")
        with contextlib.suppress(FileNotFoundError):
            mode = os.stat(real).st_mode
            if stat.S_ISDIR(mode):
                raise OutputError(f"cannot write {shown}: it is a folder")
            if not stat.S_ISREG(mode):
                raise OutputError(f"cannot write {shown}: it is not a regular file")
        if not os.path.isdir(folder):
            wrong = "is not a folder" if os.path.lexists(folder) else "does not exist"
            raise OutputError(f"cannot write {shown}: {folder} {wrong}")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OutputError(f"cannot write {shown}: the folder {folder} is not writable")
    except OutputError:
        raise
    except (OSError, ValueError) as e:  # ValueError: a NUL byte in the name
        raise OutputError(f"cannot write {shown!r}: {e.strerror if isinstance(e, OSError) else e}") from e
    return real


def _sync_folder(folder: str) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as e:
        if e.errno not in _CANNOT_SYNC_FOLDER:
            raise


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[OutputFile]:
    """Open a binary file that becomes `path` when the block ends, or vanishes when the block raises.

    Parameters
    ----------
    path : path-like
        The file to write; one that exists is replaced. A symlink is followed.

    Yields
    ------
    OutputFile
        Unbuffered, seekable and readable; each `write` takes all it is given. It lies in the folder of `path` under a
        temporary name (``.quantkit-*.tmp``); at the end it is synced, renamed to `path`, and the folder is synced.

    Raises
    ------
    OutputError
        Naming `path` and the reason: folder missing or read-only, `path` a folder, disk full. Nothing is left behind.
    """
    shown = os.fspath(path)
    real = check_output(shown)
    folder = os.path.dirname(real)
    temporary = os.path.join(folder, f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}")
    try:
        try:
            # Not tempfile: it gives mode 0600, and a result should have the mode that the user's umask says.
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as e:
            raise _failed(shown, e) from e
        with OutputFile(descriptor, shown, temporary) as file:
            yield file
            try:
                os.fsync(descriptor)
            except OSError as e:
                raise _failed(shown, e) from e
        try:
            os.replace(temporary, real)
            _sync_folder(folder)
        except OSError as e:
            raise _failed(shown, e) from e
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
