"""Run a graph with If, Loop and Scan step by step, so that the tensors within their bodies can be seen.

onnxruntime does not give out tensors of a body. Here a graph is cut at its control-flow nodes into segments, each of
which is a model of its own; the driver runs them in order, takes the branches, and feeds bodies with what they capture.
Who runs a segment is up to the caller, so that this room needs no runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, helper

from quantkit.errors import ModelError
from quantkit.graph.ir import Graph, body_captures
from quantkit.graph.node import Node

Values = dict[str, Any]
RunSegment = Callable[["Segment", Values], Values]
CONTROL_FLOW = ("If", "Loop", "Scan")


@dataclass(eq=False)
class Segment:
    """Nodes of one graph between control-flow nodes.

    Attributes
    ----------
    graph : Graph
    nodes : list of Node
    inputs : list of str
        Tensors from before.
    outputs : list of str
        Tensors that are needed later.
    controls : list of Node
        Control-flow nodes to run behind it.
    """

    graph: Graph
    nodes: list[Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    controls: list[Node] = field(default_factory=list)

    def to_proto(self, values: Mapping[str, Any]) -> ModelProto:
        """Return the segment as a model; `values` tell the element types of its inputs."""
        graph = self.graph
        model = graph.model
        used = dict.fromkeys(name for node in self.nodes for name in [*node.inputs, *body_captures(node)] if name)
        constants = []
        for name in used:
            scope = graph.scope_of(name)
            if scope is not None and name in scope.initializers:
                constants.append(scope.initializers[name])
        proto = ModelProto()
        proto.CopyFrom(model.header)
        for domain, version in model.opsets.items():
            proto.opset_import.add(domain=domain, version=version)
        proto.graph.name = "segment"
        proto.graph.initializer.extend(constants)
        for name in self.inputs:
            if not isinstance(values[name], np.ndarray | np.generic):
                raise ModelError(f"tensor {name!r} is a {type(values[name]).__name__}, which a segment cannot take")
            dtype = helper.np_dtype_to_tensor_dtype(values[name].dtype)
            proto.graph.input.append(helper.make_tensor_value_info(name, dtype, None))
        for name in self.outputs:
            proto.graph.output.add(name=name)
        proto.graph.node.extend(node.to_proto(model.tensors) for node in self.nodes)
        return proto


def cut(graph: Graph) -> list[Segment]:
    """Cut `graph` at its control-flow nodes.

    Raises
    ------
    ModelError
        When a body belongs to something else than If, Loop or Scan.
    """
    level: dict[Node, int] = {}
    nodes = graph.sorted_nodes()
    for node in nodes:
        if node.bodies and not node.is_op(*CONTROL_FLOW):
            raise ModelError(f"{node!r} has a body that cannot be stepped through")
        before = [graph.producer(name) for name in [*node.inputs, *body_captures(node)]]
        level[node] = max((level[p] + bool(p.bodies) for p in before if p is not None), default=0)
    segments = [Segment(graph) for _ in range(max(level.values(), default=0) + 1)]
    for node in nodes:
        segment = segments[level[node]]
        (segment.controls if node.bodies else segment.nodes).append(node)
    last_use: dict[str, int] = dict.fromkeys(graph.output_names, len(segments))
    for i, segment in enumerate(segments):
        for node in segment.nodes:
            for name in node.inputs:
                last_use[name] = max(last_use.get(name, 0), i)
        for node in segment.controls:
            for name in [*node.inputs, *body_captures(node)]:
                last_use[name] = max(last_use.get(name, 0), i + 1)
    for i, segment in enumerate(segments):
        made = {name for node in segment.nodes for name in node.outputs if name}
        read = dict.fromkeys(name for node in segment.nodes for name in node.inputs if name)
        segment.inputs = [name for name in read if name not in made and not _is_initializer(graph, name)]
        segment.outputs = [name for name in made if last_use.get(name, 0) > i]
        segment.outputs.sort()
    return segments


def _is_initializer(graph: Graph, name: str) -> bool:
    scope = graph.scope_of(name)
    return scope is not None and name in scope.initializers


class ControlFlowRunner:
    """Steps through a graph.

    Parameters
    ----------
    graph : Graph
        The main graph.
    run_segment : callable
        Gets a segment and the values of its inputs; returns the values of its outputs.

    Raises
    ------
    ModelError
        When the graph has bodies that cannot be stepped through.
    """

    def __init__(self, graph: Graph, run_segment: RunSegment) -> None:
        self._graph, self._run_segment = graph, run_segment
        self._segments = {body: cut(body) for body in graph.walk()}

    def run(self, feeds: Values) -> Values:
        """Run on one batch and return the values of the graph's outputs."""
        return self._run_graph(self._graph, dict(feeds))

    def _run_graph(self, graph: Graph, known: Values) -> Values:
        values = dict(known)
        for segment in self._segments[graph]:
            if segment.nodes:
                values |= self._run_segment(segment, {name: values[name] for name in segment.inputs})
            for node in segment.controls:
                values |= zip(node.outputs, self._run_control(graph, node, values), strict=False)
        return {name: self._value(graph, name, values) for name in graph.output_names}

    def _value(self, graph: Graph, name: str, values: Values) -> Any:
        if name in values:
            return values[name]
        return graph.array(name)

    def _run_control(self, graph: Graph, node: Node, values: Values) -> list[Any]:
        inputs = [self._value(graph, name, values) if name else None for name in node.inputs]
        # What a body captures may itself be captured from further out: all of it is in `values`.
        if node.op_type == "If":
            body = node.bodies["then_branch" if bool(np.asarray(inputs[0]).reshape(-1)[0]) else "else_branch"]
            return list(self._run_graph(body, values).values())
        return self._loop(node, inputs, values) if node.op_type == "Loop" else self._scan(node, inputs, values)

    def _loop(self, node: Node, inputs: list[Any], values: Values) -> list[Any]:
        body = node.bodies["body"]
        limit = np.inf if inputs[0] is None else int(np.asarray(inputs[0]).reshape(-1)[0])
        going = True if len(inputs) < 2 or inputs[1] is None else bool(np.asarray(inputs[1]).reshape(-1)[0])
        carried = inputs[2:]
        names = body.input_names
        stacks: list[list[Any]] = [[] for _ in range(len(body.outputs) - 1 - len(carried))]
        step = 0
        while step < limit and going:
            given = dict(zip(names, [np.array(step, np.int64), np.array(going), *carried], strict=False))
            results = list(self._run_graph(body, values | given).values())
            going = bool(np.asarray(results[0]).reshape(-1)[0])
            carried = results[1 : 1 + len(carried)]
            for stack, value in zip(stacks, results[1 + len(carried) :], strict=True):
                stack.append(value)
            step += 1
        if not step and stacks:
            raise ModelError(f"{node!r} ran no iteration, so the shape of what it collects is unknown")
        return [*carried, *(np.stack(stack) for stack in stacks)]

    def _scan(self, node: Node, inputs: list[Any], values: Values) -> list[Any]:
        body = node.bodies["body"]
        count = node.get("num_scan_inputs")
        carried, sequences = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
        axes = node.get("scan_input_axes") or [0] * count
        back = node.get("scan_input_directions") or [0] * count
        outputs = len(body.outputs) - len(carried)
        out_axes = node.get("scan_output_axes") or [0] * outputs
        out_back = node.get("scan_output_directions") or [0] * outputs
        length = sequences[0].shape[axes[0]]
        stacks: list[list[Any]] = [[] for _ in range(outputs)]
        for step in range(length):
            slices = [
                np.take(x, length - 1 - step if reverse else step, axis=axis)
                for x, axis, reverse in zip(sequences, axes, back, strict=True)
            ]
            given = dict(zip(body.input_names, [*carried, *slices], strict=True))
            results = list(self._run_graph(body, values | given).values())
            carried = results[: len(carried)]
            for stack, value in zip(stacks, results[len(carried) :], strict=True):
                stack.append(value)
        if not length and stacks:
            raise ModelError(f"{node!r} ran no iteration, so the shape of what it collects is unknown")
        stacked = [
            np.stack(stack[::-1] if reverse else stack, axis=axis)
            for stack, axis, reverse in zip(stacks, out_axes, out_back, strict=True)
        ]
        return [*carried, *stacked]
