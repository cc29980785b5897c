"""QOperator form: QDQ patterns become QLinearConv, QLinearMatMul and integer products, all standard operators.

Written over the QDQ form, so that the plan and the numbers are the same. What has no such operator keeps its
QuantizeLinear and DequantizeLinear.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from quantkit.graph import Graph, Node
from quantkit.graph.op_table import Kind, is_pass_through, row
from quantkit.models.forms.emit import Emitter

# Standard operators that take uint8 in every opset from 13 on.
_TAKES_CODES = ("MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "DepthToSpace")


class _Rewriter:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.emit = Emitter(graph)

    def quantized(self, name: str) -> list[str] | None:
        """Return codes, scale and zero point of what a DequantizeLinear makes."""
        maker = self.graph.producer(name)
        return list(maker.inputs) if maker is not None and maker.is_op("DequantizeLinear") else None

    def quantizer_of(self, name: str) -> Node | None:
        """Return the QuantizeLinear that is the only reader of `name`."""
        reader = self.graph.only_consumer(name)
        return reader if reader is not None and reader.is_op("QuantizeLinear") and reader.inputs[0] == name else None

    def rewrite(self, node: Node) -> None:
        if row(node).kind is Kind.PASS:
            self.move_codes(node)
        elif node.is_op("Conv"):
            self.conv(node)
        elif node.is_op("MatMul", "Gemm"):
            self.product(node)

    def move_codes(self, node: Node) -> None:
        source = self.quantized(node.inputs[0])
        after = self.quantizer_of(node.outputs[0])
        if source is None or after is None or not node.is_op(*_TAKES_CODES) or not is_pass_through(node):
            return
        if after.inputs[1:] != source[1:]:
            return
        self.graph.remove(after)
        self.graph.set_inputs(node, [source[0], *node.inputs[1:]])
        self.graph.set_outputs(node, after.outputs)

    def conv(self, node: Node) -> None:
        x, w = self.quantized(node.inputs[0]), self.quantized(node.inputs[1])
        bias = self.quantized(node.input(2)) if node.input(2) else None
        after = self.quantizer_of(node.outputs[0])
        if x is None or w is None or after is None or (node.input(2) and bias is None):
            return
        self.graph.remove(after)
        node.op_type = "QLinearConv"
        self.graph.set_inputs(node, [*x, *w, *after.inputs[1:], *([bias[0]] if bias else [])])
        self.graph.set_outputs(node, after.outputs)

    def product(self, node: Node) -> None:
        """A MatMul or Gemm; its bias is added to the int32 products."""
        graph, emit = self.graph, self.emit
        x, w = self.quantized(node.inputs[0]), self.quantized(node.inputs[1])
        bias = self.quantized(node.input(2)) if node.input(2) else None
        if x is None or w is None or (node.input(2) and bias is None):
            return
        codes = w[0]
        if node.is_op("Gemm") and node.get("transB", 0):
            values = graph.constant(codes)
            if values is None:
                return
            codes = emit.constant(np.ascontiguousarray(values.T), f"{codes}_transposed")
        w_scale, w_zero = graph.constant(w[1]), graph.constant(w[2])
        x_scale = graph.constant(x[1])
        if w_scale is None or w_zero is None or x_scale is None or x_scale.ndim:
            return  # one scale for the left operand, one a column at most for the right one
        after = self.quantizer_of(node.outputs[0])
        if after is not None and bias is None and not np.any(w_zero):
            graph.remove(after)
            node.op_type = "QLinearMatMul"
            node.attributes.clear()
            graph.set_inputs(node, [*x, codes, w[1], w[2], *after.inputs[1:]])
            graph.set_outputs(node, after.outputs)
            return
        output = node.outputs[0]
        graph.remove(node)
        product = emit.fresh(f"{output}_int32")
        # A second operand that is an activation has a zero point of its own.
        emit.node("MatMulInteger", [x[0], codes, x[2], *([w[2]] if np.any(w_zero) else [])], product, node)
        if bias is not None:
            total = emit.fresh(f"{output}_with_bias")
            emit.node("Add", [product, bias[0]], total, node)
            product = total
        floats = emit.fresh(f"{output}_cast")
        emit.node("Cast", [product], floats, node, to=TensorProto.FLOAT)
        factor = (x_scale * w_scale).astype(np.float32)
        emit.node("Mul", [floats, emit.constant(factor, f"{output}_scale")], output, node)


def rewrite_qoperator(graph: Graph) -> None:
    """Turn the QDQ patterns of `graph` into QOperator nodes where there are standard ones."""
    rewriter = _Rewriter(graph)
    for node in graph.sorted_nodes():
        if node in graph:
            rewriter.rewrite(node)
