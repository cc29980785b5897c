"""Lookups and edits of the editable form, bodies and their captures included."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantkit.errors import ModelError
from quantkit.graph import Model, Node
from quantkit.graph.names import NameAllocator


def value(name):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def nested():
    """An If whose bodies read a tensor that is computed outside."""
    bodies = [
        helper.make_graph([helper.make_node(op, ["a"], [f"y_{op}"])], op, [], [value(f"y_{op}")])
        for op in ("Neg", "Abs")
    ]
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("If", ["c"], ["y"], name="if", then_branch=bodies[0], else_branch=bodies[1]),
        helper.make_node("Add", ["y", "w"], ["z"], name="add"),
    ]
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    weight = numpy_helper.from_array(np.float32([1]), "w")
    graph = helper.make_graph(nodes, "g", [value("x"), condition], [value("z")], [weight])
    return Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]))


def by_name(graph):
    return {node.name: node for node in graph.nodes}


def test_a_capture_is_a_use():
    graph = nested().graph
    nodes = by_name(graph)
    assert graph.consumers("a") == [nodes["if"]]
    assert graph.only_consumer("a") is None  # read by a body, not as an input
    assert graph.only_consumer("y") is nodes["add"]
    assert graph.producer("a") is nodes["relu"]


def test_replaced_uses_reach_into_bodies():
    graph = nested().graph
    graph.replace_uses("a", "x")
    body = by_name(graph)["if"].bodies["then_branch"]
    assert body.nodes[0].inputs == ["x"]
    assert graph.consumers("a") == []
    assert set(graph.consumers("x")) == {by_name(graph)["relu"], by_name(graph)["if"]}


def test_nodes_are_sorted_by_what_bodies_read():
    graph = nested().graph
    relu = by_name(graph)["relu"]
    graph.remove(relu)
    graph.add(relu)
    assert [n.name for n in graph.sorted_nodes()] == ["relu", "if", "add"]
    assert [n.name for n in graph.model.to_proto().graph.node] == ["relu", "if", "add"]


def test_a_cycle_is_an_error():
    graph = nested().graph
    graph.set_inputs(by_name(graph)["relu"], ["z"])
    with pytest.raises(ModelError, match="cycle"):
        graph.sorted_nodes()


def test_constants_are_seen_from_bodies():
    graph = nested().graph
    body = by_name(graph)["if"].bodies["else_branch"]
    assert body.is_constant("w")
    assert not body.is_constant("a")
    assert body.constant("w").tolist() == [1]
    with pytest.raises(ModelError, match="'a' is not a constant"):
        body.array("a")


def test_unused_nodes_and_constants_go():
    graph = nested().graph
    graph.add(Node("Neg", ["x"], ["nobody"]))
    graph.add_constant("spare", np.float32(3))
    graph.drop_unused()
    assert len(graph.nodes) == 3
    assert list(graph.initializers) == ["w"]


def test_round_trip_keeps_everything():
    proto = nested().to_proto()
    assert Model(proto).to_proto() == proto


def test_names_never_repeat():
    names = NameAllocator(["a", "a_1", ""])
    assert [names.fresh("a"), names.fresh("a"), names.fresh("b"), names.fresh("b")] == ["a_2", "a_3", "b", "b_1"]
    assert len({names.fresh("") for _ in range(5)} - {""}) == 5
