"""Streams beside processes and beside concurrent.futures.

    python benchmarks/streams.py [--rounds 9] [--seconds 0.4]

"scaling" is how much more two of a kind do in the same time than one: of streams in this process, and of processes that
each convolve as this one does, forked from it; both in each round, so that they meet the same machine. Eight streams
do the work of two. Enqueuing is measured while a worker does the work, and submit beside a thread pool of one thread.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from harness import machine

import quantkit as qk

MANY = 1000


def layers() -> list[Callable[[], Any]]:
    """Convolutions of a ResNet's four stages, on one image."""
    rng = np.random.default_rng(0)
    calls = []
    for size, channels in ((56, 64), (28, 128), (14, 256), (7, 512)):
        x = rng.integers(0, 256, (1, size, size, channels)).astype(np.uint8).transpose(0, 3, 1, 2)
        w = qk.ops.pack_conv(rng.integers(-127, 128, (channels, channels, 3, 3)).astype(np.int8))

        def call(x: Any = x, w: Any = w) -> Any:
            return qk.ops.qlinear_conv(x, 0.1, 128, w, 0.01, 0, 0.5, 128, pads=[1, 1, 1, 1])

        calls.append(call)
    return calls


def convolve(calls: list[Callable[[], Any]], times: int) -> None:
    """Queue, or run, every layer so many times."""
    for _ in range(times):
        for call in calls:
            call()


def on_streams(streams: list[qk.Stream], calls: list[Callable[[], Any]], times: int) -> float:
    """Seconds for `times` rounds of all layers on each stream."""
    start = time.perf_counter()
    for _ in range(times):  # in turns, as a program with several streams would
        for s in streams:
            with qk.stream(s):
                convolve(calls, 1)
    for s in streams:
        s.synchronize()
    return time.perf_counter() - start


def serve(pipe: Any) -> None:
    """A process that convolves as often as it is asked to."""
    calls, s = layers(), qk.Stream()
    while (times := pipe.recv()) is not None:
        pipe.send(on_streams([s], calls, times))


def in_processes(pipes: list[Any], times: int) -> float:
    """Seconds until each process has done its rounds."""
    start = time.perf_counter()
    for pipe in pipes:
        pipe.send(times)
    for pipe in pipes:
        pipe.recv()
    return time.perf_counter() - start


def each(count: int, enqueue: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Microseconds that one of `count` calls takes its caller."""
    start = time.perf_counter()
    for _ in range(count):
        enqueue()
    took = time.perf_counter() - start
    wait()
    return took / count * 1e6


def nothing() -> None:
    """What is submitted."""


def overheads(rounds: int) -> dict[str, float]:
    """Medians of what enqueuing costs the caller, in microseconds."""
    s, pool = qk.Stream(), ThreadPoolExecutor(1)
    x, scale = np.linspace(-1, 1, 64, dtype=np.float32), 0.1
    q = qk.ops.quantize_linear(x, scale)
    out = qk.full((64,), 0, dtype=np.uint8)
    verbs = {
        "copy": lambda: qk.ops.copy(x),
        "quantize_linear": lambda: qk.ops.quantize_linear(x, scale),
        "quantize_linear, out=": lambda: qk.ops.quantize_linear(x, scale, out=out),
        "dequantize_linear": lambda: qk.ops.dequantize_linear(q, scale),
        "record_event": s.record_event,
    }
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, verb in verbs.items():
            with qk.stream(s):
                times.setdefault(name, []).append(each(MANY, verb, s.synchronize))
        times.setdefault("submit", []).append(each(MANY, lambda: s.submit(nothing), s.synchronize))
        last = pool.submit(nothing).result
        times.setdefault("concurrent.futures submit", []).append(each(MANY, lambda: pool.submit(nothing), last))
        pool.submit(nothing).result()
    return {name: statistics.median(t) for name, t in times.items()}


def main() -> None:
    """Run it and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.4, help="How long one stream works in a round.")
    options = parser.parse_args()
    print(machine())
    pipes, processes = [], []
    context = multiprocessing.get_context("spawn")
    for _ in range(2):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=serve, args=(theirs,), daemon=True))
        processes[-1].start()
        pipes.append(ours)
    calls = layers()
    eight = [qk.Stream() for _ in range(8)]
    on_streams(eight[:1], calls, 3)
    in_processes(pipes, 3)
    times = max(4, round(options.seconds / (on_streams(eight[:1], calls, 4) / 4) / 4) * 4)
    ways: dict[str, Callable[[], float]] = {
        "one stream": lambda: on_streams(eight[:1], calls, times),
        "two streams": lambda: on_streams(eight[:2], calls, times),
        "eight streams, the work of two": lambda: on_streams(eight, calls, times // 4),
        "one process": lambda: in_processes(pipes[:1], times),
        "two processes": lambda: in_processes(pipes, times),
        "one stream again (A/A)": lambda: on_streams(eight[:1], calls, times),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(options.rounds):
        order = list(ways)
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            seconds[name].append(ways[name]())
    medians = {name: statistics.median(t) for name, t in seconds.items()}
    for name, t in medians.items():
        print(f"{name:<32} {t:7.3f} s")
    streams = 2 * medians["one stream"] / medians["two streams"]
    rivals = 2 * medians["one process"] / medians["two processes"]
    print(f"scaling of two streams {streams:.3f}, of two processes {rivals:.3f}: {streams / rivals:.3f} (bar: 0.95)")
    print(f"eight streams / two     {medians['two streams'] / medians['eight streams, the work of two']:.3f}")
    print(f"A/A                     {medians['one stream again (A/A)'] / medians['one stream']:.3f}")
    for name, cost in overheads(options.rounds).items():
        print(f"{name:<32} {cost:7.2f} us a call")
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(None)
        process.join()


if __name__ == "__main__":
    main()
