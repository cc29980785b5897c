"""How much of a distribution a scale should cover: the methods of calibration, on a histogram of fixed size.

A range that holds every value is safe, and wasteful where few values lie far out: they take codes from all others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit.errors import InvalidArgument

if TYPE_CHECKING:
    from numpy.typing import NDArray

METHODS = ("minmax", "percentile", "mse", "entropy")
BINS = 2048
_LEVELS = 256  # codes of 8 bits
_GRID = 128  # ends tried on each side


@dataclass(frozen=True)
class RangeMethod:
    """How to choose a range.

    Parameters
    ----------
    name : {"minmax", "percentile", "mse", "entropy"}
        The whole range; the range that holds `percentile` percent of the values, as many left out on either side; the
        one with the least squared error of quantizing to 256 levels; the one whose quantized distribution has the
        least Kullback-Leibler divergence from the original.
    percentile : float
        In (50, 100].

    Raises
    ------
    InvalidArgument
        For an unknown name or a percentile out of range.
    """

    name: str = "minmax"
    percentile: float = 99.99

    def __post_init__(self) -> None:
        if self.name not in METHODS:
            raise InvalidArgument(f"method must be one of {', '.join(METHODS)}, got {self.name!r}")
        if not (isinstance(self.percentile, (int, float)) and 50 < self.percentile <= 100):
            raise InvalidArgument(f"percentile must lie above 50 and at most at 100, got {self.percentile!r}")

    @property
    def needs_histogram(self) -> bool:
        """Whether lowest and highest value are not enough."""
        return self.name != "minmax"


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of values in equal bins over [low, high].

    Attributes
    ----------
    counts : int64 ndarray of shape (bins,)
    low, high : float
        low < high.
    """

    counts: NDArray[np.int64]
    low: float
    high: float
    _chosen: dict[RangeMethod, tuple[float, float]] = field(default_factory=dict, repr=False)

    def __deepcopy__(self, memo: Any) -> Histogram:
        return self  # shared by every plan that is tried, with what was chosen already

    @property
    def edges(self) -> NDArray[np.float64]:
        """Edges of the bins, shape (bins + 1,)."""
        return np.linspace(self.low, self.high, len(self.counts) + 1)

    @property
    def centers(self) -> NDArray[np.float64]:
        """Centers of the bins, shape (bins,)."""
        edges = self.edges
        return (edges[1:] + edges[:-1]) / 2


def can_divide(low: float, high: float) -> bool:
    """Whether [low, high] is wide enough for the bins of a histogram to be told apart in float32."""
    width = np.float64(high) - low
    return bool(
        np.isfinite(width) and width < np.finfo(np.float32).max and width > 1e-6 * max(abs(low), abs(high), 1e-30)
    )


def choose_range(histogram: Histogram, method: RangeMethod) -> tuple[float, float]:
    """Return the range that `method` finds best; it lies within [low, high] and holds zero if that does.

    Parameters
    ----------
    histogram : Histogram
        Of all finite values. What was seen exactly at zero costs nothing: zero is always a code.
    method : RangeMethod

    Returns
    -------
    low, high : float
    """
    if method not in histogram._chosen:
        histogram._chosen[method] = _choose(histogram, method)
    return histogram._chosen[method]


def _choose(histogram: Histogram, method: RangeMethod) -> tuple[float, float]:
    if method.name == "minmax" or not histogram.counts.any():
        return histogram.low, histogram.high
    found = {"percentile": _percentile, "mse": _least_squares, "entropy": _least_divergence}[method.name]
    low, high = found(histogram, method)
    if histogram.low <= 0 <= histogram.high:
        low, high = min(low, 0.0), max(high, 0.0)
    return (low, high) if low < high else (histogram.low, histogram.high)


def _percentile(histogram: Histogram, method: RangeMethod) -> tuple[float, float]:
    below = np.concatenate([[0], np.cumsum(histogram.counts)])
    total = int(below[-1])
    left_out = int(total * (100 - method.percentile) / 200 + 1e-6)
    edges = histogram.edges
    low = float(edges[np.searchsorted(below, left_out, side="right") - 1])
    high = float(edges[np.searchsorted(below, total - left_out, side="left")])
    return low, high


def _least_squares(histogram: Histogram, method: RangeMethod) -> tuple[float, float]:
    counts, centers, edges = histogram.counts.astype(np.float64), histogram.centers, histogram.edges
    lows, highs = _ends(histogram, edges)

    def moments(power: int) -> Any:
        return np.concatenate([[0.0], np.cumsum(counts * centers**power)])

    zeroth, first, second = (moments(power) for power in range(3))
    at_low, at_high = (np.searchsorted(edges, ends) for ends in (lows, highs))
    below, above = edges[at_low], edges[at_high]
    cut_low = second[at_low] - 2 * below * first[at_low] + below**2 * zeroth[at_low]
    whole = [m[-1] - m[at_high] for m in (zeroth, first, second)]
    cut_high = whole[2] - 2 * above * whole[1] + above**2 * whole[0]
    inside = zeroth[at_high][None, :] - zeroth[at_low][:, None]
    if histogram.low <= 0 <= histogram.high:
        inside = inside - counts[_bin_of_zero(histogram)]
    step = (np.maximum(above, 0)[None, :] - np.minimum(below, 0)[:, None]) / (_LEVELS - 1)
    error = cut_low[:, None] + cut_high[None, :] + np.maximum(inside, 0) * step**2 / 12
    error[below[:, None] >= above[None, :]] = np.inf
    best = np.unravel_index(int(np.argmin(error)), error.shape)
    return float(below[int(best[0])]), float(above[int(best[1])])


def _bin_of_zero(histogram: Histogram) -> int:
    bins = len(histogram.counts)
    return int(np.clip(np.searchsorted(histogram.edges, 0.0, side="right") - 1, 0, bins - 1))


def _ends(histogram: Histogram, edges: NDArray[np.float64]) -> tuple[Any, Any]:
    """Return the low and the high ends to try: edges of bins, from the outermost to zero."""
    bins = len(histogram.counts)
    zero = int(np.searchsorted(edges, 0.0))
    # Where all values have one sign, the end on the other side is zero whatever is chosen.
    lows, highs = (np.linspace(a, b, _GRID).astype(int) for a, b in ((0, min(zero, bins)), (min(zero, bins), bins)))
    return edges[np.unique(lows)], edges[np.unique(highs)]


def _least_divergence(histogram: Histogram, method: RangeMethod) -> tuple[float, float]:
    counts: NDArray[np.float64] = histogram.counts.astype(np.float64)
    edges, bins = histogram.edges, len(histogram.counts)
    zero = _bin_of_zero(histogram)
    farthest = max(zero + 1, bins - zero)
    # What a Relu or a mask leaves at zero is exact in any range; counted in full, it would hide everything else.
    beside = counts[max(zero - 1, 0) : zero + 2 : 2] if 0 < zero < bins - 1 else counts[[1 if zero == 0 else -2]]
    counts[zero] = min(counts[zero], beside.max())
    best, found = np.inf, (0, bins)
    for reach in np.unique(np.linspace(min(_LEVELS // 2, farthest), farthest, 2 * _GRID).astype(int)):
        start, stop = max(0, zero + 1 - int(reach)), min(bins, zero + int(reach))
        divergence = _divergence(counts, start, stop)
        if divergence < best:
            best, found = divergence, (start, stop)
    return float(edges[found[0]]), float(edges[found[1]])


def _divergence(counts: NDArray[np.float64], start: int, stop: int) -> float:
    """Return the divergence of counts[start:stop] in 256 levels from the whole, its outside counted at the ends."""
    inner = counts[start:stop]
    whole = inner.copy()
    whole[0] += counts[:start].sum()
    whole[-1] += counts[stop:].sum()
    levels = min(_LEVELS, len(inner))
    starts = (np.arange(levels) * len(inner)) // levels
    held = (whole > 0).astype(np.float64)
    sums, used = np.add.reduceat(inner, starts), np.add.reduceat(held, starts)
    spread = np.repeat(sums / np.maximum(used, 1), np.diff([*starts, len(inner)])) * held
    if not spread.any():
        return float("inf")
    p, q = whole / whole.sum(), spread / spread.sum()
    there = p > 0
    # A level that came out empty is given a little, or every divergence would be infinite.
    return float(np.sum(p[there] * np.log(p[there] / np.maximum(q[there], 1e-12))))
