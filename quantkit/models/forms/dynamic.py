"""Dynamic form: activations are quantized at run time, so no calibration is needed.

A product becomes DynamicQuantizeLinear, MatMulInteger, Cast and Mul, which onnxruntime runs as one node. One scale
serves a whole tensor: a row's result depends on its neighbours in the batch. ConvInteger costs onnxruntime 3 to 8
times what the float Conv costs, so a Conv takes that form only for other runtimes and is stored weight-only here.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from quantkit.graph import Graph, Node
from quantkit.graph.op_table import weight_axis
from quantkit.models.forms.emit import Emitter
from quantkit.models.forms.recurrent import lstm_problem, write_lstm
from quantkit.models.forms.saturation import quantize_for
from quantkit.models.forms.weight_only import RECURRENT, is_plain_gemm


def dynamic_problem(graph: Graph, node: Node, target: str) -> str | None:
    """Return why `node`, whose weight can be stored in int8, has no dynamic form, or None."""
    if node.is_op(*RECURRENT):
        return lstm_problem(graph, node, target)
    if node.is_op("MatMul"):
        rank = len(graph.shape_of_constant(node.inputs[1]) or ())
        if not graph.is_constant(node.inputs[1]):
            return "its weight is the first operand"
        return None if rank == 2 else f"its weight has rank {rank}, and the integer form has one scale a column"
    if node.is_op("Gemm"):
        return None if is_plain_gemm(graph, node) else "has transA, or an alpha or beta that cannot be folded"
    if node.is_op("Conv"):
        if target == "onnxruntime":
            return "onnxruntime's ConvInteger is slower than its float Conv"
        bias = node.input(2)
        return None if not bias or graph.is_constant(bias) else "its bias is no constant"
    return f"{node.op_type} has no dynamic form"


class DynamicWriter:
    """Rewrites nodes of one graph; activations and weights that several nodes read are quantized once."""

    def __init__(self, graph: Graph, *, within_pairs: bool = False) -> None:
        self.graph, self.within_pairs = graph, within_pairs
        self.emit = Emitter(graph)
        self._inputs: dict[str, tuple[str, str, str]] = {}

    def _quantized(self, name: str, before: Node) -> tuple[str, str, str]:
        if name not in self._inputs:
            outputs = [self.emit.fresh(f"{name}_{part}") for part in ("q", "scale", "zero_point")]
            label = self.emit.fresh(f"{name}_DynamicQuantizeLinear")
            self.graph.add(Node("DynamicQuantizeLinear", [name], outputs, name=label), before=before)
            self._inputs[name] = (outputs[0], outputs[1], outputs[2])
        return self._inputs[name]

    def write(self, node: Node) -> None:
        """Rewrite `node`, which has no `dynamic_problem`."""
        if node.is_op(*RECURRENT):
            write_lstm(self.graph, node, self.emit, within_pairs=self.within_pairs)
            return
        graph, emit = self.graph, self.emit
        weight_name, output = node.inputs[1], node.outputs[0]
        values = graph.array(weight_name)
        bias = graph.array(node.input(2)) if node.input(2) else None
        axis = weight_axis(node, 1, values.ndim)
        quantized = quantize_for(node, 1, values, axis, within_pairs=self.within_pairs)
        codes, scale = quantized.codes, quantized.scale
        is_conv = node.is_op("Conv")
        if node.is_op("Gemm") and node.get("transB", 0):
            codes = np.ascontiguousarray(codes.T)
        if is_conv:
            shape = (-1, *[1] * (values.ndim - 2))
            scale = scale.reshape(shape)
            bias = None if bias is None else bias.reshape(shape)
        graph.remove(node)
        x, x_scale, x_zero = self._quantized(node.inputs[0], node)
        attributes = dict(node.attributes) if is_conv else {}
        product, floats, factor = (emit.fresh(f"{output}_{part}") for part in ("int32", "cast", "factor"))
        integer = emit.node(
            "ConvInteger" if is_conv else "MatMulInteger",
            [x, emit.constant(codes, f"{weight_name}_q"), x_zero],
            product,
            node,
        )
        integer.attributes.update(attributes)
        emit.node("Cast", [product], floats, node, to=TensorProto.FLOAT)
        emit.node("Mul", [x_scale, emit.constant(scale, f"{weight_name}_scale")], factor, node)
        result = output if bias is None else emit.fresh(f"{output}_product")
        emit.node("Mul", [floats, factor], result, node)
        if bias is not None:
            emit.node("Add", [result, emit.constant(bias.astype(np.float32), "bias")], output, node)
