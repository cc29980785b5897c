import numpy as np
import onnxruntime as ort
import pytest
from corpus import Builder, Built, vector

from quantkit.graph import load_model
from quantkit.models.forms.qoperator import rewrite_qoperator


@pytest.mark.parametrize("second", [np.uint8(114), np.uint8(0), np.int8(0), np.int8(-7)])
def test_a_product_of_two_activations_with_zero_points(second):
    """Codes that a chain before the product already had: the second operand's zero point counts as the first's."""
    b = Builder(0)

    def codes(name, scale, zero_point):
        pair = [b.const(np.float32(scale)), b.const(zero_point)]
        return b.op("DequantizeLinear", b.op("QuantizeLinear", name, *pair), *pair)

    y = b.op("MatMul", codes("x", 0.05, np.uint8(97)), codes("z", 0.03, second))
    built = Built(b.model(y, [vector("x", 3, 8), vector("z", 8, 5)]), names={"x": (3, 8), "z": (8, 5)})
    model = load_model(built.proto)
    rewrite_qoperator(model.graph)
    proto = model.to_proto()
    assert [node.op_type for node in proto.graph.node if "MatMul" in node.op_type] == ["MatMulInteger"]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for feed in built.feeds(3):
        expected, got = (
            ort.InferenceSession(p.SerializeToString(), options).run(None, feed)[0] for p in (built.proto, proto)
        )
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
