"""Which outputs are class scores."""

import numpy as np
import pytest
from onnx import helper
from small_models import linear, model

from quantkit.errors import ModelError
from quantkit.models.verification.output_classes import class_axes, load_structure


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


@pytest.mark.parametrize("content", [b"", b"text, not a model", linear(np.ones((4, 3)))[:60]])
def test_what_is_no_model(tmp_path, content):
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.onnx: (is no ONNX model|is empty)"):
        load_structure(tmp_path / "m.onnx")


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(ModelError, match=r"m\.onnx: cannot be read: No such file"):
        load_structure(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="is not a regular file, it is a folder"):
        load_structure(tmp_path)
