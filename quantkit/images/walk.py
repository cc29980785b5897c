"""Find the images below a folder, in one order on every machine, without ever holding the tree."""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

from quantkit.errors import FormatError
from quantkit.files.shortage import raise_shortage
from quantkit.files.urls import is_url
from quantkit.images.decode import SNIFF, shown, sniff

# Any other file is opened and sniffed.
_SUFFIXES = (
    *(b".jpg", b".jpeg", b".jpe", b".jfif", b".png", b".webp", b".gif", b".bmp", b".dib"),
    *(b".tif", b".tiff", b".ppm", b".pgm", b".pbm", b".pnm", b".avif"),
)
_IGNORED = {b"__MACOSX", b"Thumbs.db", b"desktop.ini"}


class Found(NamedTuple):
    """A file, or a folder that was not entered: the path below the root, and why it is skipped (None: it is not).

    `stamp`: size and time of modification, where the listing tells them.
    """

    path: bytes
    skipped: str | None
    stamp: tuple[int | None, int | None] | None = None


def walk(root: str | os.PathLike[str]) -> Iterator[Found]:
    """Yield every file below a path or URL, depth first, each folder's entries in the bytewise order of their names.

    Hidden entries and the litter of other systems are skipped, links are followed, and no folder is entered twice.
    Work can begin with the first file: one folder is listed at a time.

    Raises
    ------
    FormatError
        When `root` itself cannot be listed.
    """
    if is_url(root):
        from quantkit.images.walk_url import walk_url

        yield from walk_url(str(root))
        return
    base = os.fsencode(root)
    try:
        state = os.stat(base)
        stack = [iter(_listing(base))]
    except (OSError, ValueError) as e:
        raise _not_listed(root, e) from e
    entered = {(state.st_dev, state.st_ino)}
    folders: list[bytes] = []
    while stack:
        entry = next(stack[-1], None)
        if entry is None:
            stack.pop()
            if folders:
                folders.pop()
            continue
        path = b"/".join([*folders, entry.name])
        try:
            skipped = _why_not(entry)
            if skipped is None and entry.is_dir():
                state = entry.stat()
                key = (state.st_dev, state.st_ino)
                if key in entered:
                    yield Found(path, "a link to a folder that was entered already")
                    continue
                inside = _listing(entry.path)
                entered.add(key)
                stack.append(iter(inside))
                folders.append(entry.name)
                continue
        except OSError as e:
            raise_shortage(shown(os.fsdecode(entry.path)), e)
            skipped = "a broken link" if e.errno == errno.ELOOP else f"cannot be read: {e.strerror}"
        yield Found(path, skipped)


def class_folders(root: str) -> list[bytes]:
    """Return the names of the folders right below `root`, a path or URL, that are classes, bytewise sorted.

    Raises
    ------
    FormatError
        When it cannot be listed.
    """
    if is_url(root):
        from quantkit.images.walk_url import folders_at

        return [name for name in folders_at(root) if not is_hidden(name)]
    try:
        with os.scandir(os.fsencode(root)) as entries:
            return sorted(e.name for e in entries if not is_hidden(e.name) and _is_folder(e))
    except (OSError, ValueError) as e:
        raise _not_listed(root, e) from e


def is_hidden(name: bytes) -> bool:
    """Whether an entry of a folder is hidden, or litter that other systems leave behind."""
    return name.startswith(b".") or name in _IGNORED


def has_image_suffix(name: bytes) -> bool:
    """Whether a name ends as that of an image does: such a file is taken at its word until it is decoded."""
    return name.lower().endswith(_SUFFIXES)


def _not_listed(root: str | os.PathLike[str], error: OSError | ValueError) -> FormatError:
    raise_shortage(shown(root), error)
    return FormatError(f"{shown(root)}: cannot be listed: {error.strerror if isinstance(error, OSError) else error}")


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError as e:  # a link in a circle, or one that leads where nobody may look: `walk` skips it
        raise_shortage(shown(os.fsdecode(entry.path)), e)
        return False


def _listing(folder: bytes) -> list[os.DirEntry[bytes]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda e: e.name)


def _why_not(entry: os.DirEntry[bytes]) -> str | None:
    """Return why an entry is skipped, or None for images and folders."""
    name = entry.name
    if is_hidden(name):
        return "hidden"
    if entry.is_dir():
        return None
    if not entry.is_file():
        return "a broken link" if entry.is_symlink() else "not a regular file"
    if has_image_suffix(name):
        return None
    with open(entry.path, "rb") as file:
        return None if sniff(file.read(SNIFF)) else "not an image"


class PathTable(Sequence[str]):
    """Paths in one buffer of bytes: a few bytes more than their text each, where a list of str takes about 100.

    Parameters
    ----------
    root : str
        What stands before each path; "" for nothing.
    """

    def __init__(self, root: str = "") -> None:
        self._root = os.path.join(root, "") if root else ""
        self._text = bytearray()
        self._ends = array("Q", [0])

    def append(self, path: bytes) -> None:
        """Add a path below the root."""
        self._text += path
        self._ends.append(len(self._text))

    def relative(self, index: int) -> bytes:
        """Return the path at `index` as it was added."""
        i = range(len(self))[index]
        return bytes(self._text[self._ends[i] : self._ends[i + 1]])

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        return self._root + os.fsdecode(self.relative(index))

    def __repr__(self) -> str:
        return f"PathTable({len(self)} paths below {self._root!r})"
