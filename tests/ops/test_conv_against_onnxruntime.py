"""Bit equality with onnxruntime's ConvInteger and QLinearConv, and ONNX's own node tests of both."""

import importlib

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantkit import ops

TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int32": TensorProto.INT32, "float32": TensorProto.FLOAT}


def run_onnxruntime(op, x, others, output, **attributes):
    """One node; onnxruntime wants the weights and parameters of QLinearConv as constants."""
    names = [f"i{i}" for i in range(len(others))]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *names], ["y"], **attributes)],
        "one",
        [helper.make_tensor_value_info("x", TYPES[x.dtype.name], x.shape)],
        [helper.make_tensor_value_info("y", TYPES[output], None)],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in zip(names, others, strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def codes(rng, shape, dtype):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def random_convolution(rng, i):
    dims = (2, 2, 2, 1, 3)[i % 5]
    some = lambda low, high: [int(v) for v in rng.integers(low, high + 1, dims)]  # noqa: E731
    kernel, strides, dilations, pads = some(1, 5), some(1, 3), some(1, 2), some(0, 2) + some(0, 2)
    size = [(k - 1) * d + 1 + n for k, d, n in zip(kernel, dilations, some(0, {1: 40, 2: 14, 3: 4}[dims]), strict=True)]
    group = (1, 1, 1, 2, 24)[i % 7 % 5]
    channels = 1 if group == 24 else int(rng.integers(1, 24))
    outputs = int(rng.integers(1, 3 if group == 24 else 70)) * group
    x_shape, w_shape = (int(rng.integers(1, 3)), channels * group, *size), (outputs, channels, *kernel)
    return x_shape, w_shape, {"strides": strides, "pads": pads, "dilations": dilations, "group": group}


def test_conv_integer():
    rng = np.random.default_rng(0)
    for i in range(500):
        x_shape, w_shape, attributes = random_convolution(rng, i)
        w_type = (np.uint8, np.int8)[i % 2]
        x, w = codes(rng, x_shape, np.uint8), codes(rng, w_shape, w_type)
        zeros = [codes(rng, (), np.uint8), codes(rng, (), w_type)]
        expected = run_onnxruntime("ConvInteger", x, [w, *zeros], "int32", **attributes)
        assert np.array_equal(ops.conv_integer(x, w, *zeros, **attributes), expected), (x_shape, w_shape, attributes)


def test_qlinear_conv():
    rng = np.random.default_rng(1)
    for i in range(500):
        x_shape, w_shape, attributes = random_convolution(rng, i)
        x_type = (np.uint8, np.int8)[i % 4 == 3]
        w_type = np.int8 if x_type == np.int8 else (np.int8, np.uint8)[i % 2]
        x, w = codes(rng, x_shape, x_type), codes(rng, w_shape, w_type)
        outputs = w.shape[0]
        each = i % 3 == 0 and w_type == np.int8
        w_scale = np.asarray(rng.uniform(0.01, 0.1, (outputs,) if each else ()), np.float32)
        w_zero = np.zeros(outputs, w_type) if each else codes(rng, (), w_type)
        y_scale = np.float32(rng.uniform(0.3, 2) * np.sqrt(w[0].size))
        others = [np.float32(rng.uniform(0.01, 0.1)), codes(rng, (), x_type), w, w_scale, w_zero]
        others += [y_scale, codes(rng, (), x_type)]
        if i % 2:
            others.append(rng.integers(-20_000, 20_000, outputs).astype(np.int32))
        expected = run_onnxruntime("QLinearConv", x, others, x_type().dtype.name, **attributes)
        actual = ops.qlinear_conv(x, *others, **attributes)
        assert actual.dtype == expected.dtype
        assert np.array_equal(actual, expected), (x_shape, w_shape, attributes)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_auto_pad(auto_pad):
    rng = np.random.default_rng(2)
    for size in range(5, 13):
        for stride in (1, 2, 3):
            x, w = codes(rng, (1, 3, size, size + 1), np.uint8), codes(rng, (5, 3, 3, 4), np.int8)
            expected = run_onnxruntime(
                "ConvInteger", x, [w, np.uint8(7)], "int32", strides=[stride] * 2, auto_pad=auto_pad
            )
            assert np.array_equal(ops.conv_integer(x, w, 7, strides=[stride] * 2, auto_pad=auto_pad), expected)


@pytest.mark.parametrize(("module", "verb"), [("convinteger", ops.conv_integer), ("qlinearconv", ops.qlinear_conv)])
def test_nodes_of_onnx(monkeypatch, module, verb):
    cases = importlib.import_module(f"onnx.backend.test.case.node.{module}")
    seen = []

    def expect(node, inputs, outputs, name, **_):
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name != "kernel_shape"}
        assert np.array_equal(verb(*inputs, **attributes), outputs[0]), name
        seen.append(name)

    monkeypatch.setattr(cases, "expect", expect)
    (base,) = (v for k, v in vars(cases).items() if k.lower() == module)
    for name in dir(base):
        if name.startswith("export"):
            getattr(base, name)()
    assert seen
