"""The account of a quantization: for every node its decision, its weights and its multiply-accumulates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from quantkit.graph import FLOAT_TYPES, Graph, Model, Node, element_type
from quantkit.graph.op_table import weight_inputs
from quantkit.models.calibration.statistics import Calibration
from quantkit.models.planning.decisions import NodePlan, Plan
from quantkit.models.report.report import NodeRecord, TensorRange
from quantkit.qparams import QParams


class Account:
    """Counts weights and work of a prepared model, before the rewriters change it."""

    def __init__(self, model: Model, seen: Mapping[Graph, Calibration] | None) -> None:
        self.rows: list[tuple[Node, str, str, int, int | None]] = []
        self._counted: set[tuple[int, str]] = set()
        for graph in model.graph.walk():
            for node in graph.sorted_nodes():
                macs = _macs(graph, node, seen[graph]) if seen is not None else None
                self.rows.append((node, node.title, node.op_type, self._weight_elements(graph, node), macs))

    def _weight_elements(self, graph: Graph, node: Node) -> int:
        count = 0
        for position in weight_inputs(node):
            name = node.input(position)
            if not name or not graph.is_constant(name) or element_type(graph, name) not in FLOAT_TYPES:
                continue
            key = (id(graph.scope_of(name)), name)
            if key not in self._counted:
                self._counted.add(key)
                count += int(np.prod(graph.shape_of_constant(name) or (), dtype=np.int64))
        return count

    def records(self, decisions: Mapping[Node, NodePlan]) -> list[NodeRecord]:
        """Return one record a node, in the order of the graph."""
        found = []
        for node, name, op_type, weights, macs in self.rows:
            plan = decisions.get(node) or NodePlan("float", f"{op_type} is computed in float")
            found.append(NodeRecord(name, op_type, plan.decision, plan.reason, weights, macs))
        return found


def _macs(graph: Graph, node: Node, calibration: Calibration) -> int | None:
    """Return the multiply-accumulates of one run at the largest shape that calibration saw."""
    if not node.is_op("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return None
    if node.is_op("ConvTranspose"):
        made, shape = calibration[node.inputs[0]], graph.shape_of_constant(node.inputs[1])
        return made.elements * int(np.prod(shape[1:])) if made.shape and shape else None
    made = calibration[node.outputs[0]]
    if not made.shape:
        return None
    if node.is_op("Conv"):
        shape = graph.shape_of_constant(node.inputs[1])
        return made.elements * int(np.prod(shape[1:])) if shape else None
    first = graph.shape_of_constant(node.inputs[0]) or calibration[node.inputs[0]].shape
    if not first:
        return None
    return made.elements * first[-2 if node.get("transA", 0) and len(first) > 1 else -1]


def tensor_ranges(plan: Plan, seen: Calibration) -> list[TensorRange]:
    """Return what was seen of each quantized tensor, and its parameters."""
    found = []
    for tensors, dtype in ((plan.born, "uint8"), (plan.read, "uint8"), (plan.read_signed, "int8")):
        for name, params in tensors.items():
            stats = seen[name]
            assert isinstance(params, QParams)
            if stats.seen:
                found.append(
                    TensorRange(
                        name, stats.low, stats.high, float(params.scale), int(params.zero_point), dtype, stats.nonfinite
                    )
                )
    return found
