"""Raise a model from opset 7..12 to 13, where DequantizeLinear learns its axis.

One rule for each operator whose signature or meaning changed on the way; everything else is valid as it stands. Bodies
are raised with the model. `onnx.version_converter` is only used below opset 7: it does not enter bodies, drops
metadata and fails on models that have many Constant nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from quantkit.errors import ModelError
from quantkit.graph.ir import FLOAT_TYPES, Graph, Model, element_type
from quantkit.graph.node import Node

PER_CHANNEL_OPSET = 13
_PER_CHANNEL_IR = 7


class _NoRule(Exception):
    """A node whose old meaning has no exact counterpart in opset 13."""


def raise_opset(model: Model) -> Model:
    """Bring the standard domain of `model` to opset 13, if it is older.

    Returns
    -------
    Model
        `model` itself, changed in place; another one where the model came from below opset 7.

    Raises
    ------
    ModelError
        Naming the node that has no exact form in opset 13.
    """
    if model.opset >= PER_CHANNEL_OPSET:
        return model
    if model.opset < 7:
        try:
            converted = onnx.version_converter.convert_version(model.to_proto(), 7)
        except Exception as error:
            raise ModelError(f"{model.tensors.where}: opset {model.opset} cannot be raised: {error}") from None
        model = Model(converted, model.tensors)
    source = model.opset
    model.opsets[""] = PER_CHANNEL_OPSET
    model.raise_ir_version(_PER_CHANNEL_IR)
    for graph in model.graph.walk():
        for node in graph.nodes:
            rule = _RULES.get(node.op_type) if node.domain == "" else None
            if rule is None:
                continue
            try:
                rule(graph, node, source)
            except _NoRule as reason:
                raise ModelError(f"{model.tensors.where}: {node!r} of opset {source}: {reason}") from None
    return model


def _attribute_to_input(graph: Graph, node: Node, attribute: str, position: int, dtype: Any = np.int64) -> None:
    """Move `attribute` to input `position`."""
    value = node.get(attribute)
    node.set(attribute, None)
    if value is None:
        return
    inputs = [*node.inputs, *[""] * (position + 1 - len(node.inputs))]
    inputs[position] = graph.add_constant(f"{node.outputs[0]}_{attribute}", np.asarray(value, dtype))
    graph.set_inputs(node, inputs)


def _axes(graph: Graph, node: Node, source: int) -> None:
    _attribute_to_input(graph, node, "axes", 1)


def _split(graph: Graph, node: Node, source: int) -> None:
    _attribute_to_input(graph, node, "split", 1)


def _float_dtype(graph: Graph, name: str) -> Any:
    kind = element_type(graph, name)
    return onnx.helper.tensor_dtype_to_np_dtype(kind) if kind in FLOAT_TYPES else np.float32


def _clip(graph: Graph, node: Node, source: int) -> None:
    if source < 11:
        dtype = _float_dtype(graph, node.inputs[0])
        _attribute_to_input(graph, node, "min", 1, dtype)
        _attribute_to_input(graph, node, "max", 2, dtype)


def _pad(graph: Graph, node: Node, source: int) -> None:
    if source < 11:
        value = node.get("value", 0.0)
        node.set("value", None)
        _attribute_to_input(graph, node, "pads", 1)
        if value and node.get("mode", "constant") == "constant":
            node.set("value", value)
            _attribute_to_input(graph, node, "value", 2, _float_dtype(graph, node.inputs[0]))


def _slice(graph: Graph, node: Node, source: int) -> None:
    if source < 10:
        starts, axes = node.get("starts"), node.get("axes")
        _attribute_to_input(graph, node, "starts", 1)
        _attribute_to_input(graph, node, "ends", 2)
        node.set("axes", list(range(len(starts))) if axes is None else axes)
        _attribute_to_input(graph, node, "axes", 3)


def _topk(graph: Graph, node: Node, source: int) -> None:
    if source < 10:
        k = node.get("k")
        node.set("k", [k])
        _attribute_to_input(graph, node, "k", 1)


def _dropout(graph: Graph, node: Node, source: int) -> None:
    # Inference only passes the data on; the ratio is of no use, and the mask is all true.
    if len(node.outputs) > 1 and node.outputs[1]:
        if graph.consumers(node.outputs[1]) or graph.is_output(node.outputs[1]):
            if source < 10:
                raise _NoRule("its mask is used, which was no bool yet")
            node.set("ratio", None)
            return
        graph.set_outputs(node, node.outputs[:1])
    if source < 12:
        node.op_type = "Identity"
        node.attributes.clear()
        graph.set_inputs(node, node.inputs[:1])


def _softmax(graph: Graph, node: Node, source: int) -> None:
    """Before opset 13 the axes from `axis` on were normalized together."""
    axis = node.get("axis", 1)
    rank = _rank(graph, node.inputs[0])
    if axis == -1 or (rank is not None and axis in (rank - 1, -1)):
        node.set("axis", -1)
        return
    name, output = node.inputs[0], node.outputs[0]
    fresh = graph.model.names.fresh
    shape, flat, result = (fresh(f"{output}_{part}") for part in ("shape", "flat", "rows"))
    graph.add(Node("Shape", [name], [shape], name=fresh(f"{node.name}_shape")), before=node)
    graph.add(Node("Flatten", [name], [flat], name=fresh(f"{node.name}_flatten"), axis=axis), before=node)
    graph.set_inputs(node, [flat])
    graph.set_outputs(node, [result])
    node.set("axis", -1)
    graph.add(Node("Reshape", [result, shape], [output], name=fresh(f"{node.name}_reshape")), before=node)


def _rank(graph: Graph, name: str) -> int | None:
    scope = graph.scope_of(name)
    if scope is None:
        return None
    for value in [*scope.inputs, *scope.outputs, *filter(None, [scope.value_info.get(name)])]:
        if value.name == name and value.type.tensor_type.HasField("shape"):
            return len(value.type.tensor_type.shape.dim)
    return None


def _upsample(graph: Graph, node: Node, source: int) -> None:
    node.op_type = "Resize"
    if source < 9:
        _attribute_to_input(graph, node, "scales", 1, np.float32)
    _resize(graph, node, 10)


def _resize(graph: Graph, node: Node, source: int) -> None:
    if source < 11:
        # Opset 10 had scales at position 1 and one way to map coordinates.
        graph.set_inputs(node, [node.inputs[0], "", node.inputs[1]])
        node.set("coordinate_transformation_mode", "asymmetric")
        if node.get("mode", "nearest") == "nearest":
            node.set("nearest_mode", "floor")


def _scatter(graph: Graph, node: Node, source: int) -> None:
    node.op_type = "ScatterElements"


def _batch_norm(graph: Graph, node: Node, source: int) -> None:
    if source < 9:
        if node.get("spatial", 1) != 1:
            raise _NoRule("spatial=0 has no form in opset 13")
        node.set("spatial", None)
    if any(node.outputs[1:]):
        graph.set_outputs(node, node.outputs[:1])


def _scan(graph: Graph, node: Node, source: int) -> None:
    if source < 9:
        raise _NoRule("Scan had a batch axis before opset 9")


def _maxpool_like(graph: Graph, node: Node, source: int) -> None:
    # An optional output written as an empty name is the same as an absent one.
    while len(node.outputs) > 1 and not node.outputs[-1]:
        graph.set_outputs(node, node.outputs[:-1])


_RULES: dict[str, Callable[[Graph, Node, int], None]] = {
    "Squeeze": _axes,
    "Unsqueeze": _axes,
    "ReduceSum": _axes,
    "Split": _split,
    "Clip": _clip,
    "Pad": _pad,
    "Slice": _slice,
    "TopK": _topk,
    "Dropout": _dropout,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "Hardmax": _softmax,
    "Upsample": _upsample,
    "Resize": _resize,
    "Scatter": _scatter,
    "BatchNormalization": _batch_norm,
    "Scan": _scan,
    "MaxPool": _maxpool_like,
}
