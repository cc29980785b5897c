"""Handing a tensor to a running worker: quantkit, torch and pickle side by side.

    python benchmarks/storage.py [--sizes 1 64 1024] [--rounds 50]

Each round sends one tensor through the same pipe to the same worker, which reads one byte of it and answers. The ways
take turns within a round. "create" is what it costs to bring the bytes into shared memory, once; "first" is the first
time the worker sees them; "again" is the median of all later rounds, with the quartiles beside it. The tensor is kept
by both sides, as it is where a job works in place. Times are in milliseconds, sizes in MiB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from typing import Any

import numpy as np

import quantkit as qk
from quantkit.cpu import active_isa

try:
    import torch
    import torch.multiprocessing  # teaches the pipe torch's own handles
except ImportError:
    torch = None


def worker(pipe: Any) -> None:
    """Answer with one byte of what comes; keep the last tensor of each way, as a worker that uses it would."""
    kept = {}
    while (tensor := pipe.recv()) is not None:
        kept[type(tensor)] = tensor  # so that each way pays for dropping its own
        pipe.send(int(np.asarray(tensor).reshape(-1)[-1]))


def milliseconds(function: Any, *arguments: Any) -> tuple[float, Any]:
    """Run once; return the time and the result."""
    start = time.perf_counter()
    result = function(*arguments)
    return (time.perf_counter() - start) * 1e3, result


def hand_over(pipe: Any, tensor: Any) -> int:
    """Send, and wait until the worker has read it."""
    pipe.send(tensor)
    answer: int = pipe.recv()
    return answer


def candidates(nbytes: int) -> dict[str, tuple[float, Any]]:
    """Return each way's tensor, and the median cost of sharing bytes that were on the heap."""
    fresh = {"quantkit": lambda: qk.as_tensor(qk.ByteStorage.full(nbytes, 3))}
    if torch is not None:
        fresh["torch"] = lambda: torch.full((nbytes,), 3, dtype=torch.uint8)
    ways: dict[str, tuple[float, Any]] = {}
    for name, make in fresh.items():
        took = []
        for _ in range(4):  # the first has the system find memory, and counts for nobody
            tensor = make()
            took.append(milliseconds(tensor.share_memory_)[0])
        ways[name] = statistics.median(took[1:]), tensor
    ways["pickle"] = 0.0, np.full(nbytes, 3, np.uint8)
    return ways


def measure(pipe: Any, mib: int, rounds: int) -> list[str]:
    """Return one line for each way."""
    ways = candidates(mib << 20)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for i in range(rounds + 1):
        for name, (_, tensor) in ways.items():
            if name == "pickle" and mib >= 256 and i > 5:
                continue  # it takes seconds, and does not change
            took, answer = milliseconds(hand_over, pipe, tensor)
            assert answer == 3
            times[name].append(took)
    lines = []
    for name, (create, _) in ways.items():
        first, again = times[name][0], times[name][1:]
        low, middle, high = statistics.quantiles(again, n=4)
        lines.append(f"{mib:>6} {name:>9} {create:>10.2f} {first:>10.3f} {middle:>10.3f}   ({low:.3f} to {high:.3f})")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 64, 1024], help="MiB")
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=worker, args=(theirs,), daemon=True)
    process.start()
    hand_over(ours, qk.full(1, 3))  # the worker has imported everything
    versions = f"quantkit ({active_isa()}), numpy {np.__version__}, torch {torch.__version__ if torch else 'missing'}"
    print(f"{versions}, {multiprocessing.cpu_count()} CPUs; milliseconds")
    print(f"{'MiB':>6} {'way':>9} {'create':>10} {'first':>10} {'again':>10}   (quartiles)")
    for mib in options.sizes:
        print("\n".join(measure(ours, mib, options.rounds)), flush=True)
    ours.send(None)
    process.join()


if __name__ == "__main__":
    main()
