"""Prepare a model: fold what int8 arithmetic cannot express into the weights, exactly.

BatchNormalization, per-channel Mul/Add/Sub/Div and Gemm's alpha and beta become part of the weight and bias of the
Conv, ConvTranspose or Gemm before them. The arithmetic is done in float64. A weight that other nodes read as well keeps
its original for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quantkit.graph import FLOAT_TYPES, Graph, Model, Node, element_type, fold_constants, raise_opset
from quantkit.graph.fold import tidy
from quantkit.models.passes.gates import unify_gates
from quantkit.models.passes.half import widen
from quantkit.models.passes.invariants import free_invariants

_FOLD_INTO = ("Conv", "ConvTranspose", "Gemm")


def prepare(model: Model) -> Model:
    """Bring `model` into the form that planning expects; numerically the same up to rounding of float32.

    Raises
    ------
    ModelError
        When the opset cannot be raised.
    """
    _free_overridable_weights(model)
    model = raise_opset(model)
    widen(model)
    free_invariants(model)
    fold_constants(model)
    for graph in model.graph.walk():
        for node in graph.nodes:
            if node.is_op("Gemm"):
                _fold_gemm_factors(graph, node)
                _split_gemm_matrix(graph, node)
        for node in graph.sorted_nodes():
            if node.is_op("ReduceMean"):
                _use_global_pool(graph, node)
        for node in graph.sorted_nodes():
            if node in graph and node.is_op(*_FOLD_INTO):
                while _fold_successor(graph, node):
                    pass
        unify_gates(graph)
    tidy(model)
    return model


def _free_overridable_weights(model: Model) -> None:
    """Old exporters list every weight among the inputs; a quantized model has no such inputs."""
    graph = model.graph
    graph.inputs = [value for value in graph.inputs if value.name not in graph.initializers]
    model.raise_ir_version(4)


def _float_constant(graph: Graph, name: str) -> np.ndarray[Any, Any] | None:
    if graph.is_constant(name) and element_type(graph, name) in FLOAT_TYPES:
        return graph.array(name)
    return None


def _replace_constant(graph: Graph, node: Node, position: int, values: np.ndarray[Any, Any], hint: str) -> None:
    """Give `node` its own constant; the old one stays for whoever else reads it."""
    inputs = [*node.inputs, *[""] * (position + 1 - len(node.inputs))]
    inputs[position] = graph.add_constant(inputs[position] or hint, values)
    graph.set_inputs(node, inputs)


def _fold_gemm_factors(graph: Graph, node: Node) -> None:
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if alpha != 1.0:
        position = 1 if _float_constant(graph, node.input(1)) is not None else 0
        weight = _float_constant(graph, node.input(position))
        if weight is not None:
            scaled = (weight.astype(np.float64) * alpha).astype(weight.dtype)
            _replace_constant(graph, node, position, scaled, "weight")
            node.set("alpha", None)
    if beta != 1.0 and node.input(2):
        bias = _float_constant(graph, node.input(2))
        if bias is not None:
            _replace_constant(graph, node, 2, (bias.astype(np.float64) * beta).astype(bias.dtype), "bias")
            node.set("beta", None)
    elif not node.input(2):
        node.set("beta", None)


def _split_gemm_matrix(graph: Graph, node: Node) -> None:
    """A Gemm whose third operand is no row of constants becomes a product and an Add."""
    name = node.input(2)
    weight = graph.shape_of_constant(node.inputs[1])
    if not name or weight is None or len(weight) != 2 or node.get("beta", 1.0) != 1.0:
        return
    width = weight[0 if node.get("transB", 0) else 1]
    shape = graph.shape_of_constant(name)
    if shape is not None and shape in ((), (1,), (width,), (1, 1), (1, width)):
        values = graph.array(name)
        if shape != (width,):
            _replace_constant(graph, node, 2, np.broadcast_to(values.reshape(-1), (width,)).copy(), "bias")
        return
    product = graph.model.names.fresh(f"{node.outputs[0]}_product")
    add = Node("Add", [product, name], node.outputs, name=graph.model.names.fresh(f"{node.name}_add"))
    graph.set_inputs(node, node.inputs[:2])
    graph.set_outputs(node, [product])
    graph.add(add, before=node)


def _use_global_pool(graph: Graph, node: Node) -> None:
    """A mean over exactly the spatial axes of a 4-d tensor is a GlobalAveragePool, which has an int8 form."""
    axes = node.get("axes")
    if axes is None and node.input(1) and graph.is_constant(node.input(1)):
        axes = graph.array(node.input(1)).tolist()
    producer = graph.producer(node.inputs[0])
    # Only a 4-d producer tells the rank for sure without value_info.
    if axes is None or sorted(axes) not in ([2, 3], [-2, -1]) or not _makes_4d(graph, producer):
        return
    if not node.get("keepdims", 1):
        fresh = graph.model.names.fresh
        pooled = fresh(f"{node.outputs[0]}_pooled")
        axes_name = graph.add_constant(f"{node.outputs[0]}_axes", np.array([2, 3], np.int64))
        squeeze = Node("Squeeze", [pooled, axes_name], node.outputs, name=fresh(f"{node.name}_squeeze"))
        graph.set_outputs(node, [pooled])
        graph.add(squeeze, before=node)
    node.op_type = "GlobalAveragePool"
    node.attributes.clear()
    graph.set_inputs(node, node.inputs[:1])


_SAME_RANK = ("Relu", "Clip", "Sigmoid", "HardSwish", "HardSigmoid", "BatchNormalization", "LeakyRelu", "MaxPool")


def _makes_4d(graph: Graph, node: Node | None, depth: int = 32) -> bool:
    while node is not None and depth and (node.is_op(*_SAME_RANK) or node.is_op("Add", "Mul")):
        if node.is_op("Add", "Mul"):
            return any(_makes_4d(graph, graph.producer(name), depth - 1) for name in node.inputs)
        node, depth = graph.producer(node.inputs[0]), depth - 1
    if node is None or not node.is_op("Conv", "ConvTranspose"):
        return False
    return len(graph.shape_of_constant(node.inputs[1]) or ()) == 4


def _weight_channels(graph: Graph, node: Node) -> tuple[int, tuple[int, ...]] | None:
    """Return the number of output channels and the shape of the weight; None where there is no constant weight."""
    shape = graph.shape_of_constant(node.inputs[1])
    if shape is None or element_type(graph, node.inputs[1]) not in FLOAT_TYPES:
        return None
    if node.is_op("Conv"):
        return shape[0], shape
    if node.is_op("ConvTranspose"):
        return shape[1] * node.get("group", 1), shape
    return shape[0 if node.get("transB", 0) else 1], shape


def _per_channel(values: np.ndarray[Any, Any], channels: int, rank: int) -> np.ndarray[Any, Any] | None:
    """Return `values` as one float64 a channel, if it is a scalar or varies along the channel axis alone."""
    wide = values.astype(np.float64)
    if values.size == 1 and values.ndim <= rank:
        return np.full(channels, wide.reshape(-1)[0])
    if values.ndim > rank:
        return None
    axis = 1 - (rank - values.ndim)  # where the channel axis falls after broadcasting from the right
    if axis < 0 or values.size != channels or values.shape[axis] != channels:
        return None
    return wide.reshape(-1)


def _affine(graph: Graph, node: Node, name: str, channels: int, rank: int) -> tuple[Any, Any] | None:
    """Return factor and offset a channel, if `node` maps tensor `name` to ``name * factor + offset``."""
    if node.is_op("BatchNormalization"):
        stats = [_float_constant(graph, n) for n in node.inputs[1:5]]
        if any(s is None or s.shape != (channels,) for s in stats) or node.get("training_mode", 0):
            return None
        gamma, beta, mean, variance = (s.astype(np.float64) for s in stats if s is not None)
        factor = gamma / np.sqrt(variance + node.get("epsilon", 1e-5))
        return factor, beta - mean * factor
    if not node.is_op("Mul", "Add", "Sub", "Div") or node.inputs.count(name) != 1:
        return None
    position = node.inputs.index(name)
    values = _float_constant(graph, node.inputs[1 - position])
    other = None if values is None else _per_channel(values, channels, rank)
    if other is None:
        return None
    ones, zeros = np.ones(channels), np.zeros(channels)
    if node.is_op("Mul"):
        return other, zeros
    if node.is_op("Add"):
        return ones, other
    if node.is_op("Sub"):
        return (ones, -other) if position == 0 else (-ones, other)
    return (1 / other, zeros) if position == 0 and np.all(other != 0) else None


def _fold_successor(graph: Graph, node: Node) -> bool:
    """Fold the affine node after `node` into its weight and bias; return whether there was one."""
    found = _weight_channels(graph, node)
    follower = graph.only_consumer(node.outputs[0])
    if found is None or follower is None or follower.bodies or any(follower.outputs[1:]):
        return False
    if node.is_op("Gemm") and (node.get("alpha", 1.0) != 1.0 or node.get("beta", 1.0) != 1.0):
        return False
    channels, shape = found
    rank = 2 if node.is_op("Gemm") else len(shape)
    affine = _affine(graph, follower, node.outputs[0], channels, rank)
    bias = _float_constant(graph, node.input(2)) if node.input(2) else np.zeros(channels)
    if affine is None or bias is None or bias.size not in (1, channels):
        return False
    factor, offset = affine
    old_bias = np.broadcast_to(bias.astype(np.float64).reshape(-1), (channels,))
    new_bias = old_bias * factor + offset
    weight = graph.array(node.inputs[1])
    new_weight = weight.astype(np.float64) * _along_outputs(node, factor, shape)
    limit = np.finfo(np.float32).max
    if not (np.all(np.abs(new_weight) <= limit) and np.all(np.abs(new_bias) <= limit)):
        return False  # also where something is not finite
    if np.any(factor != 1):
        if len(graph.consumers(node.inputs[1])) > 1:
            return False  # a tied weight stays one
        _replace_constant(graph, node, 1, new_weight.astype(weight.dtype), "weight")
    if node.input(2) or np.any(new_bias != 0):
        _replace_constant(graph, node, 2, new_bias.astype(weight.dtype), f"{node.outputs[0]}_bias")
    graph.remove(follower)
    graph.set_outputs(node, follower.outputs)
    return True


def _along_outputs(node: Node, factor: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return one factor an output channel, shaped to multiply the weight."""
    if node.is_op("Conv"):
        return factor.reshape(-1, *[1] * (len(shape) - 1))
    if node.is_op("Gemm"):
        return factor.reshape(-1, 1) if node.get("transB", 0) else factor.reshape(1, -1)
    group = node.get("group", 1)
    # [C_in, C_out / group, ...]: the input channels of group g make the outputs of group g.
    per_group = factor.reshape(group, 1, shape[1])
    spread = np.broadcast_to(per_group, (group, shape[0] // group, shape[1])).reshape(shape[0], shape[1])
    return spread.reshape(shape[0], shape[1], *[1] * (len(shape) - 2))
