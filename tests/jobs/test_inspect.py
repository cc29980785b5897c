"""inspect_model: what is in a file, whoever made it."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import dynamic, linear, linear_int8, model, qdq, qoperator

from quantkit.errors import ModelError
from quantkit.jobs.inspect import QuantizedTensor, StoredTensors, inspect_model


@pytest.fixture
def look(tmp_path):
    def inspect(content):
        (tmp_path / "m.onnx").write_bytes(content)
        return inspect_model(tmp_path / "m.onnx")

    return inspect


def test_a_float_model(look, tmp_path):
    found = look(linear(np.ones((4, 3))))
    assert found.path == str(tmp_path / "m.onnx")
    assert found.bytes == (tmp_path / "m.onnx").stat().st_size
    assert (found.ir_version, found.opsets, found.form) == (8, {"ai.onnx": 17}, [])
    assert found.inputs == {"x": "float32[N, 4]"}
    assert found.outputs == {"y": "float32[N, 3]"}
    assert found.operators == {"MatMul": 1}
    assert found.stored == {"float": StoredTensors(1, 12, 48)}
    assert (found.int8_weight_share, found.quantized) == (0.0, [])


def test_qdq(look):
    found = look(qdq())
    assert found.form == ["qdq"]
    assert found.operators == {"DequantizeLinear": 3, "Gemm": 1, "QuantizeLinear": 1}
    assert found.int8_weight_share == 1.0
    by_name = {item.tensor: item for item in found.quantized}
    assert list(by_name) == ["x", "wq", "bq"]
    f = np.float32
    assert by_name["x"] == QuantizedTensor(
        "x", "activation", "uint8", 1, None, (f(0.02), f(0.02)), (128, 128), -128 * f(0.02), 127 * f(0.02)
    )
    assert by_name["wq"] == QuantizedTensor(
        "wq", "weight", "int8", 3, 1, (f(0.01), f(0.03)), (0, 0), pytest.approx(-3.84), pytest.approx(3.81)
    )
    assert (by_name["bq"].kind, by_name["bq"].dtype, by_name["bq"].axis) == ("bias", "int32", 0)


def test_qoperator(look):
    found = look(qoperator())
    assert found.form == ["qoperator"]
    ranges = {item.tensor: (item.kind, item.dtype, item.low, item.high) for item in found.quantized}
    assert ranges == {
        "x": ("activation", "uint8", 0.0, 127.5),
        "w": ("weight", "int8", -32.0, 31.75),
        "y": ("activation", "uint8", -10.0, 245.0),
    }


def test_dynamic_and_weight_only(look):
    found = look(dynamic())
    assert (found.form, found.quantized, found.int8_weight_share) == (["dynamic"], [], 1.0)
    found = look(linear_int8(np.ones((4, 3)), 0.5))
    assert (found.form, [item.tensor for item in found.quantized]) == (["weight_only"], ["wq"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x_scale": 0.0}, "scale 'xs' of QuantizeLinear 'q' must be finite and > 0, got 0.0"),
        ({"x_scale": np.nan}, "scale 'xs' of QuantizeLinear 'q' must be finite and > 0, got nan"),
        ({"x_scale": np.inf}, "scale 'xs' of QuantizeLinear 'q' must be finite and > 0, got inf"),
        (
            {"w_scale": (0.1, -0.1, 0.1)},
            "scale 'ws' of DequantizeLinear 'dw' must be finite and > 0, got -0.10000000149011612 at channel 1",
        ),
    ],
)
def test_scales_that_cannot_be(look, options, message):
    with pytest.raises(ModelError) as caught:
        look(qdq(**options))
    assert str(caught.value).endswith(f"m.onnx: {message}")


def test_bodies_are_looked_into(look):
    inner = onnx.load_model_from_string(qdq()).graph
    codes = {t.name: t for t in inner.initializer}
    body = helper.make_graph(list(inner.node), "body", [], [helper.make_tensor_value_info("y", 1, None)])
    other = helper.make_graph(
        [helper.make_node("Constant", [], ["z"], value=numpy_helper.from_array(np.zeros((1, 3), np.float32)))],
        "other",
        [],
        [helper.make_tensor_value_info("z", 1, None)],
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["out"], then_branch=body, else_branch=other)],
        "g",
        [helper.make_tensor_value_info("c", TensorProto.BOOL, []), helper.make_tensor_value_info("x", 1, [1, 4])],
        [helper.make_tensor_value_info("out", 1, None)],
        list(codes.values()),
    )
    found = look(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )
    assert found.operators["If"] == 1
    assert found.operators["Gemm"] == 1
    assert [item.tensor for item in found.quantized] == ["x", "wq", "bq"]
    assert found.form == ["qdq"]


def test_scales_in_constant_nodes(look):
    nodes = [
        helper.make_node("Constant", [], ["s"], value=numpy_helper.from_array(np.float32(0.5))),
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s"], ["y"]),
    ]
    found = look(model(nodes, [("x", np.float32, [2])], [("y", np.float32, [2])]))
    (item,) = found.quantized
    assert (item.tensor, item.dtype, item.zero_point, item.high) == ("x", "uint8", (0, 0), 127.5)


def test_concat_of_codes(look):
    nodes = [helper.make_node("QLinearConcat", ["ys", "yz", "a", "as", "z", "b", "bs", "z"], ["y"], axis=0)]
    nodes[0].domain = "com.microsoft"
    weights = {"ys": np.float32(1), "yz": np.uint8(0), "as": np.float32(2), "bs": np.float32(3), "z": np.uint8(0)}
    inputs = [("a", np.uint8, [2]), ("b", np.uint8, [2])]
    found = look(model(nodes, inputs, [("y", np.uint8, [4])], weights))
    assert {item.tensor: item.scale[0] for item in found.quantized} == {"y": 1.0, "a": 2.0, "b": 3.0}
    assert found.operators == {"com.microsoft.QLinearConcat": 1}


def test_four_bits_take_half_a_byte(look):
    tensor = helper.make_tensor("w", TensorProto.INT4, [3, 3], [1] * 9)
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["w", "s"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", 1, [3, 3])],
        [tensor, numpy_helper.from_array(np.float32(1), "s")],
    )
    found = look(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    )
    assert found.stored["int4"] == StoredTensors(1, 9, 5)
    assert found.quantized[0].high == 7.0


def test_external_data_is_found_and_counted(tmp_path):
    proto = onnx.load_model_from_string(linear(np.ones((100, 30))))
    onnx.save_model(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    found = inspect_model(tmp_path / "m.onnx")
    assert found.external == {str(tmp_path / "m.data"): 12_000}
    assert found.bytes < 1000
    (tmp_path / "m.data").unlink()
    with pytest.raises(ModelError, match=r"m\.data"):
        inspect_model(tmp_path / "m.onnx")


def test_metadata_and_producer(look):
    proto = onnx.load_model_from_string(linear(np.ones((4, 3))))
    proto.producer_name, proto.producer_version = "tool", "1.2"
    helper.set_model_props(proto, {"a": "b"})
    found = look(proto.SerializeToString())
    assert (found.producer, found.metadata) == ("tool 1.2", {"a": "b"})


def test_inputs_that_are_no_tensors(look):
    graph = helper.make_graph(
        [helper.make_node("SequenceLength", ["s"], ["n"])],
        "g",
        [helper.make_tensor_sequence_value_info("s", 1, None)],
        [helper.make_tensor_value_info("n", TensorProto.INT64, [])],
    )
    found = look(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )
    assert (found.inputs, found.outputs) == ({"s": "sequence"}, {"n": "int64[]"})


def test_to_dict_is_json(look):
    plain = json.loads(json.dumps(look(qdq()).to_dict(), allow_nan=False))
    assert plain["schema"] == 1
    assert plain["int8_weight_share"] == 1.0
    assert plain["quantized"][0]["tensor"] == "x"
    assert plain["stored"]["int8"] == {"tensors": 1, "elements": 12, "bytes": 12}
