"""The manifest: one line of JSON for each file of the source, in the order of the source."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from quantkit.errors import FormatError

if TYPE_CHECKING:
    from quantkit.images.places import Place

NAME = "manifest.jsonl"
_OK = b'"status":"ok"'  # cannot stand inside a JSON text, where quotes are escaped


def line(
    path: bytes,
    status: str,
    *,
    shard: int,
    label: int = -1,
    row: int | None = None,
    position: int | None = None,
    error: str | None = None,
    about: dict[str, Any] | None = None,
    stamp: tuple[int | None, int | None] = (None, None),
) -> dict[str, Any]:
    """Return the line of one file, see docs/images.md for its keys."""
    about = about or {}
    return {
        "path": os.fsdecode(path),
        "status": status,
        "error": error,
        "format": about.get("format"),
        "mode": about.get("mode"),
        "height": about.get("height"),
        "width": about.get("width"),
        "orientation": about.get("orientation"),
        "label": label,
        "row": row,
        "shard": shard,
        "position": position,
        "bytes": stamp[0],
        "mtime_ns": stamp[1],
    }


def encode(lines: Sequence[dict[str, Any]]) -> bytes:
    """Return lines as bytes; names that are not UTF-8 as escapes that `decode` takes back."""
    return b"".join(json.dumps(item, separators=(",", ":")).encode() + b"\n" for item in lines)


def decode(text: bytes, where: str) -> list[dict[str, Any]]:
    """Return the lines of a manifest.

    Raises
    ------
    FormatError
        Naming the file and the line.
    """
    return [_parse(item, where, number) for number, item in enumerate(text.split(b"\n")[:-1], 1)]


def _parse(text: bytes, where: str, number: int) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not {"path", "status"} <= set(found):
        raise FormatError(f"{where}: line {number} is no line of a manifest")
    return found


class Manifest(Sequence[dict[str, Any]]):
    """The lines of an output's manifest, parsed when they are asked for.

    Raises
    ------
    FormatError
        When the file cannot be read.
    """

    def __init__(self, place: Place) -> None:
        self.path = place.path(NAME)
        try:
            self._text = place.read(NAME)
        except FileNotFoundError:
            raise FormatError(f"{self.path}: cannot be read: No such file or directory") from None
        self._ends = array("Q", [0])
        self._ok = array("Q")  # the lines of the images that are there
        end = self._text.find(b"\n")
        while end >= 0:
            if self._text.find(_OK, self._ends[-1], end) >= 0:
                self._ok.append(len(self))
            self._ends.append(end + 1)
            end = self._text.find(b"\n", end + 1)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        i = range(len(self))[index]
        return _parse(self._text[self._ends[i] : self._ends[i + 1] - 1], self.path, i + 1)

    @property
    def images(self) -> int:
        """Return how many lines are of images of the shards."""
        return len(self._ok)

    def of_image(self, index: int) -> dict[str, Any]:
        """Return the line of the image at `index` of the shards."""
        return self[self._ok[index]]

    def with_status(self, status: str) -> Iterator[dict[str, Any]]:
        """Yield the lines whose status is "ok", "failed" or "skipped"."""
        return (item for item in self if item["status"] == status)

    def __repr__(self) -> str:
        return f"Manifest({self.path!r}, {len(self)} files)"
