"""The model of time: what it says is the same on every machine, and decides where int8 does not pay."""

import re

import numpy as np
from corpus import Builder, Built

import quantkit
from quantkit.graph import Node
from quantkit.models.calibration.statistics import Calibration, TensorStats
from quantkit.models.refinement.costs import node_costs, promising, total
from quantkit.models.refinement.speed import Costs


def calibration(**shapes):
    return Calibration({name: TensorStats(0, 1, 0, 1, shape) for name, shape in shapes.items()})


def test_a_dense_conv_gains_and_a_depthwise_one_loses():
    seen = calibration(x=(1, 64, 24, 48), y=(1, 64, 24, 48))
    dense = node_costs(Node("Conv", ["x", "w"], ["y"]), "static", seen, 73728 * 576, 0)
    depthwise = node_costs(Node("Conv", ["x", "w"], ["y"], group=64), "static", seen, 73728 * 25, 0)
    assert dense[1] < 0.5 * dense[0]
    assert depthwise[1] > 1.5 * depthwise[0]


def test_a_factor_that_is_a_scale_costs_nothing():
    seen = calibration(x=(1, 64, 24, 48), y=(1, 64, 24, 48))
    as_float, as_int8 = node_costs(Node("Mul", ["x", "c"], ["y"]), "passthrough", seen, 0, 0, rescaled=True)
    assert as_float > 0
    assert as_int8 == 0


def test_borders_are_paid_where_the_state_changes():
    costs = Costs(np.ones(4), np.zeros(4), np.array([5.0, 1.0, 2.0, 4.0]), np.ones(4))
    assert total(costs, np.array([False, True, True, False])) == 2 + 1 + 4
    assert total(costs, np.array([True] * 4)) == 5


def test_nothing_is_tried_where_int8_is_not_slower():
    costs = Costs(np.full(3, 100.0), np.array([10.0, 120.0, 10.0]), np.ones(3), np.ones(3))
    assert promising(costs, [np.zeros(3, bool)]) == []
    slow = Costs(np.full(3, 100.0), np.array([10.0, 600.0, 10.0]), np.ones(3), np.ones(3))
    part, none = np.array([True, False, True]), np.zeros(3, bool)
    found = promising(slow, [none, part])
    assert [list(c) for c in found] == [list(part), list(none)]


def depthwise():
    b = Builder(61)
    x = b.conv(b.conv("x", 3, 16), 16, 16)
    for _ in range(6):
        x = b.op("Relu", b.conv(x, 16, 16, 5, group=16))
    return Built(b.model(b.conv(x, 16, 16)), shape=(1, 3, 96, 96))


def test_the_same_model_gives_the_same_bytes_and_leaves_its_depthwise_convs_float():
    built = depthwise()
    results = [quantkit.quantize_model(built.proto, calibration=built.feeds(16), measure=False) for _ in range(2)]
    assert results[0].model == results[1].model
    left = [node for node in results[0].report.nodes if "costs onnxruntime more time" in node.reason]
    assert [node.op_type for node in left].count("Conv") == 6
    (reason,) = {node.reason for node in left}
    pattern = (
        r"left float: int8 costs onnxruntime more time here, (.+) us instead of (.+) for \d+ nodes; the outputs .+"
    )
    in_int8, in_float = map(float, re.fullmatch(pattern, reason).groups())
    assert in_int8 > in_float
    assert f"6 with int8 weights only (Conv): {reason}\n" in results[0].report.summary()
    assert all(node.decision == "weight_only" for node in left if node.op_type == "Conv")
    assert results[0].report.int8_weight_share == 1.0
    kept = quantkit.quantize_model(built.proto, calibration=built.feeds(16), measure=False, allow_slower=True).report
    assert kept.int8_mac_share == 1.0
