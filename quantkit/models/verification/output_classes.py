"""Which outputs of a model are class scores: those that end in Softmax or LogSoftmax."""

from __future__ import annotations

from quantkit.graph.io import ModelSource, load_structure

_MOVES_NOTHING = {"Identity", "Cast", "QuantizeLinear", "DequantizeLinear"}


def class_axes(model: ModelSource) -> dict[str, int]:
    """Return the class axis of every output that ends in Softmax or LogSoftmax.

    Identity, Cast, QuantizeLinear and DequantizeLinear after it are looked through. An axis counts when it is the
    last one: a Softmax over anything else is no decision.

    Parameters
    ----------
    model : path, bytes or ModelProto
        External data is not read.

    Raises
    ------
    ModelError
        When it is no ONNX model.
    """
    proto = load_structure(model)
    opset = max((item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")), default=1)
    producers = {name: node for node in proto.graph.node for name in node.output if name}
    ranks = {
        item.name: len(item.type.tensor_type.shape.dim)
        for item in proto.graph.output
        if item.type.tensor_type.HasField("shape")
    }
    found = {}
    for output in proto.graph.output:
        node = producers.get(output.name)
        while node is not None and node.op_type in _MOVES_NOTHING:
            node = producers.get(node.input[0])
        if node is None or node.op_type not in ("Softmax", "LogSoftmax") or node.domain not in ("", "ai.onnx"):
            continue
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1 if opset >= 13 else 1)
        rank = ranks.get(output.name)
        if axis == -1 or (rank is not None and axis in (rank - 1, -1)) or (rank is None and opset < 13 and axis == 1):
            found[output.name] = -1
    return found
