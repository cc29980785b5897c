"""Models in float16, bfloat16 and float64: the arithmetic becomes float32, inputs and outputs keep their types.

What becomes int8 does not care; what stays float is computed in float32, which is what onnxruntime's CPU kernels do
with half precision anyway, only that they convert at each node. float64 is given up only where a weight is in it, and
where every constant fits; the agreement with the float64 model is measured like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper

from quantkit.graph import Graph, Model, Node, element_type
from quantkit.graph.op_table import weight_inputs
from quantkit.graph.tensors import from_array

Kinds = tuple[int, ...]
HALF: Kinds = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
# Attributes that name an element type.
_TYPE_ATTRIBUTES = ("to", "dtype", "stash_type")


def has_half(model: Model) -> bool:
    """Whether any tensor of `model` is declared or stored in half precision."""
    for graph in model.graph.walk():
        if any(tensor.data_type in HALF for tensor in graph.initializers.values()):
            return True
        if any(value.type.tensor_type.elem_type in HALF for value in [*graph.inputs, *graph.outputs]):
            return True
        if any(node.is_op("Cast") and node.get("to") in HALF for node in graph.nodes):
            return True
    return False


def weights_in_double(model: Model) -> bool:
    """Whether `model` has weights in float64, and can compute in float32 instead."""
    found = False
    for graph in model.graph.walk():
        for node in graph.nodes:
            if node.domain != "":
                return False  # who knows what it reads
            for position in weight_inputs(node):
                name = node.input(position)
                found |= graph.is_constant(name) and element_type(graph, name) == TensorProto.DOUBLE
    return found and all(_fits(model, tensor) for tensor in _doubles(model))


def _doubles(model: Model) -> Iterator[TensorProto]:
    for graph in model.graph.walk():
        yield from (t for t in graph.initializers.values() if t.data_type == TensorProto.DOUBLE)
        for node in graph.nodes:
            for attribute in node.attributes.values():
                if attribute.HasField("t") and attribute.t.data_type == TensorProto.DOUBLE:
                    yield attribute.t


def _fits(model: Model, tensor: TensorProto) -> bool:
    values: Any = model.tensors.array(tensor)
    return not np.any(np.isfinite(values) & (np.abs(values) > np.finfo(np.float32).max))


def widen(model: Model) -> None:
    """Let `model` compute in float32 wherever it computed in half precision, or in float64 with weights."""
    kinds = (HALF if has_half(model) else ()) + ((TensorProto.DOUBLE,) if weights_in_double(model) else ())
    if not kinds:
        return
    for graph in list(model.graph.walk()):
        for name, tensor in graph.initializers.items():
            if tensor.data_type in kinds:
                graph.initializers[name] = model.tensors.tensor(model.tensors.array(tensor).astype(np.float32), name)
        for value in graph.value_info.values():
            _widen_type(value, kinds)
        for node in graph.nodes:
            _widen_attributes(model, node, kinds)
        if graph.parent is not None:
            for value in [*graph.inputs, *graph.outputs]:
                _widen_type(value, kinds)
    _keep_interface(model.graph, kinds)


def _widen_type(value: ValueInfoProto, kinds: Kinds) -> None:
    if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type in kinds:
        value.type.tensor_type.elem_type = TensorProto.FLOAT


def _widen_attributes(model: Model, node: Node, kinds: Kinds) -> None:
    for name in _TYPE_ATTRIBUTES:
        if name in node.attributes and node.get(name) in kinds:
            node.set(name, TensorProto.FLOAT)
    for name, attribute in list(node.attributes.items()):
        if attribute.HasField("t") and attribute.t.data_type in kinds:
            wide: Any = model.tensors.array(attribute.t).astype(np.float32)
            node.attributes[name] = helper.make_attribute(name, from_array(wide, attribute.t.name))


def _keep_interface(graph: Graph, kinds: Kinds) -> None:
    """Put Casts behind inputs of these types and in front of such outputs."""
    fresh = graph.model.names.fresh
    for value in graph.inputs:
        if value.type.tensor_type.elem_type in kinds:
            wide = fresh(f"{value.name}_float")
            graph.replace_uses(value.name, wide)
            cast = Node("Cast", [value.name], [wide], name=fresh(f"{value.name}_widen"), to=TensorProto.FLOAT)
            first = min((node.order for node in graph.nodes), default=0.0)
            graph.add(cast)
            cast.order = first - 1
    for value in graph.outputs:
        kind = value.type.tensor_type.elem_type
        maker = graph.producer(value.name)
        if kind not in kinds or maker is None or (maker.is_op("Cast") and maker.inputs[0] in graph.input_names):
            continue
        wide = fresh(f"{value.name}_float")
        graph.set_outputs(maker, [wide if name == value.name else name for name in maker.outputs])
        graph.replace_uses(value.name, wide)
        graph.add(Node("Cast", [wide], [value.name], name=fresh(f"{value.name}_narrow"), to=kind))
