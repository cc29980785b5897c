"""Convolution kernels and their driver: exactly the oracle, on every instruction set."""

import numpy as np
import oracle
import pytest
from guard import guarded

from quantkit import _kernels, ops
from quantkit._kernels import ConvPlan


@pytest.fixture(autouse=True)
def threads_as_before():
    before = _kernels.num_threads()
    yield
    _kernels.set_num_threads(before)


def codes(rng, shape, dtype=np.uint8):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def channels_last(x):
    """The same values in channels-last memory that ends on a guard page."""
    return np.moveaxis(guarded(np.moveaxis(x, 1, -1)), -1, 1)


# Channels of a group, outputs, groups: dense by taps and by gathered rows, grouped, depthwise with multipliers.
WIDTHS = [
    (4, 16, 1), (8, 63, 1), (16, 64, 1), (33, 65, 1), (64, 130, 1), (3, 32, 1), (1, 20, 1), (6, 7, 1), (13, 70, 1),
    (4, 8, 2), (1, 2, 2), (1, 15, 15), (1, 16, 16), (1, 17, 17), (1, 32, 32), (1, 48, 48), (1, 63, 63), (1, 64, 64),
    (1, 65, 65), (1, 80, 80), (1, 129, 129), (1, 64, 32), (1, 51, 17), (5, 9, 3), (20, 66, 2),
]  # fmt: skip


@pytest.mark.parametrize(("channels", "outputs", "group"), WIDTHS)
def test_every_width_next_to_guard_pages(isa, channels, outputs, group):
    rng = np.random.default_rng(outputs)
    for kernel, stride, pads in [
        ((3, 3), (1, 1), (1, 1, 1, 1)),
        ((3, 3), (2, 2), (1, 1, 1, 1)),
        ((5, 5), (1, 1), (2, 2, 2, 2)),
        ((5, 5), (2, 2), (0, 2, 1, 3)),
        ((1, 1), (1, 1), (0, 0, 0, 0)),
        ((2, 4), (1, 3), (0, 1, 2, 0)),
    ]:
        for height, width in [(5, 7), (6, 12), (9, 19)]:
            x = codes(rng, (2, channels * group, height, width))
            w = guarded(codes(rng, (outputs, channels, *kernel), np.int8))
            attributes = {"strides": stride, "pads": pads, "group": group}
            expected = oracle.conv_integer(x, w, 9, 0, **attributes)
            for given in (guarded(x), guarded(x, "start"), channels_last(x)):
                out = guarded(np.full(expected.shape, -1, np.int32))
                ops.conv_integer(given, w, 9, out=out, **attributes)
                assert np.array_equal(out, expected)
                out = channels_last(np.full(expected.shape, -1, np.int32))
                ops.conv_integer(given, w, 9, out=out, **attributes)
                assert np.array_equal(out, expected)


@pytest.mark.parametrize(("channels", "outputs", "group"), WIDTHS)
def test_transposed_next_to_guard_pages(isa, channels, outputs, group):
    """Phases read from negative pads on and write pixels that lie apart."""
    rng = np.random.default_rng(outputs)
    for kernel, stride, pads in [((4, 4), (2, 2), (1, 1, 1, 1)), ((3, 5), (1, 3), (2, 4, 1, 0))]:
        x = codes(rng, (2, channels * group, 5, 6))
        w = guarded(codes(rng, (channels * group, outputs // group, *kernel), np.int8))
        attributes = {"strides": stride, "pads": pads, "group": group}
        expected = oracle.conv_transpose_integer(x, w, 9, 0, **attributes)
        for given in (guarded(x), guarded(x, "start"), channels_last(x)):
            for layout in (guarded, channels_last):
                out = layout(np.full(expected.shape, -1, np.int32))
                ops.conv_transpose_integer(given, w, 9, out=out, **attributes)
                assert np.array_equal(out, expected)
        y = channels_last(np.zeros(expected.shape, np.uint8))
        ops.qlinear_conv_transpose(channels_last(x), 1, 9, w, 1, 0, 40 * channels, 100, out=y, **attributes)
        assert np.array_equal(y, oracle.requantize(expected, oracle.multiplier(1, 1, 40 * channels), 100, np.uint8))


@pytest.mark.parametrize("group", [1, 24])
def test_extremes_do_not_saturate(isa, group):
    for x_value in (0, 255):
        for w_value in (-128, 127):
            x = np.full((1, 24, 9, 9), x_value, np.uint8)
            w = np.full((24, 24 // group, 3, 3), w_value, np.int8)
            assert (ops.conv_integer(x, w, group=group) == x_value * w_value * 9 * 24 // group).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("group", [1, 20])
def test_zero_points_of_weights_at_their_ends(isa, group, dtype):
    rng = np.random.default_rng(0)
    x, w = codes(rng, (1, 20, 6, 6), np.int8), codes(rng, (20, 20 // group, 3, 3), dtype)
    info = np.iinfo(dtype)
    w[:, :, 0, 0], w[:, :, 2, 2] = info.min, info.max
    each = np.linspace(info.min, info.max, 20).astype(dtype)
    for zero_point in (info.min, info.max, each):
        expected = oracle.conv_integer(x, w, -5, zero_point, group=group, pads=(1, 1, 1, 1))
        assert np.array_equal(ops.conv_integer(x, w, -5, zero_point, group=group, pads=(1, 1, 1, 1)), expected)


@pytest.mark.parametrize("layout", [np.ascontiguousarray, channels_last])
@pytest.mark.parametrize("out", ["uint8", "int8"])
@pytest.mark.parametrize("group", [1, 2, 70])
def test_requantized_with_bias_clamp_and_table(isa, out, layout, group):
    rng = np.random.default_rng(1)
    table = rng.permutation(256).astype(np.uint8)
    x, w = layout(codes(rng, (2, 70, 9, 10))), codes(rng, (140 if group == 2 else 70, 70 // group, 3, 3), np.int8)
    outputs = w.shape[0]
    bias = rng.integers(-5000, 5000, outputs).astype(np.int32)
    scale = (rng.uniform(0.5, 2, outputs) * 40 / (5000 * np.sqrt(w[0].size))).astype(np.float32)
    sums = oracle.conv_integer(x, w, 9, pads=(1,) * 4, group=group) + bias[:, None, None]
    for low, high in [(np.iinfo(out).min, np.iinfo(out).max), (7, 100)]:
        for lookup in (None, table):
            packed, _ = ops.pack_conv(w, group).for_zero_point(0)
            plan = ConvPlan(packed, False, 9, 0, bias, out, scale, 7, low, high, lookup)
            y = layout(np.zeros(sums.shape, out))
            plan.run(x, y, (1, 1), (1, 1), (1, 1))
            expected = oracle.requantize(sums, scale[:, None, None], 7, out, low, high)
            assert np.array_equal(y, expected if lookup is None else table[expected.view(np.uint8)].view(out))


@pytest.mark.parametrize("group", [1, 40])
def test_residual_and_a_slice_of_a_wider_output(isa, group):
    """The epilogue adds a residual, and writes into some channels of a channels-last buffer: concat in place."""
    rng = np.random.default_rng(2)
    x, w = channels_last(codes(rng, (2, 40, 6, 7))), codes(rng, (40, 40 // group, 3, 3), np.int8)
    residual = channels_last(codes(rng, (2, 40, 6, 7), np.int8))
    scale = np.full(40, 0.004, np.float32)
    plan = ConvPlan(ops.pack_conv(w, group).for_zero_point(0)[0], False, 3, 0, None, "uint8", scale, 5, 5, 255)
    room = np.full((2, 6, 7, 100), 77, np.uint8)
    ratios = [np.float32(s) / np.float32(0.11) for s in (0.07, 0.03)]
    y = np.moveaxis(room[..., 30:70], -1, 1)
    plan.run(x, y, (1, 1), (1, 1), (1, 1), residual, float(ratios[0]), 12, float(ratios[1]), -3)
    q = oracle.requantize(oracle.conv_integer(x, w, 3, pads=(1,) * 4, group=group), scale[0], 12, np.uint8)
    total = oracle.qlinear_add(q, 0.07, 12, residual, 0.03, -3, 0.11, 5, np.uint8)
    assert np.array_equal(y, np.maximum(total, 5))
    assert (room[..., :30] == 77).all()
    assert (room[..., 70:] == 77).all()


def test_float_output(isa):
    rng = np.random.default_rng(3)
    x, w = codes(rng, (1, 8, 6, 6)), codes(rng, (20, 8, 3, 3), np.int8)
    scale, bias = rng.uniform(0, 1, 20).astype(np.float32), rng.standard_normal(20).astype(np.float32)
    y = np.zeros((1, 20, 4, 4), np.float32)
    plan = ConvPlan(ops.pack_conv(w).for_zero_point(0)[0], False, 3, 0, bias, "float32", scale)
    plan.run(x, y, (1, 1), (0, 0), (1, 1))
    sums = oracle.conv_integer(x, w, 3).astype(np.float32)
    assert np.array_equal(y, sums * scale[:, None, None] + bias[:, None, None])


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_threads_change_nothing(isa, threads):
    _kernels.set_num_threads(threads)
    rng = np.random.default_rng(4)
    for shape, w_shape, group in [
        ((1, 64, 40, 40), (64, 64, 3, 3), 1),
        ((2, 256, 4, 4), (512, 256, 3, 3), 1),
        ((8, 96, 20, 20), (96, 1, 3, 3), 96),
        ((1, 3, 90, 90), (32, 3, 7, 7), 1),
        ((1, 3, 5, 700), (16, 3, 3, 3), 1),
        ((1, 3, 4, 2500), (16, 3, 3, 3), 1),
        ((1, 64, 3000), (64, 16, 5), 4),
    ]:
        x, w = codes(rng, shape, np.int8), codes(rng, w_shape)
        attributes = {"pads": (1,) * (2 * len(w_shape) - 4), "group": group}
        expected = oracle.conv_integer(x, w, 5, 100, **attributes)
        for given in (x, channels_last(x)):
            assert np.array_equal(ops.conv_integer(given, w, 5, 100, **attributes), expected)


def test_transpose_of_every_size(isa):
    """NCHW on both sides of a pointwise convolution with the identity: nothing but the two transposes."""
    rng = np.random.default_rng(5)
    for channels in (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65):
        identity = np.eye(channels, dtype=np.int8)[:, :, None]
        for pixels in (1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 49, 63, 64, 65, 600):
            for dtype in (np.uint8, np.int8):
                x = guarded(codes(rng, (1, channels, pixels), dtype))
                y = guarded(np.zeros_like(x))
                assert np.array_equal(ops.qlinear_conv(x, 1, 0, identity, 1, 0, 1, dtype(0), out=y), x)
