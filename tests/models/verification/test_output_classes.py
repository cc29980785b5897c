"""Which outputs are class scores."""

import numpy as np
import pytest
from onnx import helper
from small_models import model

from quantkit.models.verification.output_classes import class_axes


def ends_in(*tail, shape=("N", 4), opset=17):
    """Class axes of a model that puts x through the given (op, attributes) in a row."""
    names = ["x", *[f"t{i}" for i in range(len(tail) - 1)], "y"]
    nodes = [
        helper.make_node(op, [a], [b], **attributes)
        for (op, attributes), a, b in zip(tail, names[:-1], names[1:], strict=True)
    ]
    return class_axes(model(nodes, [("x", np.float32, list(shape))], [("y", np.float32, list(shape))], opset=opset))


@pytest.mark.parametrize(
    ("tail", "opset", "wanted"),
    [
        ([("Softmax", {})], 17, {"y": -1}),
        ([("Softmax", {"axis": -1})], 17, {"y": -1}),
        ([("LogSoftmax", {"axis": 1})], 17, {"y": -1}),
        ([("Softmax", {"axis": 0})], 17, {}),
        ([("Softmax", {})], 11, {"y": -1}),
        ([("Softmax", {"axis": 1}), ("Identity", {})], 11, {"y": -1}),
        ([("Softmax", {}), ("Cast", {"to": 1}), ("Identity", {})], 17, {"y": -1}),
        ([("Softmax", {}), ("Relu", {})], 17, {}),
        ([("Relu", {})], 17, {}),
    ],
)
def test_class_axes(tail, opset, wanted):
    assert ends_in(*tail, opset=opset) == wanted


def test_softmax_over_an_inner_axis_is_no_decision():
    assert ends_in(("Softmax", {"axis": 1}), shape=("N", 4, 5)) == {}
    assert ends_in(("Softmax", {"axis": 2}), shape=("N", 4, 5)) == {"y": -1}
