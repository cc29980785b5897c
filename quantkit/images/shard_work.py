"""One shard: which of its files still hold, decoding them into their rows, and writing it.

Nothing here knows of other shards, so that any thread, process or machine can do it.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit.errors import FormatError
from quantkit.images.blocks import kept_blocks
from quantkit.images.decode import shown
from quantkit.images.manifest import line
from quantkit.images.output import finished_lines
from quantkit.images.pipeline import read_frames
from quantkit.images.shards import Shard
from quantkit.parallel import ordered_map

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from quantkit.images.decode import Decoded
    from quantkit.images.index import Index
    from quantkit.images.listing import Entry, Group
    from quantkit.images.source_files import SourceFiles, Stamp

_AT_ONCE = 4  # images that a thread takes at a time: large enough for the cost of handing over, small for order


@dataclass(slots=True)
class Filling:
    """A shard in the making: threads write its rows, each its own."""

    group: Group
    arena: NDArray[np.uint8]
    images: list[int]  # entries that are images, in order
    lines: list[dict[str, Any]] = field(default_factory=list)

    def pieces(self) -> Iterator[range]:
        """Yield the positions of the images, cut into what one thread takes at a time: a file's frames together."""
        entries, first = self.group.entries, 0
        for end in range(1, len(self.images) + 1):
            if end < len(self.images):
                before, entry = (entries[self.images[i]] for i in (end - 1, end))
                if entry.path == before.path if entry.frame is not None else end - first < _AT_ONCE:
                    continue
            yield range(first, end)
            first = end


class ShardMaker:
    """Makes shards of one output.

    Parameters
    ----------
    files : SourceFiles
    index : Index
    root : str
        The output, a path or URL.
    max_pixels : int
    keep : {"all", "whole"} or None
        Which shards that are there count as done: all whose files are as they were, only those without failures, none.
    """

    def __init__(self, files: SourceFiles, index: Index, root: str, max_pixels: int, keep: str | None) -> None:
        self.files, self.index, self.root, self.max_pixels, self.keep = files, index, root, max_pixels, keep

    def finished(self, group: Group) -> list[dict[str, Any]] | None:
        """Return the manifest lines of a shard that is there and need not be made again, else None."""
        if self.keep is None:
            return None
        lines = finished_lines(self.index.folder(self.root), self.files, group)
        if lines is not None and self.keep == "whole" and any(item["status"] == "failed" for item in lines):
            return None
        return lines

    def begin(self, group: Group, arena: NDArray[np.uint8] | None = None) -> Filling:
        """Return a shard to be filled, in an arena of at least as many rows."""
        if arena is None:
            arena = np.empty((group.images, *self.index.shape), np.uint8)
        filling = Filling(group, arena, [])
        for i, entry in enumerate(group.entries):
            filling.lines.append(line(entry.path, "skipped", shard=group.number, error=entry.skipped))
            if entry.skipped is None:
                filling.images.append(i)
        return filling

    def make(self, group: Group, streams: int) -> list[dict[str, Any]]:
        """Fill and write a shard; return its manifest lines."""
        filling = self.begin(group)
        with kept_blocks(streams):
            for _ in ordered_map(lambda positions: self.decode(filling, positions), filling.pieces(), workers=streams):
                pass
        self.write(filling)
        return filling.lines

    def decode(self, filling: Filling, positions: range) -> None:
        """Decode the images at some positions into their rows, and write their lines."""
        entries = [filling.group.entries[filling.images[position]] for position in positions]
        if entries[0].frame is None:
            for position, entry in zip(positions, entries, strict=True):
                self._file(filling, [position], entry, [0])
        else:
            self._file(filling, list(positions), entries[0], [entry.frame or 0 for entry in entries])

    def _file(self, filling: Filling, positions: list[int], entry: Entry, frames: list[int]) -> None:
        """Decode frames of one file."""
        name = shown(self.files.full(entry.path))
        stamp = self.files.stamp(entry.path, entry.stamp)
        left = list(zip(positions, frames, strict=True))
        try:
            source = self.files.open(entry.path)
            recipe, limit = self.index.recipe, self.max_pixels
            rows = [filling.arena[position] for position in positions]
            with closing(read_frames(source, recipe, frames, max_pixels=limit, rows=rows)) as every:
                for found in every:
                    position, frame = left.pop(0)
                    self._place(filling, entry, position, frame, stamp, found, name)
        except FormatError as e:
            for position, frame in left:
                self._place(filling, entry, position, frame, stamp, e, name)

    def _place(
        self,
        filling: Filling,
        entry: Entry,
        position: int,
        frame: int,
        stamp: Stamp,
        found: tuple[NDArray[np.uint8], Decoded] | FormatError,
        name: str,
    ) -> None:
        about = error = None
        if isinstance(found, FormatError):
            error = str(found).removeprefix(f"{name}: ")
        else:
            pixels, decoded = found
            about = {
                "format": decoded.format,
                "mode": decoded.mode,
                "height": decoded.size[0],
                "width": decoded.size[1],
                "orientation": decoded.orientation,
            }
            codes = pixels.transpose(2, 0, 1)
            row = filling.arena[position]
            if codes.shape != row.shape:
                error = _other_size(codes.shape, row.shape)
            elif not np.may_share_memory(codes, row):  # the resize has not written there itself
                row[...] = codes
        number = filling.group.number
        made = line(
            entry.path,
            "ok" if error is None else "failed",
            shard=number,
            label=entry.label,
            row=number * self.index.shard_size + position,
            position=position if error is None else None,
            error=error,
            about=about,
            stamp=stamp,
        )
        if entry.frame is not None:
            made["frame"] = frame
        if error is None and not isinstance(found, FormatError) and found[1].partial:
            made["partial"] = True
        filling.lines[filling.images[position]] = made

    def write(self, filling: Filling) -> None:
        """Write a shard that is filled, without gaps where files failed."""
        number, arena = filling.group.number, filling.arena
        kept = 0
        labels, rows = [], []
        for i in filling.images:
            item = filling.lines[i]
            if item["status"] != "ok":
                continue
            if item["position"] != kept:  # behind a failure: close the gap
                arena[kept] = arena[item["position"]]
                item["position"] = kept
            labels.append(item["label"])
            rows.append(item["row"])
            kept += 1
        shard = Shard(arena[:kept], np.array(labels, np.int32), np.array(rows, np.int64))
        self.index.folder(self.root).write(number, shard, filling.lines)


def name_of(item: dict[str, Any]) -> str:
    """Return what a line of a manifest is about: the path, and the frame where that is not the first."""
    frame = item.get("frame")
    return f"{item['path']} (frame {frame})" if frame else str(item["path"])


def _other_size(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    return (
        f"is {shape[1]} x {shape[2]} pixels, but the first image set {wanted[1]} x {wanted[2]} for all: "
        "the recipe leaves the size to the image; give it one (resize, size, crop)"
    )


def full_name(files: SourceFiles, item: dict[str, Any]) -> str:
    """Return the path that messages show for a line of a manifest."""
    return shown(files.full(os.fsencode(item["path"])))
