"""The resize kernels against their statement in integers, on every instruction set."""

import numpy as np
import pytest

from quantkit import _kernels
from quantkit.errors import ShapeMismatch

BITS, LOW = 22, 11


def weights(rng, before, after, taps):
    """Random weights, some of them negative, whose sum can be below 0 and above 1; those beyond the source are 0."""
    first = np.sort(rng.integers(0, max(1, before - taps + 4), after)).astype(np.int32)
    # Within what a sum of 255 times them can be in 32 bits.
    w = rng.integers(-(1 << 20), 1 << 21, (after, taps)) * 4 // taps
    w[np.arange(taps) + first[:, None] >= before] = 0
    high = w >> LOW
    return (first, high.astype(np.int16), (w - (high << LOW)).astype(np.int16)), w


def expected(x, first, w):
    """Resize axis 0 of x."""
    padded = np.concatenate([x, np.zeros((8, *x.shape[1:]), x.dtype)]).astype(np.int64)
    made = [
        (padded[f : f + len(row)] * row.reshape(-1, *[1] * (x.ndim - 1))).sum(0)
        for f, row in zip(first, w, strict=True)
    ]
    return np.clip((np.stack(made) + (1 << (BITS - 1))) >> BITS, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize(
    ("height", "width", "rows", "columns", "taps"),
    [(1, 1, 1, 1, 4), (9, 7, 5, 3, 4), (40, 33, 17, 70, 4), (64, 50, 20, 16, 8), (30, 90, 31, 33, 12)],
)
def test_against_integers(isa, height, width, rows, columns, taps, extreme):
    rng = np.random.default_rng(height)
    x = rng.integers(0, 256, (height, width, 3), np.uint8)
    if extreme:
        x = np.where(x < 128, 0, 255).astype(np.uint8)
    across, wx = weights(rng, width, columns, taps)
    down, wy = weights(rng, height, rows, taps)
    made = np.empty((3, rows, columns), np.uint8)
    _kernels.resize(x, made, across, down)
    wide = np.concatenate([x, rng.integers(0, 256, (height, width, 1), np.uint8)], axis=2)
    again = np.empty_like(made)
    _kernels.resize(wide, again, across, down)
    np.testing.assert_array_equal(again, made)
    middle = expected(x.transpose(1, 0, 2), across[0], wx)
    np.testing.assert_array_equal(made, expected(middle.transpose(1, 0, 2), down[0], wy).transpose(2, 0, 1))


def test_weights_that_reach_outside_are_refused():
    x, y = np.zeros((5, 5, 3), np.uint8), np.zeros((3, 2, 2), np.uint8)
    zero, one = np.zeros((2, 4), np.int16), np.ones((2, 4), np.int16)
    good = np.zeros(2, np.int32), zero, zero
    for bad, message in (
        ((np.array([0, 5], np.int32), zero, zero), "begin at 5"),
        ((np.array([-1, 0], np.int32), zero, zero), "begin at -1"),
        ((np.array([0, 2], np.int32), one, zero), "reach beyond"),
        ((np.array([0, 2], np.int32), zero, one), "reach beyond"),
        ((np.array([0, 4], np.int32), np.zeros((2, 8), np.int16), np.zeros((2, 8), np.int16)), "reach beyond"),
        ((np.zeros(3, np.int32), zero, zero), "wanted weights for 2 outputs"),
        ((np.zeros(2, np.int32), zero, zero[:1]), "wanted weights for 2 outputs"),
        ((np.zeros(2, np.int32), zero[:, :3].copy(), zero[:, :3].copy()), "multiple of 4"),
    ):
        with pytest.raises(ShapeMismatch, match=message):
            _kernels.resize(x, y, bad, good)
        with pytest.raises(ShapeMismatch, match=message):
            _kernels.resize(x, y, good, bad)
    with pytest.raises(ShapeMismatch, match="3 or 4 bytes"):
        _kernels.resize(np.zeros((5, 5, 2), np.uint8), y, good, good)
