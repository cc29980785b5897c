"""Weights in int8, arithmetic in float.

Two forms, whichever costs nothing at run time. A MatMul over a DequantizeLinear becomes one that reads int8
(MatMulNBits) in onnxruntime, so a plain Gemm is written as a MatMul and an Add. Any other DequantizeLinear of a weight
runs again at each call, because onnxruntime folds none. A Cast and a Mul it does fold, once, when the model is loaded:
the file holds int8 and the node reads floats.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from quantkit.graph import FLOAT_TYPES, Graph, Node, element_type
from quantkit.graph.op_table import weight_axis, weight_inputs
from quantkit.graph.tensors import all_finite
from quantkit.models.calibration.moments import Moments, input_view
from quantkit.models.calibration.statistics import Calibration
from quantkit.models.forms.embedding import gather_problem, write_gather
from quantkit.models.forms.emit import Emitter
from quantkit.models.forms.rounding import round_weight
from quantkit.models.forms.weights import Array, quantize_weight
from quantkit.models.passes.bias import split_bias
from quantkit.models.planning.decisions import IN_DOUBLE

RECURRENT = ("LSTM", "GRU", "RNN")
SUPPORTED = ("Conv", "ConvTranspose", "Gemm", "MatMul", *RECURRENT)


def weight_problem(graph: Graph, node: Node) -> str | None:
    """Return why no weight of `node` can be stored in int8, or None."""
    if node.is_op("Gather"):
        return gather_problem(graph, node)
    if not node.is_op(*SUPPORTED):
        return f"{node.op_type} has no weight-only form"
    positions = weight_positions(graph, node)
    if not positions:
        return "its weight is no constant"
    for position in positions:
        name = node.inputs[position]
        if element_type(graph, name) not in FLOAT_TYPES:
            return f"its weight {name!r} is not floating point"
        if element_type(graph, name) == TensorProto.DOUBLE:
            return IN_DOUBLE
        values = graph.array(name)
        if values.ndim < 2 or not values.size:
            return f"its weight {name!r} of shape {values.shape} is {'no matrix' if values.size else 'empty'}"
        if not all_finite(values):
            return f"its weight {name!r} holds NaN or infinite values"
    return None


def weight_positions(graph: Graph, node: Node) -> list[int]:
    """Return the positions of the constant weights of `node`; of a product, the second operand's alone if it is one."""
    found = [p for p in weight_inputs(node) if graph.is_constant(node.input(p))]
    return found[-1:] if node.is_op("MatMul", "Gemm") else found


def is_plain_gemm(graph: Graph, node: Node) -> bool:
    """Whether a Gemm is a MatMul with a constant row added."""
    if not node.is_op("Gemm") or node.get("transA", 0) or not graph.is_constant(node.inputs[1]):
        return False
    if node.get("alpha", 1.0) != 1.0 or node.get("beta", 1.0) != 1.0:
        return False
    shape = graph.shape_of_constant(node.input(2)) if node.input(2) else ()
    return shape is not None and len(shape) <= 1


class WeightOnlyWriter:
    """Rewrites nodes of one graph; a weight that several nodes read the same way is stored once.

    Parameters
    ----------
    graph : Graph
    calibration : Calibration, optional
        Moments of inputs, which rounding makes use of.
    """

    def __init__(self, graph: Graph, calibration: Calibration | None = None) -> None:
        self.graph = graph
        self._moments = {} if calibration is None else calibration.moments
        self.emit = Emitter(graph)
        self._stored: dict[tuple[str, int | None, bool], str] = {}

    def write(self, node: Node) -> None:
        """Store the weight of `node`, which has no `weight_problem`, in int8."""
        graph = self.graph
        if node.is_op("Gather"):
            write_gather(graph, node, self.emit)
            return
        inputs = list(node.inputs)
        turned = is_plain_gemm(graph, node) and bool(node.get("transB", 0))
        positions = weight_positions(graph, node)
        view = input_view(graph, node)
        moments = None if view is None else self._moments.get(view)
        if is_plain_gemm(graph, node):
            node.op_type = "MatMul"
            node.attributes.clear()
        for position in positions:
            name = node.inputs[position]
            axis = weight_axis(node, position, len(graph.shape_of_constant(name) or ()))
            key = (name, axis, turned)
            if key not in self._stored:
                values = graph.array(name)
                found = self._store(
                    node, position, values.T if turned else values, axis, moments if position == 1 else None
                )
                self._stored[key] = found
            inputs[position] = self._stored[key]
        graph.set_inputs(node, inputs)
        if node.is_op("MatMul"):
            split_bias(graph, node)

    def _store(self, node: Node, position: int, values: Array, axis: int | None, moments: Moments | None) -> str:
        name = node.inputs[position]
        by_row = node.is_op(*RECURRENT)  # a scale for each direction and gate
        found = quantize_weight(values.reshape(-1, values.shape[-1]) if by_row else values, 0 if by_row else axis)
        if moments is not None:
            round_weight(node, position, values, found, moments, centered=False)
        codes = self.emit.constant(np.ascontiguousarray(found.codes.reshape(values.shape)), f"{name}_q")
        output = self.emit.fresh(f"{name}_dq")
        if node.is_op("MatMul") and position == 1 and values.ndim == 2:
            return self.emit.dequantize(codes, output, found.qparams, node, np.int8)
        shape = [1] * values.ndim
        if by_row:
            shape[:-1] = values.shape[:-1]
        elif axis is not None:
            shape[axis] = values.shape[axis]
        return self.emit.dequantize_at_load(codes, found.scale.reshape(shape), output, node)
