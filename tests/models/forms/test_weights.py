"""Weights, biases and what of a kernel reads padding: exact values."""

import numpy as np
import pytest

from quantkit.graph import Node
from quantkit.models.forms.weights import INT32_MAX, bias_limit, least_scale, quantize_bias, quantize_weight, tap_use


def test_symmetric_per_channel():
    found = quantize_weight(np.float32([[1, -2], [0.5, 0.25], [0, 0]]), 0)
    np.testing.assert_array_equal(found.codes, np.int8([[64, -127], [127, 64], [0, 0]]))
    np.testing.assert_array_equal(found.scale, np.float32([2 / 127, 0.5 / 127, 1]))


def test_never_minus_128():
    values = np.random.default_rng(0).normal(size=(64, 999)).astype(np.float32)
    assert quantize_weight(values, 0).codes.min() == -127


def test_single_scale():
    found = quantize_weight(np.float32([[1, -2], [0.5, 0.25]]), None)
    assert found.scale.shape == ()
    assert found.qparams.axis is None
    np.testing.assert_array_equal(found.codes, np.int8([[64, -127], [32, 16]]))


def test_a_large_bias_enlarges_the_scale_just_enough():
    weight = np.float32([[1e-12, 1e-12], [1, 1]])
    bias, x_scale, depth = np.float32([1000, 1]), 1e-3, 2
    least = least_scale(bias, x_scale, depth, np.zeros(2))
    found = quantize_weight(weight, 0, least)
    codes, scale = quantize_bias(bias, x_scale, found.scale)
    assert bias_limit(depth) * 0.999 < codes[0] <= bias_limit(depth)
    assert codes[0] + depth * 255 * 127 <= INT32_MAX
    np.testing.assert_allclose(codes * scale.astype(np.float64), bias, rtol=1e-6, atol=scale.max())
    assert found.scale[1] == np.float32(1 / 127)


def test_a_bias_that_does_not_fit_is_refused():
    assert quantize_bias(np.float32([1e6]), 1e-6, np.float32([1e-6])) is None


@pytest.mark.parametrize(
    ("attributes", "shape", "expected"),
    [
        ({"pads": [1, 1]}, (1, 1, 4), [0.75, 1, 0.75]),
        ({"pads": [1, 1]}, (1, 1, 1), [0, 1, 0]),
        ({}, (1, 1, 4), [1, 1, 1]),
        ({"pads": [1, 1], "strides": [2]}, (1, 1, 4), [0.5, 1, 1]),
        ({"pads": [2, 2], "dilations": [2]}, (1, 1, 4), [0.5, 1, 0.5]),
        ({"auto_pad": "SAME_UPPER", "strides": [2]}, (1, 1, 4), [1, 1, 0.5]),
        ({"auto_pad": "SAME_LOWER", "strides": [2]}, (1, 1, 4), [0.5, 1, 1]),
        ({"pads": [1, 1]}, (), [1, 1, 1]),
    ],
)
def test_taps_that_read_padding(attributes, shape, expected):
    np.testing.assert_array_equal(tap_use(Node("Conv", [], [], **attributes), shape, (3,)), expected)


def test_taps_in_two_dimensions():
    use = tap_use(Node("Conv", [], [], pads=[0, 1, 0, 1]), (1, 1, 5, 2), (1, 3))
    np.testing.assert_array_equal(use, [[0.5, 1, 0.5]])
