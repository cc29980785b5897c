"""One pass over a source: threads fill the rows of a shard while one more writes the shard before."""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from quantkit.errors import FormatError
from quantkit.images.decode import shown
from quantkit.images.index import Index, write_index, write_manifest
from quantkit.images.manifest import line
from quantkit.images.output import finished_lines, start
from quantkit.images.pipeline import read_pixels
from quantkit.images.shards import Shard
from quantkit.parallel import ordered_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from quantkit.images.listing import Entry, Group, Listing

_AT_ONCE = 4  # images that a thread takes at a time: large enough for the cost of handing over, small for order
_LISTED = 20  # failures that the result carries; the manifest has all


class ProcessProgress(NamedTuple):
    """How far it is: files done (images, failures and those of shards that were there) and bytes read so far."""

    done: int
    failed: int
    bytes: int


@dataclass(slots=True)
class _Filling:
    """A shard in the making: threads write its rows, each its own."""

    group: Group
    arena: NDArray[np.uint8]
    images: list[int]  # entries that are images, in order
    lines: list[dict[str, Any]] = field(default_factory=list)


class Run:
    """One pass over the source."""

    def __init__(
        self,
        listing: Listing,
        index: Index,
        root: str,
        *,
        max_pixels: int,
        stop_at: int | None,
        keep: str | None,
        shard_range: tuple[int, int] | None,
        progress: Callable[[ProcessProgress], None] | None,
    ) -> None:
        self.listing, self.index, self.root, self.folder = listing, index, root, index.folder(root)
        self._max_pixels, self._stop_at, self._keep, self._range = max_pixels, stop_at, keep, shard_range
        self._progress = progress
        self._started = False
        self.images = self.failed = self.skipped = self.made = self.kept = self.groups = self.bytes = 0
        self._errors = 0  # of this run, without those of shards that were kept
        self.waited = 0.0
        self.failures: dict[str, str] = {}
        self._arenas: list[NDArray[np.uint8]] = []

    def run(self, streams: int) -> None:
        """Fill shard after shard: threads decode while one more writes what is full."""
        writes: deque[Future[None]] = deque()
        work: Any = ordered_map(self._decode, self._pieces(), workers=streams, in_flight=4 * streams)
        with ThreadPoolExecutor(1, thread_name_prefix="quantkit-shard") as writer, closing(work):
            for filling, positions in work:
                lines = [filling.lines[filling.images[position]] for position in positions]
                self.bytes += sum(item["bytes"] or 0 for item in lines)
                self._errors += self._count(lines)
                self._check_errors(lines)
                if positions.stop < len(filling.images):
                    continue
                self.skipped += len(filling.lines) - len(filling.images)
                # At most one shard waits for the disk: that bounds the memory.
                began = time.perf_counter()
                while writes:
                    writes.popleft().result()
                self.waited += time.perf_counter() - began
                writes.append(writer.submit(self._write, filling))
            while writes:
                writes.popleft().result()

    def _check_errors(self, lines: list[dict[str, Any]]) -> None:
        if self._stop_at is None or self._errors <= self._stop_at:
            return
        last = next(item for item in reversed(lines) if item["status"] == "failed")
        path = shown(os.path.join(self.listing.root, last["path"]))
        more = f" (and that is more than {self._stop_at} failures)" if self._stop_at else ""
        raise FormatError(f"{path}: {last['error']}{more}")

    def _pieces(self) -> Iterator[tuple[_Filling, range]]:
        for group in self.listing.groups(self.index.shard_size):
            self.groups = group.number + 1
            if self._range is not None and not self._range[0] <= group.number < self._range[1]:
                continue
            lines = finished_lines(self.folder, self.listing, group) if self._keep else None
            if lines is not None and not (self._keep == "whole" and any(item["status"] == "failed" for item in lines)):
                self.kept += 1
                self._count(lines)
                continue
            self.made += 1
            self._start()
            filling = _Filling(group, self._arena(group.images), [])
            for i, entry in enumerate(group.entries):
                filling.lines.append(line(entry.path, "skipped", shard=group.number, error=entry.skipped))
                if entry.skipped is None:
                    filling.images.append(i)
            for first in range(0, group.images, _AT_ONCE):
                yield filling, range(first, min(first + _AT_ONCE, group.images))

    def _start(self) -> None:
        if not self._started:
            start(self.root, self.index, resume=self._keep is not None)
            self._started = True

    def _arena(self, count: int) -> NDArray[np.uint8]:
        if self._arenas and len(self._arenas[-1]) >= count:
            return self._arenas.pop()
        return np.empty((count, *self.index.shape), np.uint8)

    def _decode(self, piece: tuple[_Filling, range]) -> tuple[_Filling, range]:
        filling, positions = piece
        for position in positions:
            i = filling.images[position]
            filling.lines[i] = self._one(filling, filling.group.entries[i], position)
        return piece

    def _one(self, filling: _Filling, entry: Entry, position: int) -> dict[str, Any]:
        number = filling.group.number
        row = number * self.index.shard_size + position
        path = os.fsdecode(self.listing.full(entry.path))
        stamp = about = error = None
        try:
            status = os.stat(path)
            stamp = status.st_size, status.st_mtime_ns
        except (OSError, ValueError):
            pass  # reading it says why
        try:
            pixels, decoded = read_pixels(path, self.index.recipe, max_pixels=self._max_pixels)
            about = {
                "format": decoded.format,
                "mode": decoded.mode,
                "height": decoded.size[0],
                "width": decoded.size[1],
                "orientation": decoded.orientation,
            }
            codes = pixels.transpose(2, 0, 1)
            if codes.shape != self.index.shape:
                raise FormatError(_other_size(path, codes.shape, self.index.shape))
            filling.arena[position] = codes
        except FormatError as e:
            error = str(e).removeprefix(f"{shown(path)}: ")
        return line(
            entry.path,
            "ok" if error is None else "failed",
            shard=number,
            label=entry.label,
            row=row,
            position=position if error is None else None,
            error=error,
            about=about,
            stamp=stamp,
        )

    def _count(self, lines: list[dict[str, Any]]) -> int:
        """Count lines; return how many of their files failed."""
        failed = 0
        for item in lines:
            if item["status"] == "failed":
                failed += 1
                if len(self.failures) < _LISTED:
                    self.failures[item["path"]] = item["error"]
            elif item["status"] == "ok":
                self.images += 1
            else:
                self.skipped += 1
        self.failed += failed
        if self._progress is not None:
            self._progress(ProcessProgress(self.images + self.failed, self.failed, self.bytes))
        return failed

    def _write(self, filling: _Filling) -> None:
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
        self.folder.write(number, shard, filling.lines)
        self._arenas.append(arena)

    def complete(self) -> Index | None:
        """Join the manifest and close the index, if every shard is there."""
        there = self.folder.numbers()
        if self._range is None:
            for number in there:
                if number >= self.groups:  # the source has become smaller
                    self._start()
                    self.folder.remove(number)
        if not set(range(self.groups)) <= set(there):
            return None
        shards, counts, classed = [], {"ok": 0, "failed": 0, "skipped": 0}, False
        for number in range(self.groups):
            text = self.folder.manifest_bytes(number)
            found = {status: text.count(f'"status":"{status}"'.encode()) for status in counts}
            counts = {status: counts[status] + found[status] for status in counts}
            shards.append(found["ok"])
            classed |= text.count(b'"label":-1,') < text.count(b"\n")
        write_manifest(self.root, self.folder, self.groups)
        whole = replace(
            self.index,
            complete=True,
            classes=self.listing.classes if classed else (),
            images=counts["ok"],
            failed=counts["failed"],
            skipped=counts["skipped"],
            shards=tuple(shards),
        )
        write_index(self.root, whole)
        return whole


def _other_size(path: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    return (
        f"{shown(path)}: is {shape[1]} x {shape[2]} pixels, but the first image set {wanted[1]} x {wanted[2]} for all: "
        "the recipe leaves the size to the image; give it one (resize, size, crop)"
    )
