"""Bit equality with onnxruntime: another house's statement of the same numbers."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from quantkit import ops

TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.int32): TensorProto.INT32,
}


def session(op, inputs, outputs, **attributes):
    """A model of one node whose inputs all come from outside."""
    graph = helper.make_graph(
        [helper.make_node(op, [n for n, _ in inputs], [n for n, _ in outputs], **attributes)],
        "one",
        [helper.make_tensor_value_info(n, TYPES[np.dtype(t)], None) for n, t in inputs],
        [helper.make_tensor_value_info(n, TYPES[np.dtype(t)], None) for n, t in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def bits(a):
    return np.ascontiguousarray(a).view(f"u{a.dtype.itemsize}")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("codes", [np.uint8, np.int8])
def test_quantize_linear(isa, dtype, codes):
    run = session("QuantizeLinear", [("x", dtype), ("s", dtype), ("z", codes)], [("y", codes)])
    rng = np.random.default_rng(1)
    info = np.iinfo(codes)
    for _ in range(60):
        scale = dtype(2.0 ** rng.uniform(-9, 7))
        zero_point = codes(rng.integers(info.min, info.max, endpoint=True))
        steps = rng.uniform(-300, 300, 5000)
        steps[::2] = np.rint(steps[::2]) + 0.5
        x = (steps * np.float64(scale)).astype(dtype)
        if dtype == np.float32:
            x[:4] = np.nan, np.inf, -np.inf, -0.0
        (expected,) = run.run(None, {"x": x, "s": np.asarray(scale), "z": np.asarray(zero_point)})
        actual = ops.quantize_linear(x, scale, zero_point)
        assert actual.dtype == expected.dtype
        assert np.array_equal(actual, expected)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("codes", [np.uint8, np.int8])
def test_quantize_and_dequantize_per_axis(isa, axis, codes):
    quantize = session(
        "QuantizeLinear", [("x", np.float32), ("s", np.float32), ("z", codes)], [("y", codes)], axis=axis
    )
    back = session("DequantizeLinear", [("x", codes), ("s", np.float32), ("z", codes)], [("y", np.float32)], axis=axis)
    rng = np.random.default_rng(2)
    info = np.iinfo(codes)
    for _ in range(20):
        shape = tuple(rng.integers(1, 40, 3))
        x = rng.standard_normal(shape).astype(np.float32) * 50
        scale = rng.uniform(0.01, 2, shape[axis]).astype(np.float32)
        zero_point = rng.integers(info.min, info.max, shape[axis], endpoint=True).astype(codes)
        (q,) = quantize.run(None, {"x": x, "s": scale, "z": zero_point})
        assert np.array_equal(ops.quantize_linear(x, scale, zero_point, axis=axis), q)
        (y,) = back.run(None, {"x": q, "s": scale, "z": zero_point})
        assert np.array_equal(bits(ops.dequantize_linear(q, scale, zero_point, axis=axis)), bits(y))


@pytest.mark.parametrize("real", [np.float32, np.float16])
@pytest.mark.parametrize("codes", [np.uint8, np.int8, np.int32])
def test_dequantize_linear(isa, real, codes):
    run = session("DequantizeLinear", [("x", codes), ("s", real), ("z", codes)], [("y", real)])
    rng = np.random.default_rng(3)
    info = np.iinfo(codes)
    for _ in range(40):
        q = rng.integers(info.min, info.max, 3000, endpoint=True).astype(codes)
        zero_point = codes(0 if codes == np.int32 else rng.integers(info.min, info.max, endpoint=True))
        scale = real(2.0 ** rng.uniform(-14, 8))
        (expected,) = run.run(None, {"x": q, "s": np.asarray(scale), "z": np.asarray(zero_point)})
        actual = ops.dequantize_linear(q, scale, zero_point)
        assert actual.dtype == expected.dtype
        assert np.array_equal(bits(actual), bits(expected))


def test_dynamic_quantize_linear(isa):
    run = session("DynamicQuantizeLinear", [("x", np.float32)], [("q", np.uint8), ("s", np.float32), ("z", np.uint8)])
    rng = np.random.default_rng(4)
    for i in range(200):
        n = int(rng.integers(1, 3000))
        x = rng.uniform(-1, 1, n) * 10.0 ** rng.uniform(-20, 20) + (i % 3 - 1) * rng.uniform(0, 2)
        x = x.astype(np.float32)
        q, scale, zero_point = run.run(None, {"x": x})
        actual = ops.dynamic_quantize_linear(x)
        assert bits(np.float32(actual[1])) == bits(scale)
        assert actual[2] == zero_point
        assert np.array_equal(actual[0], q)
    q, scale, zero_point = run.run(None, {"x": np.zeros(5, np.float32)})
    actual = ops.dynamic_quantize_linear(np.zeros(5, np.float32))
    assert (actual[0].tolist(), actual[1], actual[2]) == (q.tolist(), scale, zero_point)
