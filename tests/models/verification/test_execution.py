"""What onnxruntime makes of a file, counted in the graph that its optimizer leaves."""

import numpy as np
from corpus import MODELS
from onnx import TensorProto, helper, numpy_helper

import quantkit
from quantkit.models.verification.execution import execution, node_times


def quantized(name, **options):
    built = MODELS[name]()
    return built, quantkit.quantize_model(built.proto, calibration=built.feeds(8), measure=False, **options).model


def test_a_fused_model():
    _, model = quantized("resnet")
    found = execution(model)
    assert found.int8["QLinearConv"] == 4
    assert found.int8["QLinearAdd"] == 1
    assert found.int8["QGemm"] == 1
    assert found.unfused == []
    assert found.conversions == 1  # the input; a QGemm may give floats


def test_a_conv_that_did_not_fuse_is_named():
    """Without a QuantizeLinear behind it, onnxruntime computes a Conv in float."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["x_q"]),
        helper.make_node("DequantizeLinear", ["x_q", "s", "z"], ["x_dq"]),
        helper.make_node("DequantizeLinear", ["w", "s"], ["w_dq"]),
        helper.make_node("Conv", ["x_dq", "w_dq"], ["c"]),
        helper.make_node("Erf", ["c"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(np.float32(0.1), "s"),
        numpy_helper.from_array(np.uint8(3), "z"),
        numpy_helper.from_array(np.ones((4, 3, 1, 1), np.int8), "w"),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, c, 8, 8]) for n, c in (("x", 3), ("y", 4))]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    found = execution(model)
    assert len(found.unfused) == 1
    assert found.int8_count == 0


def test_bodies_are_counted():
    _, model = quantized("bodies_that_compute")
    assert execution(model).int8["QLinearConv"] == 2


def test_weight_only_products_count():
    _, model = quantized("transformer", mode="weight_only")
    assert execution(model).int8 == {"MatMulNBits": 6}


def test_every_executed_node_has_a_time():
    built, model = quantized("resnet")
    times = node_times(model, built.feeds(1)[0], 3)
    assert len([t for t in times if any("conv" in name.lower() for name in t.names)]) >= 4
    assert all(t.microseconds >= 0 for t in times)
