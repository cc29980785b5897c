"""The second pass of calibration: histograms over the ranges that the first pass found.

Their size is fixed, they depend neither on the order of the samples nor on how these are batched, and one sample's
tensors are alive at a time, of a large model a part of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto

from quantkit import ops
from quantkit.errors import CalibrationError, ModelError
from quantkit.graph.tensors import TensorReader
from quantkit.models.calibration.statistics import CHANNEL_BINS, Calibration, ChannelView, TensorStats
from quantkit.models.inputs import Feed
from quantkit.models.runtime import open_session
from quantkit.ranges import BINS, Histogram, can_divide

_TITLE = "the float model"
# What one run may hand out of onnxruntime at a time.
_FETCHED_BYTES = 256 << 20


class HistogramObserver:
    """Counts the values of tensors of a model.

    Parameters
    ----------
    proto : ModelProto
        The float model.
    names : sequence of str
        Which tensors of `result`.
    result : Calibration
        Of the first pass.
    views : mapping of str to ChannelView
        Tensors of which each channel's is wanted too.
    tensors : TensorReader, optional
        Where external data lies.
    """

    def __init__(
        self,
        proto: ModelProto,
        names: Sequence[str],
        result: Calibration,
        views: Mapping[str, ChannelView],
        tensors: TensorReader | None = None,
    ) -> None:
        made = {name for node in proto.graph.node for name in node.output}
        self._stats = {name: result.tensors[name] for name in names if can_divide(result[name].low, result[name].high)}
        self._result, self._views = result, views
        wanted = [name for name in self._stats if name in made]
        if wanted:
            out = ModelProto()
            out.CopyFrom(proto)
            del out.graph.output[:]
            for name in wanted:
                out.graph.output.add(name=name)
            self._session = open_session(out, _TITLE, tensors=tensors)
        self.input_names = {value.name for value in proto.graph.input}
        self._groups = list(_groups(wanted, self._stats))
        self._given = [name for name in self._stats if name not in made]

    def update(self, feeds: Feed) -> None:
        """Run one batch.

        Raises
        ------
        CalibrationError
            When the float model fails on it.
        """
        for name in self._given:
            if name in feeds:
                self._count(name, np.asarray(feeds[name]))
        for group in self._groups:
            try:
                values = self._session.run(feeds, group)
            except ModelError as error:
                raise CalibrationError(f"{error} (on a calibration sample)") from None
            for name in group:
                self._count(name, np.asarray(values.pop(0)))

    def _count(self, name: str, value: Any) -> None:
        stats = self._stats[name]
        if stats.histogram is None:
            stats.histogram = Histogram(np.zeros(BINS, np.int64), stats.low, stats.high)
        ops.histogram(value, stats.low, stats.high, BINS, counts=stats.histogram.counts)
        channels, view = self._result.channels.get(name), self._views.get(name)
        if channels is None or view is None or not channels.usable:
            return
        if channels.counts is None:
            channels.counts = np.zeros((len(channels.low), CHANNEL_BINS), np.int64)
        rows = np.moveaxis(value, -1 if view.rank is None else 1, 0)
        for row, low, high, counts in zip(rows, channels.low, channels.high, channels.counts, strict=True):
            ops.histogram(row, *_widened(low, high), CHANNEL_BINS, counts=counts)


def _widened(low: float, high: float) -> tuple[float, float]:
    """Return a range that bins of float32 can divide, for channels that hardly vary."""
    least = max(abs(low), abs(high)) * 1e-3 + 1e-30
    return (low, high) if high - low > least else (low - least, high + least)


def _groups(names: Sequence[str], stats: dict[str, TensorStats]) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for name in names:
        taken = 4 * stats[name].elements
        if group and size + taken > _FETCHED_BYTES:
            yield group
            group, size = [], 0
        group.append(name)
        size += taken
    if group:
        yield group
