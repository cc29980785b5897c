"""MatMul with a bias: the pair that planning and rewriting treat as one node.

An N-d MatMul has no bias input, so exporters write an Add behind it. Quantizing between the two would round twice, and
onnxruntime turns a float Add behind an int8 MatMul back into a float product. While a plan is made, the bias is a third
input of the MatMul; no such node ever leaves this room.
"""

from __future__ import annotations

from quantkit.graph import FLOAT_TYPES, Graph, Node, element_type


def merge_bias(graph: Graph, keep: frozenset[Node] | set[Node] = frozenset()) -> dict[Node, Node]:
    """Make the constant row that is added to a MatMul its third input.

    Parameters
    ----------
    keep : set of Node
        Nodes that must stay as they are.

    Returns
    -------
    dict of Node to Node
        Each removed Add, and the MatMul that took its place.
    """
    merged: dict[Node, Node] = {}
    for node in graph.sorted_nodes():
        if node not in graph or not node.is_op("MatMul") or node in keep or len(node.inputs) > 2:
            continue
        weight = graph.shape_of_constant(node.inputs[1])
        add = graph.only_consumer(node.outputs[0])
        if weight is None or len(weight) != 2 or add is None or not add.is_op("Add") or add in keep:
            continue
        other = add.inputs[1 - add.inputs.index(node.outputs[0])]
        if graph.shape_of_constant(other) != (weight[1],) or element_type(graph, other) not in FLOAT_TYPES:
            continue
        graph.remove(add)
        graph.set_inputs(node, [*node.inputs, other])
        graph.set_outputs(node, add.outputs)
        merged[add] = node
    return merged


def split_bias(graph: Graph, node: Node, bias: str | None = None) -> Node:
    """Undo `merge_bias` for `node`, with `bias` in place of its third input; return the node that makes its output."""
    if len(node.inputs) < 3:
        return node
    row = bias or node.inputs[2]
    product = graph.model.names.fresh(f"{node.outputs[0]}_product")
    add = Node("Add", [product, row], node.outputs, name=graph.model.names.fresh(f"{node.name or 'MatMul'}_bias"))
    graph.set_inputs(node, node.inputs[:2])
    graph.set_outputs(node, [product])
    return graph.add(add, before=node)


def split_all(graph: Graph) -> None:
    """Undo `merge_bias` wherever it still stands."""
    for node in graph.nodes:
        if node.is_op("MatMul"):
            split_bias(graph, node)
