"""The numbers that decide why a node stays float, in words."""

from __future__ import annotations

import numpy as np

from quantkit.models.refinement.speed import Costs
from quantkit.sqnr import sqnr_db
from quantkit.text import counted

# The noise that stands for infinite values and NaN, so that sums of it can be compared.
HOPELESS = 1e12


def decibels(noise: float) -> float:
    """Return the SQNR that a noise over signal is."""
    return sqnr_db(1.0, max(noise, 1e-30))


def by_time(costs: Costs, chosen: np.ndarray, why: str) -> dict[int, str]:
    """Return why each node that is not `chosen` stays float: what its stretch takes in int8 and in float.

    The conversions at its ends count.
    """
    found: dict[int, str] = {}
    count = len(chosen)
    edges = np.flatnonzero(np.diff(np.concatenate([[True], chosen, [True]])))
    for first, end in edges.reshape(-1, 2).tolist():
        ends = [place for place in (first, end) if 0 < place < count]
        as_float = float(costs.as_float[first:end].sum() + costs.borders[ends].sum())
        as_int8 = float(costs.as_int8[first:end].sum() + (costs.borders[0] if first == 0 else 0.0))
        reason = f"{why}, {as_int8:.1f} us instead of {as_float:.1f} for {counted(end - first, 'node')}"
        found.update(dict.fromkeys(range(first, end), reason))
    return found


def by_outputs(noises: np.ndarray, outputs: int, base: float, why: str, nodes: int) -> str:
    """Return why `nodes` stay float: what is left of the worst output with nothing in int8 but them."""
    there = "it" if nodes == 1 else f"these {nodes} nodes"
    alone = float(np.max(noises[:outputs], initial=0.0))
    if alone >= HOPELESS:
        return f"{why}, infinite values or NaN with {there} alone in int8"
    return f"{why}, {decibels(alone):.1f} dB with {there} alone in int8, {decibels(base):.1f} with everything"


def effect(noise: float, base: float) -> str:
    """Return what all nodes that stay float for their time do to the worst output."""
    if not (np.isfinite(noise) and np.isfinite(base)):
        return ""
    return f"; the outputs have {decibels(noise):.1f} dB so, {decibels(base):.1f} with all such nodes in int8"
