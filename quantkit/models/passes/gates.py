"""HardSigmoid and HardSwish in one form, however they were exported.

Exporters without these operators write HardSwish as Add, Clip, Mul and Div. One form lets one rule quantize all of
them, and is two passes instead of four where it stays float.
"""

from __future__ import annotations

import numpy as np

from quantkit.graph import Graph, Node
from quantkit.qparams import QParams

# Beyond this a sigmoid is closer to 0 or 1 than half a uint8 step.
_SIGMOID_REACH = 8.0


def unify_gates(graph: Graph) -> None:
    """Turn ``Clip(x + c, 0, m)``, a following division by m, and HardSwish into HardSigmoid and Mul."""
    for node in graph.sorted_nodes():
        if node not in graph:
            continue
        if node.is_op("HardSwish"):
            _split_hard_swish(graph, node)
        elif node.is_op("Clip"):
            _clip_to_gate(graph, node)


def _split_hard_swish(graph: Graph, node: Node) -> None:
    gate = graph.model.names.fresh(f"{node.outputs[0]}_gate")
    name = graph.model.names.fresh(f"{node.name}_gate")
    graph.add(Node("HardSigmoid", node.inputs, [gate], name=name, alpha=1 / 6, beta=0.5), before=node)
    node.op_type = "Mul"
    graph.set_inputs(node, [node.inputs[0], gate])


def _scalar(graph: Graph, name: str) -> float | None:
    values = graph.constant(name) if name else None
    return float(values.reshape(-1)[0]) if values is not None and values.size == 1 and values.ndim <= 1 else None


def _clip_to_gate(graph: Graph, clip: Node) -> None:
    add = graph.producer(clip.inputs[0])
    low, top = _scalar(graph, clip.input(1)), _scalar(graph, clip.input(2))
    if add is None or not add.is_op("Add") or low != 0 or top is None or not 0 < top < np.inf:
        return
    if graph.only_consumer(add.outputs[0]) is not clip:
        return
    position = next((i for i, name in enumerate(add.inputs) if graph.is_constant(name)), None)
    shift = None if position is None else _scalar(graph, add.inputs[position])
    divided = _division_behind(graph, clip, top)
    if shift is None or position is None or divided is None or not 0 < shift < top:
        return
    x = add.inputs[1 - position]
    graph.remove(add)
    clip.op_type = "HardSigmoid"
    clip.attributes.clear()
    clip.set("alpha", 1 / top)
    clip.set("beta", shift / top)
    graph.set_inputs(clip, [x])
    source = next(name for name in divided.inputs if not graph.is_constant(name))
    graph.remove(divided)
    # What was divided takes the name of the quotient.
    maker = graph.producer(source)
    assert maker is not None
    graph.set_outputs(maker, divided.outputs)


def _division_behind(graph: Graph, clip: Node, by: float) -> Node | None:
    """Return the node that divides by `by`: the clamped value itself, or its product with something."""
    reader = graph.only_consumer(clip.outputs[0])
    if reader is not None and reader.is_op("Mul") and _divides(graph, reader, clip.outputs[0]) is None:
        reader = graph.only_consumer(reader.outputs[0])
    if reader is None:
        return None
    factor = next((f for f in (_divides(graph, reader, name) for name in reader.inputs) if f is not None), None)
    return reader if factor is not None and np.isclose(factor, by, rtol=1e-5) else None


def _divides(graph: Graph, node: Node, name: str) -> float | None:
    """Return by what constant `node` divides tensor `name`."""
    if node.is_op("Div") and node.inputs[0] == name:
        return _scalar(graph, node.inputs[1])
    if node.is_op("Mul") and name in node.inputs:
        factor = _scalar(graph, node.inputs[1 - node.inputs.index(name)])
        return 1 / factor if factor else None
    return None


def gate_input_qparams(node: Node) -> QParams:
    """Return the parameters under which the codes of a HardSigmoid's input are those of its output.

    clip(alpha * x + beta, 0, 1) in steps of 1/255 is x in steps of 1 / (255 * alpha) from zero point 255 * beta on,
    saturated where uint8 ends. Where that zero point is no integer, see `gate_offset`.
    """
    alpha, beta = node.get("alpha", 0.2), node.get("beta", 0.5)
    return QParams(1 / (255 * alpha), round(255 * beta))


def gate_offset(node: Node) -> float:
    """Return what to add to a HardSigmoid's input so that its codes are those of the gate though codes are integers.

    A zero point is: up to half a step lies between it and 255 * beta.
    """
    params = gate_input_qparams(node)
    between = 255 * float(node.get("beta", 0.5)) - float(params.zero_point)
    return between * float(params.scale)


def saturation(node: Node) -> tuple[float, float] | None:
    """Return the interval outside of which the input of a gate makes no difference."""
    if node.is_op("HardSigmoid"):
        alpha, beta = node.get("alpha", 0.2), node.get("beta", 0.5)
        return (-beta / alpha, (1 - beta) / alpha) if alpha > 0 else None
    return (-_SIGMOID_REACH, _SIGMOID_REACH) if node.is_op("Sigmoid") else None
