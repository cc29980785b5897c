"""Bilinear resizing against its statement in integers, on every instruction set."""

import numpy as np
import pytest

from quantkit import _kernels
from quantkit.errors import ShapeMismatch


def axis(rng, before, after, behind):
    """Random neighbours and weights; along a row the second is the one behind the first, or has no weight."""
    first = rng.integers(0, before, after).astype(np.int32)
    second = np.minimum(first + 1, before - 1) if behind else rng.integers(0, before, after)
    share = rng.choice([0, 1, 1024, 2047, 2048, *rng.integers(0, 2049, 8)], after)
    if behind:
        share[second == first] = 0
    return first, second.astype(np.int32), np.stack([2048 - share, share], axis=1).astype(np.int16)


def expected(x, columns, rows):
    wide = x.astype(np.int64)
    (x0, x1, a), (y0, y1, b) = columns, rows
    across = (wide[:, x0] * a[:, :1] + wide[:, x1] * a[:, 1:]) >> 4
    down = (across[y0] * b[:, 0, None, None] >> 16) + (across[y1] * b[:, 1, None, None] >> 16)
    return ((down + 2) >> 2).astype(np.uint8).transpose(2, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("height", "width", "rows", "columns"),
    [(1, 1, 1, 1), (2, 2, 3, 7), (9, 7, 5, 8), (40, 33, 17, 70), (6, 50, 20, 15), (30, 90, 31, 33), (5, 64, 4, 48)],
)
def test_against_integers(isa, channels, height, width, rows, columns):
    rng = np.random.default_rng(height)
    for extreme in (False, True):
        x = rng.integers(0, 256, (height, width, channels), np.uint8)
        if extreme:
            x[...] = 255
        across, down = axis(rng, width, columns, True), axis(rng, height, rows, False)
        # Into the middle of something larger, which stays as it is around.
        canvas = np.full((channels, rows + 2, columns + 5), 7, np.uint8)
        _kernels.resize_linear(x, canvas[:, 1:-1, 2:-3], across, down)
        np.testing.assert_array_equal(canvas[:, 1:-1, 2:-3], expected(x, across, down))
        if channels == 3:
            wide = np.concatenate([x, rng.integers(0, 256, (height, width, 1), np.uint8)], axis=2)
            made = np.empty((3, rows, columns), np.uint8)
            _kernels.resize_linear(wide, made, across, down)
            np.testing.assert_array_equal(made, canvas[:, 1:-1, 2:-3])
        canvas[:, 1:-1, 2:-3] = 7
        assert (canvas == 7).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_half(isa, channels):
    x = np.random.default_rng(0).integers(0, 256, (14, 38, channels), np.uint8)
    made = np.empty((channels, 7, 19), np.uint8)
    _kernels.resize_linear(x, made)
    wide = x.astype(int)
    four = wide[::2, ::2] + wide[1::2, ::2] + wide[::2, 1::2] + wide[1::2, 1::2]
    np.testing.assert_array_equal(made, ((four + 2) >> 2).transpose(2, 0, 1))


def test_what_does_not_fit_is_refused():
    x, y = np.zeros((5, 5, 3), np.uint8), np.zeros((3, 2, 2), np.uint8)
    zero, one = np.zeros(2, np.int32), np.ones(2, np.int32)
    first = np.array([[2048, 0]] * 2, np.int16)
    good = zero, one, first
    for bad, message in (
        ((np.array([0, 5], np.int32), one, first), "lies between 5 and 1, the source has 5"),
        ((zero, np.array([0, -1], np.int32), first), "lies between 0 and -1"),
        ((zero, one, first[:1]), "wanted two weights for 2 outputs"),
        ((zero, one, first * 0 - 1), "has the weights -1 and -1"),
        ((zero, one, np.full((2, 2), 1030, np.int16)), "has the weights 1030 and 1030"),
    ):
        with pytest.raises(ShapeMismatch, match=message):
            _kernels.resize_linear(x, y, bad, good)
        with pytest.raises(ShapeMismatch, match=message):
            _kernels.resize_linear(x, y, good, bad)
    far = zero, one + 1, np.full((2, 2), 1024, np.int16)
    with pytest.raises(ShapeMismatch, match="which are no neighbours"):
        _kernels.resize_linear(x, y, far, good)
    _kernels.resize_linear(x, y, good, far)
    with pytest.raises(ShapeMismatch, match="1, 3 or 4 bytes"):
        _kernels.resize_linear(np.zeros((5, 5, 2), np.uint8), y, good, good)
    with pytest.raises(ShapeMismatch, match="rows are contiguous"):
        _kernels.resize_linear(x, np.zeros((3, 2, 4), np.uint8)[:, :, ::2], good, good)
    with pytest.raises(ShapeMismatch, match="5 x 5 is not twice 2 x 2"):
        _kernels.resize_linear(x, y)
