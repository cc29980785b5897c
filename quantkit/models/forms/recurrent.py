"""LSTM in int8: onnxruntime's DynamicQuantizeLSTM, which is faster than its float LSTM.

It stands outside of ai.onnx, so portable models keep their LSTM. GRU and RNN have no such operator anywhere.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from quantkit.graph import FLOAT_TYPES, Graph, Node, element_type
from quantkit.graph.tensors import all_finite
from quantkit.models.forms.emit import Emitter
from quantkit.models.forms.saturation import quantize_within_pairs
from quantkit.models.forms.weights import Array, quantize_weight

DOMAIN = "com.microsoft"
_OPERANDS = 8  # X, W, R, B, sequence_lens, initial_h, initial_c, P


def lstm_problem(graph: Graph, node: Node, target: str) -> str | None:
    """Return why `node`, an LSTM, GRU or RNN, cannot compute in int8, or None."""
    if node.op_type != "LSTM":
        return f"no runtime has an int8 {node.op_type}"
    if target != "onnxruntime":
        return "an int8 LSTM stands outside of ai.onnx"
    if node.get("layout", 0):
        return "has its batch axis first, which the int8 LSTM does not know"
    for position in (1, 2):
        name = node.inputs[position]
        if not graph.is_constant(name) or element_type(graph, name) not in FLOAT_TYPES:
            return "its weights are no float constants"
        if not all_finite(graph.array(name)):
            return f"its weight {name!r} holds NaN or infinite values"
    return None


def write_lstm(graph: Graph, node: Node, emit: Emitter, *, within_pairs: bool = False) -> None:
    """Rewrite `node`, which has no `lstm_problem`."""
    inputs = [*node.inputs, *[""] * (_OPERANDS - len(node.inputs))]
    scales = []
    for position in (1, 2):
        name = inputs[position]
        codes, scale = _quantized(graph.array(name), within_pairs)
        inputs[position] = emit.constant(codes, f"{name}_q")
        scales += [emit.constant(scale, f"{name}_scale"), emit.constant(np.zeros(scale.shape, np.int8), "zero_point")]
    node.op_type, node.domain = "DynamicQuantizeLSTM", DOMAIN
    node.set("layout", None)
    graph.set_inputs(node, [*inputs, *scales])
    graph.model.opsets.setdefault(DOMAIN, 1)
    for name in node.outputs:
        if name and name not in graph.value_info and not graph.is_output(name):
            # onnx cannot infer through an operator that it does not know.
            graph.value_info[name] = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def _quantized(weight: Array, within_pairs: bool) -> tuple[Array, Array]:
    """Return codes as [directions, columns, gates] and one scale a direction and gate."""
    directions, gates, columns = weight.shape
    rows = weight.reshape(directions * gates, columns)
    found = quantize_within_pairs(rows, 0, 0.0, -1) if within_pairs else quantize_weight(rows, 0)
    codes = found.codes.reshape(weight.shape).transpose(0, 2, 1)
    return np.ascontiguousarray(codes), found.scale.reshape(directions, gates)
