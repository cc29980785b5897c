"""What lies below a folder of this machine."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from quantkit.errors import FormatError
from quantkit.files.shortage import raise_shortage
from quantkit.images.decode import SNIFF, shown, sniff
from quantkit.images.tree import Found, depth_first, has_image_suffix, is_hidden

if TYPE_CHECKING:
    from collections.abc import Iterator


def walk_path(root: str | os.PathLike[str]) -> Iterator[Found]:
    """Yield every file below a folder; links are followed, and no folder is entered twice.

    Raises
    ------
    FormatError
        When `root` itself cannot be listed.
    """
    base = os.fsencode(root)
    try:
        state = os.stat(base)
        first = _listing(base)
    except (OSError, ValueError) as e:
        raise _not_listed(root, e) from e
    entered = {(state.st_dev, state.st_ino)}

    def visit(entry: os.DirEntry[bytes]) -> list[os.DirEntry[bytes]] | str | None:
        try:
            if is_hidden(entry.name) or not entry.is_dir():
                return _why_not(entry)
            state = entry.stat()
            key = (state.st_dev, state.st_ino)
            if key in entered:
                return "a link to a folder that was entered already"
            inside = _listing(entry.path)
        except OSError as e:
            raise_shortage(shown(os.fsdecode(entry.path)), e)
            return "a broken link" if e.errno == errno.ELOOP else f"cannot be read: {e.strerror}"
        entered.add(key)
        return inside

    yield from depth_first(first, visit, lambda entry: None)


def folders_in(root: str | os.PathLike[str]) -> list[bytes]:
    """Return the names of the folders right below a folder, bytewise sorted.

    Raises
    ------
    FormatError
        When it cannot be listed.
    """
    try:
        return [entry.name for entry in _listing(os.fsencode(root)) if _is_folder(entry)]
    except (OSError, ValueError) as e:
        raise _not_listed(root, e) from e


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
    """Return why what is no folder is skipped, or None for an image."""
    if is_hidden(entry.name):
        return "hidden"
    if not entry.is_file():
        return "a broken link" if entry.is_symlink() else "not a regular file"
    if has_image_suffix(entry.name):
        return None
    with open(entry.path, "rb") as file:
        return None if sniff(file.read(SNIFF)) else "not an image"
