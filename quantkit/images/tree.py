"""The order and the rules by which images below a folder are found, wherever the folder lies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, TypeVar

# Any other file is opened and sniffed.
_SUFFIXES = (
    *(b".jpg", b".jpeg", b".jpe", b".jfif", b".png", b".webp", b".gif", b".bmp", b".dib"),
    *(b".tif", b".tiff", b".ppm", b".pgm", b".pbm", b".pnm", b".avif"),
)
_IGNORED = {b"__MACOSX", b"Thumbs.db", b"desktop.ini"}


Stamp = tuple[int | None, int | None]


class Found(NamedTuple):
    """A file, or a folder that was not entered: the path below the root, and why it is skipped (None: it is not).

    `stamp`: size and time of modification, where the listing tells them.
    """

    path: bytes
    skipped: str | None
    stamp: Stamp | None = None


class Entry(Protocol):
    """What a listing of a folder holds."""

    @property
    def name(self) -> bytes: ...


_E = TypeVar("_E", bound=Entry)


def depth_first(
    entries: Iterable[_E], visit: Callable[[_E], Iterable[_E] | str | None], stamp: Callable[[_E], Stamp | None]
) -> Iterator[Found]:
    """Yield what lies below sorted entries, one folder listed at a time.

    `visit` gives the sorted entries of a folder that is to be entered, why an entry is skipped, or None for an image.
    """
    stack = [iter(entries)]
    folders: list[bytes] = []
    while stack:
        entry = next(stack[-1], None)
        if entry is None:
            stack.pop()
            if folders:
                folders.pop()
            continue
        seen = visit(entry)
        if seen is None or isinstance(seen, str):
            yield Found(b"/".join([*folders, entry.name]), seen, stamp(entry))
        else:
            stack.append(iter(seen))
            folders.append(entry.name)


def is_hidden(name: bytes) -> bool:
    """Whether an entry of a folder is hidden, or litter that other systems leave behind."""
    return name.startswith(b".") or name in _IGNORED


def has_image_suffix(name: bytes) -> bool:
    """Whether a name ends as that of an image does: such a file is taken at its word until it is decoded."""
    return name.lower().endswith(_SUFFIXES)
