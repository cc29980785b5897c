"""Models in float64: float32 where that can be, else left float with a reason."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from small_models import model

import quantkit
from quantkit.errors import ModelError

RANDOM = np.random.default_rng(0)
WEIGHT = RANDOM.normal(size=(16, 8))
FEEDS = [{"x": row} for row in RANDOM.normal(size=(12, 1, 16))]


def double(nodes=(), **more):
    product = helper.make_node("MatMul", ["x", "w"], ["h"], name="product")
    nodes = nodes or (helper.make_node("Relu", ["h"], ["y"]),)
    ends = [("x", np.float64, ["N", 16])], [("y", np.float64, ["N", 8])]
    return model([product, *nodes], *ends, {"w": WEIGHT, **more})


@pytest.mark.parametrize("mode", ["static", "dynamic", "weight_only"])
def test_float64_becomes_float32(mode):
    result = quantkit.quantize_model(double(), calibration=FEEDS, mode=mode)
    assert [node.decision for node in result.report.nodes if node.name == "product"] == [mode]
    assert result.report.agreement.outputs[0].sqnr_db > 25
    assert {value.type.tensor_type.elem_type for value in result.model.graph.input} == {TensorProto.DOUBLE}
    assert result.report.warnings[0] == "the model computes in float64; the quantized one does so in float32"


@pytest.mark.parametrize("mode", ["static", "dynamic", "weight_only"])
def test_a_constant_beyond_float32_keeps_float64(mode):
    scaled = helper.make_node("Mul", ["h", "huge"], ["y"])
    with pytest.raises(ModelError, match=r"nothing to quantize: .*'product': (computes in float64|tensor 'x')"):
        quantkit.quantize_model(double((scaled,), huge=np.float64(1e60)), calibration=FEEDS, mode=mode)


@pytest.mark.parametrize("mode", ["static", "dynamic", "weight_only"])
def test_a_weight_without_elements_stays_float(mode):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], name="product"),
        helper.make_node("MatMul", ["e", "none"], ["z"], name="empty"),
    ]
    inputs = [("x", np.float32, ["N", 16]), ("e", np.float32, ["N", 0])]
    outputs = [("y", np.float32, ["N", 8]), ("z", np.float32, ["N", 8])]
    weights = {"w": WEIGHT.astype(np.float32), "none": np.zeros((0, 8), np.float32)}
    feeds = [{"x": f["x"].astype(np.float32), "e": np.zeros((1, 0), np.float32)} for f in FEEDS]
    report = quantkit.quantize_model(model(nodes, inputs, outputs, weights), calibration=feeds, mode=mode).report
    found = {node.name: (node.decision, node.reason) for node in report.nodes}
    assert found["product"][0] == mode
    reason = "tensor 'e' had no finite value in calibration" if mode == "static" else "of shape (0, 8) is empty"
    assert found["empty"][0] == "float"
    assert reason in found["empty"][1]
