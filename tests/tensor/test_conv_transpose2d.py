"""qk.conv_transpose2d: QTensors in and out."""

import numpy as np
import oracle
import pytest

import quantkit as qk
from quantkit.errors import InvalidArgument, InvalidDType, InvalidQParams, ShapeMismatch


def operands(axis=None):
    rng = np.random.default_rng(0)
    t = qk.quantize(rng.standard_normal((2, 4, 5, 6)))
    w = qk.quantize(rng.standard_normal((4, 3, 3, 2)) / 6, dtype=qk.qint8, symmetric=True, axis=axis)
    return t, w, rng.standard_normal(6)


@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("groups", [1, 2])
def test_codes_are_those_of_the_oracle(axis, groups):
    t, w, bias = operands(axis)
    outputs = 3 * groups
    y = qk.conv_transpose2d(
        t, w, bias[:outputs], stride=2, padding=(1, 0), output_padding=(0, 1), groups=groups, scale=0.05, zero_point=121
    )
    scale = np.tile(np.broadcast_to(np.asarray(w.scale, np.float32), 3), groups)
    whole = np.rint(bias[:outputs] / (np.float32(t.scale) * scale)).astype(np.int32)
    attributes = {"strides": (2, 2), "pads": (1, 0, 1, 0), "output_padding": (0, 1), "group": groups}
    sums = oracle.conv_transpose_integer(np.asarray(t), np.asarray(w), t.zero_point, **attributes)
    multiplier = oracle.multiplier(t.scale, scale, 0.05)[:, None, None]
    expected = oracle.requantize(sums + whole[:, None, None], multiplier, 121, np.uint8)
    assert (y.dtype, y.scale, y.zero_point, y.axis) == (qk.quint8, pytest.approx(0.05), 121, None)
    assert y.shape == (2, outputs, 9, 13)
    assert np.array_equal(np.asarray(y), expected)


def test_chosen_parameters_are_those_of_the_values():
    t, w, bias = operands(1)
    y = qk.conv_transpose2d(t, w, bias[:3], dilation=(1, 2))
    steps = np.float32(t.scale) * w.scale
    sums = oracle.conv_transpose_integer(np.asarray(t), np.asarray(w), t.zero_point, dilations=(1, 2))
    exact = (sums + np.rint(bias[:3] / steps).astype(np.int32)[:, None, None]) * steps[:, None, None].astype(np.float64)
    assert y.equal(qk.quantize(exact.astype(np.float32)))
    assert qk.conv_transpose2d(t, w, dtype="qint8").dtype is qk.qint8


def test_channels_last():
    t, w, _ = operands()
    nhwc = t.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    y = qk.conv_transpose2d(nhwc, w, stride=2, scale=0.1, zero_point=100)
    assert y.equal(qk.conv_transpose2d(t, w, stride=2, scale=0.1, zero_point=100))
    assert y.permute(0, 2, 3, 1).is_contiguous()


def test_bad_calls():
    t, w, _ = operands()
    outputs = qk.quantize(np.ones((4, 3, 3, 2)), axis=0)
    for error, message, arguments, named in [
        (InvalidDType, "t must be a QTensor, got ndarray; use quantkit.quantize", (np.asarray(t), w), {}),
        (ShapeMismatch, r"w must have 4 dimensions, got shape \(3, 3, 2\)", (t, w[0]), {}),
        (InvalidQParams, "w must have one scale, or one for each index of axis 1", (t, outputs), {}),
        (InvalidArgument, "padding must be an integer or two", (t, w), {"padding": "same"}),
        (InvalidArgument, "group must be an integer, got None", (t, w), {"groups": None}),
        (InvalidArgument, "zero_point was given without scale", (t, w), {"zero_point": 3}),
        (ShapeMismatch, r"wanted bias of 3 finite numbers, got shape \(4,\)", (t, w, np.zeros(4)), {}),
    ]:
        with pytest.raises(error, match="conv_transpose2d: " + message):
            qk.conv_transpose2d(*arguments, **named)
