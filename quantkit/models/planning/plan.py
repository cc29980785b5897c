"""Plan: what becomes of every node, and why, and the parameters of every tensor that is quantized.

The plan rests on a distinction. The output of an int8 node is *born* as codes: its consumers see what the codes stand
for, whatever they are. Any other tensor that an int8 node reads is quantized for that reader alone, and everybody else
keeps the float values. Arithmetic between the weighted nodes (Add, Mul, pools, Concat) joins an int8 chain only
where it leads from one int8 node to another; towards an output of the model it stays float, which costs and loses
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from onnx import TensorProto

from quantkit.graph import FLOAT_TYPES, Graph, Node, element_type
from quantkit.graph.op_table import Kind, data_inputs, is_pass_through, row
from quantkit.graph.tensors import all_finite
from quantkit.models.calibration.statistics import Calibration
from quantkit.models.passes.gates import gate_input_qparams, saturation
from quantkit.models.planning.decisions import IN_DOUBLE, NodePlan, Plan, clamp_is_proved, constant_qparams
from quantkit.qparams import QParams, choose_qparams, qint8, quint8


def observed_tensors(graph: Graph) -> list[str]:
    """Return the tensors whose ranges planning may ask for."""
    names: dict[str, None] = {}
    for node in graph.sorted_nodes():
        if row(node).kind is Kind.FLOAT:
            continue
        for position in data_inputs(node):
            if node.input(position) and not graph.is_constant(node.input(position)):
                names[node.input(position)] = None
        names.update(dict.fromkeys(name for name in node.outputs[:1] if name))
    return list(names)


class Planner:
    """Makes the plan of one graph."""

    def __init__(
        self, graph: Graph, calibration: Calibration, excluded: Mapping[Node, str], *, within_pairs: bool = False
    ) -> None:
        self.within_pairs = within_pairs
        self.graph, self.calibration, self.excluded = graph, calibration, excluded
        self.nodes = graph.sorted_nodes()
        self.plan = Plan()
        self._why_not: dict[Node, str] = {}
        self._chosen: set[Node] = set()
        self._born: set[str] = set()

    def make(self) -> Plan:
        """Return the plan."""
        self._choose_weighted()
        dropped: set[Node] = set()
        while True:
            # Forward: who can join. Backward: who leads nowhere. Each round only drops, so it ends.
            self._grow(dropped)
            useless = self._useless()
            if not useless:
                break
            dropped |= useless
        self._assign_qparams()
        self._write_reasons(dropped)
        return self.plan

    # Which nodes

    def _choose_weighted(self) -> None:
        for node in self.nodes:
            if row(node).kind is Kind.WEIGHTED:
                reason = self._why_not_weighted(node)
                if reason is None:
                    self._chosen.add(node)
                else:
                    self._why_not[node] = reason

    def _why_not_weighted(self, node: Node) -> str | None:
        """Return why a weighted node cannot compute in int8, or None."""
        graph = self.graph
        if node in self.excluded:
            return self.excluded[node]
        if node.op_type == "ConvTranspose":
            return "onnxruntime has no int8 ConvTranspose"
        if node.op_type == "Gemm" and (
            node.get("transA", 0) or node.get("alpha", 1.0) != 1.0 or node.get("beta", 1.0) != 1.0
        ):
            return "has transA, or an alpha or beta that cannot be folded"
        operands = (0, 1)
        constants = [p for p in operands if graph.is_constant(node.inputs[p])]
        if len(constants) == 2:
            return "all its operands are constants"
        if not constants and node.op_type != "MatMul":
            return "its weight is no constant"
        for position in operands:
            name = node.inputs[position]
            problem = self._weight_problem(name) if position in constants else self._range_problem(name)
            if problem:
                return problem
        if constants == [0] and node.op_type != "MatMul":
            return "its first operand is the constant one"
        bias = node.input(2)
        if bias and not (graph.is_constant(bias) and np.all(np.isfinite(graph.array(bias)))):
            return "its bias is no finite constant"
        if not constants and self.within_pairs:
            return "product of two activations: it could saturate without VNNI"
        if not constants and not self._product_pays(node):
            return "product of two small activations: quantizing them costs more than it saves"
        if node.op_type == "Conv" and self._range_problem(node.outputs[0]):
            return self._range_problem(node.outputs[0])
        return None

    def _weight_problem(self, name: str) -> str | None:
        if element_type(self.graph, name) not in FLOAT_TYPES:
            return f"its weight {name!r} is not floating point"
        if element_type(self.graph, name) == TensorProto.DOUBLE:
            return IN_DOUBLE
        values = self.graph.array(name)
        if values.ndim < 2 or not values.size:
            return f"its weight {name!r} of shape {values.shape} is {'no matrix' if values.size else 'empty'}"
        if not all_finite(values):
            return f"its weight {name!r} holds NaN or infinite values"
        return None

    def _range_problem(self, name: str) -> str | None:
        if name not in self.calibration.tensors:
            return f"tensor {name!r} is not float32"
        stats = self.calibration[name]
        if not stats.batches:
            return f"tensor {name!r} never appeared in calibration"
        if not stats.seen:
            return f"tensor {name!r} had no finite value in calibration"
        return None

    def _product_pays(self, node: Node) -> bool:
        """A product of two activations must do enough work for each element that has to be quantized."""
        a, b = (self.calibration[name] for name in node.inputs[:2])
        out = self.calibration[node.outputs[0]]
        if not a.shape or not b.shape:
            return False
        return out.elements * a.shape[-1] >= 16 * (a.elements + b.elements)

    def _grow(self, dropped: set[Node]) -> None:
        """Let every node join that has a born input, in order; `dropped` ones may not."""
        self._born, self.plan.absorbed, self.plan.rescaled = set(), {}, {}
        self._chosen = {node for node in self._chosen if row(node).kind is Kind.WEIGHTED}
        for node in self.nodes:
            if node in self._chosen:
                if self._gives_codes(node, dropped):
                    self._born.add(node.outputs[0])
                continue
            if node in dropped or node in self.excluded or not node.inputs:
                continue
            kind = row(node).kind
            if kind is Kind.PASS and self._can_pass(node):
                self._join(node)
            elif kind is Kind.CLAMP:
                host = self._host_of_clamp(node)
                if host is not None:
                    self.plan.absorbed[node] = host
                    self._born.discard(node.inputs[0])
                    self._born.add(node.outputs[0])
            elif kind in (Kind.ARITHMETIC, Kind.FACTOR):
                factor = 1.0 if self._is_free_gate(node) else self._positive_factor(node)
                if factor is not None:
                    self.plan.rescaled[node] = factor
                    self._join(node)
                elif kind is Kind.ARITHMETIC and self._can_compute(node):
                    self._join(node)

    def _join(self, node: Node) -> None:
        self._chosen.add(node)
        self._born.update(name for name in node.outputs if name)

    def _gives_codes(self, node: Node, dropped: set[Node]) -> bool:
        """A Conv always does; the result of a product only where every reader wants codes, see `_useless`."""
        return node.op_type == "Conv" or (node not in dropped and self._range_problem(node.outputs[0]) is None)

    def _can_pass(self, node: Node) -> bool:
        return node.inputs[0] in self._born and is_pass_through(node)

    def _host_of_clamp(self, node: Node) -> Node | None:
        """Return the node whose quantized output can express this clamp."""
        name = node.inputs[0]
        host = self.graph.producer(name)
        if host is None or name not in self._born or self.graph.only_consumer(name) is not node:
            return None
        if row(host).kind not in (Kind.WEIGHTED, Kind.ARITHMETIC) or host in self.plan.rescaled:
            return None
        if self._range_problem(node.outputs[0]):
            return None
        return host if clamp_is_proved(self.graph, node, self._activation(node.outputs[0])) else None

    def _positive_factor(self, node: Node) -> float | None:
        """Return the constant > 0 by which `node` multiplies a born tensor."""
        if not node.is_op("Mul", "Div") or len(node.inputs) != 2:
            return None
        for position in (0, 1) if node.is_op("Mul") else (1,):
            values = self.graph.constant(node.inputs[position])
            name = node.inputs[1 - position]
            if values is None or values.size != 1 or name not in self._born:
                continue
            if values.ndim > max(1, len(self.calibration[name].shape)):
                continue  # it would add axes to the result
            factor = float(values.reshape(-1)[0])
            if node.is_op("Div"):
                factor = 1 / factor if factor else 0.0
            if 1e-20 < factor < 1e20:
                return factor
        return None

    def _is_free_gate(self, node: Node) -> bool:
        """A HardSigmoid that alone reads an int8 node's output: that output's codes can be those of the gate."""
        name = node.inputs[0] if node.inputs else ""
        maker = self.graph.producer(name)
        return (
            node.is_op("HardSigmoid")
            and saturation(node) is not None
            and 0 <= node.get("beta", 0.5) <= 1
            and node not in self.excluded
            and name in self._born
            and self.graph.only_consumer(name) is node
            and maker in self._chosen
            and maker not in self.plan.rescaled
            and row(maker).kind in (Kind.WEIGHTED, Kind.ARITHMETIC)
        )

    def _can_compute(self, node: Node) -> bool:
        names = [node.input(p) for p in data_inputs(node)]
        if not any(name in self._born for name in names) or self._range_problem(node.outputs[0]):
            return False
        for name in names:
            if self.graph.is_constant(name):
                if not self._constant_fits(node, name):
                    return False
            elif self._range_problem(name):
                return False
        if node.op_type == "AveragePool":
            return not node.get("ceil_mode", 0) and len(node.get("kernel_shape", ())) == 2
        return True

    def _constant_fits(self, node: Node, name: str) -> bool:
        """A constant operand must lose no more than the result's own rounding."""
        if element_type(self.graph, name) not in FLOAT_TYPES:
            return False
        values = self.graph.array(name)
        if not values.size or not np.all(np.isfinite(values)):
            return False
        if values.size == 1 or not node.is_op("Add"):
            return True
        step = constant_qparams(values).scale
        return bool(step <= 2 * self._activation(node.outputs[0]).scale)

    def _useless(self) -> set[Node]:
        """Return the joined nodes whose codes no int8 node needs, and the products that float readers want too."""
        useful: set[str] = set()
        found: set[Node] = set()
        codes = self._born | {node.inputs[0] for node in self.plan.absorbed}
        for node in reversed(self.nodes):
            if node in self.plan.absorbed:
                if node.outputs[0] in useful:
                    useful.add(node.inputs[0])
                continue
            if node not in self._chosen:
                continue
            outputs = [name for name in node.outputs if name]
            kind = row(node).kind
            if kind is Kind.WEIGHTED:
                gives = node.op_type != "Conv" and outputs[0] in codes
                if gives and not self._all_readers_take_codes(outputs[0]):
                    found.add(node)
            elif kind is Kind.ARITHMETIC and node not in self.plan.rescaled:
                if not any(name in useful for name in outputs):
                    found.add(node)
                    continue
            elif not any(name in useful for name in outputs):
                continue  # moving codes costs less than moving floats, so it may stay
            useful.update(node.input(p) for p in data_inputs(node))
        return found

    def _all_readers_take_codes(self, name: str) -> bool:
        graph = self.graph
        pending = [name]
        while pending:
            tensor = pending.pop()
            readers = graph.consumers(tensor)
            if graph.is_output(tensor) or not readers:
                return False
            for reader in readers:
                if reader in self.plan.absorbed or (reader in self._chosen and row(reader).kind is Kind.PASS):
                    pending.extend(n for n in reader.outputs if n)
                elif reader not in self._chosen or reader.bodies:
                    return False
                elif reader in self.plan.rescaled:
                    pending.append(reader.outputs[0])
        return True

    # Parameters

    def _activation(self, name: str) -> QParams:
        low, high = self.calibration[name].range
        reader = self.graph.only_consumer(name)
        bounds = saturation(reader) if reader is not None else None
        if reader is not None and self._is_free_gate(reader):
            return gate_input_qparams(reader)
        if bounds is not None:
            # What saturates the only reader need not be told apart.
            low, high = max(low, bounds[0]), min(high, bounds[1])
            low, high = min(low, high), max(low, high)
        return choose_qparams(low, high, quint8)

    def _assign_qparams(self) -> None:
        plan = self.plan
        for node in self.nodes:
            if node in plan.absorbed:
                # The host's codes carry the clamped tensor's name from here on.
                plan.born[node.outputs[0]] = self._activation(node.outputs[0])
                continue
            if node not in self._chosen:
                continue
            if node in plan.rescaled and node.is_op("HardSigmoid"):
                plan.born[node.outputs[0]] = QParams(1 / 255, 0)
                continue
            if node in plan.rescaled:
                source = plan.born[self._born_input(node)]
                scaled = float(np.float32(source.scale) * np.float32(plan.rescaled[node]))
                plan.born[node.outputs[0]] = QParams(scaled, source.zero_point)
                continue
            if row(node).kind is Kind.PASS:
                for name in node.outputs:
                    if name:
                        plan.born[name] = plan.born[node.inputs[0]]
                continue
            for name in self._float_operands(node):
                if self._reads_signed(node, name):
                    plan.read_signed[name] = choose_qparams(*self.calibration[name].range, qint8, symmetric=True)
                else:
                    plan.read[name] = self._activation(name)
            if node.outputs[0] in self._born:
                plan.born[node.outputs[0]] = self._activation(node.outputs[0])

    def _born_input(self, node: Node) -> str:
        return next(name for name in node.inputs if name in self.plan.born)

    def _float_operands(self, node: Node) -> Iterator[str]:
        for position in data_inputs(node):
            name = node.input(position)
            if name and name not in self.plan.born and not self.graph.is_constant(name):
                yield name

    def _reads_signed(self, node: Node, name: str) -> bool:
        return node.op_type == "MatMul" and node.inputs[1] == name and node.inputs[0] != name

    # Reasons

    def _write_reasons(self, dropped: set[Node]) -> None:
        for node in self.nodes:
            self.plan.nodes[node] = self._verdict(node, dropped)

    def _verdict(self, node: Node, dropped: set[Node]) -> NodePlan:
        if node in self.plan.absorbed:
            return NodePlan("passthrough", "its bound is expressed by the quantized range of the node before it")
        if node in self.plan.rescaled:
            return NodePlan("passthrough", "the same codes under another scale")
        if node in self._chosen:
            if row(node).kind is Kind.PASS:
                return NodePlan("passthrough", "moves codes")
            return NodePlan("static", "int8 with calibrated ranges")
        if node in self._why_not:
            return NodePlan("float", self._why_not[node])
        if node in self.excluded:
            return NodePlan("float", self.excluded[node])
        if node in dropped:
            return NodePlan("float", "no int8 node needs its result")
        if row(node).kind is Kind.FLOAT:
            return NodePlan("float", f"{node.op_type} is computed in float")
        return NodePlan("float", "lies outside the int8 chains")
