"""A made safetensors file through `quantize_weights`, beside reading it and writing the result by plain copies.

    python benchmarks/weights.py [--gigabytes 4] [--streams N] [--folder DIR] [--profile]

Both sides start with the source in the page cache and end with their result synced. The memory is what the kernel
counts as anonymous, at its highest, sampled every 5 ms.
"""

from __future__ import annotations

import argparse
import cProfile
import filecmp
import os
import pstats
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from harness import machine

import quantkit as qk
from quantkit.files import create_tensors

CHUNK = 1 << 22


def make(path: Path, gigabytes: float) -> None:
    """Layers of a transformer: 16, 64 and 16 MiB matrices of float32, and small vectors."""
    shapes: dict[str, tuple[int, ...]] = {}
    layer = 0
    while sum(4 * int(np.prod(s)) for s in shapes.values()) < gigabytes * 2**30:
        shapes |= {
            f"layers.{layer}.attention.weight": (2048, 2048),
            f"layers.{layer}.up.weight": (8192, 2048),
            f"layers.{layer}.down.weight": (2048, 8192),
            f"layers.{layer}.norm.weight": (2048,),
        }
        layer += 1
    values = np.random.default_rng(0).normal(0, 0.02, 8192 * 2048).astype(np.float32)
    with create_tensors(path, {name: ("F32", shape) for name, shape in shapes.items()}) as writer:
        for i, (name, shape) in enumerate(shapes.items()):
            writer.write(name, np.roll(values, 977 * i)[: int(np.prod(shape))].reshape(shape))


def anonymous() -> int:
    """Bytes of anonymous memory of this process."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    return 0


class Peak:
    """The highest anonymous memory inside a with block, above that at its start."""

    def __enter__(self) -> Peak:
        self.start = self.highest = anonymous()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.highest = max(self.highest, anonymous())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def plain_copies(source: Path, result: Path, target: Path) -> float:
    """Read the source, then copy the result to `target` and sync it; seconds."""
    buffer = memoryview(bytearray(CHUNK))
    start = time.perf_counter()
    with source.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    with result.open("rb", buffering=0) as file, target.open("wb", buffering=0) as out:
        while count := file.readinto(buffer):
            out.write(buffer[:count])
        os.fsync(out.fileno())
    return time.perf_counter() - start


def main() -> None:
    """Run it and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--streams", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--profile", action="store_true", help="Show where one stream spends its time.")
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        source, result, target = (Path(folder) / name for name in ("source.safetensors", "q.safetensors", "copy"))
        make(source, options.gigabytes)
        if options.profile:
            profile = cProfile.Profile()
            profile.enable()
            qk.quantize_weights(source, result, streams=1)
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(15)
        ours, theirs = [], []
        with Peak() as memory:
            qk.quantize_weights(source, result, streams=options.streams)
        for _ in range(options.rounds):
            target.unlink(missing_ok=True)
            theirs.append(plain_copies(source, result, target))
            result.unlink()
            start = time.perf_counter()
            qk.quantize_weights(source, result, streams=options.streams)
            ours.append(time.perf_counter() - start)
        size = source.stat().st_size
        print(f"source {size / 2**30:.2f} GiB, result {result.stat().st_size / 2**30:.2f} GiB")
        print(f"plain copies {statistics.median(theirs):6.2f} s   ({', '.join(f'{t:.2f}' for t in theirs)})")
        print(f"quantize     {statistics.median(ours):6.2f} s   ({', '.join(f'{t:.2f}' for t in ours)})")
        print(f"ratio        {statistics.median(theirs) / statistics.median(ours):6.2f}     (bar: 0.8)")
        above, before = (memory.highest - memory.start) / 2**20, memory.start / 2**20
        print(f"anonymous    {above:6.0f} MiB above the {before:.0f} before")
        for streams in (1, 2, 8):
            other = Path(folder) / f"{streams}.safetensors"
            qk.quantize_weights(source, other, streams=streams)
            print(f"{streams} streams: {'the same bytes' if filecmp.cmp(result, other, False) else 'OTHER BYTES'}")
            other.unlink()


if __name__ == "__main__":
    main()
