"""The editable form of an ONNX model: nodes, tensors, and who makes and uses them.

Protobuf lists have no index and copy what is put into them, so every edit would scan the graph. Here each lookup and
edit is O(1); nested bodies (If, Loop, Scan) are graphs of their own whose captured names count as inputs of the node
that holds them. `Model.to_proto` sorts the nodes, so an edit never has to care about order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from quantkit.errors import ModelError
from quantkit.graph.names import NameAllocator
from quantkit.graph.node import DEFAULT_DOMAIN, Node
from quantkit.graph.tensors import TensorReader


def _node_from_proto(proto: NodeProto, parent: Graph) -> Node:
    node = Node(proto.op_type, proto.input, proto.output, name=proto.name, domain=proto.domain)
    node.proto = proto
    for attribute in proto.attribute:
        if attribute.type == AttributeProto.GRAPH:
            node.bodies[attribute.name] = Graph.from_proto(attribute.g, parent.model, parent)
        elif attribute.type == AttributeProto.GRAPHS:
            for i, body in enumerate(attribute.graphs):
                node.bodies[f"{attribute.name}[{i}]"] = Graph.from_proto(body, parent.model, parent)
        else:
            node.attributes[attribute.name] = attribute
    return node


class Graph:
    """Nodes and tensors of one scope; see the module's text.

    Attributes
    ----------
    inputs, outputs : list of ValueInfoProto
    initializers : dict of str to TensorProto
        Read one through `array`; external data stays on disk until then.
    value_info : dict of str to ValueInfoProto
    parent : Graph or None
        The scope around this body.
    """

    def __init__(self, model: Model, parent: Graph | None = None, name: str = "") -> None:
        self.model, self.parent, self.name = model, parent, name
        self.doc_string = ""
        self.inputs: list[ValueInfoProto] = []
        self.outputs: list[ValueInfoProto] = []
        self.initializers: dict[str, TensorProto] = {}
        self.sparse_initializers: list[Any] = []
        self.value_info: dict[str, ValueInfoProto] = {}
        self._nodes: dict[Node, None] = {}
        self._producers: dict[str, Node] = {}
        self._consumers: dict[str, dict[Node, None]] = {}
        self._uses: dict[Node, tuple[str, ...]] = {}
        self._last_order = 0.0

    @classmethod
    def from_proto(cls, proto: GraphProto, model: Model, parent: Graph | None = None) -> Graph:
        """Read `proto`, which must stay unchanged from then on."""
        graph = cls(model, parent, proto.name)
        graph.doc_string = proto.doc_string
        graph.inputs, graph.outputs = list(proto.input), list(proto.output)
        graph.initializers = {tensor.name: tensor for tensor in proto.initializer}
        graph.sparse_initializers = list(proto.sparse_initializer)
        graph.value_info = {value.name: value for value in proto.value_info}
        for node in proto.node:
            graph.add(_node_from_proto(node, graph))
        return graph

    @property
    def nodes(self) -> list[Node]:
        """The nodes, in the order in which they were added."""
        return list(self._nodes)

    @property
    def input_names(self) -> list[str]:
        """Names of the graph's inputs."""
        return [value.name for value in self.inputs]

    @property
    def output_names(self) -> list[str]:
        """Names of the graph's outputs."""
        return [value.name for value in self.outputs]

    def is_output(self, name: str) -> bool:
        """Whether `name` is an output of this graph."""
        return any(value.name == name for value in self.outputs)

    def __contains__(self, node: Node) -> bool:
        return node in self._nodes

    def producer(self, name: str) -> Node | None:
        """Return the node of this graph that makes tensor `name`."""
        return self._producers.get(name)

    def consumers(self, name: str) -> list[Node]:
        """Return the nodes of this graph that read tensor `name`, themselves or from within a body."""
        return list(self._consumers.get(name, ()))

    def uses(self, node: Node) -> tuple[str, ...]:
        """Return the tensors that `node` of this graph reads, itself or from within a body."""
        return self._uses[node]

    def only_consumer(self, name: str) -> Node | None:
        """Return the node that reads `name` exactly once, when nothing else does and it is no graph output."""
        users = self._consumers.get(name, {})
        if len(users) != 1 or self.is_output(name):
            return None
        (node,) = users
        return node if node.inputs.count(name) == 1 and name not in body_captures(node) else None

    def add(self, node: Node, before: Node | None = None) -> Node:
        """Add `node`; `before` only hints where it should stand among independent nodes."""
        if before is not None:
            node.order = before.order
        else:
            self._last_order += 1
            node.order = self._last_order
        self._nodes[node] = None
        for name in node.outputs:
            if name:
                self._producers[name] = node
        self._index(node)
        return node

    def remove(self, node: Node) -> None:
        """Remove `node`; its outputs lose their producer."""
        self._unindex(node)
        for name in node.outputs:
            if self._producers.get(name) is node:
                del self._producers[name]
        del self._nodes[node]

    def set_inputs(self, node: Node, inputs: Iterable[str]) -> None:
        """Replace the inputs of `node`."""
        self._unindex(node)
        node.inputs = list(inputs)
        self._index(node)

    def set_outputs(self, node: Node, outputs: Iterable[str]) -> None:
        """Replace the outputs of `node`."""
        for name in node.outputs:
            if self._producers.get(name) is node:
                del self._producers[name]
        node.outputs = list(outputs)
        for name in node.outputs:
            if name:
                self._producers[name] = node

    def replace_input(self, node: Node, old: str, new: str) -> None:
        """Let `node`, and the bodies within it, read `new` wherever they read `old`."""
        self._unindex(node)
        node.inputs = [new if name == old else name for name in node.inputs]
        for body in node.bodies.values():
            body.rename_capture(old, new)
        self._index(node)

    def replace_uses(self, old: str, new: str) -> None:
        """Let every consumer of `old` read `new`; graph outputs keep their names."""
        for node in self.consumers(old):
            self.replace_input(node, old, new)

    def rename_capture(self, old: str, new: str) -> None:
        """Let this body read `new` wherever it captures `old`."""
        for node in self.consumers(old):
            self.replace_input(node, old, new)
        for value in self.outputs:
            if value.name == old:
                # An output of a body may be a captured tensor itself; it needs a node to carry its name.
                value.name = new

    def refresh(self, node: Node) -> None:
        """Take note that the captures of a body within `node` changed."""
        self._unindex(node)
        self._index(node)

    def _index(self, node: Node) -> None:
        uses = tuple(dict.fromkeys([*(name for name in node.inputs if name), *body_captures(node)]))
        self._uses[node] = uses
        for name in uses:
            self._consumers.setdefault(name, {})[node] = None

    def _unindex(self, node: Node) -> None:
        for name in self._uses.pop(node):
            users = self._consumers[name]
            del users[node]
            if not users:
                del self._consumers[name]

    def free_names(self) -> list[str]:
        """Return the names that this graph reads from the scopes around it."""
        own = {*self.input_names, *self.initializers, *self._producers}
        own.update(s.values.name for s in self.sparse_initializers)
        names = dict.fromkeys(name for name in self._consumers if name not in own)
        names.update(dict.fromkeys(name for name in self.output_names if name not in own))
        return list(names)

    # Constants

    def scope_of(self, name: str) -> Graph | None:
        """Return the graph, this one or one around it, that defines tensor `name`."""
        graph: Graph | None = self
        while graph is not None:
            if name in graph.initializers or name in graph._producers or name in graph.input_names:
                return graph
            graph = graph.parent
        return None

    def is_constant(self, name: str) -> bool:
        """Whether `name` is an initializer of this scope or of one around it."""
        scope = self.scope_of(name) if name else None
        return scope is not None and name in scope.initializers and name not in scope.input_names

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """Return the values of the constant `name`, read-only.

        Raises
        ------
        ModelError
            When `name` is no constant, or its data cannot be read.
        """
        scope = self.scope_of(name)
        if scope is None or name not in scope.initializers:
            raise ModelError(f"tensor {name!r} is not a constant")
        return self.model.tensors.array(scope.initializers[name])

    def constant(self, name: str) -> np.ndarray[Any, Any] | None:
        """Return the values of `name` if it is a constant, else None."""
        return self.array(name) if self.is_constant(name) else None

    def shape_of_constant(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of `name` if it is a constant, without reading its data."""
        if not self.is_constant(name):
            return None
        scope = self.scope_of(name)
        assert scope is not None
        return tuple(scope.initializers[name].dims)

    def add_constant(self, hint: str, values: Any) -> str:
        """Add an initializer named after `hint` and return its name."""
        name = self.model.names.fresh(hint)
        self.initializers[name] = self.model.tensors.tensor(np.asarray(values), name)
        return name

    def walk(self) -> Iterator[Graph]:
        """Yield this graph and every body within it."""
        yield self
        for node in self._nodes:
            for body in node.bodies.values():
                yield from body.walk()

    def sorted_nodes(self) -> list[Node]:
        """Return the nodes so that each comes after what it reads; the given order breaks ties.

        Raises
        ------
        ModelError
            When the graph has a cycle.
        """
        waiting: dict[Node, int] = {}
        ready: list[tuple[float, int, Node]] = []
        position = {node: i for i, node in enumerate(self._nodes)}
        for node in self._nodes:
            makers = {id(self._producers[name]) for name in self._uses[node] if name in self._producers}
            waiting[node] = len(makers)
            if not makers:
                heapq.heappush(ready, (node.order, position[node], node))
        result = []
        while ready:
            _, _, node = heapq.heappop(ready)
            result.append(node)
            for user in dict.fromkeys(u for name in node.outputs for u in self._consumers.get(name, ())):
                waiting[user] -= 1
                if not waiting[user]:
                    heapq.heappush(ready, (user.order, position[user], user))
        if len(result) != len(position):
            stuck = next(node for node in self._nodes if waiting[node])
            raise ModelError(f"{self.model.tensors.where}: the graph has a cycle through {stuck!r}")
        return result

    def drop_unused(self) -> None:
        """Remove initializers, and nodes without side effects, that nothing reads."""
        keep = set(self.output_names)
        for node in reversed(self.sorted_nodes()):
            if not any(name in keep or name in self._consumers for name in node.outputs if name):
                self.remove(node)
        for graph in self.walk():
            outputs = set(graph.output_names)
            for name in [n for n in graph.initializers if n not in graph._consumers and n not in outputs]:
                del graph.initializers[name]

    def to_proto(self, tensors: TensorReader) -> GraphProto:
        """Return the protobuf form, nodes in topological order."""
        proto = GraphProto(name=self.name or "graph")
        if self.doc_string:
            proto.doc_string = self.doc_string
        proto.input.extend(self.inputs)
        proto.output.extend(self.outputs)
        proto.initializer.extend(self.initializers.values())
        proto.sparse_initializer.extend(self.sparse_initializers)
        known = {*self._producers}
        proto.value_info.extend(value for name, value in self.value_info.items() if name in known)
        proto.node.extend(node.to_proto(tensors) for node in self.sorted_nodes())
        return proto


def body_captures(node: Node) -> list[str]:
    """Return the outer names that the bodies of `node` read."""
    return [name for body in node.bodies.values() for name in body.free_names()]


class Model:
    """An ONNX model in editable form.

    Attributes
    ----------
    graph : Graph
        The main graph.
    opsets : dict of str to int
        Version of each operator domain; the standard one is ``""``.
    names : NameAllocator
        Over the whole model.
    """

    def __init__(self, proto: ModelProto, tensors: TensorReader | None = None) -> None:
        self.tensors = tensors or TensorReader()
        self.opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in proto.opset_import}
        self.header = ModelProto()
        for field in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
            if proto.HasField(field):
                setattr(self.header, field, getattr(proto, field))
        self.header.metadata_props.extend(proto.metadata_props)
        self.metadata = {entry.key: entry.value for entry in proto.metadata_props}
        self.names = NameAllocator()
        self.graph = Graph.from_proto(proto.graph, self)
        for graph in self.graph.walk():
            for name in [*graph.input_names, *graph.output_names, *graph.initializers]:
                self.names.reserve(name)
            for node in graph.nodes:
                for name in [node.name, *node.inputs, *node.outputs]:
                    self.names.reserve(name)

    @property
    def opset(self) -> int:
        """Version of the standard domain."""
        return int(self.opsets.get(DEFAULT_DOMAIN, 1))

    def graphs(self) -> list[Graph]:
        """Return the main graph and every body, in an order that storing and loading the model keeps."""
        found = [self.graph]
        for graph in found:
            found.extend(body for node in graph.sorted_nodes() for body in node.bodies.values())
        return found

    def to_proto(self) -> ModelProto:
        """Return the protobuf form; it shares no message with this model."""
        proto = ModelProto()
        proto.CopyFrom(self.header)
        del proto.metadata_props[:]
        for key, value in self.metadata.items():
            proto.metadata_props.add(key=key, value=value)
        for domain, version in self.opsets.items():
            proto.opset_import.add(domain=domain, version=version)
        proto.graph.CopyFrom(self.graph.to_proto(self.tensors))
        return proto

    def raise_ir_version(self, wanted: int) -> None:
        """Make the IR version at least `wanted`."""
        self.header.ir_version = max(self.header.ir_version, wanted)


def element_type(graph: Graph, name: str) -> int | None:
    """Return the ONNX element type of tensor `name` where the model declares it, else None."""
    scope = graph.scope_of(name)
    if scope is None:
        return None
    if name in scope.initializers:
        return int(scope.initializers[name].data_type)
    for value in [*scope.inputs, *scope.outputs]:
        if value.name == name and value.type.HasField("tensor_type"):
            return int(value.type.tensor_type.elem_type) or None
    info = scope.value_info.get(name)
    if info is not None and info.type.HasField("tensor_type"):
        return int(info.type.tensor_type.elem_type) or None
    return None


FLOAT_TYPES = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE}
)
