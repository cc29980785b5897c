"""Writing a large file so that a killed run can be taken up again.

As `atomic_write`, but under a temporary name that the next run finds: ``.quantkit-<hash of the name>.partial``, and
beside it a journal with one line for each piece that was finished. What the journal claims is for the caller to check
against the bytes, so that neither has to be synced in any order: after a power cut a claim may be there without its
bytes, and then that piece is done again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

from quantkit import _kernels
from quantkit.errors import OutputError
from quantkit.files.atomic import _failed, _sync_folder, check_output

if TYPE_CHECKING:
    from collections.abc import Iterator


class ResumableFile:
    """The file that is being written, and what an earlier run finished of it.

    Safe to use from several threads, as long as no two write the same bytes.

    Attributes
    ----------
    temporary : str
        Where it lies until it is renamed.
    finished : dict of str to Any
        Piece -> what was recorded about it by an earlier run with the same key.
    """

    def __init__(self, descriptor: int, journal: int, target: str, temporary: str, finished: dict[str, Any]) -> None:
        self._descriptor, self._journal, self._target = descriptor, journal, target
        self.temporary, self.finished = temporary, finished

    def resize(self, size: int) -> None:
        """Cut the file to `size` bytes, or grow it by zeros."""
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as e:
            raise _failed(self._target, e) from e

    def write_at(self, offset: int, data: Any) -> None:
        """Write all bytes of `data`, contiguous, at `offset`; `OutputError` naming the final path when that fails."""
        left = memoryview(data)
        left = left.cast("B") if left.nbytes else memoryview(b"")
        try:
            while left:
                count = os.pwrite(self._descriptor, left, offset)
                offset, left = offset + count, left[count:]
        except OSError as e:
            raise _failed(self._target, e) from e

    def write_back(self, offset: int, size: int) -> None:
        """Let the system begin to bring bytes to the disk, so that the sync at the end finds them there."""
        _kernels.write_back(self._descriptor, offset, size)

    def read_at(self, offset: int, buffer: Any) -> int:
        """Fill `buffer` from `offset`; return how many bytes there were."""
        try:
            return os.preadv(self._descriptor, [buffer], offset)
        except OSError as e:
            raise _failed(self._target, e) from e

    def record(self, piece: str, value: Any) -> None:
        """Note that `piece` is written; `value` is anything that JSON holds."""
        try:
            _append(self._journal, [piece, value])
        except OSError as e:
            raise _failed(self._target, e) from e


def _append(journal: int, entry: Any) -> None:
    left = memoryview(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
    while left:
        left = left[os.write(journal, left) :]


def _read_journal(journal: int, key: str) -> dict[str, Any] | None:
    """Return what an earlier run with the same key recorded; None when there was none."""
    with open(journal, "rb", closefd=False) as file:
        lines = file.read().split(b"\n")
    whole = lines[:-1]  # the last is empty, or was cut off while it was written
    try:
        entries = [json.loads(line) for line in whole]
        if not entries or entries[0] != key:
            return None
        return {str(piece): value for piece, value in entries[1:]}
    except (ValueError, TypeError, RecursionError):
        return None


def _open_locked(path: str) -> int:
    """Open or create `path`, held by this process alone, at the name and not at one that was renamed away."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.fstat(descriptor)
            with contextlib.suppress(FileNotFoundError):
                named = os.lstat(path)
                if (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


@contextlib.contextmanager
def resumable_write(path: str | os.PathLike[str], key: str, *, resume: bool = True) -> Iterator[ResumableFile]:
    """Open a file that becomes `path` when the block ends, and goes on where a killed run with the same `key` stopped.

    Parameters
    ----------
    path : path-like
        The file to write; one that exists is replaced at the end. A symlink is followed.
    key : str
        Stands for everything that determines the bytes. Another key begins again.
    resume : bool, default True
        False: begin again in any case, and leave nothing when interrupted.

    Yields
    ------
    ResumableFile

    Raises
    ------
    OutputError
        Naming `path` and the reason, also when another process is writing it now.

    Notes
    -----
    An error (an `Exception`) removes what was written. An interruption (Ctrl-C, SIGTERM in the command line, SIGKILL,
    power cut) and a lack of memory leave it for the next run, unless `resume` is False.
    """
    shown = os.fspath(path)
    real = check_output(shown)
    folder, name = os.path.split(real)
    stem = os.path.join(folder, f".quantkit-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}")
    temporary, journal_path = f"{stem}.partial", f"{stem}.journal"

    def discard() -> None:
        for leftover in (temporary, journal_path):
            with contextlib.suppress(OSError):
                os.unlink(leftover)

    with contextlib.ExitStack() as stack:
        try:
            descriptor = _open_locked(temporary)
            stack.callback(os.close, descriptor)
        except BlockingIOError:
            raise OutputError(f"cannot write {shown}: another process is writing it now") from None
        except OSError as e:
            raise _failed(shown, e) from e
        try:
            try:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_APPEND
                journal = os.open(journal_path, flags, 0o666)
                stack.callback(os.close, journal)
                finished = _read_journal(journal, key) if resume else None
                # Written anew in any case: the last line may be cut off.
                os.ftruncate(journal, 0)
                for entry in [key, *(finished or {}).items()]:
                    _append(journal, entry)
                if finished is None:
                    os.ftruncate(descriptor, 0)
            except OSError as e:
                raise _failed(shown, e) from e
            yield ResumableFile(descriptor, journal, shown, temporary, finished or {})
            try:
                os.fsync(descriptor)
                os.replace(temporary, real)
                with contextlib.suppress(OSError):
                    os.unlink(journal_path)
                _sync_folder(folder)
            except OSError as e:
                raise _failed(shown, e) from e
        except BaseException as e:
            if not resume or (isinstance(e, Exception) and not isinstance(e, MemoryError)):
                discard()
            raise
