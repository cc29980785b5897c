"""ONNX's own node tests of the quantized and the recurrent operators, through quantkit's backend."""

import functools
import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantkit import backend
from quantkit.errors import InvalidArgument, ModelError, ShapeMismatch

OPERATORS = [
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "QLinearMatMul",
    "ConvInteger",
    "QLinearConv",
    "RNN",
    "LSTM",
    "GRU",
]
RECURRENT = {"RNN", "LSTM", "GRU"}
EIGHT_BITS = {TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32}
REAL = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16}


@functools.cache
def node_tests():
    from onnx.backend.test.loader import load_node_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the generators of other operators' tests overflow on purpose
        found = load_node_model_tests()
    return {case.name: case for case in found if case.model and case.model.graph.node[0].op_type in OPERATORS}


def reason_to_skip(case):
    """Say why a test asks for what quantkit does not have; None for one that it must pass."""
    graph = case.model.graph
    types = {v.type.tensor_type.elem_type for v in [*graph.input, *graph.output]}
    other = sorted(TensorProto.DataType.Name(t).lower() for t in types - EIGHT_BITS - REAL)
    if other:
        return f"codes of another dtype: {', '.join(other)}"
    if any(a.name == "block_size" and a.i for a in graph.node[0].attribute):
        return "a scale for each block, where quantkit has one for the tensor or one a channel"
    return None


def arrays(values):
    return [numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else np.asarray(v) for v in values]


APPLICABLE = sorted(name for name, case in node_tests().items() if reason_to_skip(case) is None)


@pytest.mark.parametrize("name", sorted(set(node_tests()) - set(APPLICABLE)))
def test_node_of_another_kind(name):
    pytest.skip(reason_to_skip(node_tests()[name]))


@pytest.mark.parametrize("name", APPLICABLE)
def test_node(name, isa):
    case = node_tests()[name]
    prepared = backend.prepare(case.model)
    assert backend.is_compatible(case.model)
    for inputs, outputs in case.data_sets:
        results = prepared.run(arrays(inputs))
        assert len(results) == len(outputs)
        for got, wanted in zip(results, arrays(outputs), strict=True):
            assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
            if case.model.graph.node[0].op_type in RECURRENT:  # sums of float32, for which ONNX has tolerances
                assert np.allclose(got, wanted, rtol=case.rtol, atol=case.atol)
            else:
                assert np.array_equal(got, wanted)


def test_how_many_node_tests_apply():
    assert {node_tests()[name].model.graph.node[0].op_type for name in APPLICABLE} == set(OPERATORS)
    assert len(APPLICABLE) >= 31
    recurrent = [name for name, case in node_tests().items() if case.model.graph.node[0].op_type in RECURRENT]
    assert len(recurrent) >= 12
    assert set(recurrent) <= set(APPLICABLE)  # none is skipped


def test_the_first_version_of_recurrent_operators_is_refused_in_words():
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=1, output_sequence=1)
    assert "output_sequence belongs to the first version" in backend._reason_against(node)


def test_activations_of_a_recurrent_node():
    one = np.ones((1, 1, 1), np.float32)
    node = helper.make_node(
        "RNN", ["x", "w", "r"], ["y"], hidden_size=1, activations=["Affine"], activation_alpha=[3.0]
    )
    assert backend.run_node(node, [one * 2, one, one])[0].item() == 6.0


def test_tests_that_do_not_apply_are_refused_in_words():
    for case in node_tests().values():
        if reason_to_skip(case) and "block" in reason_to_skip(case):
            assert not backend.is_compatible(case.model)
            with pytest.raises(ModelError, match="not for blocks"):
                backend.prepare(case.model)


def test_run_node_and_devices():
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])
    inputs = [np.float32([0, 1, 2]), np.float32(0.5), np.int8(3)]
    assert backend.run_node(node, inputs)[0].tolist() == [3, 5, 7]
    short = helper.make_node("QuantizeLinear", ["x", "s"], ["y"])
    assert backend.run_node(short, inputs[:2])[0].dtype == np.uint8
    product = helper.make_node("MatMulInteger", ["a", "b", "", "z"], ["y"])
    a, b = np.uint8([[1, 2]]), np.uint8([[3], [4]])
    assert backend.run_node(product, [a, b, np.uint8(1)])[0].tolist() == [[8]]
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA")
    with pytest.raises(InvalidArgument, match="runs on CPU, got device 'CUDA'"):
        backend.run_node(node, inputs, device="CUDA")


def model_of(node, inputs, outputs):
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs],
        [helper.make_tensor_value_info(n, t, s) for n, t, s in outputs],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_errors_name_the_node():
    vector = [("x", TensorProto.FLOAT, [3])]
    relu = model_of(helper.make_node("Relu", ["x"], ["y"], name="r1"), vector, [("y", TensorProto.FLOAT, [3])])
    assert not backend.is_compatible(relu)
    with pytest.raises(ModelError, match=r"node 'r1': quantkit's backend runs .*, not Relu"):
        backend.prepare(relu)
    broken = model_of(helper.make_node("Relu", [], ["y"]), vector, [("y", TensorProto.FLOAT, [3])])
    with pytest.raises(ModelError, match="not a valid model"):
        backend.prepare(broken)
    dynamic = model_of(
        helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"]), vector, [("y", TensorProto.UINT8, [3])]
    )
    prepared = backend.prepare(dynamic)
    assert prepared.run({"x": np.float32([0, 1, 255])})[0].tolist() == [0, 1, 255]
    for bad in ([], [1, 2], {"z": np.zeros(3)}):
        with pytest.raises(InvalidArgument, match=r"wanted the inputs \['x'\]"):
            prepared.run(bad)


def test_a_kernel_shape_that_does_not_fit():
    node = helper.make_node("ConvInteger", ["x", "w"], ["y"], kernel_shape=[2, 2])
    with pytest.raises(ShapeMismatch, match=r"kernel_shape \(2, 2\) does not fit"):
        backend.run_node(node, [np.zeros((1, 1, 4, 4), np.uint8), np.zeros((1, 1, 3, 3), np.uint8)])
