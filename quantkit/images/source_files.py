"""The files of a source, on this machine or behind a URL: opened by their paths below its root."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from quantkit.errors import FormatError
from quantkit.files.shortage import raise_shortage
from quantkit.files.urls import filesystem, is_url, reading
from quantkit.images.decode import shown

if TYPE_CHECKING:
    from quantkit.images.decode import Source

Stamp = tuple[int | None, int | None]  # size in bytes and time of modification in ns, where they are known


class NamedBytes(io.BytesIO):
    """The content of a file, with the URL that messages show."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name


def open_file(path: str) -> Source:
    """Return what `decode_image` takes for a path or a URL; a URL is fetched whole.

    Raises
    ------
    FormatError
        Naming the URL, when it cannot be read.
    """
    if not is_url(path):
        return path
    system, key = filesystem(path)
    with reading(path):
        return NamedBytes(system.cat_file(key), path)


class SourceFiles(NamedTuple):
    """How the files of a source are reached; all that a worker of a cluster has to know of it.

    Attributes
    ----------
    root : str
        What stands before each path; "" for a list of files.
    """

    root: str

    def full(self, path: bytes) -> str:
        """Return the path or URL of a file as it can be opened."""
        name = os.fsdecode(path)
        return os.path.join(self.root, name) if self.root else name

    def open(self, path: bytes) -> Source:
        """Return what `decode_image` takes.

        Raises
        ------
        FormatError
            When a file behind a URL cannot be read.
        """
        return open_file(self.full(path))

    def read(self, path: bytes) -> bytes:
        """Return the bytes of a file.

        Raises
        ------
        FormatError
            When it cannot be read.
        """
        source: Any = self.open(path)
        if isinstance(source, NamedBytes):
            return source.getvalue()
        with reading(shown(source)), open(source, "rb") as file:
            return file.read()

    def stamp(self, path: bytes, listed: Stamp | None) -> Stamp:
        """Return size and time of a file: as it was listed, or as this machine says now."""
        if listed is not None:
            return listed
        name = self.full(path)
        try:
            if is_url(name):
                system, key = filesystem(name)
                with reading(shown(name)):
                    return system.info(key).get("size"), None
            status = os.stat(name)
        except (OSError, ValueError, FormatError) as e:
            raise_shortage(shown(name), e)
            return None, None
        return status.st_size, status.st_mtime_ns
