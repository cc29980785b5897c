"""Weights come out as initializers; what would grow stays a node."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from quantkit.graph import fold_constants, load_model


def fold(nodes, output, initializers=()):
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in dict(initializers).items()]
    graph = helper.make_graph(
        [*nodes, helper.make_node("MatMul", ["x", output], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        tensors,
    )
    model = load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]))
    fold_constants(model)
    return model.graph


W = np.arange(6, dtype=np.float32).reshape(2, 3)


def constant(name, value):
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value), "t"))


def test_constant_nodes():
    graph = fold([constant("w", W)], "w")
    assert [n.op_type for n in graph.nodes] == ["MatMul"]
    np.testing.assert_array_equal(graph.array("w"), W)


def test_chains_of_what_moves_weights():
    nodes = [
        constant("h", W.astype(np.float16)),
        helper.make_node("Cast", ["h"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["f"], ["t"], perm=[1, 0]),
        helper.make_node("Identity", ["t"], ["i"]),
        constant("s", np.array([2, 3])),
        helper.make_node("Reshape", ["i", "s"], ["r"]),
        helper.make_node("Mul", ["r", "half"], ["w"]),
    ]
    graph = fold(nodes, "w", {"half": np.float32(0.5)})
    assert [n.op_type for n in graph.nodes] == ["MatMul"]
    np.testing.assert_array_equal(graph.array("w"), W.T.reshape(2, 3) / 2)
    assert list(graph.initializers) == ["w"]


def test_attribute_forms_of_constant():
    nodes = [
        helper.make_node("Constant", [], ["shape"], value_ints=[2, 3]),
        helper.make_node("Constant", [], ["v"], value_floats=[1.0, 2, 3, 4, 5, 6]),
        helper.make_node("Reshape", ["v", "shape"], ["w"]),
    ]
    np.testing.assert_array_equal(fold(nodes, "w").array("w"), W + 1)


def test_what_would_blow_up_the_file_stays():
    nodes = [helper.make_node("ConstantOfShape", ["shape"], ["w"])]
    graph = fold(nodes, "w", {"shape": np.array([1000, 1000])})
    assert [n.op_type for n in graph.nodes] == ["ConstantOfShape", "MatMul"]
    nodes = [helper.make_node("Add", ["column", "row"], ["w"])]
    graph = fold(nodes, "w", {"column": np.ones((500, 1), np.float32), "row": np.ones((1, 500), np.float32)})
    assert [n.op_type for n in graph.nodes] == ["Add", "MatMul"]


def test_bodies_are_folded_in_place():
    body = helper.make_graph(
        [constant("w", W), helper.make_node("MatMul", ["x", "w"], ["b"])],
        "then",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["e"])],
        "else",
        [],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("If", ["c"], ["i"], then_branch=body, else_branch=other),
        constant("v", W),
    ]
    graph = fold([*nodes, helper.make_node("MatMul", ["i", "v"], ["m"])], "m", {"c": np.array(True)})
    then = next(n for n in graph.nodes if n.op_type == "If").bodies["then_branch"]
    assert list(then.initializers) == ["w"]
    assert [n.op_type for n in then.nodes] == ["MatMul"]
    # A body's output must be made in the body, so this Identity stays.
    kept = next(n for n in graph.nodes if n.op_type == "If").bodies["else_branch"]
    assert [n.op_type for n in kept.nodes] == ["Identity"]
