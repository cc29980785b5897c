"""Gather from an int8 table: the codes are gathered, then the rows that came out are dequantized.

A DequantizeLinear in front of the Gather would turn the whole table into floats at each run.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from quantkit.graph import FLOAT_TYPES, Graph, Node, element_type
from quantkit.graph.tensors import all_finite
from quantkit.models.forms.emit import Emitter
from quantkit.models.forms.weights import QuantizedWeight, quantize_weight
from quantkit.qparams import QParams

# A smaller table is not worth two more nodes.
_LEAST_ELEMENTS = 4096
# Rows with scales of their own cost two nodes more than columns do.
_ROWS_WORTH = 0.5
_PIECE = 1 << 20  # elements compared in one go


def gather_problem(graph: Graph, node: Node) -> str | None:
    """Return why the table of `node`, a Gather, cannot be stored in int8, or None."""
    name = node.inputs[0]
    if not graph.is_constant(name) or element_type(graph, name) != TensorProto.FLOAT:
        return "its table is no float constant" if element_type(graph, name) in FLOAT_TYPES else "gathers no floats"
    shape = graph.shape_of_constant(name) or ()
    if len(shape) != 2 or node.get("axis", 0) not in (0, -2):
        return f"gathers along axis {node.get('axis', 0)} of a table of shape {shape}"
    if shape[0] * shape[1] < _LEAST_ELEMENTS:
        return "its table is small"
    if not all_finite(graph.array(name)):
        return f"its table {name!r} holds NaN or infinite values"
    return None


def _noise(found: QuantizedWeight, table: np.ndarray) -> float:
    total, step = 0.0, max(1, _PIECE // table.shape[1])
    for i in range(0, len(table), step):
        rows = slice(i, i + step)
        scale = found.scale[rows].reshape(-1, 1) if found.axis == 0 else found.scale.reshape(1, -1)
        total += float(np.sum((found.codes[rows] * scale - table[rows]) ** 2, dtype=np.float64))
    return total / table.size


def write_gather(graph: Graph, node: Node, emit: Emitter) -> None:
    """Rewrite `node`, which has no `gather_problem`."""
    name, output = node.inputs[0], node.outputs[0]
    table = graph.array(name)
    rows, columns = quantize_weight(table, 0), quantize_weight(table, 1)
    by_row = _noise(rows, table) < _ROWS_WORTH * _noise(columns, table)
    found = rows if by_row else columns
    gathered = emit.fresh(f"{output}_q")
    graph.set_inputs(node, [emit.constant(found.codes, f"{name}_q"), node.inputs[1]])
    graph.set_outputs(node, [gathered])
    if not by_row:
        emit.dequantize(gathered, output, QParams(found.scale, 0, -1), node, np.int8)
        return
    scales, floats = emit.fresh(f"{output}_scale"), emit.fresh(f"{output}_cast")
    table_of_scales = emit.constant(found.scale.reshape(-1, 1), f"{name}_scale")
    emit.node("Gather", [table_of_scales, node.inputs[1]], scales, node, axis=0)
    emit.node("Cast", [gathered], floats, node, to=TensorProto.FLOAT)
    emit.node("Mul", [floats, scales], output, node)
