"""What calibration keeps of a tensor: small, and mergeable batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantkit.models.calibration.moments import InputView, Moments
from quantkit.ranges import BINS, Histogram, RangeMethod, can_divide, choose_range

CHANNEL_BINS = 256

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ChannelView:
    """Which axis of a tensor is its channels.

    Attributes
    ----------
    rank : int or None
        Axis 1 of a tensor of this rank; None: the last axis.
    length : int or None
        Of that last axis.
    """

    rank: int | None = None
    length: int | None = None


@dataclass
class TensorStats:
    """What was seen of one tensor.

    Attributes
    ----------
    low, high : float
        Range of the finite values; inf and -inf as long as there was none.
    nonfinite : int
        How many NaN and infinities were left out.
    batches : int
        In how many batches the tensor was made.
    shape : tuple of int
        Of the batch with the most elements.
    histogram : Histogram or None
        Over [low, high], where the method of calibration needs it.
    method : RangeMethod
        How `range` is chosen.
    """

    low: float = np.inf
    high: float = -np.inf
    nonfinite: int = 0
    batches: int = 0
    shape: tuple[int, ...] = ()
    histogram: Histogram | None = None
    method: RangeMethod = field(default_factory=RangeMethod)

    @property
    def range(self) -> tuple[float, float]:
        """What a scale should cover."""
        return (self.low, self.high) if self.histogram is None else choose_range(self.histogram, self.method)

    @property
    def seen(self) -> bool:
        """Whether any finite value was seen."""
        return self.low <= self.high

    @property
    def elements(self) -> int:
        """Number of elements of `shape`."""
        return int(np.prod(self.shape, dtype=np.int64))

    def update(self, low: float, high: float, nonfinite: int, shape: Sequence[int], batches: int = 1) -> None:
        """Take in one batch, or so many that were seen together."""
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.nonfinite += nonfinite
        self.batches += batches
        if not self.shape or int(np.prod(shape, dtype=np.int64)) > self.elements:
            self.shape = tuple(int(n) for n in shape)

    def merge(self, other: TensorStats) -> None:
        """Take in what was seen elsewhere, behind what was seen here."""
        if other.batches:
            self.update(other.low, other.high, other.nonfinite, other.shape, other.batches)
        if other.histogram is not None:
            if self.histogram is None:
                self.histogram = Histogram(
                    np.zeros_like(other.histogram.counts), other.histogram.low, other.histogram.high
                )
            self.histogram.counts[...] += other.histogram.counts


@dataclass
class ChannelStats:
    """What was seen of one tensor, for each index of one axis.

    Attributes
    ----------
    low, high : ndarray of shape (channels,)
    squares, sums : ndarray of shape (channels,)
        Sum of the squares, and of the values.
    count : int
        Elements of one channel.
    counts : int64 ndarray of shape (channels, CHANNEL_BINS) or None
        A histogram of each channel over its own range.
    """

    low: Array
    high: Array
    squares: Array
    sums: Array
    count: int
    counts: Array | None = None

    @property
    def usable(self) -> bool:
        """Whether all of it is finite."""
        return all(bool(np.all(np.isfinite(v))) for v in (self.low, self.high, self.squares, self.sums))

    @property
    def power(self) -> Array:
        """Mean square of each channel."""
        power: Array = self.squares / max(self.count, 1)
        return power

    @property
    def mean(self) -> Array:
        """Mean of each channel."""
        mean: Array = self.sums / max(self.count, 1)
        return mean

    def update(self, other: ChannelStats) -> None:
        """Take in one batch."""
        self.low, self.high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        self.squares, self.sums = self.squares + other.squares, self.sums + other.sums
        self.count += other.count

    def count_more(self, counts: Array | None) -> None:
        """Take in histograms that were counted elsewhere."""
        if counts is not None:
            self.counts = counts.copy() if self.counts is None else self.counts + counts

    def histogram(self) -> Histogram | None:
        """Return the histogram of all channels together; None where they have none, or hardly vary."""
        low, high = float(self.low.min()), float(self.high.max())
        if self.counts is None or not can_divide(low, high):
            return None
        at = self.low[:, None] + (np.arange(CHANNEL_BINS) + 0.5) * ((self.high - self.low) / CHANNEL_BINS)[:, None]
        bins = np.clip(((at - low) * (BINS / (high - low))).astype(np.int64), 0, BINS - 1)
        counts = np.bincount(bins.ravel(), self.counts.ravel(), BINS).astype(np.int64)
        return Histogram(counts, low, high)

    def divide(self, factors: Array) -> None:
        """Follow the tensor when its channels are divided by `factors`."""
        self.low, self.high = self.low / factors, self.high / factors
        self.squares, self.sums = self.squares / factors**2, self.sums / factors


@dataclass
class Calibration:
    """Statistics by tensor name, and how many samples they come from; `channels` by tensor name where asked for."""

    tensors: dict[str, TensorStats] = field(default_factory=dict)
    channels: dict[str, ChannelStats] = field(default_factory=dict)
    moments: dict[InputView, Moments] = field(default_factory=dict)
    batches: int = 0
    warnings: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> TensorStats:
        return self.tensors.get(name) or TensorStats()

    def merge(self, other: Calibration) -> None:
        """Take in what was seen of other samples, behind those seen here: of ranges and sums, or of histograms."""
        for name, stats in other.tensors.items():
            self.tensors.setdefault(name, TensorStats()).merge(stats)
        for name, channels in other.channels.items():
            if name in self.channels:
                self.channels[name].update(channels)
                self.channels[name].count_more(channels.counts)
            else:
                self.channels[name] = channels
        self.batches += other.batches
        self.warnings += [warning for warning in other.warnings if warning not in self.warnings]

    def divide_moments(self, name: str, factors: Array) -> None:
        """Follow tensor `name` when its channels are divided by `factors`."""
        for view, found in self.moments.items():
            if view.tensor == name:
                self.moments[view] = found.divided(factors)
