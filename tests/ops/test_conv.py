"""conv_integer, qlinear_conv and pack_conv as users call them."""

import sys
import threading

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit import _kernels, ops
from quantkit.errors import InvalidArgument, InvalidDType, InvalidQParams, ShapeMismatch

CODES = [np.uint8, np.int8]


def codes(rng, shape, dtype=np.uint8):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


@st.composite
def convolutions(draw):
    dims = draw(st.integers(1, 3))
    some = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(dims))  # noqa: E731
    kernel, strides, dilations = some(1, 5), some(1, 3), some(1, 3)
    pads = some(0, 3) + some(0, 3)
    room = [(k - 1) * d + 1 - b - e for k, d, b, e in zip(kernel, dilations, pads[:dims], pads[dims:], strict=True)]
    extra = some(0, {1: 40, 2: 12, 3: 4}[dims])
    size = tuple(max(r, 1) + e for r, e in zip(room, extra, strict=True))
    group = draw(st.sampled_from([1, 1, 1, 2, 3, 5, 20, 64, 66]))
    channels = draw(st.integers(1, 20)) if group < 4 else draw(st.integers(1, 2))
    outputs = draw(st.integers(1, 70)) if group == 1 else draw(st.integers(1, 3))
    return {
        "x": (draw(st.integers(1, 2)), channels * group, *size),
        "w": (outputs * group, channels, *kernel),
        "types": (draw(st.sampled_from(CODES)), draw(st.sampled_from(CODES))),
        "w_zero": draw(st.sampled_from(["none", "one", "each"])),
        "layout": draw(st.sampled_from(["nchw", "channels last", "reversed", "every second"])),
        "attributes": {"strides": strides, "pads": pads, "dilations": dilations, "group": group},
        "seed": draw(st.integers(0, 2**31)),
    }


@settings(max_examples=300, deadline=None)
@given(convolutions())
def test_every_combination_equals_the_oracle(case):
    rng = np.random.default_rng(case["seed"])
    x_type, w_type = case["types"]
    x, w = codes(rng, case["x"], x_type), codes(rng, case["w"], w_type)
    if case["layout"] == "channels last":
        x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    elif case["layout"] == "reversed":
        x = x[:, :, ::-1]
    elif case["layout"] == "every second":
        x = np.repeat(x, 2, -1)[..., ::2]
    x_zero = int(codes(rng, (), x_type))
    w_zero = {"none": 0, "one": int(codes(rng, (), w_type)), "each": codes(rng, w.shape[0], w_type)}[case["w_zero"]]
    expected = oracle.conv_integer(x, w, x_zero, w_zero, **case["attributes"])
    scale = np.float32(3 / w[0].size) * rng.uniform(0.5, 1, w.shape[0]).astype(np.float32)
    bias = rng.integers(-1000, 1000, w.shape[0]).astype(np.int32)
    shape = (-1, *[1] * (x.ndim - 2))
    quantized = oracle.requantize(
        expected + bias.reshape(shape), oracle.multiplier(0.1, scale, 2).reshape(shape), 50, np.uint8
    )
    before = _kernels.active_isa()
    try:
        for isa in _kernels.isas():
            _kernels.use_isa(isa)
            assert np.array_equal(ops.conv_integer(x, w, x_zero, w_zero, **case["attributes"]), expected)
            y = ops.qlinear_conv(x, 0.1, x_zero, w, scale, w_zero, 2, np.uint8(50), bias, **case["attributes"])
            assert np.array_equal(y, quantized)
    finally:
        _kernels.use_isa(before)


def test_channels_last_stays_channels_last():
    rng = np.random.default_rng(0)
    x, w = codes(rng, (2, 8, 6, 5)), codes(rng, (12, 8, 3, 3), np.int8)
    last = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    y = ops.conv_integer(x, w)
    assert y.flags.c_contiguous
    z = ops.conv_integer(last, w)
    assert np.moveaxis(z, 1, -1).flags.c_contiguous
    assert np.array_equal(y, z)
    part = ops.conv_integer(np.moveaxis(np.moveaxis(last, 1, -1)[..., :4], -1, 1), w[:, :4])  # some of the channels
    assert np.moveaxis(part, 1, -1).flags.c_contiguous
    assert np.array_equal(part, oracle.conv_integer(x[:, :4], w[:, :4]))
    out = np.empty(y.shape, np.int32, order="F")
    assert ops.conv_integer(last, w, out=out) is out
    assert np.array_equal(out, y)


def test_output_may_be_the_input():
    rng = np.random.default_rng(1)
    x, w = codes(rng, (1, 4, 8, 8)), codes(rng, (4, 4, 3, 3), np.int8)
    expected = ops.qlinear_conv(x, 0.1, 3, w, 0.1, 0, 1, 5, pads=(1,) * 4)
    assert ops.qlinear_conv(x, 0.1, 3, w, 0.1, 0, 1, 5, pads=(1,) * 4, out=x) is x
    assert np.array_equal(x, expected)


@pytest.mark.parametrize("group", [1, 6])
def test_packed_weights_are_a_copy(group):
    rng = np.random.default_rng(2)
    x, w = codes(rng, (1, 6, 5, 5)), codes(rng, (6, 6 // group, 3, 3))
    packed = ops.pack_conv(w, group)
    assert (packed.shape, packed.group, packed.is_signed) == (w.shape, group, False)
    assert packed.nbytes >= w.size
    assert repr(packed) == f"PackedConv(shape=(6, {6 // group}, 3, 3), group={group}, dtype=uint8)"
    expected = [oracle.conv_integer(x, w, 0, zero_point, group=group) for zero_point in (7, 255, 128)]
    w[:] = 0
    for zero_point, sums in zip((7, 255, 128), expected, strict=True):
        assert np.array_equal(ops.conv_integer(x, packed, 0, zero_point), sums)
    with pytest.raises(InvalidArgument, match=f"packed with group={group}, got group=3"):
        ops.conv_integer(x, packed, group=3)


@pytest.mark.parametrize(
    ("auto_pad", "pads", "size"),
    [
        ("VALID", [0, 0], 3),
        ("SAME_UPPER", [1, 2], 4),
        ("SAME_LOWER", [2, 1], 4),
        (b"SAME_UPPER", [1, 2], 4),
    ],
)
def test_auto_pad(auto_pad, pads, size):
    rng = np.random.default_rng(3)
    x, w = codes(rng, (1, 3, 8)), codes(rng, (5, 3, 5), np.int8)
    y = ops.conv_integer(x, w, 4, strides=[2] if size == 4 else [1], auto_pad=auto_pad, dilations=[1])
    if size == 4:
        assert y.shape == (1, 5, 4)
        assert np.array_equal(y, oracle.conv_integer(x, w, 4, strides=[2], pads=pads))
    else:
        assert np.array_equal(y, oracle.conv_integer(x, w, 4))


def test_threads_share_packed_weights():
    """What one thread calls with must never reach another's call of the same packed weights."""
    rng = np.random.default_rng(5)
    x, w = codes(rng, (1, 4, 3, 3)), codes(rng, (8, 4, 3, 3), np.int8)
    packed = ops.pack_conv(w)
    wanted = [ops.conv_integer(x, w, z) for z in range(4)]
    wrong: list[int] = []

    def work(z):
        for _ in range(3000):
            if not np.array_equal(ops.conv_integer(x, packed, z), wanted[z]):
                wrong.append(z)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-7)
    try:
        threads = [threading.Thread(target=work, args=(z,)) for z in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_every_parameter_counts_from_call_to_call():
    """Packed weights remember the last call's parameters: a change of any of them must be seen."""
    rng = np.random.default_rng(4)
    x, w = codes(rng, (1, 4, 6, 6)), codes(rng, (8, 4, 3, 3), np.int8)
    packed, bias = ops.pack_conv(w), rng.integers(-900, 900, 8).astype(np.int32)
    good = [x, 0.1, 3, packed, np.full(8, 0.2, np.float32), 0, 2.0, 7, bias]
    ops.qlinear_conv(*good)
    for at, value in [
        (1, 0.2),
        (2, 9),
        (4, np.full(8, 0.3)),
        (5, 3),
        (6, 3.0),
        (7, np.int8(7)),
        (8, bias * 2),
        (8, None),
    ]:
        given = [*good[:at], value, *good[at + 1 :]]
        fresh = ops.qlinear_conv(*given[:3], w, *given[4:])
        assert np.array_equal(ops.qlinear_conv(*given), fresh)
        assert np.array_equal(ops.qlinear_conv(*good), ops.qlinear_conv(*good[:3], w, *good[4:]))
    signed = x.view(np.int8)
    expected = ops.qlinear_conv(signed, *good[1:3], w, *good[4:])
    assert np.array_equal(ops.qlinear_conv(signed, *good[1:]), expected)
    with pytest.raises(InvalidQParams, match="x_zero_point must be an integer"):
        ops.qlinear_conv(x, 0.1, 3.0, *good[3:])
    ops.conv_integer(x, packed, strides=[1, 1])
    with pytest.raises(InvalidArgument, match="strides must be a sequence of integers"):
        ops.conv_integer(x, packed, strides=[1.0, 1.0])
    bias[:] = 0  # the same array with other values
    assert np.array_equal(ops.qlinear_conv(*good), ops.qlinear_conv(*good[:3], w, *good[4:]))


def test_no_images():
    w = np.zeros((3, 2, 3, 3), np.int8)
    assert ops.conv_integer(np.zeros((0, 2, 5, 5), np.uint8), w).shape == (0, 3, 3, 3)


X, W = np.zeros((1, 4, 6, 6), np.uint8), np.zeros((8, 4, 3, 3), np.int8)
BAD = [
    (InvalidDType, "x must be uint8 or int8, got float32", (X.astype(np.float32), W), {}),
    (InvalidDType, "w must be uint8 or int8, got int32", (X, W.astype(np.int32)), {}),
    (ShapeMismatch, r"w must be .* got shape \(8, 4\)", (X, W[:, :, 0, 0]), {}),
    (ShapeMismatch, "has no elements", (X, W[:0]), {}),
    (ShapeMismatch, r"wants x of 4 dimensions \(N, C, ...\), got shape \(1, 4, 6\)", (X[..., 0], W), {}),
    (ShapeMismatch, "with group=1 wants 4 channels, got x of shape", (X[:, :3], W), {}),
    (ShapeMismatch, "with group=2 wants 8 channels", (X, W), {"group": 2}),
    (ShapeMismatch, "8 outputs of w .* do not fit group=3", (X, W), {"group": 3}),
    (ShapeMismatch, "group must be >= 1, got 0", (X, W), {"group": 0}),
    (InvalidArgument, "group must be an integer, got 1.5", (X, W), {"group": 1.5}),
    (InvalidQParams, r"x_zero_point must be in \[0, 255\]", (X, W, 256), {}),
    (InvalidQParams, r"w_zero_point must be in \[-128, 127\]", (X, W, 0, 200), {}),
    (InvalidQParams, "x_zero_point must be an integer", (X, W, 0.5), {}),
    (ShapeMismatch, "wanted one value of x_zero_point, got 4", (X, W, [1, 2, 3, 4]), {}),
    (ShapeMismatch, "wanted 1 or 8 values of w_zero_point, got 2", (X, W, 0, [1, 2]), {}),
    (InvalidArgument, r"strides must be >= 1, got \(0, 1\)", (X, W), {"strides": [0, 1]}),
    (InvalidArgument, "strides must be a sequence of integers, got 2", (X, W), {"strides": 2}),
    (InvalidArgument, "strides must be a sequence of integers", (X, W), {"strides": [1.5, 1]}),
    (ShapeMismatch, "wanted 2 values of strides, got 1", (X, W), {"strides": [1]}),
    (InvalidArgument, r"dilations must be >= 1, got \(1, -1\)", (X, W), {"dilations": [1, -1]}),
    (InvalidArgument, r"dilations must be at most", (X, W), {"dilations": [1, 2**40]}),
    (InvalidArgument, r"pads must be >= 0, got \(0, 0, -1, 0\)", (X, W), {"pads": [0, 0, -1, 0]}),
    (ShapeMismatch, "wanted 4 values of pads, got 2", (X, W), {"pads": [1, 1]}),
    (InvalidArgument, "auto_pad must be one of NOTSET", (X, W), {"auto_pad": "same"}),
    (InvalidArgument, "wanted pads or auto_pad", (X, W), {"auto_pad": "VALID", "pads": [1, 1, 1, 1]}),
    (
        ShapeMismatch,
        "a kernel of 3 with dilation 3 reaches over 7 pixels, more than the 6 of the padded input along spatial dimens",
        (X, W),
        {"dilations": [1, 3]},
    ),
    (ShapeMismatch, r"wanted out of int32 \(1, 8, 4, 4\), got", (X, W), {"out": np.zeros((1, 8, 4, 5), np.int32)}),
]


@pytest.mark.parametrize(("error", "message", "arguments", "named"), BAD, ids=lambda v: str(v)[:30])
def test_bad_calls(error, message, arguments, named):
    with pytest.raises(error, match="conv_integer: .*" + message):
        ops.conv_integer(*arguments, **named)


def test_qlinear_conv_arguments():
    good = [X, 0.1, 3, W, 0.2, 0, 0.3, 7]
    assert ops.qlinear_conv(*good).dtype == np.uint8
    assert ops.qlinear_conv(*good[:7], np.int8(7)).dtype == np.int8
    out = np.empty((1, 8, 4, 4), np.int8)
    assert ops.qlinear_conv(*good, out=out) is out
    for at, value, error, message in [
        (1, 0.0, InvalidQParams, "x_scale must be finite and > 0, got 0.0"),
        (4, [0.1, np.nan, *[1] * 6], InvalidQParams, "w_scale must be finite and > 0, got nan at channel 1"),
        (6, -1, InvalidQParams, "y_scale must be finite and > 0"),
        (7, 300, InvalidQParams, r"y_zero_point must be in \[0, 255\]"),
        (1, [0.1, 0.2], ShapeMismatch, "wanted one value of x_scale, got 2"),
        (4, [0.1, 0.2], ShapeMismatch, "wanted 1 or 8 values of w_scale, got 2"),
    ]:
        with pytest.raises(error, match="qlinear_conv: " + message):
            ops.qlinear_conv(*good[:at], value, *good[at + 1 :])
    with pytest.raises(InvalidDType, match="bias must be int32, got float64"):
        ops.qlinear_conv(*good, np.zeros(8))
    with pytest.raises(ShapeMismatch, match=r"wanted bias of shape \(8,\), got \(7,\)"):
        ops.qlinear_conv(*good, np.zeros(7, np.int32))
    deep = np.zeros((1, 65_794, 1), np.uint8)
    with pytest.raises(InvalidArgument, match=r"at most 65793 products a sum, .*, got 65794"):
        ops.qlinear_conv(deep, 0.1, 0, np.zeros((1, 65_794, 1), np.int8), 0.1, 0, 0.1, 0)


@pytest.mark.parametrize("strides", [(6700417, 42009217, 65535), (2**30, 2**30, 2**30)])
def test_strides_far_beyond_the_input(isa, strides):
    one = np.ones((1, 1, 1, 1, 1), np.uint8)
    assert ops.conv_integer(one, one.astype(np.int8), strides=strides).tolist() == [[[[[1]]]]]
