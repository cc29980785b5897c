"""The files of a source as one stream, cut into groups of a fixed number of images: one group becomes one shard."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from quantkit.errors import FormatError, InvalidArgument
from quantkit.images.decode import shown
from quantkit.images.folder import class_folders
from quantkit.images.walk import PathTable, walk


class Entry(NamedTuple):
    """A file of the source.

    Attributes
    ----------
    path : bytes
        Below the root of a folder; as it was given in a list of files.
    label : int
        Index into the classes, -1 for none.
    skipped : str or None
        Why it is no image to read.
    """

    path: bytes
    label: int
    skipped: str | None


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
    source : path-like, or iterable of path-like
        A folder (its sub-folders are the classes), one file, or a list of files.

    Attributes
    ----------
    root : str
        What stands before each path; "" for a list of files.
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

    def __init__(self, source: Any) -> None:
        self.classes: tuple[str, ...] = ()
        self._files: PathTable | None = None
        if isinstance(source, (str, os.PathLike)) and not os.path.isfile(source):
            self.root = os.fspath(source)
            self.name = os.path.realpath(self.root)
            try:
                self._labels = {name: i for i, name in enumerate(class_folders(self.root))}
            except (OSError, ValueError) as e:
                reason = e.strerror if isinstance(e, OSError) else e
                raise FormatError(f"{shown(self.root)}: cannot be listed: {reason}") from e
            self.classes = tuple(map(os.fsdecode, self._labels))
            return
        self.root, self.name = "", "a list of files"
        self._labels = {}
        self._files = PathTable()
        if isinstance(source, (str, os.PathLike)):
            source = [source]
        if not isinstance(source, Iterable) or isinstance(source, (bytes, bytearray, dict)):
            raise InvalidArgument(f"wanted a folder, a file or a list of files, got {type(source).__name__}")
        for file in source:
            if not isinstance(file, (str, os.PathLike)):
                raise InvalidArgument(f"wanted a list of paths, got one with {type(file).__name__}")
            try:
                self._files.append(os.fsencode(file))
            except UnicodeEncodeError:
                raise InvalidArgument(f"{file!r} cannot be the name of a file") from None

    def __iter__(self) -> Iterator[Entry]:
        if self._files is not None:
            for i in range(len(self._files)):
                yield Entry(self._files.relative(i), -1, None)
            return
        for path, skipped in walk(self.root):
            top, slash, _ = path.partition(b"/")
            yield Entry(path, self._labels.get(top, -1) if slash else -1, skipped)

    def full(self, path: bytes) -> bytes:
        """Return the path of an entry as it can be opened."""
        return os.path.join(os.fsencode(self.root), path) if self.root else path

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
