"""qk.conv2d: QTensors in and out."""

import numpy as np
import oracle
import pytest

import quantkit as qk
from quantkit.errors import InvalidArgument, InvalidDType, InvalidQParams, ShapeMismatch


def operands(axis=None):
    rng = np.random.default_rng(0)
    t = qk.quantize(rng.standard_normal((2, 4, 9, 8)))
    w = qk.quantize(rng.standard_normal((6, 4, 3, 3)) / 6, dtype=qk.qint8, symmetric=True, axis=axis)
    return t, w, rng.standard_normal(6)


@pytest.mark.parametrize("axis", [None, 0])
def test_codes_are_those_of_the_oracle(axis):
    t, w, bias = operands(axis)
    y = qk.conv2d(t, w, bias, stride=2, padding=(1, 0), scale=0.05, zero_point=121)
    steps = np.float32(t.scale) * np.asarray(w.scale, np.float32)
    whole = np.broadcast_to(np.rint(bias / steps), (6,)).astype(np.int32)
    sums = oracle.conv_integer(np.asarray(t), np.asarray(w), t.zero_point, strides=(2, 2), pads=(1, 0, 1, 0))
    multiplier = np.broadcast_to(oracle.multiplier(t.scale, w.scale, 0.05), (6,))[:, None, None]
    expected = oracle.requantize(sums + whole[:, None, None], multiplier, 121, np.uint8)
    assert (y.dtype, y.scale, y.zero_point, y.axis) == (qk.quint8, pytest.approx(0.05), 121, None)
    assert np.array_equal(np.asarray(y), expected)


def test_chosen_parameters_are_those_of_the_values():
    t, w, bias = operands(0)
    y = qk.conv2d(t, w, bias, padding="same", dilation=2)
    assert y.shape == (2, 6, 9, 8)
    steps = np.float32(t.scale) * w.scale
    sums = oracle.conv_integer(np.asarray(t), np.asarray(w), t.zero_point, dilations=(2, 2), pads=(2, 2, 2, 2))
    exact = (sums + np.rint(bias / steps).astype(np.int32)[:, None, None]) * steps[:, None, None].astype(np.float64)
    assert y.equal(qk.quantize(exact.astype(np.float32)))
    assert qk.conv2d(t, w, dtype="qint8").dtype is qk.qint8


def test_channels_last_and_groups():
    t, w, _ = operands()
    nhwc = t.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    expected = qk.conv2d(t, w[:, :2].contiguous(), groups=2, scale=0.1, zero_point=100)
    y = qk.conv2d(nhwc, w[:, :2], groups=2, scale=0.1, zero_point=100, padding="valid")
    assert y.equal(expected)
    assert y.permute(0, 2, 3, 1).is_contiguous()


def test_bad_calls():
    t, w, _ = operands()
    channels, inputs = qk.quantize(np.ones((1, 4, 9, 9)), axis=1), qk.quantize(np.ones((6, 4, 3, 3)), axis=1)
    for error, message, arguments, named in [
        (InvalidDType, "t must be a QTensor, got ndarray; use quantkit.quantize", (np.asarray(t), w), {}),
        (InvalidDType, "w must be a QTensor", (t, np.asarray(w)), {}),
        (ShapeMismatch, r"t must have 4 dimensions, got shape \(4, 9, 8\)", (t[0], w), {}),
        (InvalidQParams, "t must have one scale, got scales along axis 1", (channels, w), {}),
        (InvalidQParams, "w must have one scale, or one for each index of axis 0", (t, inputs), {}),
        (InvalidArgument, "stride must be an integer or two", (t, w), {"stride": "2"}),
        (InvalidArgument, "padding must be an integer or two", (t, w), {"padding": "full"}),
        (InvalidArgument, "padding='same' wants stride 1", (t, w), {"padding": "same", "stride": 2}),
        (InvalidArgument, "zero_point was given without scale", (t, w), {"zero_point": 3}),
        (InvalidQParams, r"zero_point must be in \[0, 255\]", (t, w), {"scale": 1, "zero_point": 300}),
        (InvalidQParams, "an integer zero_point, got zero_point=0.5", (t, w), {"scale": 1, "zero_point": 0.5}),
        (ShapeMismatch, r"wanted bias of 6 finite numbers, got shape \(5,\)", (t, w, np.zeros(5)), {}),
    ]:  # fmt: skip
        with pytest.raises(error, match=message):
            qk.conv2d(*arguments, **named)
