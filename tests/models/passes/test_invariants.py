import numpy as np
import onnxruntime as ort
import pytest
from corpus import MODELS, Builder, Built, vector
from onnx import TensorProto, helper

from quantkit.graph import load_model
from quantkit.models.passes.invariants import free_invariants
from quantkit.models.passes.prepare import prepare


def run(proto, feed):
    return ort.InferenceSession(proto.SerializeToString()).run(None, feed)


def test_weights_that_a_loop_hands_on_are_constants_in_its_body():
    built = MODELS["weights_carried_by_a_loop"]()
    model = prepare(load_model(built.proto))
    (body,) = [graph for graph in model.graph.walk() if graph.parent is not None]
    assert body.input_names == ["i", "going", "state", "cell"]
    assert [name for node in body.nodes if node.op_type == "MatMul" for name in node.inputs if body.is_constant(name)]
    for feed in built.feeds(2):
        for expected, got in zip(run(built.proto, feed), run(model.to_proto(), feed), strict=True):
            np.testing.assert_array_equal(got, expected)


def loop(outputs, steps=3):
    """A Loop that carries a and b, leaving them as `outputs` say."""
    b = Builder(0)
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["on"]),
            helper.make_node("Add", ["a", "b"], ["sum"]),
            helper.make_node("Identity", ["a"], ["a_on"]),
            helper.make_node("Identity", ["b"], ["b_on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            vector("a", 4),
            vector("b", 4),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), *[vector(name, 4) for name in outputs]],
    )
    found = b.op("Loop", b.const(np.int64(steps)), "", "x", b.const(np.float32([1, 2, 3, 4])), outputs=2, body=body)
    return Built(b.model(found, [vector("x", 4)]), (4,))


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize(
    ("outputs", "left"),
    [(("sum", "b_on"), ["a"]), (("a_on", "b_on"), ["a"]), (("b_on", "a_on"), ["a", "b"]), (("a_on", "sum"), ["b"])],
)
def test_only_what_stays_the_same_leaves_the_loop(steps, outputs, left):
    built = loop(outputs, steps)
    model = load_model(built.proto)
    free_invariants(model)
    (body,) = [graph for graph in model.graph.walk() if graph.parent is not None]
    assert body.input_names[2:] == left
    feed = built.feeds(1)[0]
    for expected, got in zip(run(built.proto, feed), run(model.to_proto(), feed), strict=True):
        np.testing.assert_array_equal(got, expected)
