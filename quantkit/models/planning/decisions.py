"""What planning decides, in the form that the rewriters read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantkit.graph import Graph, Node
from quantkit.qparams import QParams, choose_qparams, quint8

IN_DOUBLE = "computes in float64, beside what cannot become float32"


@dataclass
class NodePlan:
    """Decision and reason for one node."""

    decision: str
    reason: str


@dataclass
class Plan:
    """What the rewriter does.

    Attributes
    ----------
    nodes : dict of Node to NodePlan
        Every node of the graph.
    born : dict of str to QParams
        Tensors that exist as codes.
    read : dict of str to QParams
        Other tensors that int8 nodes read: quantized for them alone.
    read_signed : dict of str to QParams
        The same to int8, where they are the second operand of a product.
    absorbed : dict of Node to Node
        Clamps that the quantized range of another node's output expresses.
    rescaled : dict of Node to float
        Products with a positive constant: the same codes under another scale.
    """

    nodes: dict[Node, NodePlan] = field(default_factory=dict)
    born: dict[str, QParams] = field(default_factory=dict)
    absorbed: dict[Node, Node] = field(default_factory=dict)
    rescaled: dict[Node, float] = field(default_factory=dict)
    read: dict[str, QParams] = field(default_factory=dict)
    read_signed: dict[str, QParams] = field(default_factory=dict)

    def is_int8(self, node: Node) -> bool:
        """Whether `node` reads and computes codes."""
        found = self.nodes.get(node)
        return found is not None and found.decision in ("static", "passthrough")


def constant_qparams(values: Any) -> QParams:
    """Return uint8 parameters for a constant operand; a single value is exact."""
    if values.size == 1:
        value = float(np.asarray(values).reshape(-1)[0])
        if value == 0:
            return QParams(1.0, 0)
        return QParams(abs(value), 0 if value > 0 else 1)
    return choose_qparams(float(values.min()), float(values.max()), quint8)


def clamp_is_proved(graph: Graph, node: Node, params: QParams) -> bool:
    """Whether the codes of `params` can only stand for values that the clamp lets through."""
    low: Any = 0.0
    high: Any = np.inf
    if node.op_type == "Clip":
        low, high = -np.inf, np.inf
        for position, default in ((1, low), (2, high)):
            name = node.input(position)
            bound = graph.constant(name) if name else np.array(default)
            if bound is None or bound.size != 1:
                return False
            if position == 1:
                low = float(bound.reshape(-1)[0])
            else:
                high = float(bound.reshape(-1)[0])
    bottom, top = (-params.zero_point) * params.scale, (255 - params.zero_point) * params.scale
    slack = params.scale / 2 if low < 0 else 0.0
    return bool(low - slack <= bottom and top <= high + params.scale / 2)
