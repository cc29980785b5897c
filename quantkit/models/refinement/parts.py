"""Which parts of a model cost its outputs most, and which of them to leave float.

The noise that rounding adds in one part hardly depends on what is rounded elsewhere, so the noises of parts that are
in int8 alone add up to about that of the whole. A part starts at a node with weights that computes in int8. All parts
are measured in a few stretches first; only a stretch that matters is cut in two, and measured again, until single
parts are left or the measurements are used up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_STRETCHES = 8
_MEASUREMENTS = 28
# A stretch matters when it takes this much of what some output may have.
_MATTERS = 0.15
# Besides its share of the arithmetic, what leaving a part float costs.
_EACH = 0.005


@dataclass(frozen=True, eq=False)
class Part:
    """Nodes in the order of execution, [first, end), and the noise with nothing in int8 but them."""

    first: int
    end: int
    noises: Array


def measure_parts(
    starts: Sequence[int],
    count: int,
    goals: Array,
    alone: Callable[[int, int], Array],
    tell: Callable[[int, int], None],
) -> list[Part]:
    """Measure parts of a model.

    Parameters
    ----------
    starts : sequence of int
        Where parts may begin, ascending.
    count : int
        Nodes in all.
    goals : ndarray
        Noise that is good enough.
    alone : callable
        Returns the noises with only the nodes [first, end) in int8.
    tell : callable
        Told measurements done and about how many there will be.
    """
    edges = [0, *starts[1:], count]
    units = len(edges) - 1
    done = 0

    def measure(a: int, b: int) -> tuple[int, int, Part]:
        nonlocal done
        tell(min(done, _MEASUREMENTS - 1), _MEASUREMENTS)
        done += 1
        return a, b, Part(edges[a], edges[b], alone(edges[a], edges[b]))

    cuts = np.unique(np.linspace(0, units, _STRETCHES + 1).astype(int)).tolist()
    found = [measure(a, b) for a, b in itertools.pairwise(cuts)]
    while done + 2 <= _MEASUREMENTS:
        wide = [item for item in found if item[1] - item[0] > 1 and _weight(item[2], goals) > _MATTERS]
        if not wide:
            break
        worst = max(wide, key=lambda item: _weight(item[2], goals))
        found.remove(worst)
        a, b, _ = worst
        middle = (a + b) // 2
        found += [measure(a, middle), measure(middle, b)]
    return [part for _, _, part in sorted(found, key=lambda item: item[0])]


def _weight(part: Part, goals: Array) -> float:
    return float(np.max(part.noises / goals, initial=0.0))


def factors_of(parts: Sequence[Part], in_float: set[int], noises: Array) -> Array:
    """Return what the sum of the parts that are not in float has to be multiplied by to give the measured noises."""
    total = np.sum([part.noises for i, part in enumerate(parts) if i not in in_float], axis=0)
    found: Array = np.clip(noises / np.maximum(total, 1e-30), 0.1, 1e3)
    return found


def choose_float(
    parts: Sequence[Part], chosen: set[int], factors: Array, goals: Array, macs: Array, most: float
) -> set[int]:
    """Return which parts to leave float so that the noises, as they add up, are good enough.

    Parameters
    ----------
    parts : sequence of Part
    chosen : set of int
        Those that are float already.
    factors : ndarray
        What the sum of the parts is multiplied by to give the whole.
    goals : ndarray
    macs : ndarray
        Share of each part in the multiply-accumulates.
    most : float
        Share that may be float.
    """
    before, chosen = chosen, set(chosen)
    noises = np.array([part.noises * factors for part in parts])
    noises = np.minimum(np.nan_to_num(noises, posinf=1e30), 1e30)

    def ratios(in_float: set[int]) -> Array:
        ratio: Array = noises[[i for i in range(len(parts)) if i not in in_float]].sum(axis=0) / goals
        return ratio

    while len(chosen) < len(parts):
        ratio = ratios(chosen)
        if np.max(ratio, initial=0.0) <= 1:
            break
        worst = int(np.argmax(ratio))
        left = [i for i in range(len(parts)) if i not in chosen]
        # What hardly lowers the worst one is worth nothing, however cheap.
        enough = 0.01 * noises[left, worst].sum()
        fits = [i for i in left if macs[i] + macs[list(chosen)].sum() <= most and noises[i, worst] >= enough]
        if not fits:
            return chosen
        chosen.add(max(fits, key=lambda i: noises[i, worst] / (macs[i] + _EACH)))
    # Those that came first may have become needless.
    for i in sorted(chosen - before, key=lambda i: -macs[i]):
        if np.max(ratios(chosen - {i}), initial=0.0) <= 1:
            chosen.remove(i)
    return chosen


def give_back(parts: Sequence[Part], chosen: set[int], factors: Array, goals: Array, macs: Array) -> set[int]:
    """Return `chosen` without what may be in int8 again, the most arithmetic first, as the noises add up."""
    noises = np.array([part.noises * factors for part in parts])
    found = set(chosen)
    total = noises[[i for i in range(len(parts)) if i not in found]].sum(axis=0)
    for i in sorted(chosen, key=lambda i: -macs[i]):
        if np.all(total + noises[i] <= goals):
            found.remove(i)
            total = total + noises[i]
    return found
