"""What nodes cost in onnxruntime, in float and in int8: a model of time that gives the same answer on every machine.

The constants are fits to chains of equal layers of 16 to 240 channels and 72 to 4608 positions, onnxruntime 1.32, one
thread, on an x86-64 CPU with VNNI at about 54 float32 GMAC/s. They are only compared with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from quantkit.graph import Graph, Node
from quantkit.models.calibration.statistics import Calibration
from quantkit.models.refinement.speed import SHORT_MS, Costs, border_cost


class Rate(NamedTuple):
    """Microseconds: of a node, of each element and of each multiply-accumulate; the last grows with few channels."""

    node: float
    element: float
    mac: float = 0.0
    mac_channels: float = 0.0


@dataclass(frozen=True)
class Rates:
    """The same work in float and in int8."""

    as_float: Rate
    as_int8: Rate


_DENSE = Rates(Rate(0.5, 0.0, 18e-6), Rate(1.0, 0.15e-3, 4.3e-6))
# onnxruntime's int8 depthwise kernel reads channels last, and goes through them a few at a time.
_DEPTHWISE = Rates(Rate(1.0, 0.08e-3, 20e-6), Rate(2.0, 0.0, 32e-6, 800e-6))
_ARITHMETIC = Rates(Rate(0.5, 0.1e-3), Rate(1.5, 0.27e-3))
_RATES = {
    "Sigmoid": Rates(Rate(0.5, 0.16e-3), Rate(1.0, 0.4e-3)),
    "LeakyRelu": Rates(Rate(0.5, 0.1e-3), Rate(1.0, 0.4e-3)),
    "Add": Rates(Rate(0.5, 0.2e-3), Rate(1.5, 0.24e-3)),
    "MaxPool": Rates(Rate(1.0, 0.2e-3), Rate(1.5, 0.35e-3)),
}
_RECURRENT = Rates(Rate(3.0, 0.0, 90e-6), Rate(3.0, 0.0, 60e-6))
_MOVES = Rates(Rate(0.5, 0.05e-3), Rate(0.5, 0.02e-3))
# What the constants cannot tell apart, and the share of the float time that an assignment should take.
_CLEARLY = 1.1
_WANTED = 0.95
_WEIGHTED = ("Conv", "Gemm", "MatMul", "ConvTranspose")


def node_costs(
    node: Node, decision: str, seen: Calibration, macs: int, weights: int, *, rescaled: bool = False
) -> tuple[float, float]:
    """Return the microseconds of `node` in float, and in the decision that was made for it."""
    elements = max((seen[name].elements for name in (*node.inputs[:1], *node.outputs[:1]) if name), default=0)
    channels = 1
    if node.is_op(*_WEIGHTED):
        elements = seen[node.outputs[0]].elements
        depthwise = node.is_op("Conv") and node.get("group", 1) > 1
        channels = max(1, node.get("group", 1))
        rates = _DEPTHWISE if depthwise else _DENSE
    elif node.is_op("LSTM", "GRU", "RNN"):
        rates = _RECURRENT
        macs = weights * (seen[node.inputs[0]].shape[:1] or (1,))[0]
    elif decision == "passthrough":
        rates = _MOVES
    else:
        rates = _RATES.get(node.op_type, _ARITHMETIC)
    as_float = _time(rates.as_float, elements, macs, channels)
    if decision in ("static", "passthrough", "dynamic"):
        # A clamp that is absorbed and a factor that is a scale are no nodes any more; float clamps are fused as well.
        gone = decision == "passthrough" and (rescaled or node.is_op("Relu", "Clip"))
        if gone:
            return (0.0 if node.is_op("Relu", "Clip") else as_float), 0.0
        return as_float, _time(rates.as_int8, elements, macs, channels)
    return as_float, as_float


def crossings(graph: Graph, seen: Calibration, computes_codes: Callable[[Node], bool]) -> dict[Node, float]:
    """Return what the conversions take between a float node and its int8 neighbours."""
    found: dict[Node, float] = {}
    for node in graph.nodes:
        if computes_codes(node):
            continue
        makers = {name: graph.producer(name) for name in node.inputs if name}
        names = [name for name, maker in makers.items() if maker is not None and computes_codes(maker)]
        names += [name for name in node.outputs if name and any(map(computes_codes, graph.consumers(name)))]
        found[node] = sum(border_cost(seen[name].elements) for name in names if seen[name].elements)
    return found


def _time(rate: Rate, elements: int, macs: int, channels: int) -> float:
    return rate.node + rate.element * elements + (rate.mac + rate.mac_channels / channels) * macs


def total(costs: Costs, chosen: np.ndarray) -> float:
    """Return the microseconds of an assignment, `chosen` nodes in int8, from and to float."""
    own = np.where(chosen, costs.as_int8, costs.as_float).sum()
    state = np.concatenate([[False], chosen])
    return float(own + costs.borders[np.flatnonzero(state[1:] != state[:-1])].sum())


def borders(nodes: Sequence[Node], seen: Sequence[Calibration]) -> np.ndarray:
    """Return what converting all tensors would cost that cross from before each node to it or beyond."""
    made: dict[str, int] = {}
    last: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in node.outputs:
            made.setdefault(name, i)
        last.update(dict.fromkeys(node.inputs, i))
    found = np.zeros(len(nodes))
    for calibration in seen:
        for name, stats in calibration.tensors.items():
            start, end = made.get(name, -1), last.get(name, -1)
            found[start + 1 : end + 1] += border_cost(stats.elements)
    return found


def promising(costs: Costs, candidates: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return assignments to try, the best first: those that should be faster than float in their order, then the rest.

    None at all where int8 everywhere should not be slower than float, or a run is as short as calls are.
    """
    whole = float(costs.as_float.sum())
    if whole < 1e3 * SHORT_MS or total(costs, np.ones(len(costs.as_float), bool)) <= _CLEARLY * whole:
        return []
    fast = [c for c in candidates if total(costs, c) <= _WANTED * whole]
    rest = sorted((c for c in candidates if total(costs, c) > _WANTED * whole), key=lambda c: total(costs, c))
    return fast + rest
