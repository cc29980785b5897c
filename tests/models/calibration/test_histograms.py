"""Histograms of calibration: the same whatever the batches, of fixed size, and what they do to a model."""

import numpy as np
import pytest
from corpus import MODELS, Builder, Built, vector

import quantkit
from quantkit.errors import InvalidArgument
from quantkit.graph import load_model
from quantkit.models.calibration.calibrate import Wanted, calibrate
from quantkit.models.passes.channel_groups import channel_views, find_groups
from quantkit.models.passes.equalize import equalize
from quantkit.models.passes.prepare import prepare
from quantkit.models.planning.plan import observed_tensors
from quantkit.ranges import METHODS, RangeMethod


def observe(built, feeds, method):
    model = prepare(load_model(built.proto))
    wanted = {}
    for graph in model.graph.walk():
        views = channel_views(graph, find_groups(graph, set()))
        wanted[graph] = Wanted((*observed_tensors(graph), *views), views)
    return model, calibrate(model, wanted, feeds, RangeMethod(method))


def with_outlier():
    """A product whose input has one value in 25,600 far out."""
    b = Builder(40)
    y = b.op("MatMul", "x", b.weight(32, 16, scale=0.2))
    built = Built(b.model(y, [vector("x", "n", 32)]), (800, 32))
    feeds = built.feeds(16)
    for feed in feeds:
        feed["x"][0, 0] = 60
    return built, feeds


def test_how_samples_are_batched_does_not_matter():
    built, feeds = with_outlier()
    rows = np.concatenate([f["x"] for f in feeds])
    found = [observe(built, [{"x": part} for part in np.split(rows, parts)], "percentile")[1] for parts in (1, 16, 800)]
    first, *others = [next(iter(seen.values())).tensors["x"] for seen in found]
    assert first.histogram.counts.sum() == rows.size
    for other in others:
        np.testing.assert_array_equal(other.histogram.counts, first.histogram.counts)
        assert other.range == first.range


def test_the_first_batch_does_not_set_the_width_of_the_bins():
    """Bins of the width of a first batch of tiny values would number 10^10."""
    built, feeds = with_outlier()
    tiny = [{"x": feeds[0]["x"] * np.float32(1e-6)}, *feeds]
    stats = next(iter(observe(built, tiny, "mse")[1].values())).tensors["x"]
    assert len(stats.histogram.counts) == 2048
    assert stats.range[1] > 3


@pytest.mark.parametrize("method", METHODS)
def test_each_method_gives_a_model_that_agrees(method):
    built, feeds = with_outlier()
    result = quantkit.quantize_model(built.proto, calibration=feeds, calibration_method=method, measure=False)
    (row,) = result.report.ranges
    assert (row.low, row.high) == (pytest.approx(min(f["x"].min() for f in feeds), abs=1), 60)
    step = row.scale * 255
    assert {"minmax": 63 < step < 67, "mse": 9 < step < 64}.get(method, step < 12)
    assert result.report.options["calibration_method"] == method


def test_a_percentile_lets_go_of_as_much_as_it_says():
    built, feeds = with_outlier()
    steps = []
    for percent in (100, 99.99, 90):
        result = quantkit.quantize_model(
            built.proto, calibration=feeds, calibration_method="percentile", percentile=percent, measure=False
        )
        steps.append(result.report.ranges[0].scale * 255)
    assert steps[0] > steps[1] > steps[2]
    assert steps[0] == pytest.approx(64, abs=1.5)
    assert steps[2] == pytest.approx(2 * 1.645, rel=0.05)


def test_bodies_and_equalized_channels_have_histograms_too():
    for name in ("bodies_that_compute", "gated_units"):
        built = MODELS[name]()
        model, seen = observe(built, built.feeds(4), "percentile")
        for graph in model.graph.walk():
            for tensor, stats in seen[graph].tensors.items():
                if stats.seen and stats.high > stats.low:
                    assert stats.histogram is not None, tensor
        calibration = seen[model.graph]
        before = {name: stats.histogram for name, stats in calibration.tensors.items()}
        if equalize(model.graph, find_groups(model.graph, set()), calibration):
            moved = [n for n, stats in calibration.tensors.items() if n in before and stats.histogram is not before[n]]
            assert moved
            for tensor in moved:
                stats = calibration.tensors[tensor]
                assert (stats.histogram.low, stats.histogram.high) == (stats.low, stats.high)
                assert stats.histogram.counts.sum() == before[tensor].counts.sum()
        else:
            assert name == "bodies_that_compute"


def test_an_option_that_means_nothing_is_refused():
    built, feeds = with_outlier()
    with pytest.raises(InvalidArgument, match="mode dynamic has none"):
        quantkit.quantize_model(built.proto, calibration=feeds, mode="dynamic", calibration_method="mse")
    with pytest.raises(InvalidArgument, match="got 'max'"):
        quantkit.quantize_model(built.proto, calibration=feeds, calibration_method="max")
