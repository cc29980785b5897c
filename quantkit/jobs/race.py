"""Timing of rivals: contestants take turns in one process, and medians are compared.

The first contestant runs twice in each round under two names (A/A): the spread between the two says how far a ratio
can be trusted on this machine at this moment.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable


def pin(threads: int) -> None:
    """Keep this process on the first `threads` CPUs that it may use."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))


def repeats_for(call: Callable[[], object], target: float) -> int:
    """How many calls take about `target` seconds together."""
    call()
    start = time.perf_counter()
    call()
    once = max(time.perf_counter() - start, 1e-7)
    return max(1, int(target / once))


def race(
    contestants: dict[str, Callable[[], object]],
    *,
    rounds: int = 15,
    target: float = 0.01,
    quantile: float = 0.5,
    rest: float = 0,
) -> dict[str, float]:
    """Median seconds a call for each contestant, and under ``"A/A"`` the ratio of two series of the first.

    On a machine that others use as well, a lower `quantile` of many short turns leaves theirs out.
    With `rest`, everybody sleeps so many seconds before a turn and begins it with a call that does not count: threads
    that still spin for work after the turn before would take a CPU from this one.
    """
    names = list(contestants)
    lanes = [(name, contestants[name]) for name in names] + [("A/A", contestants[names[0]])]
    repeats = {name: repeats_for(call, target) for name, call in lanes}
    repeats["A/A"] = repeats[names[0]]
    times: dict[str, list[float]] = {name: [] for name, _ in lanes}
    for turn in range(rounds):
        # Rotated, so that nobody always follows the same neighbour's caches.
        for name, call in lanes[turn % len(lanes) :] + lanes[: turn % len(lanes)]:
            count = repeats[name]
            if rest:
                time.sleep(rest)
                call()
            start = time.perf_counter()
            for _ in range(count):
                call()
            times[name].append((time.perf_counter() - start) / count)
    medians = {name: statistics.median(values) for name, values in times.items()}
    if quantile < 0.5:
        medians = {name: sorted(values)[int(quantile * rounds)] for name, values in times.items()}
    medians["A/A"] /= medians[names[0]]
    return medians


def machine() -> str:
    """One line about this machine, for the head of a table."""
    model = platform.processor()
    try:
        with open("/proc/cpuinfo") as lines:
            model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model}, {len(os.sched_getaffinity(0))} CPUs usable, Python {platform.python_version()}"
