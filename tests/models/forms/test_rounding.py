"""Rounding against the second moments of the inputs: less error in the outputs than to the nearest code."""

import numpy as np
import pytest

from quantkit.graph import Node
from quantkit.models.calibration.moments import InputView, Moments
from quantkit.models.forms.rounding import as_rows, from_rows, round_rows, round_weight
from quantkit.models.forms.weights import quantize_weight


def moments_of(rows):
    groups, _, depth = rows.shape
    found = Moments(InputView("x", groups, depth))
    found.update(rows.astype(np.float32))
    return found


def correlated(count, depth, seed=0, groups=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(groups, count, 6)) @ rng.normal(size=(groups, 6, depth)) + 0.1 * rng.normal(
        size=(groups, count, depth)
    )


@pytest.mark.parametrize("centered", [False, True])
def test_less_error_in_the_outputs(centered):
    x = correlated(2000, 96) + (1.0 if centered else 0.0)
    weight = np.random.default_rng(1).normal(size=(24, 96)).astype(np.float32)
    nearest = quantize_weight(weight, 0)
    codes = round_rows(weight[None], nearest.scale[None], moments_of(x[:, :1500]), centered=centered)[0]
    fresh = x[0, 1500:]

    def error(codes):
        outputs = fresh @ (codes * nearest.scale[:, None] - weight).T
        return np.var(outputs, axis=0).sum() if centered else np.square(outputs).sum()

    assert error(codes.astype(float)) < 0.3 * error(nearest.codes.astype(float))
    assert codes.min() >= -127


def test_independent_inputs_leave_the_nearest_code():
    weight = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)
    found = Moments(InputView("x", 1, 16))
    found.second[:], found.count = np.eye(16), 1000
    nearest = quantize_weight(weight, 0)
    np.testing.assert_array_equal(
        round_rows(weight[None], nearest.scale[None], found, centered=False)[0], nearest.codes
    )


def test_groups_and_blocks_are_apart():
    x = correlated(1000, 12, groups=3)
    weight = np.random.default_rng(2).normal(size=(3, 5, 12)).astype(np.float32)
    scale = np.abs(weight).max(axis=2) / 127
    whole = round_rows(weight, scale, moments_of(x), centered=False)
    for group in range(3):
        part = moments_of(x[group : group + 1])
        np.testing.assert_array_equal(
            whole[group], round_rows(weight[group][None], scale[group][None], part, centered=False)[0]
        )


def test_no_rows_say_nothing():
    weight = np.ones((1, 2, 4), np.float32)
    assert round_rows(weight, np.ones((1, 2)), Moments(InputView("x", 1, 4)), centered=False) is None


def test_a_scaled_channel_follows():
    """Dividing the input's channels and multiplying the weight's columns changes nothing."""
    x = correlated(1000, 8)
    weight = np.random.default_rng(3).normal(size=(1, 4, 8)).astype(np.float32)
    factors = np.repeat([0.5, 2.0], 4)
    scale = np.abs(weight).max(axis=2) / 127
    divided = moments_of(x).divided(np.array([0.5, 2.0]))
    np.testing.assert_allclose(divided.matrix(centered=True), moments_of(x / factors).matrix(centered=True), rtol=1e-4)
    np.testing.assert_allclose(divided.mean(), moments_of(x / factors).mean(), rtol=1e-5, atol=1e-6)
    assert round_rows(weight * factors, scale * 2, divided, centered=True) is not None


@pytest.mark.parametrize(
    ("node", "shape"),
    [
        (Node("Conv", ["x", "w"], ["y"], group=2), (6, 4, 3, 3)),
        (Node("ConvTranspose", ["x", "w"], ["y"], group=2), (4, 3, 2, 2)),
        (Node("MatMul", ["x", "w"], ["y"]), (5, 7)),
        (Node("Gemm", ["x", "w"], ["y"], transB=1), (7, 5)),
        (Node("Gemm", ["x", "w"], ["y"]), (5, 7)),
        (Node("GRU", ["x", "w", "r"], ["y"]), (2, 12, 4)),
    ],
)
def test_rows_and_back(node, shape):
    weight = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(from_rows(node, as_rows(node, weight), shape), weight)


def test_a_transposed_convolution_shares_scales_over_taps():
    node = Node("ConvTranspose", ["x", "w"], ["y"])
    weight = np.random.default_rng(0).normal(size=(16, 3, 2, 2)).astype(np.float32)
    found = quantize_weight(weight, 1)
    before = found.codes.copy()
    round_weight(node, 1, weight, found, moments_of(correlated(1000, 16)), centered=False)
    assert found.codes.shape == weight.shape
    assert np.abs(found.codes.astype(int) - before).max() <= 60
    assert np.any(found.codes != before)


def test_windows_are_what_a_conv_reads():
    view = InputView("x", 2, 9, (3, 3), (2, 1), (1, 1), (1, 1, 1, 1))
    x = np.random.default_rng(0).normal(size=(2, 2, 5, 4)).astype(np.float32)
    rows = view.rows(x, 10_000, np.random.default_rng(0))
    assert rows.shape == (2, 2 * 3 * 4, 9)
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    np.testing.assert_array_equal(rows[1, 5], padded[0, 1, 2:5, 1:4].ravel())
    assert view.rows(x, 7, np.random.default_rng(0)).shape == (2, 7, 9)


def test_a_deep_weight_is_cut_into_blocks():
    view = InputView("x", 1, 3000, channels_last=True)
    assert view.blocks == 3
    found = Moments(view)
    found.update(np.ones((1, 4, 3000), np.float32))
    assert found.second.shape == (3, 1000, 1000)
    assert found.mean().shape == (1, 3000)


def test_a_weight_of_zero_stays_zero():
    """What is strong in one input must not leak into an output that does not read it."""
    x = correlated(400, 32)
    weight = np.random.default_rng(2).normal(size=(8, 32)).astype(np.float32)
    weight[:, ::3] = 0
    found = quantize_weight(weight, 0)
    codes = round_rows(weight[None], found.scale[None], moments_of(x), centered=False)[0]
    assert not codes[:, ::3].any()
    assert np.any(codes != found.codes)
