"""Range and histogram kernels: exactly the oracle, on every instruction set."""

import ml_dtypes
import numpy as np
import oracle
import pytest
from guard import guarded

from quantkit import ops
from quantkit.errors import InvalidArgument, InvalidDType, ShapeMismatch

REALS = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32), np.dtype(np.float64)]
SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 130, 1023, 1025, 3000]


def values(n, dtype, seed, broken=True):
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore"):
        x = (rng.standard_normal(n) * 100).astype(dtype)
    if broken and n > 6:
        x[rng.integers(0, n, n // 6)] = np.nan
        x[rng.integers(0, n, n // 9)] = np.inf
        x[rng.integers(0, n, n // 9)] = -np.inf
    return x


@pytest.mark.parametrize("dtype", REALS, ids=str)
@pytest.mark.parametrize("broken", [False, True])
def test_range_equals_the_oracle(isa, dtype, broken):
    for n in SIZES:
        x = guarded(values(n, dtype, n, broken))
        assert ops.finite_range(x) == oracle.finite_range(x)


@pytest.mark.parametrize("at", range(0, 70, 3))
def test_range_finds_the_extreme_in_every_lane(isa, at):
    x = np.zeros(70, np.float32)
    x[at] = -5
    assert ops.finite_range(x) == (-5, 0, 0)
    assert ops.finite_range(-x) == (0, 5, 0)
    x[at] = np.nan
    assert ops.finite_range(x) == (0, 0, 1)


def test_nothing_finite(isa):
    assert ops.finite_range(np.float32([np.nan, np.inf, -np.inf])) == (np.inf, -np.inf, 3)
    assert ops.finite_range(np.float32([])) == (np.inf, -np.inf, 0)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (700, 3), (40, 30, 2), (9, 1500), (1, 6, 1)], ids=str)
@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_range_per_axis_equals_the_oracle(isa, shape, dtype):
    base = values(int(np.prod(shape)), dtype, 7).reshape(shape)
    for x in (base, base.T, base[::-1], base[..., ::2]):
        for axis in range(-x.ndim, x.ndim):
            low, high, nonfinite = ops.finite_range(x, axis=axis)
            expected_low, expected_high, expected_count = oracle.finite_range(x, axis)
            assert np.array_equal(low, expected_low)
            assert np.array_equal(high, expected_high)
            assert nonfinite == expected_count


def test_range_over_an_empty_axis():
    low, high, nonfinite = ops.finite_range(np.zeros((3, 0), np.float32), axis=0)
    assert low.tolist() == [np.inf] * 3
    assert high.tolist() == [-np.inf] * 3
    assert nonfinite == 0
    assert ops.finite_range(np.zeros((0, 3), np.float32), axis=0)[0].shape == (0,)


@pytest.mark.parametrize("dtype", REALS, ids=str)
@pytest.mark.parametrize("bins", [1, 2, 255, 2048])
def test_histogram_equals_the_oracle(isa, dtype, bins):
    for n in SIZES:
        x = guarded(values(n, dtype, n + 1))
        for low, high in [(-300, 300), (-1, 1), (0, 1e-30), (-3e38, 3e38), (50, 51)]:
            assert np.array_equal(ops.histogram(x, low, high, bins), oracle.histogram(x, low, high, bins))


def test_histogram_of_strides_adds_up(isa):
    x = values(40 * 1300, np.float32, 3).reshape(40, 1300)
    counts = ops.histogram(x[::2, ::3], -200, 200, 100)
    again = ops.histogram(x.T, -200, 200, 100, counts=counts)
    assert again is counts
    expected = oracle.histogram(x[::2, ::3], -200, 200, 100) + oracle.histogram(x, -200, 200, 100)
    assert np.array_equal(counts, expected)
    assert ops.histogram(np.float32([]), 0, 1, 3).tolist() == [0, 0, 0]
    assert ops.histogram(np.full(100_000, 0.5, np.float32), 0, 1, 4).tolist() == [0, 0, 100_000, 0]


@pytest.mark.parametrize(
    ("low", "high", "bins", "message"),
    [
        (0, 1, 0, "bins must be an integer from 1"),
        (0, 1, 2.5, "bins must be an integer from 1"),
        (0, 1, 1 << 21, "bins must be an integer from 1"),
        (1, 1, 8, "low < high"),
        (2, 1, 8, "low < high"),
        (0, np.inf, 8, "finite"),
        (np.nan, 1, 8, "finite"),
        (0, 1e-45, 1 << 20, "too narrow"),
    ],
)
def test_histogram_refuses(low, high, bins, message):
    with pytest.raises(InvalidArgument, match=message):
        ops.histogram(np.zeros(3, np.float32), low, high, bins)


@pytest.mark.parametrize("counts", [np.zeros(3, np.int64), np.zeros(4, np.int32), np.zeros(8, np.int64)[::2]])
def test_histogram_refuses_counts(counts):
    with pytest.raises(InvalidArgument, match=r"contiguous int64 array of shape \(4,\)"):
        ops.histogram(np.zeros(3, np.float32), 0, 1, 4, counts=counts)


@pytest.mark.parametrize("x", [np.zeros(3, np.int32), np.zeros(3, complex), np.array(["a"]), np.zeros(3, np.uint16)])
def test_only_floats(x):
    with pytest.raises(InvalidDType, match="x must be float16, bfloat16, float32 or float64"):
        ops.finite_range(x)


def test_axis_out_of_range():
    with pytest.raises(ShapeMismatch, match="axis 2 is out of range for an array of 2 dimensions"):
        ops.finite_range(np.zeros((2, 2), np.float32), axis=2)
