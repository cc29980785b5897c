"""The driver gives what onnxruntime gives, and shows what goes on inside."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from quantkit.errors import ModelError
from quantkit.graph import load_model
from quantkit.graph.control_flow import ControlFlowRunner, cut

NESTED_IF = """
<ir_version: 8, opset_import: ["" : 16]>
g (float[n] x, bool c, bool d) => (float[n] y) {
    a = Relu(x)
    b = If(c) <
        then_branch = t () => (float[n] u) {
            k = Add(a, x)
            u = If(d) <
                then_branch = tt () => (float[n] v) { v = Neg(k) },
                else_branch = te () => (float[n] w) { w = Mul(k, a) }
            >
        },
        else_branch = e () => (float[n] z) { z = Identity(x) }
    >
    y = Sub(b, a)
}
"""
LOOP = """
<ir_version: 8, opset_import: ["" : 16]>
g (float[n] x, int64 m, bool c) => (float[n] y, float[k, n] all) {
    y, all = Loop(m, c, x) <
        body = b (int64 i, bool going, float[n] s) => (bool next, float[n] t, float[n] seen) {
            f = Cast<to=1>(i)
            p = Mul(s, x)
            t = Add(p, f)
            seen = Neg(t)
            total = ReduceMax<keepdims=0>(t)
            ten = Constant<value = float {10.0}>()
            next = Less(total, ten)
        }
    >
}
"""
SCAN = """
<ir_version: 8, opset_import: ["" : 16]>
g (float[2] h, float[5, 2] xs, float[2, 5] ys) => (float[2] last, float[2, 5] all) {
    last, all = Scan<num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [1, 0],
                     scan_output_axes = [1], scan_output_directions = [1],
        body = b (float[2] s, float[2] x, float[2] y) => (float[2] t, float[2] o) {
            p = Mul(s, x)
            t = Add(p, y)
            o = Tanh(t)
        }
    >(h, xs, ys)
}
"""


def session(proto):
    return ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


def step_through(proto, feeds):
    seen = []

    def run(segment, values):
        seen.append([node.op_type for node in segment.nodes])
        found = session(segment.to_proto(values)).run(segment.outputs, values) if segment.outputs else []
        return dict(zip(segment.outputs, found, strict=True))

    return ControlFlowRunner(load_model(proto).graph, run).run(feeds), seen


X = np.array([-1.0, 0.5, 2.0], np.float32)
CASES = [
    *((NESTED_IF, {"x": X, "c": np.array(c), "d": np.array(d)}) for c in (True, False) for d in (True, False)),
    *((LOOP, {"x": X, "m": np.array(m), "c": np.array(True)}) for m in (1, 3, 50)),
    (SCAN, {"h": X[:2], "xs": np.arange(10, dtype=np.float32).reshape(5, 2) / 7, "ys": np.ones((2, 5), np.float32)}),
]


@pytest.mark.parametrize(("text", "feeds"), CASES)
def test_same_as_onnxruntime(text, feeds):
    proto = parser.parse_model(text)
    expected = session(proto).run(None, feeds)
    got, _ = step_through(proto, feeds)
    assert list(got) == [o.name for o in proto.graph.output]
    for a, b in zip(expected, got.values(), strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


def test_only_the_taken_branch_is_run():
    proto = parser.parse_model(NESTED_IF)
    _, seen = step_through(proto, {"x": X, "c": np.array(True), "d": np.array(False)})
    assert seen == [["Relu"], ["Add"], ["Mul"], ["Sub"]]


def test_constants_of_outer_scopes_come_along():
    body = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["u"])],
        "t",
        [],
        [helper.make_tensor_value_info("u", TensorProto.FLOAT, None)],
    )
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [3]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
        [numpy_helper.from_array(np.float32([1]), "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    got, _ = step_through(proto, {"x": X, "c": np.array(True)})
    np.testing.assert_array_equal(got["y"], X + 1)


def test_a_body_of_something_else_is_refused():
    proto = parser.parse_model(NESTED_IF)
    model = load_model(proto)
    next(n for n in model.graph.nodes if n.bodies).op_type = "BeamSearch"
    with pytest.raises(ModelError, match="BeamSearch"):
        cut(model.graph)
