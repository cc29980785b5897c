"""The outputs decide: which candidate is kept, and what stays float."""

import numpy as np
from corpus import MODELS, Builder, Built

import quantkit
from quantkit.models.refinement import refine
from quantkit.models.refinement.refine import _worst_noise


def options(built, **more):
    result = quantkit.quantize_model(built.proto, calibration=built.feeds(16), measure=False, **more)
    return result.report


def test_noise_is_that_of_the_worst_output():
    a = [[np.float32([3, 4]), np.float32([1, 1]), np.array([7])]]
    b = [[np.float32([3, 4]), np.float32([1, 0.5]), np.array([8])]]
    assert _worst_noise(a, b) == 0.125
    assert _worst_noise(a, a) == 0


def test_nan_in_the_candidate_is_no_agreement():
    assert _worst_noise([[np.float32([1, 2])]], [[np.float32([1, np.nan])]]) == np.inf


def test_infinite_values_are_no_warnings():
    with np.errstate(all="raise"):
        assert _worst_noise([[np.float32([np.inf, 2])]], [[np.float32([np.inf, 1])]]) == 0.25
        assert _worst_noise([[np.float32([1, 2])]], [[np.float32([-np.inf, 2])]]) == np.inf


def test_equalized_channels_win_where_they_help():
    assert options(MODELS["gated_units"]()).options["refined"] == "channels equalized"


def long_model():
    b = Builder(40)
    x = "x"
    for i in range(10):
        x = b.op("Relu", b.conv(x, 3 if i == 0 else 8, 8, 1))
    return Built(b.model(b.conv(x, 8, 2, 1)))


def test_blocks_stay_float_when_agreement_falls_short(monkeypatch):
    monkeypatch.setattr(refine, "_GOOD", 1e-9)
    monkeypatch.setattr(refine, "_LEAST_WEIGHT_SHARE", 0.5)
    monkeypatch.setattr(refine, "_LEAST_MAC_SHARE", 0.5)
    monkeypatch.setattr(refine, "_WORTH", 1.0)
    report = options(long_model())
    left = [node for node in report.nodes if node.reason.startswith("left float")]
    assert left
    assert report.int8_weight_share >= 0.5
    assert "blocks float" in report.options["refined"]
    assert [block.left_float for block in report.blocks].count(True) >= 1
    assert all(block.sqnr_db > block.base_db for block in report.blocks)
    for block in report.blocks:
        numbers = f", {block.base_db:.1f} dB with these {block.nodes} nodes in int8 instead of {block.sqnr_db:.1f}"
        told = [node.name for node in left if node.reason.endswith(numbers)]
        assert not block.left_float or block.first in told or block.last in told
    assert [block.sqnr_db for block in report.blocks] == sorted((b.sqnr_db for b in report.blocks), reverse=True)


def test_nothing_is_left_float_without_need():
    report = options(long_model(), refine=False)
    assert report.int8_weight_share == 1.0
    assert not [node for node in report.nodes if node.reason.startswith("left float")]
