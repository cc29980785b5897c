"""The files of a source as one stream, cut into groups of a fixed number of images: one group becomes one shard."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from quantkit.errors import FormatError, InvalidArgument
from quantkit.files.urls import is_url, plain_path
from quantkit.images.decode import count_frames, shown
from quantkit.images.frames import chosen
from quantkit.images.path_table import PathTable
from quantkit.images.source_files import SourceFiles, Stamp
from quantkit.images.walk import class_folders, walk
from quantkit.images.walk_url import is_file_at


class Entry(NamedTuple):
    """A file of the source, or one frame of it.

    Attributes
    ----------
    path : bytes
        Below the root of a folder; as it was given in a list of files.
    label : int
        Index into the classes, -1 for none.
    skipped : str or None
        Why it is no image to read.
    frame : int or None
        Which frame, where a recipe takes others than the first; then a file has an entry for each.
    stamp : (bytes, mtime_ns) or None
        Where the listing told them.
    """

    path: bytes
    label: int
    skipped: str | None
    frame: int | None = None
    stamp: Stamp | None = None


@dataclass(slots=True)
class Group:
    """The files of one shard, and the skipped ones between and behind them."""

    number: int
    entries: list[Entry] = field(default_factory=list)
    images: int = 0


class Listing:
    """What a source holds, listed anew at each iteration and never held as a whole.

    Parameters
    ----------
    source : path-like, URL, or iterable of such
        A folder (its sub-folders are the classes), one file, or a list of files.
    frames : str or int, default "first"
        Which frames of a file are images, as `Recipe.frames` says.

    Attributes
    ----------
    root : str
        What stands before each path; "" for a list of files.
    files : SourceFiles
        Opens the entries.
    name : str
        Where the source lies: the same text for the same source.
    classes : tuple of str
        The folders right below a folder, bytewise sorted.

    Raises
    ------
    FormatError
        When a folder cannot be listed.
    InvalidArgument
        When `source` is neither a path nor an iterable of paths.
    """

    def __init__(self, source: Any, frames: str | int = "first") -> None:
        self.classes: tuple[str, ...] = ()
        self._frames = frames
        self._files: PathTable | None = None
        self._labels: dict[bytes, int] = {}
        if isinstance(source, (str, os.PathLike)):
            source = plain_path(source)
            if not is_file(source):
                self.root = source
                self._labels = {name: i for i, name in enumerate(class_folders(source))}
                self.name = source.rstrip("/") if is_url(source) else os.path.realpath(source)
                self.classes = tuple(map(os.fsdecode, self._labels))
                self.files = SourceFiles(self.root)
                return
            source = [source]
        self.root, self.name, self.files = "", "a list of files", SourceFiles("")
        self._files = list_of_files(source)

    def __iter__(self) -> Iterator[Entry]:
        if self._frames == "first":
            yield from self._entries()
            return
        for entry in self._entries():
            if entry.skipped is not None:
                yield entry
                continue
            try:
                count = count_frames(self.files.open(entry.path))
            except FormatError:
                count = 1  # it fails when it is read
            for frame in chosen(count, self._frames):
                yield entry._replace(frame=frame)

    def _entries(self) -> Iterator[Entry]:
        if self._files is not None:
            for i in range(len(self._files)):
                yield Entry(self._files.relative(i), -1, None)
            return
        for path, skipped, stamp in walk(self.root):
            top, slash, _ = path.partition(b"/")
            yield Entry(path, self._labels.get(top, -1) if slash else -1, skipped, stamp=stamp)

    def groups(self, size: int) -> Iterator[Group]:
        """Yield the files in groups of `size` images; the last one may have fewer.

        Raises
        ------
        FormatError
            When there is no image at all.
        """
        group = Group(0)
        reasons: dict[str, int] = {}
        for entry in self:
            if entry.skipped is None:
                if group.images == size:
                    yield group
                    group = Group(group.number + 1)
                group.images += 1
            elif not group.number:
                reasons[entry.skipped] = reasons.get(entry.skipped, 0) + 1
            group.entries.append(entry)
        if not group.images:
            why = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
            where = shown(self.root) if self.root else "the list of files"
            raise FormatError(f"{where}: holds no image{f' (skipped: {why})' if why else ''}")
        yield group


def is_file(path: str) -> bool:
    """Whether a path or URL is that of a file."""
    return is_file_at(path) if is_url(path) else os.path.isfile(path)


def list_of_files(files: Any) -> PathTable:
    """Return a list of paths as a table.

    Raises
    ------
    InvalidArgument
        When it is none.
    """
    table = PathTable()
    if not isinstance(files, Iterable) or isinstance(files, (bytes, bytearray, dict)):
        raise InvalidArgument(f"wanted a folder, a file or a list of files, got {type(files).__name__}")
    for file in files:
        if not isinstance(file, (str, os.PathLike)):
            raise InvalidArgument(f"wanted a list of paths, got one with {type(file).__name__}")
        try:
            table.append(os.fsencode(plain_path(file)))
        except UnicodeEncodeError:
            raise InvalidArgument(f"{file!r} cannot be the name of a file") from None
    return table
