"""Constant folding, as far as weights need it.

A weight may hide in a Constant node, behind Identity, Cast, Transpose or Reshape, or be computed from other
constants, as the weights of an NFNet are. All of these become initializers here. What would blow up the file (a large
ConstantOfShape, Expand or Tile) stays a node.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from quantkit.graph.ir import Graph, Model
from quantkit.graph.node import Node
from quantkit.graph.tensors import from_array

# Deterministic. What comes out larger than what went in is not kept.
_FOLDABLE = frozenset(
    (
        "Abs",
        "Add",
        "And",
        "BatchNormalization",
        "Cast",
        "Ceil",
        "Clip",
        "Concat",
        "ConstantOfShape",
        "Cos",
        "CumSum",
        "Div",
        "Einsum",
        "Equal",
        "Erf",
        "Exp",
        "Expand",
        "Flatten",
        "Floor",
        "Gather",
        "GatherElements",
        "GatherND",
        "Gemm",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "InstanceNormalization",
        "LayerNormalization",
        "Less",
        "LessOrEqual",
        "Log",
        "MatMul",
        "Max",
        "Min",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "Pad",
        "Pow",
        "Range",
        "Reciprocal",
        "ReduceL1",
        "ReduceL2",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
        "Reshape",
        "Round",
        "Shape",
        "Sigmoid",
        "Sign",
        "Sin",
        "Size",
        "Slice",
        "Softmax",
        "Split",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Tanh",
        "Tile",
        "Transpose",
        "Trilu",
        "Unsqueeze",
        "Where",
    )
)
_SMALL_BYTES = 4096


def fold_constants(model: Model) -> None:
    """Turn Constant nodes and what is computed from constants alone into initializers, bodies included."""
    for graph in model.graph.walk():
        _fold_graph(graph)
    tidy(model)


def tidy(model: Model) -> None:
    """Drop what nothing reads, bodies included, and store equal constants once."""
    for graph in reversed(list(model.graph.walk())):
        _refresh(graph)
        graph.drop_unused()
    share_constants(model)


def share_constants(model: Model) -> None:
    """Store equal constants once: a tied weight that was exported twice, or folded once in each branch of an If."""
    places: dict[tuple[Any, ...], list[tuple[Graph, str]]] = {}
    for graph in model.graph.walk():
        for name, tensor in graph.initializers.items():
            if len(tensor.raw_data) >= _SMALL_BYTES and name not in graph.output_names:
                key = (tensor.data_type, tuple(tensor.dims), hashlib.sha256(tensor.raw_data).digest())
                places.setdefault(key, []).append((graph, name))
    for found in places.values():
        if len(found) < 2:
            continue
        home, kept = found[0]
        if home is not model.graph:
            # Seen by all from the main graph; names are unique over the whole model.
            model.graph.initializers[kept] = home.initializers.pop(kept)
        for graph, name in found[1:]:
            del graph.initializers[name]
            graph.replace_uses(name, kept)
    if any(len(found) > 1 for found in places.values()):
        _refresh(model.graph)


def _refresh(graph: Graph) -> None:
    """Let every node with bodies take note of what its bodies capture now, innermost first."""
    for node in graph.nodes:
        if node.bodies:
            for body in node.bodies.values():
                _refresh(body)
            graph.refresh(node)


def _fold_graph(graph: Graph) -> None:
    outputs = set(graph.output_names)
    for node in graph.sorted_nodes():
        if node.is_op("Constant"):
            tensor = _constant_tensor(node)
            if tensor is not None and node.outputs[0] not in outputs:
                graph.remove(node)
                tensor.name = node.outputs[0]
                graph.initializers[tensor.name] = tensor
        elif node.is_op("Identity") and node.outputs[0] not in outputs and graph.scope_of(node.inputs[0]):
            source = node.inputs[0]
            graph.remove(node)
            graph.replace_uses(node.outputs[0], source)
        elif node.is_op(*_FOLDABLE) and not node.bodies:
            _fold_node(graph, node, outputs)


def _constant_tensor(node: Node) -> TensorProto | None:
    for name, attribute in node.attributes.items():
        if name == "value":
            tensor = TensorProto()
            tensor.CopyFrom(attribute.t)
            return tensor
        dtypes: dict[str, Any] = {
            "value_float": np.float32,
            "value_floats": np.float32,
            "value_int": np.int64,
            "value_ints": np.int64,
        }
        value = helper.get_attribute_value(attribute)
        if name in dtypes:
            return from_array(np.asarray(value, dtypes[name]), "")
        if name in ("value_string", "value_strings"):
            return from_array(np.asarray(value, dtype=object), "")
    return None  # a sparse value stays a node


def _fold_node(graph: Graph, node: Node, outputs: set[str]) -> None:
    inputs = [name for name in node.inputs if name]
    if not inputs or not all(graph.is_constant(name) for name in inputs) or outputs & set(node.outputs):
        return
    values = [graph.array(name) if name else None for name in node.inputs]
    results = evaluate(node, values, graph.model)
    if results is None:
        return
    budget = max(_SMALL_BYTES, 2 * sum(v.nbytes for v in values if v is not None))
    if sum(r.nbytes for r in results) > budget:
        return
    graph.remove(node)
    for name, result in zip(node.outputs, results, strict=True):
        if name:
            graph.initializers[name] = graph.model.tensors.tensor(result, name)


def evaluate(node: Node, values: list[np.ndarray[Any, Any] | None], model: Model) -> list[np.ndarray[Any, Any]] | None:
    """Return what `node` computes from `values`, or None where that cannot be told."""
    if node.is_op("Transpose") and values[0] is not None:
        # The most frequent one, and a weight: a view is enough.
        perm = node.get("perm") or tuple(reversed(range(values[0].ndim)))
        return [np.transpose(values[0], perm)]
    from onnx.reference import ReferenceEvaluator

    names = [f"x{i}" if value is not None else "" for i, value in enumerate(values)]
    outputs = [f"y{i}" if name else "" for i, name in enumerate(node.outputs)]
    single = Node(node.op_type, names, outputs)
    single.attributes = node.attributes
    feeds = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    proto = helper.make_model(
        helper.make_graph(
            [single.to_proto(model.tensors)],
            "fold",
            [
                helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
                for k, v in feeds.items()
            ],
            [helper.make_empty_tensor_value_info(name) for name in outputs if name],
        ),
        opset_imports=[helper.make_opsetid("", model.opset)],
    )
    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(proto).run(None, feeds)
    except Exception:
        # Whatever the evaluator cannot do stays a node: folding is an opportunity, never a need.
        return None
    found = [np.asarray(r) for r in results]
    return found if len(found) == sum(map(bool, node.outputs)) == len(node.outputs) else None
