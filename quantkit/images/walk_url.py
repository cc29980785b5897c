"""What lies below a URL."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from quantkit.errors import FormatError
from quantkit.files.urls import filesystem, reading, why
from quantkit.images.decode import SNIFF, sniff
from quantkit.images.tree import Found, depth_first, has_image_suffix, is_hidden

if TYPE_CHECKING:
    from collections.abc import Iterator

# What filesystems call the time at which a file was last written.
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


class _Entry(NamedTuple):
    name: bytes
    path: str  # within the filesystem
    is_folder: bool
    stamp: tuple[int | None, int | None]


def walk_url(url: str) -> Iterator[Found]:
    """Yield every file below a URL each with its size and time, which the listing tells.

    Raises
    ------
    FormatError
        When it cannot be listed.
    MissingDependency
        Naming what to install.
    """
    system, base = filesystem(url)

    def visit(entry: _Entry) -> list[_Entry] | str | None:
        if is_hidden(entry.name):
            return "hidden"
        if entry.is_folder:
            try:
                return _entries(system, entry.path, url)
            except FormatError as e:
                return f"cannot be read: {e}"
        return None if has_image_suffix(entry.name) else _sniffed(system, entry.path)

    yield from depth_first(_entries(system, base, url), visit, lambda entry: entry.stamp)


def folders_at(url: str) -> list[bytes]:
    """Return the names of the folders right below a URL, bytewise sorted.

    Raises
    ------
    FormatError
        When it cannot be listed.
    """
    system, base = filesystem(url)
    return [entry.name for entry in _entries(system, base, url) if entry.is_folder]


def is_file_at(url: str) -> bool:
    """Whether a URL is that of a file.

    Raises
    ------
    FormatError
        When the filesystem cannot be asked.
    """
    system, path = filesystem(url)
    with reading(url):
        return bool(system.isfile(path))


def _entries(system: Any, folder: str, url: str) -> list[_Entry]:
    try:
        system.invalidate_cache(folder)
        found = system.ls(folder, detail=True)
    except Exception as e:
        raise FormatError(f"{url}: cannot be listed: {why(e)}") from e
    entries = []
    for info in found:
        path = info["name"].rstrip("/")
        if path == folder:  # the mark that object stores keep for an empty folder, or a file that was asked for
            continue
        name = path.rsplit("/", 1)[-1].encode("utf-8", "surrogateescape")
        entries.append(_Entry(name, path, info["type"] == "directory", _stamp(info)))
    if not entries and any(info["type"] != "directory" and info.get("size") for info in found):
        raise FormatError(f"{url}: cannot be listed: Not a directory")
    return sorted(entries, key=lambda e: (e.name, e.is_folder))


def _stamp(info: dict[str, Any]) -> tuple[int | None, int | None]:
    time: Any = next((info[key] for key in _TIMES if info.get(key) is not None), None)
    if isinstance(time, str):
        try:
            time = datetime.datetime.fromisoformat(time)
        except ValueError:
            time = None
    if isinstance(time, datetime.datetime):
        if time.tzinfo is None:
            time = time.replace(tzinfo=datetime.UTC)
        epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        time = (time - epoch) // datetime.timedelta(microseconds=1) * 1000
    elif isinstance(time, (int, float)):
        time = int(time * 1_000_000_000)
    else:
        time = None
    return info.get("size"), time


def _sniffed(system: Any, path: str) -> str | None:
    try:
        return None if sniff(system.cat_file(path, start=0, end=SNIFF)) else "not an image"
    except Exception as e:
        return f"cannot be read: {why(e)}"
