"""Speed: an int8 model that onnxruntime runs slower than the float one gives back the nodes that lose.

What int8 costs depends on shapes, channels, neighbours and the machine: a depthwise Conv or a product with a gate over
a few thousand elements can take longer than in float, and each border between int8 and float is a conversion. So both
models are profiled on one sample, and the cheapest assignment of float and int8 along the order of execution is found
by dynamic programming over node costs and borders; a bonus for each weight in int8 is raised until most of them are.
What is then kept is what measures faster than float, not what was predicted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quantkit.models.verification.execution import NodeTime
from quantkit.models.verification.latency import Latency

# A run this short consists of what onnxruntime spends on each node and call, whatever the arithmetic.
SHORT_MS = 0.25
# Slower by less than this, or than the noise of the measurement, is not slower.
SLACK = 0.03
# A border costs a conversion, about this long for a tensor of no size and for each of its elements.
_BORDER_US = 2.0
_ELEMENT_US = 0.0004
_SUFFIX = re.compile(r"_[^_]*$")

Array = np.ndarray


def is_slower(latency: Latency) -> bool:
    """Whether the int8 model takes longer than float, beyond what the measurement cannot tell apart."""
    return latency.float_ms >= SHORT_MS and _takes_longer(latency)


def is_short_and_slower(latency: Latency) -> bool:
    """Whether the int8 model takes longer than a float model whose run is too short for anything to be given back."""
    return latency.float_ms < SHORT_MS and _takes_longer(latency)


def _takes_longer(latency: Latency) -> bool:
    return latency.int8_ms > latency.float_ms * (1 + max(SLACK, latency.spread))


@dataclass(frozen=True)
class Costs:
    """Microseconds in the order of execution.

    Attributes
    ----------
    as_float, as_int8 : ndarray of float64
        Of each node.
    borders : ndarray of float64
        Of converting all tensors that cross from before node i to node i or beyond.
    weights : ndarray of float64
        Weight elements of each node.
    """

    as_float: Array
    as_int8: Array
    borders: Array
    weights: Array


def border_cost(elements: int) -> float:
    """Return about how many microseconds converting a tensor between float and int8 takes."""
    return _BORDER_US + _ELEMENT_US * elements


def attribute(times: Sequence[NodeTime], places: Mapping[str, int], count: int, overhead: float) -> Array:
    """Return the time of each of `count` nodes of the model that the executed nodes `times` come from.

    Parameters
    ----------
    times : sequence of NodeTime
    places : mapping of str to int
        Position of each node by its name and by those of its outputs. onnxruntime names what it makes after them.
    count : int
    overhead : float
        Microseconds that profiling adds to each node.
    """
    found = np.zeros(count)
    waiting = 0.0
    place = None
    for item in times:
        spent = max(0.0, item.microseconds - overhead)
        here = next((p for name in item.names if (p := _place(name, places)) is not None), None)
        if here is None:
            waiting += spent  # a layout change or a conversion: it serves the next node
            continue
        place = here
        found[place] += spent + waiting
        waiting = 0.0
    if place is not None:
        found[place] += waiting
    return found


def _place(name: str, places: Mapping[str, int]) -> int | None:
    while name:
        if name in places:
            return places[name]
        shorter = _SUFFIX.sub("", name)
        if shorter == name:
            return None
        name = shorter
    return None


def cheapest(costs: Costs, bonus: float = 0.0) -> Array:
    """Return which nodes are int8 in the cheapest assignment, each weight element in int8 being worth `bonus`."""
    count = len(costs.as_float)
    own = np.stack([costs.as_float, costs.as_int8 - bonus * costs.weights])
    total = own[:, 0] + [0.0, _BORDER_US]
    came = np.zeros((2, count), int)
    for i in range(1, count):
        crossing = total[::-1] + costs.borders[i]
        came[:, i] = np.where(crossing < total, [1, 0], [0, 1])
        total = np.minimum(crossing, total) + own[:, i]
    state = int(np.argmin(total))
    chosen = np.zeros(count, bool)
    for i in range(count - 1, -1, -1):
        chosen[i] = state == 1
        state = int(came[state, i])
    return chosen


def assignments(costs: Costs, shares: Sequence[float]) -> list[Array]:
    """Return the cheapest assignments that keep each of these `shares` of the weights in int8, in this order.

    The cheapest of all comes last; equal ones are given once, and a share that cannot be reached is left out.
    """
    whole = float(costs.weights.sum())
    found: dict[bytes, Array] = {}
    for wanted in (*shares, 0.0):
        low, high = 0.0, max(1.0, float(costs.as_int8.sum() + costs.borders.sum()))
        chosen = cheapest(costs)
        if float(costs.weights[chosen].sum()) < wanted * whole:
            for _ in range(50):
                middle = (low + high) / 2
                if float(costs.weights[cheapest(costs, middle)].sum()) >= wanted * whole:
                    high = middle
                else:
                    low = middle
            chosen = cheapest(costs, high)
        if float(costs.weights[chosen].sum()) >= wanted * whole:
            found.setdefault(chosen.tobytes(), chosen)
    return list(found.values())


def losses(costs: Costs, describe: Callable[[int], str], most: int = 3) -> str:
    """Name the nodes that lose the most time in int8."""
    lost = costs.as_int8 - costs.as_float
    worst = [int(i) for i in np.argsort(-lost)[:most] if lost[i] > 0]
    return ", ".join(f"{describe(i)} (+{lost[i]:.0f} us)" for i in worst)
