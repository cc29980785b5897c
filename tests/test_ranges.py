"""Ranges chosen from a histogram, each method beside a plain statement of what it is."""

import itertools

import numpy as np
import pytest

from quantkit import ops
from quantkit.errors import InvalidArgument
from quantkit.qparams import choose_qparams
from quantkit.ranges import BINS, METHODS, Histogram, RangeMethod, choose_range

RNG = np.random.default_rng(0)
DATA = {
    "normal": RNG.normal(size=50_000),
    "relu": np.maximum(RNG.normal(size=50_000), 0),
    "heavy": RNG.standard_t(3, 50_000),
    "lopsided": RNG.gamma(2, 1, 50_000) - 0.5,
    "negative": -RNG.gamma(2, 1, 50_000),
    "away from zero": RNG.uniform(3, 5, 50_000),
}


def histogram(values):
    values = values.astype(np.float32)
    low, high, _ = ops.finite_range(values)
    return Histogram(ops.histogram(values, low, high, BINS), low, high)


def error(values, low, high):
    params = choose_qparams(low, high)
    codes = np.clip(np.round(values / params.scale) + params.zero_point, 0, 255)
    return np.mean((values - (codes - params.zero_point) * params.scale) ** 2)


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("percent", [99.9, 99.0, 90.0])
def test_percentile_is_two_sided(name, percent):
    values = DATA[name]
    found = histogram(values)
    low, high = choose_range(found, RangeMethod("percentile", percent))
    left_out = round(len(values) * (100 - percent) / 200)
    wanted = [np.sort(values)[left_out], np.sort(values)[-1 - left_out]]
    width = (found.high - found.low) / BINS
    if values.min() <= 0 <= values.max():
        wanted = [min(wanted[0], 0), max(wanted[1], 0)]
    np.testing.assert_allclose([low, high], wanted, atol=1.5 * width)


def test_all_of_it_is_the_hundredth_percentile():
    found = histogram(DATA["normal"])
    assert choose_range(found, RangeMethod("percentile", 100)) == (found.low, found.high)


@pytest.mark.parametrize("name", DATA)
def test_least_squares_is_as_good_as_trying_every_range(name):
    values = DATA[name]
    found = histogram(values)
    got = error(values, *choose_range(found, RangeMethod("mse")))
    lows = np.linspace(found.low, min(max(found.low, 0), 0), 24) if found.low < 0 else [0]
    highs = np.linspace(found.high, max(min(found.high, 0), 0), 24) if found.high > 0 else [0]
    best = min(error(values, low, high) for low in lows for high in highs if low < high)
    assert got <= 1.03 * best
    assert got <= 1.001 * error(values, found.low, found.high)


def test_an_outlier_does_not_take_the_codes():
    """The field's entropy method with 128 bins for 128 codes returns [-4, 80] here."""
    values = np.append(DATA["normal"], 80)
    for name in ("percentile", "entropy"):
        low, high = choose_range(histogram(values), RangeMethod(name))
        assert -5 < low < -3
        assert 3 < high < 6


def divergence(counts, start, stop):
    """Kullback-Leibler divergence of 256 levels from the clipped distribution, bin by bin."""
    inner = [float(n) for n in counts[start:stop]]
    whole = inner[:]
    whole[0] += counts[:start].sum()
    whole[-1] += counts[stop:].sum()
    levels = min(256, len(inner))
    firsts = [i * len(inner) // levels for i in range(levels)] + [len(inner)]
    spread = [0.0] * len(inner)
    for a, b in itertools.pairwise(firsts):
        held = [i for i in range(a, b) if whole[i] > 0]
        for i in held:
            spread[i] = sum(inner[a:b]) / len(held)
    p, q = np.array(whole) / sum(whole), np.array(spread) / sum(spread)
    return float(sum(a * np.log(a / max(b, 1e-12)) for a, b in zip(p, q, strict=True) if a > 0))


@pytest.mark.parametrize("name", ["normal", "heavy", "lopsided"])
def test_entropy_is_the_least_divergence_of_the_thresholds(name):
    found = histogram(DATA[name])
    low, high = choose_range(found, RangeMethod("entropy"))
    width = (found.high - found.low) / BINS
    start, stop = round((low - found.low) / width), round((high - found.low) / width)
    zero = int(-found.low / width)
    counts = found.counts.copy()
    counts[zero] = min(counts[zero], max(counts[zero - 1], counts[zero + 1]))
    tried = [
        divergence(counts, max(0, zero + 1 - reach), min(BINS, zero + reach))
        for reach in np.linspace(128, max(zero + 1, BINS - zero), 12).astype(int)
    ]
    assert divergence(counts, start, stop) <= min(tried) + 1e-9


@pytest.mark.parametrize("method", METHODS)
def test_what_hardly_has_a_distribution(method):
    for values in ([1.0, 1.5], [-2.0, 0.0], [0.0, 0.0, 7.0]):
        found = histogram(np.array(values))
        low, high = choose_range(found, RangeMethod(method))
        assert found.low <= low < high <= found.high
    empty = Histogram(np.zeros(BINS, np.int64), -1.0, 2.0)
    assert choose_range(empty, RangeMethod(method)) == (-1.0, 2.0)


@pytest.mark.parametrize(("name", "percent"), [("max", 99), ("percentile", 50), ("percentile", 101), ("mse", "x")])
def test_options_that_cannot_be(name, percent):
    with pytest.raises(InvalidArgument, match="must"):
        RangeMethod(name, percent)
