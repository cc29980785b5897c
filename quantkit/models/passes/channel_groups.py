"""Sets of tensors whose channels can be scaled together without changing what the model computes.

Dividing channel c of a Conv's output by s_c is exact if everything that reads it can make up for it: a Conv multiplies
the weights of that input channel by s_c; Relu, pools and Resize hand the factor on; an Add of a constant takes the
constant divided by s_c; a product with a gate (Sigmoid, HardSigmoid) keeps the factor on its other operand, while the
gate itself reads the tensor multiplied by s_c again. That last rule carries the factor through HardSwish and SiLU,
which are not homogeneous themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quantkit.graph import FLOAT_TYPES, Graph, Node, element_type
from quantkit.models.calibration.statistics import ChannelView

GATES = ("Sigmoid", "HardSigmoid")
_HOMOGENEOUS = ("Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "Resize")


@dataclass
class ChannelGroup:
    """One such set.

    Attributes
    ----------
    tensors : list of str
        All carry the same factors along axis 1.
    producers, consumers : list of Node
        Conv nodes that make and read them.
    gates : list of Node
        Gates that read one of the tensors.
    offsets : list of Node
        Adds of a constant.
    rank : int
        Of the tensors.
    """

    tensors: list[str] = field(default_factory=list)
    producers: list[Node] = field(default_factory=list)
    consumers: list[Node] = field(default_factory=list)
    gates: list[Node] = field(default_factory=list)
    offsets: list[Node] = field(default_factory=list)
    rank: int = 0


class _Finder:
    def __init__(self, graph: Graph, excluded: set[Node]) -> None:
        self.graph, self.excluded = graph, excluded
        self.parent: dict[str, str] = {}
        self.fixed: set[str] = set()

    def root(self, name: str) -> str:
        self.parent.setdefault(name, name)
        while self.parent[name] != name:
            self.parent[name] = self.parent[self.parent[name]]
            name = self.parent[name]
        return name

    def union(self, a: str, b: str) -> None:
        a, b = self.root(a), self.root(b)
        if a != b:
            self.parent[b] = a
            if b in self.fixed:
                self.fixed.add(a)

    def fix(self, *names: str) -> None:
        self.fixed.update(self.root(name) for name in names if name)

    def own_weights(self, node: Node) -> bool:
        """Whether a Conv's weight and bias are constants of its own."""
        graph = self.graph
        if node in self.excluded or element_type(graph, node.inputs[1]) not in FLOAT_TYPES:
            return False
        return all(
            graph.is_constant(name) and len(graph.consumers(name)) == 1 and graph.scope_of(name) is graph
            for name in node.inputs[1:]
            if name
        )

    def visit(self, node: Node) -> None:
        graph = self.graph
        out = node.outputs[0] if node.outputs else ""
        if node.is_op("Conv") and self.own_weights(node):
            self.root(node.inputs[0])
            self.root(out)
        elif node in self.excluded or node.bodies:
            self.fix(*node.inputs, *node.outputs)
        elif node.is_op(*_HOMOGENEOUS):
            self.union(node.inputs[0], out)
            self.fix(*node.outputs[1:])
        elif node.is_op(*GATES):
            self.root(node.inputs[0])
            self.fix(out)
        elif node.is_op("Mul", "Add") and len(node.inputs) == 2:
            self.visit_pair(node, out)
        else:
            self.fix(*(name for name in node.inputs if not graph.is_constant(name)), *node.outputs)

    def visit_pair(self, node: Node, out: str) -> None:
        graph = self.graph
        variables = [name for name in node.inputs if not graph.is_constant(name)]
        if len(variables) == 1:
            constant = next(name for name in node.inputs if graph.is_constant(name))
            shape = graph.shape_of_constant(constant) or ()
            if all(length == 1 for length in shape):
                self.union(variables[0], out)
            else:
                self.fix(variables[0], out)
        elif node.is_op("Add") and len(set(variables)) == 2:
            self.union(variables[0], out)
            self.union(variables[1], out)
        else:
            gates = [name for name in variables if self.is_gate(name)]
            if len(gates) == 1 and len(set(variables)) == 2:
                self.union(next(name for name in variables if name != gates[0]), out)
            else:
                self.fix(*variables, out)

    def is_gate(self, name: str) -> bool:
        maker = self.graph.producer(name)
        return maker is not None and maker.is_op(*GATES)


def find_groups(graph: Graph, excluded: set[Node]) -> list[ChannelGroup]:
    """Return the groups of `graph` that are made by Convs alone; nodes in `excluded` are left untouched."""
    finder = _Finder(graph, excluded)
    nodes = graph.sorted_nodes()
    finder.fix(*graph.input_names, *graph.output_names)
    for node in nodes:
        finder.visit(node)
    captured = {name for node in nodes if node.bodies for name in graph_uses(graph, node)}
    finder.fix(*captured)
    groups: dict[str, ChannelGroup] = {}
    fixed = {finder.root(name) for name in finder.fixed}
    for name in list(finder.parent):
        root = finder.root(name)
        if root not in fixed and not graph.is_constant(name):
            groups.setdefault(root, ChannelGroup()).tensors.append(name)
    for node in nodes:
        _place(graph, node, finder, groups)
    return [group for group in groups.values() if group.rank and group.consumers and _made_by_convs(graph, group)]


def channel_views(graph: Graph, groups: list[ChannelGroup]) -> dict[str, ChannelView]:
    """Return the tensors whose channels calibration should look at: those of `groups`, and what weights multiply."""
    views = {name: ChannelView(group.rank) for group in groups for name in group.tensors}
    for node in graph.nodes:
        if not node.is_op("Conv", "Gemm", "MatMul") or graph.is_constant(node.inputs[0]):
            continue
        shape = graph.shape_of_constant(node.inputs[1])
        if shape is None or len(shape) < 2 or node.get("transA", 0):
            continue
        if node.is_op("Conv"):
            views.setdefault(node.inputs[0], ChannelView(len(shape)))
        elif len(shape) == 2:
            views.setdefault(node.inputs[0], ChannelView(length=shape[1 if node.get("transB", 0) else 0]))
    return views


def graph_uses(graph: Graph, node: Node) -> list[str]:
    """Return the tensors that `node` reads, from within its bodies too."""
    from quantkit.graph.ir import body_captures

    return [*node.inputs, *body_captures(node)]


def _place(graph: Graph, node: Node, finder: _Finder, groups: dict[str, ChannelGroup]) -> None:
    def group_of(name: str) -> ChannelGroup | None:
        return groups.get(finder.root(name)) if name in finder.parent else None

    if node.is_op("Conv"):
        made, read = group_of(node.outputs[0]), group_of(node.inputs[0])
        if made is not None:
            made.producers.append(node)
            made.rank = len(graph.shape_of_constant(node.inputs[1]) or ())
        if read is not None:
            read.consumers.append(node)
    elif node.is_op(*GATES):
        read = group_of(node.inputs[0])
        if read is not None:
            read.gates.append(node)
    elif node.is_op("Add") and any(graph.is_constant(name) for name in node.inputs):
        made = group_of(node.outputs[0])
        if made is not None:
            made.offsets.append(node)


def _made_by_convs(graph: Graph, group: ChannelGroup) -> bool:
    """Whether every tensor of the group comes from a Conv of the group or from another tensor of it."""
    members = set(group.tensors)
    for name in group.tensors:
        maker = graph.producer(name)
        if maker is None or not (maker in group.producers or any(n in members for n in maker.inputs)):
            return False
    return bool(group.producers)
