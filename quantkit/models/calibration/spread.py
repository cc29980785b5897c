"""Calibration by the workers of a Dask cluster: each runs the float model over some of the samples.

A task is the numbers of some samples, and what comes back is as large as the statistics of the model; model and data
source travel once. What workers saw is merged in the order of the samples, so that ranges and histograms are those of
one machine, and sums those up to the order of their addition.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from quantkit.cluster import cluster_map, connected
from quantkit.errors import CalibrationError, InvalidArgument
from quantkit.graph import Graph, Model, load_model
from quantkit.graph.io import model_bytes
from quantkit.models.calibration.calibrate import Driver, Wanted, histogram_driver, name_left_out, range_driver
from quantkit.models.calibration.statistics import Calibration, ChannelStats, TensorStats
from quantkit.models.data.feeds import FeedSource, open_data
from quantkit.models.data.image_data import NoReadableImage, opened_images
from quantkit.models.inputs import InputSpec
from quantkit.ranges import RangeMethod
from quantkit.text import told

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from quantkit.images import Recipe

_SAMPLES = 32  # of a task


@dataclass(frozen=True)
class _Work:
    """What every worker has to know."""

    key: str
    model: bytes
    wanted: tuple[Wanted, ...]  # of the graphs, in the order of `Model.graphs`
    data: Any
    inputs: tuple[InputSpec, ...]
    recipe: Recipe | None
    ranges: tuple[Calibration, ...] = ()  # where histograms are wanted


class _Seen(NamedTuple):
    first: int  # of its samples, the number in the source
    samples: int
    found: list[Calibration]
    skipped: dict[str, str]


def calibrate_on_cluster(
    model: Model,
    wanted: Mapping[Graph, Wanted],
    feeds: FeedSource,
    data: Any,
    inputs: list[InputSpec],
    scheduler: Any,
    method: RangeMethod,
    tell: Callable[[int], None],
) -> dict[Graph, Calibration]:
    """Do what `calibrate` does on the workers of a cluster.

    Parameters
    ----------
    model, wanted, method
        As there.
    feeds : FeedSource
        The samples.
    data : path, URL, ImageShards or ImageFolder
        What `feeds` was opened from; workers open it as well.
    inputs : list of InputSpec
    scheduler : str or distributed.Client
        As `cluster_map` takes it.
    tell : callable
        Told how many samples are done.

    Raises
    ------
    InvalidArgument
        For data that only this process has.
    CalibrationError
        When there is no sample, or the float model fails on one.
    ClusterError, MissingDependency
        When the cluster cannot be reached or loses its workers; without Dask.
    """
    check_data(data)
    graphs = model.graphs()
    work = _Work("", model_bytes(model), tuple(wanted[g] for g in graphs), data, tuple(inputs), feeds.recipe)
    with connected(scheduler) as client:
        found = _gather(client, replace(work, key=uuid.uuid4().hex), feeds, tell)
        if not found[0].batches:
            why = next(iter(feeds.skipped.items()), None)
            more = "" if why is None else f": none of its images could be read; {why[0]}: {why[1]}"
            raise CalibrationError(f"the calibration data has no samples{more}")
        name_left_out(found)
        if method.needs_histogram:
            for calibration in found:
                for stats in calibration.tensors.values():
                    stats.method = method
            counted = replace(work, key=uuid.uuid4().hex, ranges=tuple(found))
            for total, counts in zip(found, _gather(client, counted, feeds, tell), strict=True):
                total.merge(counts)
    return dict(zip(graphs, found, strict=True))


def check_data(data: Any) -> None:
    """Check that workers can open calibration data.

    Raises
    ------
    InvalidArgument
        When only this process has it.
    """
    if not isinstance(data, str) and not hasattr(data, "__fspath__") and opened_images(data) is None:
        raise InvalidArgument(
            "scheduler: workers open the calibration data themselves: wanted a path, a URL or open_images, got "
            f"{told(data)}"
        )


def _gather(client: Any, work: _Work, feeds: FeedSource, tell: Callable[[int], None]) -> list[Calibration]:
    """Have every sample seen, and return what was seen, one Calibration for each graph."""
    step = -(-_SAMPLES // feeds.batch) * feeds.batch
    end = len(feeds) - len(feeds) % feeds.batch or len(feeds)  # what does not fill a batch is left out, as elsewhere
    tasks = [feeds.numbers[i : min(i + step, end)] for i in range(0, end, step)]
    parts: list[_Seen] = []
    for seen in cluster_map(_observe, tasks, client, shared=work):
        parts.append(seen)
        feeds.skipped.update(seen.skipped)
        tell(sum(part.samples for part in parts))
    merged = [Calibration() for _ in work.wanted]
    for seen in sorted(parts, key=lambda part: part.first):
        for total, found in zip(merged, seen.found, strict=True):
            total.merge(found)
    return merged


# ------------------------------------------------------------------------------------------------------ on a worker

_lock = threading.Lock()  # a worker may have several threads; onnxruntime has its own
_opened: dict[str, _Opened] = {}


def _observe(numbers: NDArray[np.int64], work: _Work) -> _Seen:
    with _lock:
        if work.key not in _opened:
            _opened.clear()
            _opened[work.key] = _Opened(work)
        return _opened[work.key].see(numbers)


class _Opened:
    """Model and data, opened once by each worker."""

    def __init__(self, work: _Work) -> None:
        self._source = open_data(work.data, work.inputs, recipe=work.recipe)
        model = load_model(work.model)
        graphs = model.graphs()
        wanted = dict(zip(graphs, work.wanted, strict=True))
        self._counting = bool(work.ranges)
        self._found = [deepcopy(c) for c in work.ranges] if self._counting else [Calibration() for _ in graphs]
        found = dict(zip(graphs, self._found, strict=True))
        make: Callable[..., Driver] = histogram_driver if self._counting else range_driver
        self._driver = make(model, wanted, found)

    def see(self, numbers: NDArray[np.int64]) -> _Seen:
        """Run the float model over some samples and return what was seen of them alone."""
        before = dict(self._source.skipped)
        with suppress(NoReadableImage):  # there are others
            for feeds in self._source.take(numbers):
                self._found[0].batches += not self._counting
                self._driver.update(feeds)
        taken = [(_counts if self._counting else _ranges)(found) for found in self._found]
        skipped = {path: why for path, why in self._source.skipped.items() if path not in before}
        return _Seen(int(numbers[0]), len(numbers), taken, skipped)


def _ranges(found: Calibration) -> Calibration:
    """Return what was collected, and begin anew."""
    taken = copy(found)
    found.tensors, found.channels = {name: TensorStats() for name in found.tensors}, {}
    found.batches, found.warnings = 0, []
    return taken


def _counts(found: Calibration) -> Calibration:
    """Return the histograms alone, and begin anew."""
    taken = Calibration()
    for name, stats in found.tensors.items():
        if stats.histogram is not None:
            taken.tensors[name] = TensorStats(histogram=stats.histogram)
            stats.histogram = None
    for name, channels in found.channels.items():
        if channels.counts is not None:
            nothing = np.zeros_like(channels.sums)
            taken.channels[name] = ChannelStats(channels.low, channels.high, nothing, nothing, 0, channels.counts)
            channels.counts = None
    return taken
