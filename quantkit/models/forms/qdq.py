"""Rewrite, QDQ form: put the plan into QuantizeLinear and DequantizeLinear nodes.

A born tensor keeps its name on the output of its DequantizeLinear, so that none of its readers has to change.
"""

from __future__ import annotations

import numpy as np

from quantkit import ops
from quantkit.graph import Graph, Node
from quantkit.graph.op_table import Kind, data_inputs, row, weight_axis
from quantkit.models.calibration.moments import Moments, input_view
from quantkit.models.calibration.statistics import Calibration
from quantkit.models.forms.emit import Emitter
from quantkit.models.forms.rounding import as_rows, round_weight
from quantkit.models.forms.saturation import quantize_for
from quantkit.models.forms.weights import Array, QuantizedWeight, least_scale, quantize_bias, tap_use
from quantkit.models.passes.bias import split_all, split_bias
from quantkit.models.passes.gates import gate_offset
from quantkit.models.planning.decisions import Plan, constant_qparams
from quantkit.qparams import QParams


class QdqWriter:
    """Writes one graph.

    Parameters
    ----------
    graph : Graph
        Changed in place.
    plan : Plan
        Of this graph.
    calibration : Calibration
        Its means correct the biases for what rounding the weights adds on average.
    within_pairs : bool
        Keep weights exact on CPUs without VNNI; see `saturation.py`.
    """

    def __init__(self, graph: Graph, plan: Plan, calibration: Calibration, *, within_pairs: bool = False) -> None:
        self.calibration, self.within_pairs = calibration, within_pairs
        self.graph, self.plan = graph, plan
        self.emit = Emitter(graph)
        self.codes: dict[str, str] = {}
        self._reads: dict[tuple[str, bool], str] = {}
        self._weights: dict[tuple[str, int | None], QuantizedWeight] = {}
        self._weight_codes: dict[tuple[str, int | None], str] = {}
        self._weight_names: dict[tuple[str, int | None], str] = {}
        self._clamp_of = {host: clamp for clamp, host in plan.absorbed.items()}

    def write(self) -> None:
        """Rewrite the graph."""
        nodes = self.graph.sorted_nodes()
        self._quantize_weights(nodes)
        for node in nodes:
            if node in self.plan.absorbed:
                continue
            if node in self.plan.rescaled:
                self._write_rescaled(node)
            elif self.plan.is_int8(node):
                self._write_int8(node)
        split_all(self.graph)

    # Weights

    def x_scale(self, node: Node, position: int) -> float:
        """Return the scale of the activation at `position` of `node`."""
        name = node.inputs[position]
        return float(self._params(node, name)[0].scale)

    def _params(self, node: Node, name: str) -> tuple[QParams, bool]:
        """Return the parameters under which `node` reads `name`, and whether they are signed."""
        plan = self.plan
        if name in plan.born:
            return plan.born[name], False
        if node.op_type == "MatMul" and name == node.inputs[1] and name in plan.read_signed:
            return plan.read_signed[name], True
        return plan.read[name], False

    def weight_position(self, node: Node) -> int | None:
        """Return which operand of a weighted node is its constant weight."""
        return next((p for p in (1, 0) if self.graph.is_constant(node.inputs[p])), None)

    def _quantize_weights(self, nodes: list[Node]) -> None:
        """Choose scales for each weight so that the bias of everyone who shares it fits."""
        graph = self.graph
        least: dict[tuple[str, int | None], Array] = {}
        reader: dict[tuple[str, int | None], tuple[Node, int]] = {}
        for node in nodes:
            if not self.plan.is_int8(node) or row(node).kind is not Kind.WEIGHTED:
                continue
            position = self.weight_position(node)
            if position is None:
                continue
            name = node.inputs[position]
            shape = graph.shape_of_constant(name) or ()
            axis = static_axis(node, position, len(shape))
            channels = np.zeros(() if axis is None else shape[axis])
            # One operand of a MatMul may be a stack of matrices: only the product's depth counts.
            depth = int(np.prod(shape)) // max(1, channels.size)
            bias = graph.array(node.input(2)) if node.input(2) else None
            needed = least_scale(bias, self.x_scale(node, 1 - position if position < 2 else 0), depth, channels)
            key = (name, axis)
            reader[key] = (node, position)
            least[key] = np.maximum(least[key], needed) if key in least else needed
        for (name, axis), floor in least.items():
            found = self._round(*reader[name, axis], axis, floor)
            codes = self._weight_codes[name, axis] = self.emit.constant(found.codes, f"{name}_q")
            if graph.model.tensors.spill is not None:
                found.codes = graph.array(codes)  # mapped: a large model's codes must not all be in memory
            self._weights[name, axis] = found

    def _round(self, node: Node, position: int, axis: int | None, floor: Array) -> QuantizedWeight:
        values = self.graph.array(node.inputs[position])
        found = quantize_for(node, position, values, axis, floor, within_pairs=self.within_pairs)
        moments = self._moments(node) if position == 1 and not self.within_pairs else None
        if moments is not None:
            round_weight(node, position, values, found, moments, centered=self._corrects(node))
        return found

    def _moments(self, node: Node) -> Moments | None:
        view = input_view(self.graph, node)
        return None if view is None else self.calibration.moments.get(view)

    def _corrects(self, node: Node) -> bool:
        """Whether a bias can make good what rounding the weight adds on average."""
        return not node.is_op("MatMul") or bool(node.input(2))

    def weight(self, node: Node, position: int) -> tuple[str, QuantizedWeight]:
        """Return the dequantized weight of `node` and what it is made of."""
        name = node.inputs[position]
        axis = static_axis(node, position, len(self.graph.shape_of_constant(name) or ()))
        key = (name, axis)
        found = self._weights[key]
        if key not in self._weight_names:
            codes = self._weight_codes[key]
            self._weight_names[key] = self.emit.dequantize(
                codes, self.emit.fresh(f"{name}_dq"), found.qparams, node, np.int8
            )
        return self._weight_names[key], found

    # Activations

    def read(self, node: Node, name: str) -> str:
        """Return the tensor that `node` reads instead of `name`: what its codes stand for."""
        if self.graph.is_constant(name):
            return self._read_constant(node, name)
        if name in self.plan.born:
            return name
        params, signed = self._params(node, name)
        key = (name, signed)
        if key not in self._reads:
            dtype = np.int8 if signed else np.uint8
            codes = self.emit.quantize(name, self.emit.fresh(f"{name}_q"), params, node, dtype)
            self._reads[key] = self.emit.dequantize(codes, self.emit.fresh(f"{name}_dq"), params, node, dtype)
        return self._reads[key]

    def _read_constant(self, node: Node, name: str) -> str:
        values = self.graph.array(name)
        params = constant_qparams(values)
        codes = ops.quantize_linear(values.astype(np.float32), params.scale, params.zero_point)
        stored = self.emit.constant(codes, f"{name}_q")
        return self.emit.dequantize(stored, self.emit.fresh(f"{name}_dq"), params, node)

    def give_codes(self, node: Node, made_by: Node) -> None:
        """Quantize the output of `node`, a clamp behind it absorbed; `made_by` is the node that makes it now."""
        clamp = self._clamp_of.get(node)
        name = made_by.outputs[0]
        if clamp is not None:
            name = clamp.outputs[0]
            self.graph.remove(clamp)
        if name in self.plan.born:
            self._born_output(made_by, 0, name)

    def _born_output(self, node: Node, index: int, name: str) -> None:
        params = self.plan.born[name]
        outputs = list(node.outputs)
        outputs[index] = self.emit.fresh(f"{name}_float")
        self.graph.set_outputs(node, outputs)
        self.codes[name] = self.emit.quantize(outputs[index], self.emit.fresh(f"{name}_q"), params, node)
        self.emit.dequantize(self.codes[name], name, params, node)

    # Nodes

    def _write_rescaled(self, node: Node) -> None:
        source = next(name for name in node.inputs if name in self.codes)
        self.graph.remove(node)
        name = node.outputs[0]
        self.codes[name] = self.codes[source]
        self.emit.dequantize(self.codes[name], name, self.plan.born[name], node)

    def _write_int8(self, node: Node) -> None:
        kind = row(node).kind
        if kind is Kind.WEIGHTED:
            self.give_codes(node, self.write_weighted(node))
        elif kind is Kind.PASS:
            for index, name in enumerate(list(node.outputs)):
                if name:
                    self._born_output(node, index, name)
        elif node.op_type == "HardSigmoid":
            self._write_hard_sigmoid(node)
            self.give_codes(node, node)
        else:
            positions = data_inputs(node)
            inputs = [self.read(node, n) if i in positions and n else n for i, n in enumerate(node.inputs)]
            self.graph.set_inputs(node, inputs)
            self.give_codes(node, node)

    def write_weighted(self, node: Node) -> Node:
        """Rewrite a weighted node and return the node that makes its output."""
        position = self.weight_position(node)
        inputs = list(node.inputs)
        if position is None:
            self.graph.set_inputs(node, [self.read(node, name) for name in inputs])
            return node
        x_position = 1 - position
        x_scale = self.x_scale(node, x_position)
        x = self.read(node, inputs[x_position])
        weight, quantized = self.weight(node, position)
        bias = self._bias(node, x_scale, quantized, self._shift(node, position, quantized))
        inputs[x_position], inputs[position] = x, weight
        if bias is not None and node.op_type != "MatMul":
            inputs = [*inputs[:2], bias]
        self.graph.set_inputs(node, inputs)
        return split_bias(self.graph, node, bias) if node.op_type == "MatMul" else node

    def _shift(self, node: Node, position: int, weight: QuantizedWeight) -> Array | None:
        """Return what rounding the weight adds to each output on average, from the mean of each input channel."""
        if position != 1 or not self._corrects(node):
            return None
        moments = self._moments(node)
        if moments is not None and moments.count:
            values = self.graph.array(node.inputs[1])
            rounded = ops.dequantize_linear(weight.codes, weight.scale, 0, axis=weight.axis)
            error = as_rows(node, rounded.astype(np.float64) - values)
            return np.asarray(np.einsum("god,gd->go", error, moments.mean()).reshape(-1))
        seen = self.calibration.channels.get(node.inputs[0])
        if seen is None or not seen.usable:
            return None
        exact = self.graph.array(node.inputs[1]).astype(np.float64)
        error = ops.dequantize_linear(weight.codes, weight.scale, 0, axis=weight.axis) - exact
        if node.is_op("Conv"):
            groups = node.get("group", 1)
            error = error * tap_use(node, self.calibration[node.inputs[0]].shape, error.shape[2:])
            taps = error.reshape(groups, error.shape[0] // groups, error.shape[1], -1).sum(axis=-1)
            if seen.mean.size != groups * taps.shape[2]:
                return None
            shift: Array = np.einsum("goi,gi->go", taps, seen.mean.reshape(groups, -1)).reshape(-1)
            return shift
        error = error.T if node.get("transB", 0) else error
        if error.ndim != 2 or seen.mean.size != error.shape[0]:
            return None
        shift = seen.mean @ error
        return shift

    def _bias(self, node: Node, x_scale: float, weight: QuantizedWeight, shift: Array | None) -> str | None:
        name = node.input(2)
        if not name and shift is None:
            return None
        values: Array = np.zeros(1) if not name else self.graph.array(name).astype(np.float64)
        if shift is not None:
            values = values - shift
        gate = self._free_gate_of(node)
        if gate is not None:
            values = values + gate_offset(gate)
        name = name or f"{node.outputs[0]}_bias"
        found = quantize_bias(values, x_scale, weight.scale)
        if found is None:
            return None  # onnxruntime then adds it in float
        codes, scale = found
        stored = self.emit.constant(codes, f"{name}_q")
        output = self.emit.fresh(f"{name}_dq")
        return self.emit.dequantize(stored, output, QParams(scale, 0, 0), node, np.int32)

    def _free_gate_of(self, node: Node) -> Node | None:
        """Return the HardSigmoid whose codes are those of this node's output."""
        reader = self.graph.only_consumer(node.outputs[0])
        return reader if reader in self.plan.rescaled and reader is not None and reader.is_op("HardSigmoid") else None

    def _write_hard_sigmoid(self, node: Node) -> None:
        """clip(alpha * x + beta, 0, 1): the factor is a scale, the bounds are the output's range."""
        alpha, beta = node.get("alpha", 0.2), node.get("beta", 0.5)
        name = node.inputs[0]
        params = self.plan.born[name]
        scaled = QParams(float(np.float32(params.scale) * np.float32(alpha)), params.zero_point)
        x = self.emit.dequantize(self.codes[name], self.emit.fresh(f"{name}_scaled"), scaled, node)
        offset = self.graph.add_constant("beta", np.float32(beta))
        shift = self._read_constant(node, offset)
        del self.graph.initializers[offset]
        node.op_type = "Add"
        node.attributes.clear()
        self.graph.set_inputs(node, [x, shift])


def static_axis(node: Node, position: int, rank: int) -> int | None:
    """Return the axis of a weight's scales where its node computes in int8.

    The int8 product of a stack of matrices takes a single scale; onnxruntime fails at run time on one a column.
    """
    if node.is_op("MatMul") and rank > 2:
        return None
    return weight_axis(node, position, rank)


def rewrite_qdq(graph: Graph, plan: Plan, calibration: Calibration, *, within_pairs: bool = False) -> None:
    """Write `plan`, made from `calibration`, into `graph` in QDQ form."""
    QdqWriter(graph, plan, calibration, within_pairs=within_pairs).write()
