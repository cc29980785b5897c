"""How long the float and the int8 model take, side by side."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from quantkit.models.inputs import Feed
from quantkit.models.runtime import open_session

if TYPE_CHECKING:
    from quantkit.graph.io import ModelSource

__all__ = ["Latency", "measure_latency"]


@dataclass(frozen=True)
class Latency:
    """Medians of interleaved runs of both models in onnxruntime on the same feed.

    Attributes
    ----------
    float_ms, int8_ms : float
        Milliseconds a run.
    spread : float
        How far two medians of the *same* (float) model lay apart in this very measurement, as a share: 0.02 means
        that a difference of 2 % says nothing.
    runs : int
        Runs of each model.
    threads : int
    """

    float_ms: float
    int8_ms: float
    spread: float
    runs: int
    threads: int = 1

    @property
    def speedup(self) -> float:
        """Float time over int8 time: above 1 the int8 model is faster."""
        return self.float_ms / self.int8_ms

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "speedup": self.speedup}


def measure_latency(
    float_model: ModelSource, int8_model: ModelSource, feed: Feed, *, threads: int = 1, budget: float = 3.0
) -> Latency:
    """Time both models in onnxruntime, interleaved, and the float model twice a round for the A/A spread.

    Parameters
    ----------
    float_model, int8_model : path, bytes or ModelProto
    feed : dict of str to ndarray
    threads : int, default 1
    budget : float, default 3.0
        Seconds of measuring; at least one round is made however slow the models are, at most 200.

    Returns
    -------
    Latency

    Raises
    ------
    ModelError
        When a model does not load or run.
    """
    before = open_session(float_model, "the float model", threads=threads)
    after = open_session(int8_model, "the int8 model", threads=threads)
    return interleave(
        lambda: before.run(feed), lambda: after.run(feed), threads=threads, budget=budget, clock=best_clock(threads)
    )


def best_clock(threads: int) -> Callable[[], float]:
    """Return the clock for runs on `threads` threads.

    One thread's own CPU time does not grow when other programs take the machine; where the system counts it too
    coarsely, or several threads work, the time that passes is all there is.
    """
    if threads == 1 and time.get_clock_info("thread_time").resolution <= 1e-6:
        return time.thread_time
    return time.perf_counter


def interleave(
    run_float: Callable[[], Any],
    run_int8: Callable[[], Any],
    *,
    threads: int = 1,
    budget: float = 3.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Latency:
    """Time two callables in alternating order until `budget` seconds have passed.

    The first call of each warms up and is not counted, unless one round takes longer than the budget by itself.
    """

    def timed(run: Callable[[], Any]) -> float:
        start = clock()
        run()
        return clock() - start

    started, began = clock(), time.perf_counter()

    def spent() -> float:
        """Return the seconds since the start; CPU time stands still while others have the processor."""
        return max(clock() - started, time.perf_counter() - began)

    warm_float, warm_int8 = timed(run_float), timed(run_int8)
    if spent() > budget:
        return Latency(warm_float * 1e3, warm_int8 * 1e3, 0.0, 1, threads)
    first: list[float] = []
    middle: list[float] = []
    last: list[float] = []
    while len(first) < 200:
        first.append(timed(run_float))
        middle.append(timed(run_int8))
        last.append(timed(run_float))
        if spent() > budget:
            break
    a, b = median(first), median(last)
    return Latency(median(first + last) * 1e3, median(middle) * 1e3, abs(a - b) / min(a, b), len(first), threads)
