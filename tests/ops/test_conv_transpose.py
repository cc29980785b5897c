"""conv_transpose_integer, qlinear_conv_transpose and pack_conv_transpose as users call them."""

import numpy as np
import onnxruntime as ort
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from quantkit import _kernels, ops
from quantkit.errors import InvalidArgument, InvalidDType, InvalidQParams, ShapeMismatch

CODES = [np.uint8, np.int8]


def codes(rng, shape, dtype=np.uint8):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def channels_last(x):
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)


@st.composite
def convolutions(draw):
    dims = draw(st.integers(1, 3))
    some = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(dims))  # noqa: E731
    kernel, strides, dilations = some(1, 5), some(1, 4), some(1, 3)
    more = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(strides, dilations, strict=True))
    size = some(1, {1: 30, 2: 9, 3: 4}[dims])
    pads = some(0, 3) + some(0, 3)
    whole = [
        (n - 1) * s + (k - 1) * d + 1 + m for n, s, k, d, m in zip(size, strides, kernel, dilations, more, strict=True)
    ]
    # As many pads as leave a pixel.
    pads = tuple(min(p, (whole[i % dims] - 1) // 2) for i, p in enumerate(pads))
    group = draw(st.sampled_from([1, 1, 1, 2, 3, 20, 66]))
    channels = draw(st.integers(1, 20)) if group < 4 else draw(st.integers(1, 2))
    outputs = draw(st.integers(1, 70)) if group == 1 else draw(st.integers(1, 3))
    return {
        "x": (draw(st.integers(1, 2)), channels * group, *size),
        "w": (channels * group, outputs, *kernel),
        "types": (draw(st.sampled_from(CODES)), draw(st.sampled_from(CODES))),
        "w_zero": draw(st.sampled_from(["none", "one", "each"])),
        "layout": draw(st.sampled_from(["nchw", "channels last", "reversed"])),
        "attributes": {
            "strides": strides, "pads": pads, "dilations": dilations, "group": group, "output_padding": more
        },
        "seed": draw(st.integers(0, 2**31)),
    }  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(convolutions())
def test_every_combination_equals_the_oracle(case):
    rng = np.random.default_rng(case["seed"])
    x_type, w_type = case["types"]
    attributes = case["attributes"]
    x, w = codes(rng, case["x"], x_type), codes(rng, case["w"], w_type)
    if case["layout"] == "channels last":
        x = channels_last(x)
    elif case["layout"] == "reversed":
        x = x[:, :, ::-1]
    outputs = w.shape[1] * attributes["group"]
    x_zero = int(codes(rng, (), x_type))
    w_zero = {"none": 0, "one": int(codes(rng, (), w_type)), "each": codes(rng, outputs, w_type)}[case["w_zero"]]
    expected = oracle.conv_transpose_integer(x, w, x_zero, w_zero, **attributes)
    scale = np.float32(3 / w[:, 0].size) * rng.uniform(0.5, 1, outputs).astype(np.float32)
    bias = rng.integers(-1000, 1000, outputs).astype(np.int32)
    shape = (-1, *[1] * (x.ndim - 2))
    quantized = oracle.requantize(
        expected + bias.reshape(shape), oracle.multiplier(0.1, scale, 2).reshape(shape), 50, np.uint8
    )
    before = _kernels.active_isa()
    try:
        for isa in _kernels.isas():
            _kernels.use_isa(isa)
            assert np.array_equal(ops.conv_transpose_integer(x, w, x_zero, w_zero, **attributes), expected)
            y = ops.qlinear_conv_transpose(x, 0.1, x_zero, w, scale, w_zero, 2, np.uint8(50), bias, **attributes)
            assert np.array_equal(y, quantized)
    finally:
        _kernels.use_isa(before)


def run_onnxruntime(x, w, **attributes):
    """ConvTranspose of onnxruntime on integers that float32 holds exactly."""
    graph = helper.make_graph(
        [helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w.astype(np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x.astype(np.float32)})[0]


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_equals_onnxruntime(dims):
    rng = np.random.default_rng(dims)
    for i in range(60):
        some = lambda low, high: [int(v) for v in rng.integers(low, high + 1, dims)]  # noqa: E731
        kernel, strides, dilations, size = some(1, 4), some(1, 3), some(1, 2), some(2, 6)
        more = [int(rng.integers(0, s)) for s in strides]
        group = (1, 1, 2)[i % 3]
        attributes = {"strides": strides, "dilations": dilations, "group": group, "output_padding": more}
        whole = [
            (n - 1) * s + (k - 1) * d + 1 + m
            for n, s, k, d, m in zip(size, strides, kernel, dilations, more, strict=True)
        ]
        if i % 4 == 0:
            attributes["pads"] = [int(rng.integers(0, (n - 1) // 2 + 1)) for n in whole * 2]
        elif i % 4 == 1:
            attributes["auto_pad"] = ("SAME_UPPER", "SAME_LOWER", "VALID")[i % 3]
        elif i % 4 == 2:
            attributes["output_shape"] = [int(rng.integers(max(1, n - 3), n + 1)) for n in whole]
            attributes["auto_pad"] = ("NOTSET", "SAME_UPPER", "SAME_LOWER")[i // 4 % 3]
        if (
            attributes.get("auto_pad", "").startswith("SAME")
            and "output_shape" not in attributes
            and any(n * s > full for n, s, full in zip(size, strides, whole, strict=True))
        ):
            continue  # onnxruntime does not say what lies beyond the pixels that taps reach
        x = codes(rng, (2, 4 * group, *size))
        w = rng.integers(-50, 50, (4 * group, 5, *kernel), np.int8)
        expected = run_onnxruntime(x, w, **attributes)
        assert np.abs(expected).max() < 2**24
        actual = ops.conv_transpose_integer(x, w, **attributes)
        assert actual.shape == expected.shape, attributes
        assert np.array_equal(actual, expected), attributes


def test_a_size_beyond_the_pixels_that_taps_reach():
    x, w = np.full((1, 1, 2), 7, np.uint8), np.full((1, 1, 2), 3, np.int8)
    assert ops.conv_transpose_integer(x, w, strides=[3]).tolist() == [[[21, 21, 0, 21, 21]]]
    assert ops.conv_transpose_integer(x, w, strides=[3], output_shape=[7]).tolist() == [[[21, 21, 0, 21, 21, 0, 0]]]
    assert ops.conv_transpose_integer(x, w, strides=[3], auto_pad="SAME_UPPER").tolist() == [[[21, 21, 0, 21, 21, 0]]]
    bias = np.array([40], np.int32)
    y = ops.qlinear_conv_transpose(x, 1, 7, w, 1, 0, 2, 10, bias, strides=[3], output_shape=[6])
    assert y.tolist() == [[[30] * 6]]


def test_channels_last_out_and_packed_weights():
    rng = np.random.default_rng(0)
    x, w = codes(rng, (2, 8, 6, 5)), codes(rng, (8, 12, 4, 4), np.int8)
    attributes = {"strides": (2, 2), "pads": (1, 1, 1, 1)}
    expected = oracle.conv_transpose_integer(x, w, 3, **attributes)
    packed = ops.pack_conv_transpose(w, strides=(2, 2))
    assert (packed.shape, packed.group, packed.strides, packed.dilations) == (w.shape, 1, (2, 2), (1, 1))
    assert packed.nbytes >= w.size
    assert repr(packed).startswith("PackedConvTranspose(shape=(8, 12, 4, 4), group=1, strides=(2, 2), dil")
    w[:] = 0
    for given_x in (x, channels_last(x)):
        for _ in range(2):  # the second call runs what was kept of the first
            y = ops.conv_transpose_integer(given_x, packed, 3, pads=(1, 1, 1, 1))
            assert np.array_equal(y, expected)
        assert np.moveaxis(y, 1, -1).flags.c_contiguous == (given_x is not x)
        out = np.zeros((2, 12, 12, 24), np.int32)[..., ::2][..., :10]
        assert ops.conv_transpose_integer(given_x, packed, 3, out=out, **attributes) is out
        assert np.array_equal(out, expected)
    assert np.array_equal(ops.conv_transpose_integer(x, packed, 5, pads=(1, 1, 1, 1)).shape, expected.shape)
    with pytest.raises(InvalidArgument, match=r"packed with strides=\(2, 2\), got strides=\(1, 1\)"):
        ops.conv_transpose_integer(x, packed, strides=(1, 1))
    with pytest.raises(InvalidArgument, match="packed with group=1, got group=2"):
        ops.conv_transpose_integer(x, packed, group=2)


def test_output_may_be_the_input():
    rng = np.random.default_rng(1)
    x, w = codes(rng, (1, 4, 8, 8)), codes(rng, (4, 4, 3, 3), np.int8)
    expected = ops.qlinear_conv_transpose(x, 0.1, 3, w, 0.1, 0, 1, 5, pads=(1,) * 4)
    assert ops.qlinear_conv_transpose(x, 0.1, 3, w, 0.1, 0, 1, 5, pads=(1,) * 4, out=x) is x
    assert np.array_equal(x, expected)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing(isa, threads):
    before = _kernels.num_threads()
    _kernels.set_num_threads(threads)
    try:
        rng = np.random.default_rng(2)
        for x_shape, w_shape, group in [
            ((1, 64, 30, 30), (64, 64, 4, 4), 1),
            ((2, 96, 20, 20), (96, 1, 3, 3), 96),
            ((1, 24, 40, 41), (24, 24, 2, 2), 1),
        ]:
            x, w = codes(rng, x_shape, np.int8), codes(rng, w_shape)
            attributes = {"pads": (1,) * 4, "strides": (2, 2), "group": group}
            expected = oracle.conv_transpose_integer(x, w, 5, 100, **attributes)
            for given_x in (x, channels_last(x)):
                assert np.array_equal(ops.conv_transpose_integer(given_x, w, 5, 100, **attributes), expected)
    finally:
        _kernels.set_num_threads(before)


X, W = np.zeros((1, 4, 6, 6), np.uint8), np.zeros((4, 8, 3, 3), np.int8)
BAD = [
    (InvalidDType, "x must be uint8 or int8, got float32", (X.astype(np.float32), W), {}),
    (InvalidDType, "w must be uint8 or int8, got int32", (X, W.astype(np.int32)), {}),
    (ShapeMismatch, r"w must be \(channels, outputs / group, .* got shape \(4, 8\)", (X, W[:, :, 0, 0]), {}),
    (ShapeMismatch, "has no elements", (X, W[:, :0]), {}),
    (ShapeMismatch, r"wants x of 4 dimensions \(N, C, ...\), got shape \(1, 4, 6\)", (X[..., 0], W), {}),
    (ShapeMismatch, "wants 4 channels, got x of shape", (X[:, :3], W), {}),
    (ShapeMismatch, "4 channels of w .* do not fit group=3", (X, W), {"group": 3}),
    (InvalidArgument, "group must be an integer, got 1.5", (X, W), {"group": 1.5}),
    (InvalidQParams, r"x_zero_point must be in \[0, 255\]", (X, W, 256), {}),
    (ShapeMismatch, "wanted 1 or 8 values of w_zero_point, got 2", (X, W, 0, [1, 2]), {}),
    (InvalidArgument, r"strides must be >= 1, got \(0, 1\)", (X, W), {"strides": [0, 1]}),
    (ShapeMismatch, "wanted 4 values of pads, got 2", (X, W), {"pads": [1, 1]}),
    (InvalidArgument, "wanted pads or auto_pad", (X, W), {"auto_pad": "VALID", "pads": [1, 1, 1, 1]}),
    (ShapeMismatch, "wanted 2 values of output_padding, got 1", (X, W), {"output_padding": [0]}),
    (InvalidArgument, "output_padding 1 .*dimension 1 must be less than", (X, W), {"output_padding": [0, 1]}),
    (InvalidArgument, "output_shape must be >= 1", (X, W), {"output_shape": [0, 4]}),
    (ShapeMismatch, "pads 4 and 4 leave nothing of the 8 pixels", (X, W), {"pads": [4, 0, 4, 0]}),
    (ShapeMismatch, r"wanted out of int32 \(1, 8, 8, 8\), got", (X, W), {"out": np.zeros((1, 8, 8, 9), np.int32)}),
]


@pytest.mark.parametrize(("error", "message", "arguments", "named"), BAD, ids=lambda v: str(v)[:30])
def test_bad_calls(error, message, arguments, named):
    with pytest.raises(error, match="conv_transpose_integer: .*" + message):
        ops.conv_transpose_integer(*arguments, **named)


def test_sums_that_could_leave_int32_and_bad_bias():
    deep = np.zeros((1, 65_794, 1), np.uint8)
    with pytest.raises(InvalidArgument, match=r"at most 65793 products a sum, .*, got 65794"):
        ops.qlinear_conv_transpose(deep, 0.1, 0, np.zeros((65_794, 1, 1), np.int8), 0.1, 0, 0.1, 0)
    with pytest.raises(ShapeMismatch, match=r"qlinear_conv_transpose: wanted bias of shape \(8,\), got \(4,\)"):
        ops.qlinear_conv_transpose(X, 0.1, 0, W, 0.1, 0, 0.1, 0, np.zeros(4, np.int32))


@pytest.mark.parametrize("stride", [2**20, 2**30])
def test_strides_far_beyond_the_input(stride):
    one = np.ones((1, 1, 1), np.uint8)
    y = ops.conv_transpose_integer(one, np.ones((1, 1, 2), np.int8), strides=[stride], pads=[0, 1])
    assert y.tolist() == [[[1]]]
