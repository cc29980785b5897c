"""Values that a Loop or Scan hands from step to step without changing them.

Exporters that know no captures (tf2onnx among them) carry the weights of a recurrent layer that way. Read from the
scope around the body instead, they are constants there, like any other weight.
"""

from __future__ import annotations

from quantkit.graph import Graph, Model, Node


def free_invariants(model: Model) -> None:
    """Let bodies read what their loop never changes from the scope around it; exact also for a loop of no steps."""
    for graph in reversed(list(model.graph.walk())):
        for node in graph.sorted_nodes():
            if node.is_op("Loop", "Scan") and len(node.bodies) == 1:
                _free(graph, node)


def _free(graph: Graph, node: Node) -> None:
    (body,) = node.bodies.values()
    if node.is_op("Loop"):  # the body gets the step and a condition first, and gives a condition first
        before, first, carried = 2, 1, len(body.inputs) - 2
    elif graph.model.opset >= 9:
        before, first, carried = 0, 0, len(node.inputs) - node.get("num_scan_inputs", 0)
    else:
        return  # a Scan with a batch axis
    for i in reversed(range(carried)):
        _free_one(graph, node, body, before + i, first + i, i)


def _free_one(graph: Graph, node: Node, body: Graph, entry: int, leaving: int, result: int) -> None:
    outer, inner = node.input(entry), body.inputs[entry].name
    if not outer or len(node.outputs) < 2 or _source(body, body.output_names[leaving]) != inner:
        return
    others = [name for i, name in enumerate(body.output_names) if i != leaving]
    taken = [name for scope in body.walk() for name in _own_names(scope)]
    if inner in others or taken.count(outer) > (inner == outer):
        return  # would leave an output that no node makes, or read a namesake
    del body.outputs[leaving]
    del body.inputs[entry]
    body.rename_capture(inner, outer)
    made = node.outputs[result] if result < len(node.outputs) else ""
    graph.set_outputs(node, [name for i, name in enumerate(node.outputs) if i != result])
    graph.set_inputs(node, [name for i, name in enumerate(node.inputs) if i != entry])
    if made:
        graph.add(Node("Identity", [outer], [made], name=graph.model.names.fresh(f"{made}_kept")), before=node)


def _source(graph: Graph, name: str) -> str:
    """Return the tensor that `name` is, behind any Identity."""
    node = graph.producer(name)
    while node is not None and node.is_op("Identity"):
        name = node.inputs[0]
        node = graph.producer(name)
    return name


def _own_names(graph: Graph) -> list[str]:
    return [*graph.input_names, *graph.initializers, *(name for node in graph.nodes for name in node.outputs)]
