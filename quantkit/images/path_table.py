"""Millions of paths in one flat buffer."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from typing import overload


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
