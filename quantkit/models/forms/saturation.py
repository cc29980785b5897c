"""CPUs without VNNI add two products of uint8 and int8 in 16 bits: which channels of the weights could overflow it.

Such a CPU multiplies with vpmaddubsw, whose sums of two neighbouring products saturate: 255 * (w0 + w1) must stay
within [-32768, 32767], so two neighbouring weights of one sign may add up to 128 at most. Neighbours lie along the
depth of a product; for a Conv both orders are looked at, input channels of one tap and taps of one input channel.
Depthwise Convs have kernels of their own that widen first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from quantkit.graph import Graph, Model, Node
from quantkit.models.forms.weights import Array, QuantizedWeight, quantize_weight

# The largest sum of two weights whose products with 255 fit into 16 bits.
PAIR_LIMIT = 128


@dataclass(frozen=True)
class NodeSaturation:
    """One node with channels that could saturate.

    Attributes
    ----------
    name : str
        Of the node in the int8 model.
    channels : int
        Output channels that could saturate; of a product of two activations, all of them count as one.
    worst : int
        The largest sum of two neighbouring weights; above 128 it can saturate.
    """

    name: str
    channels: int
    worst: int


@dataclass
class Saturation:
    """The nodes whose results can differ on a CPU without VNNI; none means that it is exact there too."""

    nodes: list[NodeSaturation] = field(default_factory=list)


def conv_is_exact(shape: tuple[int, ...], group: int) -> bool:
    """Whether a Conv with this weight is depthwise."""
    return shape[1] == 1 and group == shape[0]


def pair_sums(codes: Array, channel: int | None, depth: int | None) -> Array:
    """Return the largest magnitude of a sum of two neighbours of one sign, for each channel.

    Parameters
    ----------
    codes : ndarray of int8
    channel : int or None
        Axis of the output channels; None: a single result.
    depth : int or None
        Axis along which neighbours lie; None: those of a Conv's weight.
    """
    if depth is None:
        rows = codes.reshape(codes.shape[0], -1)
        last = np.moveaxis(codes, 1, -1).reshape(codes.shape[0], -1)
        sums = np.maximum(_pairs(rows), _pairs(last))
    else:
        sums = _pairs(np.moveaxis(codes, depth, -1))
        if channel is not None:
            axis = channel % codes.ndim - (channel % codes.ndim > depth % codes.ndim)
            sums = sums.max(axis=tuple(i for i in range(sums.ndim) if i != axis), initial=0)
    return sums if channel is not None else np.asarray(sums.max(initial=0))


def _pairs(rows: Array) -> Array:
    """Return the largest pair sum along the last axis; pairs start at even places."""
    wide = rows.astype(np.int16)
    if wide.shape[-1] % 2:
        wide = np.concatenate([wide, np.zeros((*wide.shape[:-1], 1), np.int16)], axis=-1)
    found = np.zeros(wide.shape[:-1], np.int64)
    for part in (np.maximum(wide, 0), np.maximum(-wide, 0)):
        sums = part[..., 0::2] + part[..., 1::2]
        found = np.maximum(found, sums.max(axis=-1, initial=0))
    return found


def quantize_within_pairs(values: Array, axis: int | None, least: Array | float, depth: int | None) -> QuantizedWeight:
    """Quantize a weight so that no pair of neighbours exceeds `PAIR_LIMIT`, at the least cost to each channel."""
    floor = np.asarray(least, np.float64)
    found = quantize_weight(values, axis, floor)
    while True:
        sums = pair_sums(found.codes, axis, depth)
        if not np.any(sums > PAIR_LIMIT):
            return found
        # A hair more than what the largest pair asks for: its two codes may both have been rounded up.
        stretch = np.where(sums > PAIR_LIMIT, sums / PAIR_LIMIT * (1 + 1e-6), 1.0)
        floor = np.maximum(floor, found.scale.astype(np.float64) * stretch)
        found = quantize_weight(values, axis, floor)


def quantize_for(
    node: Node, position: int, values: Array, axis: int | None, least: Array | float = 0.0, *, within_pairs: bool
) -> QuantizedWeight:
    """Quantize the weight at `position` of a Conv, Gemm or MatMul; `within_pairs` as `quantize_within_pairs` does."""
    if not within_pairs or (node.is_op("Conv") and conv_is_exact(values.shape, node.get("group", 1))):
        return quantize_weight(values, axis, least)
    depth: int | None = -1 if position == 0 else -2
    if node.is_op("Conv"):
        depth = None
    elif node.is_op("Gemm") and node.get("transB", 0):
        depth = -1
    return quantize_within_pairs(values, axis, least, depth)


def find_saturation(model: Model) -> Saturation:
    """Look at every int8 product of a quantized model, bodies included."""
    found = Saturation()
    for graph in model.graph.walk():
        for node in graph.sorted_nodes():
            for name, channel, depth in _weights(graph, node):
                codes = graph.constant(name) if name else None
                if name and (codes is None or codes.dtype != np.int8):
                    continue
                sums = np.array([254]) if codes is None else np.atleast_1d(pair_sums(codes, channel, depth))
                if np.any(sums > PAIR_LIMIT):
                    count, worst = int(np.count_nonzero(sums > PAIR_LIMIT)), int(sums.max())
                    found.nodes.append(NodeSaturation(node.title, count, worst))
    return found


def _weights(graph: Graph, node: Node) -> Iterator[tuple[str, int | None, int | None]]:
    """Yield the int8 operand of `node` with its axes of channels and depth; no name: another activation."""
    if node.op_type == "DynamicQuantizeLSTM":
        for position in (1, 2):
            yield node.inputs[position], 2, 1
        return
    places = {"QLinearConv": 3, "QLinearMatMul": 3, "ConvInteger": 1, "MatMulInteger": 1}
    if node.is_op(*places):
        name = node.inputs[places[node.op_type]]
        if not node.op_type.startswith(("QLinearConv", "ConvI")):
            yield name, _last(graph, name), -2
        elif not conv_is_exact(graph.shape_of_constant(name) or (0, 0), node.get("group", 1)):
            yield name, 0, None
        return
    if not node.is_op("Conv", "MatMul", "Gemm"):
        return
    made = [graph.producer(name) for name in node.inputs[:2]]
    if not all(maker is not None and maker.is_op("DequantizeLinear") for maker in made):
        return
    sources = [maker.inputs[0] for maker in made if maker is not None]
    constant = [graph.is_constant(name) for name in sources]
    if not any(constant):
        yield from _signed_product(graph, made[1])
    elif node.is_op("Conv"):
        if constant[1] and not conv_is_exact(graph.shape_of_constant(sources[1]) or (0, 0), node.get("group", 1)):
            yield sources[1], 0, None
    elif constant[0]:
        yield sources[0], (graph.array(sources[0]).ndim - 2 if graph.array(sources[0]).ndim > 1 else None), -1
    elif node.get("transB", 0):
        yield sources[1], 0, 1
    else:
        yield sources[1], _last(graph, sources[1]), -2


def _last(graph: Graph, name: str) -> int:
    return len(graph.shape_of_constant(name) or (0, 0)) - 1


def _signed_product(graph: Graph, maker: Node | None) -> Iterator[tuple[str, None, None]]:
    """A second activation in int8 can reach 127 twice in a row."""
    zero = graph.constant(maker.input(2)) if maker is not None and maker.input(2) else None
    if zero is not None and zero.dtype == np.int8:
        yield "", None, None
