"""Each rule: the raised model passes the checker and gives what the old one gave in onnxruntime."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantkit.graph import load_model, raise_opset

I64, F32 = np.int64, np.float32
# name: (opset, operator, constant inputs after x, attributes, outputs)
CASES = {
    "squeeze": (11, "Squeeze", [], {"axes": [0]}, 1),
    "squeeze_all": (12, "Squeeze", [], {}, 1),
    "unsqueeze": (12, "Unsqueeze", [], {"axes": [0, 3]}, 1),
    "reduce_sum": (11, "ReduceSum", [], {"axes": [1, -1], "keepdims": 0}, 1),
    "reduce_sum_all": (11, "ReduceSum", [], {}, 1),
    "split": (11, "Split", [], {"axis": 1, "split": [1, 3]}, 2),
    "split_even": (11, "Split", [], {"axis": 1}, 2),
    "clip_attributes": (7, "Clip", [], {"min": -0.5, "max": 0.25}, 1),
    "clip_low_only": (10, "Clip", [], {"min": 0.1}, 1),
    "clip_inputs": (12, "Clip", [F32(-0.5)], {}, 1),
    "pad_attributes": (10, "Pad", [], {"pads": [0, 0, 1, 1, 0, 0, 2, 2], "value": 1.5}, 1),
    "pad_reflect": (10, "Pad", [], {"pads": [0, 0, 1, 1, 0, 0, 1, 1], "mode": "reflect"}, 1),
    "pad_inputs": (11, "Pad", [np.array([0, 0, 1, 1, 0, 0, 1, 1], I64)], {}, 1),
    "slice_attributes": (9, "Slice", [], {"starts": [1, 0], "ends": [3, 100], "axes": [1, 2]}, 1),
    "slice_no_axes": (9, "Slice", [], {"starts": [0, 1], "ends": [1, 3]}, 1),
    "topk": (9, "TopK", [], {"k": 2, "axis": 1}, 2),
    "dropout": (10, "Dropout", [], {"ratio": 0.3}, 1),
    "softmax_last": (11, "Softmax", [], {"axis": 3}, 1),
    "softmax_many": (11, "Softmax", [], {"axis": 1}, 1),
    "softmax_default": (11, "Softmax", [], {}, 1),
    "softmax_negative": (11, "Softmax", [], {"axis": -2}, 1),
    "log_softmax": (9, "LogSoftmax", [], {"axis": 2}, 1),
    "hardmax": (11, "Hardmax", [], {"axis": 1}, 1),
    "upsample_attribute": (7, "Upsample", [], {"scales": [1.0, 1.0, 2.0, 3.0], "mode": "nearest"}, 1),
    "upsample_input": (9, "Upsample", [F32([1, 1, 2, 2])], {"mode": "linear"}, 1),
    "resize_10": (10, "Resize", [F32([1, 1, 2, 1.5])], {"mode": "nearest"}, 1),
    "batch_norm": (7, "BatchNormalization", [np.full(4, v, F32) for v in (2, 0.5, 0.1, 1.5)], {}, 1),
    "max_pool": (8, "MaxPool", [], {"kernel_shape": [2, 2]}, 1),
}


def make(opset, op_type, constants, attributes, outputs, *, in_body=False):
    names = [f"c{i}" for i in range(len(constants))]
    made = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, ["x", *names], made, name="it", **attributes)
    tensors = [numpy_helper.from_array(np.asarray(c), n) for c, n in zip(constants, names, strict=True)]
    values = [onnx.ValueInfoProto(name=n) for n in made]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 4, 4])
    nodes, inputs = [node], [x]
    if in_body:
        bodies = [
            helper.make_graph(
                [_renamed(node, branch)], branch, [], [onnx.ValueInfoProto(name=f"{n}_{branch}") for n in made]
            )
            for branch in ("then", "else")
        ]
        nodes = [helper.make_node("If", ["c"], made, then_branch=bodies[0], else_branch=bodies[1])]
        inputs.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    graph = helper.make_graph(nodes, "g", inputs, values, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)


def _renamed(node, branch):
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for i, name in enumerate(copy.output):
        copy.output[i] = f"{name}_{branch}"
    return copy


def run(proto, feeds):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options)
    return session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})


@pytest.mark.parametrize("in_body", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_same_numbers(name, in_body):
    old = make(*CASES[name], in_body=in_body)
    new = raise_opset(load_model(old)).to_proto()
    assert [(o.domain, o.version) for o in new.opset_import] == [("", 13)]
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 4, 4, 4)).astype(F32), "c": np.array(True)}
    expected, got = run(old, feeds), run(new, feeds)
    assert len(expected) == len(got) == CASES[name][-1]
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


def test_a_newer_model_stays():
    proto = make(13, "Relu", [], {}, 1)
    assert raise_opset(load_model(proto)).to_proto() == proto


def test_below_seven_goes_through_the_converter():
    proto = make(6, "Relu", [], {}, 1)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y0", TensorProto.FLOAT, [1, 4, 4, 4]))
    proto.ir_version = 3
    new = raise_opset(load_model(proto)).to_proto()
    assert new.opset_import[0].version == 13
    assert [n.op_type for n in new.graph.node] == ["Relu"]
