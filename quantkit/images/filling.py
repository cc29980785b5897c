"""One pass over a source: its shards, made on threads of this process or by the workers of a cluster, and the count."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from quantkit.cluster import cluster_map
from quantkit.errors import FormatError
from quantkit.images.blocks import kept_blocks
from quantkit.images.index import Index, write_index, write_manifest
from quantkit.images.output import start
from quantkit.images.shard_work import Filling, ShardMaker, full_name, name_of
from quantkit.parallel import ordered_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from quantkit.images.listing import Group, Listing

_LISTED = 20  # failures that the result carries; the manifest has all


class ProcessProgress(NamedTuple):
    """How far it is: files done (images, failures and those of shards that were there) and bytes read so far."""

    done: int
    failed: int
    bytes: int


class _Summary(NamedTuple):
    """What a worker says of a shard: its pixels and lines lie in the output."""

    kept: bool
    images: int
    skipped: int
    partial: int
    bytes: int
    failed: list[dict[str, Any]]  # lines


class Run:
    """One pass over the source."""

    def __init__(
        self,
        listing: Listing,
        maker: ShardMaker,
        *,
        stop_at: int | None,
        shard_range: tuple[int, int] | None,
        progress: Callable[[ProcessProgress], None] | None,
    ) -> None:
        self.listing, self.maker, self.index = listing, maker, maker.index
        self.folder = self.index.folder(maker.root)
        self._stop_at, self._range, self._progress = stop_at, shard_range, progress
        self._started = False
        self.images = self.failed = self.skipped = self.partial = self.made = self.kept = self.groups = self.bytes = 0
        self._errors = 0  # of this run, without those of shards that were kept
        self.waited = 0.0
        self.failures: dict[str, str] = {}
        self._arenas: list[NDArray[np.uint8]] = []

    # ---------------------------------------------------------------------------------------------- on this machine

    def run(self, streams: int) -> None:
        """Fill shard after shard: threads decode while one more writes what is full."""
        writes: deque[Future[None]] = deque()
        work: Any = ordered_map(self._decode, self._pieces(), workers=streams, in_flight=4 * streams)
        with (
            kept_blocks(streams),
            ThreadPoolExecutor(1, thread_name_prefix="quantkit-shard") as writer,
            closing(work),
        ):
            for filling, positions in work:
                lines = [filling.lines[filling.images[position]] for position in positions]
                self.bytes += sum(item["bytes"] or 0 for item in lines if not item.get("frame"))
                self._count(lines)
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

    def _pieces(self) -> Iterator[tuple[Filling, range]]:
        for group in self._groups():
            lines = self.maker.finished(group)
            if lines is not None:
                self.kept += 1
                self._count(lines, kept=True)
                continue
            self.made += 1
            self._start()
            filling = self.maker.begin(group, self._arena(group.images))
            for positions in filling.pieces():
                yield filling, positions

    def _groups(self) -> Iterator[Group]:
        for group in self.listing.groups(self.index.shard_size):
            self.groups = group.number + 1
            if self._range is None or self._range[0] <= group.number < self._range[1]:
                yield group

    def _arena(self, count: int) -> NDArray[np.uint8] | None:
        if self._arenas and len(self._arenas[-1]) >= count:
            return self._arenas.pop()
        return None

    def _decode(self, piece: tuple[Filling, range]) -> tuple[Filling, range]:
        self.maker.decode(*piece)
        return piece

    def _write(self, filling: Filling) -> None:
        self.maker.write(filling)
        self._arenas.append(filling.arena)

    # ---------------------------------------------------------------------------------------------- on a cluster

    def spread(self, scheduler: Any, streams: int) -> None:
        """Have the workers of a cluster make the shards, each on `streams` threads, and count what they say of them."""

        def groups() -> Iterator[Group]:
            self._start()  # the cluster is there
            yield from self._groups()

        shards: Any = cluster_map(_Task(self.maker, streams), groups(), scheduler)
        with closing(shards):
            done: _Summary
            for done in shards:
                self.kept += done.kept
                self.made += not done.kept
                self.images += done.images
                self.skipped += done.skipped
                self.partial += done.partial
                self.bytes += done.bytes
                self._count(done.failed, kept=done.kept)
                if not done.kept:
                    self._check_errors(done.failed)

    # ---------------------------------------------------------------------------------------------- counting

    def _start(self) -> None:
        if not self._started:
            start(self.maker.root, self.index, resume=self.maker.keep is not None)
            self._started = True

    def _count(self, lines: list[dict[str, Any]], *, kept: bool = False) -> None:
        failed = 0
        for item in lines:
            if item["status"] == "failed":
                failed += 1
                if len(self.failures) < _LISTED:
                    self.failures[name_of(item)] = item["error"]
            elif item["status"] == "ok":
                self.images += 1
                self.partial += "partial" in item
            else:
                self.skipped += 1
        self.failed += failed
        self._errors += 0 if kept else failed
        if self._progress is not None:
            self._progress(ProcessProgress(self.images + self.failed, self.failed, self.bytes))

    def _check_errors(self, lines: list[dict[str, Any]]) -> None:
        if self._stop_at is None or self._errors <= self._stop_at:
            return
        last = next(item for item in reversed(lines) if item["status"] == "failed")
        more = f" (and that is more than {self._stop_at} failures)" if self._stop_at else ""
        raise FormatError(f"{full_name(self.listing.files, last)}: {last['error']}{more}")

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
        write_manifest(self.folder, self.groups)
        whole = replace(
            self.index,
            complete=True,
            classes=self.listing.classes if classed else (),
            images=counts["ok"],
            failed=counts["failed"],
            skipped=counts["skipped"],
            shards=tuple(shards),
        )
        write_index(self.maker.root, whole)
        return whole


@dataclass(frozen=True, slots=True)
class _Task:
    """What a worker does with a group: all that it needs travels with it, and the pixels stay where it is."""

    maker: ShardMaker
    streams: int

    def __call__(self, group: Group) -> _Summary:
        lines = self.maker.finished(group)
        kept = lines is not None
        if lines is None:
            lines = self.maker.make(group, self.streams)
        good = [item for item in lines if item["status"] == "ok"]
        failed = [item for item in lines if item["status"] == "failed"]
        read = 0 if kept else sum(item["bytes"] or 0 for item in good + failed if not item.get("frame"))
        partial = sum("partial" in item for item in good)
        return _Summary(kept, len(good), len(lines) - len(good) - len(failed), partial, read, failed)
