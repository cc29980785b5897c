"""The folder of an output, on this machine or behind a URL: the few things that shards need of either."""

from __future__ import annotations

import contextlib
import os
import tempfile
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from quantkit.errors import FormatError, OutputError, QuantkitError
from quantkit.files import atomic_write
from quantkit.files.shortage import raise_shortage
from quantkit.files.urls import filesystem, is_url, plain_path, reading, why, writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Object stores show an object when all of it has come; these file systems show it while it grows, and can rename.
_RENAMING = {"sftp", "ssh", "ftp", "hdfs", "webhdfs", "arrow_hdfs", "smb", "dbfs", "dask"}


class Place(ABC):
    """A folder that files are written to, each whole or not at all.

    Attributes
    ----------
    root : str
        A path, or a URL.
    is_local : bool
    """

    is_local: bool

    def __init__(self, root: str) -> None:
        self.root = root

    def path(self, name: str) -> str:
        """Return the path or URL of a file, as messages show it."""
        return f"{self.root.rstrip('/')}/{name}"

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """Return the names in the folder, or in one below it; none where it is missing."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether a file is there."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return a file's content; FormatError names it when that fails, FileNotFoundError means that there is none."""

    @abstractmethod
    def write(self, name: str, parts: Iterable[bytes]) -> None:
        """Write a file from its parts."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    @abstractmethod
    def prepare(self, folder: str) -> None:
        """Make a folder below this one."""

    @abstractmethod
    def made(self, name: str) -> contextlib.AbstractContextManager[str]:
        """Give the path of a local file to be written atomically, which is `name` when the block ends."""

    @abstractmethod
    def fetched(self, name: str) -> contextlib.AbstractContextManager[str]:
        """Give the path of a local file with the content of `name`; it may be mapped beyond the block."""


def open_place(root: str | os.PathLike[str]) -> Place:
    """Return the place that a path or URL stands for; nothing is asked of it yet."""
    root = plain_path(root)
    return _Remote(root) if is_url(root) else _Local(root)


class _Local(Place):
    is_local = True

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    def names(self, folder: str = "") -> list[str]:
        path = os.path.join(self.root, folder)
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []
        except OSError as e:
            raise_shortage(path, e)
            raise FormatError(f"{path}: cannot be listed: {e.strerror}") from e

    def exists(self, name: str) -> bool:
        return os.path.exists(self.path(name))

    def read(self, name: str) -> bytes:
        try:
            with open(self.path(name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as e:
            raise_shortage(self.path(name), e)
            raise FormatError(f"{self.path(name)}: cannot be read: {why(e)}") from e

    def write(self, name: str, parts: Iterable[bytes]) -> None:
        with atomic_write(self.path(name)) as file:
            for part in parts:
                file.write(part)

    def remove(self, name: str) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(name))
        except OSError as e:
            raise OutputError(f"cannot remove {self.path(name)}: {e.strerror}") from e

    def prepare(self, folder: str) -> None:
        try:
            os.makedirs(self.path(folder), exist_ok=True)
        except OSError as e:
            raise OutputError(f"cannot write {self.root}: {e.strerror}") from e

    @contextlib.contextmanager
    def made(self, name: str) -> Iterator[str]:
        yield self.path(name)

    @contextlib.contextmanager
    def fetched(self, name: str) -> Iterator[str]:
        yield self.path(name)


class _Remote(Place):
    is_local = False

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._system, self._base = filesystem(root)
        protocol = self._system.protocol
        self._renames = bool(_RENAMING & ({protocol} if isinstance(protocol, str) else set(protocol)))

    def _key(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base

    def names(self, folder: str = "") -> list[str]:
        key = self._key(folder)
        with reading(self.path(folder)):
            try:
                self._system.invalidate_cache(key)
                found = self._system.ls(key, detail=False)
            except FileNotFoundError:
                return []
            names = (path.rstrip("/").rsplit("/", 1)[-1] for path in found if path.rstrip("/") != key)
            return sorted(names)

    def exists(self, name: str) -> bool:
        with reading(self.path(name)):
            self._system.invalidate_cache(self._key(name))
            return bool(self._system.exists(self._key(name)))

    def read(self, name: str) -> bytes:
        with reading(self.path(name), FileNotFoundError):
            return bytes(self._system.cat_file(self._key(name)))

    def write(self, name: str, parts: Iterable[bytes]) -> None:
        with self.made(name) as path, open(path, "wb") as file:
            file.writelines(parts)

    def remove(self, name: str) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                self._system.rm_file(self._key(name))
        except Exception as e:
            raise OutputError(f"cannot remove {self.path(name)}: {why(e)}") from e

    def prepare(self, folder: str) -> None:
        if self._renames:  # an object store has no folders
            with writing(self.root):
                self._system.makedirs(self._key(folder), exist_ok=True)

    @contextlib.contextmanager
    def made(self, name: str) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="quantkit-") as folder:
            path = os.path.join(folder, "made")
            with _named(path, self.path(name)):
                yield path
            key = self._key(name)
            with writing(self.path(name)):
                if self._renames:
                    self._system.put_file(path, f"{key}.part")
                    self._system.mv(f"{key}.part", key)
                else:
                    self._system.put_file(path, key)

    @contextlib.contextmanager
    def fetched(self, name: str) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="quantkit-") as folder:
            path = os.path.join(folder, os.path.basename(name))
            with reading(self.path(name)):
                self._system.get_file(self._key(name), path)
            with _named(path, self.path(name)):
                yield path


@contextlib.contextmanager
def _named(path: str, url: str) -> Iterator[None]:
    """Let errors name the URL and not the local copy."""
    try:
        yield
    except QuantkitError as e:
        raise type(e)(str(e).replace(path, url)) from e
    except OSError as e:  # the folder of temporary files is full
        raise OutputError(f"cannot write {url}: {path}: {e.strerror}") from e
