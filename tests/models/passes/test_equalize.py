"""Equalization changes nothing that the float model computes, and evens out what it may."""

import numpy as np
import onnxruntime as ort
import pytest
from corpus import MODELS

from quantkit.graph import load_model
from quantkit.models.calibration.calibrate import Wanted, calibrate
from quantkit.models.passes.channel_groups import channel_views, find_groups
from quantkit.models.passes.equalize import equalize
from quantkit.models.passes.prepare import prepare
from quantkit.models.planning.plan import observed_tensors


def calibrated(built):
    model = prepare(load_model(built.proto))
    groups = find_groups(model.graph, set())
    views = channel_views(model.graph, groups)
    wanted = {model.graph: Wanted((*observed_tensors(model.graph), *views), views)}
    return model, groups, calibrate(model, wanted, built.feeds(8))[model.graph]


def run(proto, feed):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(proto.SerializeToString(), options).run(None, feed)


@pytest.mark.parametrize("name", ["gated_units", "mobilenet_squeeze_excite", "hard_swish_in_pieces", "resnet"])
def test_the_float_model_stays_what_it_was(name):
    built = MODELS[name]()
    model, groups, seen = calibrated(built)
    assert groups
    equalize(model.graph, groups, seen)
    feed = built.feeds(1, seed=5)[0]
    for a, b in zip(run(built.proto, feed), run(model.to_proto(), feed), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5 * np.abs(a).max())


def test_the_statistics_follow():
    built = MODELS["gated_units"]()
    model, groups, seen = calibrated(built)
    assert equalize(model.graph, groups, seen)
    again = calibrate(model, {model.graph: Wanted(tuple(seen.tensors))}, built.feeds(8))[model.graph]
    for name, stats in seen.tensors.items():
        np.testing.assert_allclose(
            [stats.low, stats.high], [again[name].low, again[name].high], rtol=1e-4, atol=1e-5, err_msg=name
        )


def test_channels_come_closer():
    built = MODELS["gated_units"]()
    model, groups, seen = calibrated(built)

    def spread():
        found = [seen.channels[name] for group in groups for name in group.tensors]
        return [np.ptp(np.log(np.maximum(f.high - f.low, 1e-9))) for f in found]

    before = spread()
    equalize(model.graph, groups, seen)
    assert sum(spread()) < 0.7 * sum(before)


def test_a_model_output_is_left_alone():
    built = MODELS["two_outputs"]()
    model, groups, _ = calibrated(built)
    outputs = set(model.graph.output_names)
    assert not [name for group in groups for name in group.tensors if name in outputs]


def test_excluded_nodes_are_left_alone():
    built = MODELS["gated_units"]()
    model = prepare(load_model(built.proto))
    convs = {node for node in model.graph.nodes if node.op_type == "Conv"}
    assert find_groups(model.graph, convs) == []
