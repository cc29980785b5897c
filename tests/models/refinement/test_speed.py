"""Which nodes go back to float: attribution of measured times, the cheapest assignment, and what is kept."""

import numpy as np
import pytest
from corpus import Builder, Built

import quantkit
from quantkit.models import quantizer
from quantkit.models.refinement import refine
from quantkit.models.refinement.speed import (
    Costs,
    assignments,
    attribute,
    cheapest,
    is_short_and_slower,
    is_slower,
    losses,
)
from quantkit.models.verification.execution import NodeTime
from quantkit.models.verification.latency import Latency


def costs(as_float, as_int8, border=1.0, weights=None):
    count = len(as_float)
    return Costs(
        np.array(as_float, float),
        np.array(as_int8, float),
        np.full(count, border),
        np.array([1.0] * count if weights is None else weights, float),
    )


def test_times_go_to_the_nodes_that_onnxruntime_names_its_own_after():
    places = {"conv_1": 0, "y": 0, "pool": 1, "z_0": 1}
    times = [
        NodeTime(("Transpose_token_3", "x_q_transposed"), 5),
        NodeTime(("conv_1_token_8",), 11),
        NodeTime(("", "z_0_q_2"), 4),
        NodeTime(("ReorderOutput_9",), 3),
    ]
    assert attribute(times, places, 3, 1.0).tolist() == [14.0, 5.0, 0.0]


def test_a_border_must_pay():
    assert cheapest(costs([5, 5, 5], [1, 30, 1], border=1.5)).tolist() == [True, False, True]
    assert cheapest(costs([5, 5, 5], [1, 6, 1], border=3.5)).tolist() == [True, True, True]
    assert cheapest(costs([5, 5, 5], [1, 30, 1], border=4.5)).tolist() == [False, False, False]
    assert cheapest(costs([1, 1], [5, 5])).tolist() == [False, False]


def test_weights_are_bought_back_until_the_share_is_reached():
    given = costs([1, 1, 1], [4, 2, 9], border=0.1, weights=[50, 45, 5])
    found = [chosen.tolist() for chosen in assignments(given, (0.95, 0.4))]
    assert found == [[True, True, False], [False, True, False], [False, False, False]]
    assert losses(given, lambda i: f"node {i}", most=2) == "node 2 (+8 us), node 0 (+3 us)"


@pytest.mark.parametrize(
    ("float_ms", "int8_ms", "spread", "slower"),
    [(1, 1.02, 0, False), (1, 1.04, 0, True), (1, 1.04, 0.05, False), (0.1, 0.5, 0, False)],
)
def test_slower_is_what_the_measurement_can_tell(float_ms, int8_ms, spread, slower):
    assert is_slower(Latency(float_ms, int8_ms, spread, 10)) is slower


def test_a_short_run_is_slower_only_beyond_the_noise():
    assert is_short_and_slower(Latency(0.1, 0.5, 0, 10))
    assert not is_short_and_slower(Latency(0.1, 0.12, 0.3, 10))
    assert not is_short_and_slower(Latency(1, 2, 0, 10))


def timed_as(monkeypatch, latency, **options):
    monkeypatch.setattr(quantizer, "measure_latency", lambda *_: latency)
    built = chain()
    report = quantkit.quantize_model(built.proto, calibration=built.feeds(16), refine=False, **options).report
    return [w for w in report.warnings if "slower than float" in w]


def test_a_short_model_that_is_slower_says_so(monkeypatch):
    short = Latency(0.1, 0.15, 0.0, 10)
    assert timed_as(monkeypatch, short) == [
        "slower than float in onnxruntime on one thread (1.50x the time): a run this short is mostly calls and nodes, "
        "of which int8 has more; mode weight_only keeps float arithmetic"
    ]
    assert timed_as(monkeypatch, short, mode="weight_only") == []
    assert timed_as(monkeypatch, short, allow_slower=True) == []
    assert timed_as(monkeypatch, Latency(0.1, 0.09, 0.0, 10)) == []


def chain():
    b = Builder(60)
    x = b.op("Relu", b.conv("x", 3, 16))
    for _ in range(4):
        x = b.op("Relu", b.conv(x, 16, 16))
    return Built(b.model(x), shape=(1, 3, 24, 24))


def quantize(monkeypatch, ratio, **options):
    """Quantize with a clock that says what int8 costs by how many of the model's Convs are int8."""

    def timed(self, session, candidate, feed):
        convs = [r for r in candidate.records if r.op_type == "Conv" and r.decision == "static"]
        return Latency(1.0, ratio(len(convs)), 0.0, 10)

    monkeypatch.setattr(refine.Refiner, "_time", timed)
    built = chain()
    return quantkit.quantize_model(built.proto, calibration=built.feeds(16), **options).report


def test_nothing_changes_where_int8_is_faster(monkeypatch):
    report = quantize(monkeypatch, lambda convs: 0.9)
    assert report.int8_weight_share == 1.0


def test_nodes_go_back_to_float_where_int8_is_slower(monkeypatch):
    monkeypatch.setattr(refine, "node_times", fake_times)
    report = quantize(monkeypatch, lambda convs: 2.0 if convs > 4 else 0.8)
    left = [node.op_type for node in report.nodes if "measured slower" in node.reason]
    assert left.count("Conv") == 1
    assert "measured slower" in report.options["refined"]
    assert not [w for w in report.warnings if "slower than float" in w]
    (conv,) = (node.name for node in report.nodes if node.op_type == "Conv" and "measured slower" in node.reason)
    (warning,) = [w for w in report.warnings if "went back to float" in w]
    assert warning.startswith("int8 measured 2.00x the float time in onnxruntime on one thread: ")
    assert repr(conv) in warning


def fake_times(proto, feed, runs, *, tensors=None):
    """Say that the first Conv is slow in int8, and everything else faster."""
    is_int8 = any(node.op_type == "QuantizeLinear" for node in proto.graph.node)
    convs = [node for node in proto.graph.node if node.op_type == "Conv"]
    return [NodeTime((node.name,), (90.0 if i == 0 else 5.0) if is_int8 else 30.0) for i, node in enumerate(convs)]


def test_a_model_that_stays_slower_says_which_nodes_lose(monkeypatch):
    monkeypatch.setattr(refine, "node_times", fake_times)
    report = quantize(monkeypatch, lambda convs: 2.0)
    (warning,) = [w for w in report.warnings if "slower than float" in w]
    assert "2.00x the time" in warning
    assert "Conv" in warning
    assert report.int8_weight_share == 1.0


@pytest.mark.parametrize("options", [{"allow_slower": True}, {"refine": False}, {"measure": False}])
def test_the_measurement_can_be_left_out(monkeypatch, options):
    report = quantize(monkeypatch, lambda convs: pytest.fail("was timed"), **options)
    assert report.int8_weight_share == 1.0
