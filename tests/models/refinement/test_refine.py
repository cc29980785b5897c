"""The outputs decide: which candidate is kept, and what stays float."""

import numpy as np
from corpus import MODELS, Builder, Built

import quantkit


def options(built, **more):
    result = quantkit.quantize_model(built.proto, calibration=built.feeds(16), measure=False, **more)
    return result.report


def test_equalized_channels_win_where_they_help():
    assert options(MODELS["gated_units"]()).options["refined"] == "channels equalized"


def long_model():
    b = Builder(40)
    x = "x"
    for i in range(10):
        x = b.op("Relu", b.conv(x, 3 if i == 0 else 8, 8, 1))
    return Built(b.model(b.conv(x, 8, 2, 1)))


def spectrum_model():
    """Plain Convs, then powers, sums of them and their logarithm: small ones, which int8 makes zero, matter."""
    b = Builder(40)
    x = "x"
    for i in range(8):
        x = b.op("Relu", b.conv(x, 3 if i == 0 else 8, 8, 1))
    bands = b.op("Conv", b.op("Mul", x, x), b.const(np.eye(6, 8, dtype=np.float32).reshape(6, 8, 1, 1)))
    return Built(b.model(b.op("Log", b.op("Add", bands, b.const(np.float32(1e-6))))))


def test_the_part_that_costs_the_outputs_most_stays_float():
    report = options(spectrum_model())
    left = [node for node in report.nodes if node.reason.startswith("left float")]
    assert [node.op_type for node in left] == ["Conv", "Log"]
    assert report.int8_weight_share == 1.0
    assert report.int8_mac_share >= 0.6
    assert "parts float" in report.options["refined"]
    assert [block.sqnr_db for block in report.blocks] == sorted(block.sqnr_db for block in report.blocks)
    worst = report.blocks[0]
    assert (worst.first, worst.last, worst.left_float) == (left[0].name, left[1].name, True)
    assert worst.base_db < 20 < min(block.sqnr_db for block in report.blocks[1:])
    assert all(node.reason.endswith("infinite values or NaN with these 2 nodes alone in int8") for node in left)


def test_what_is_left_float_mends_the_outputs():
    built = spectrum_model()
    result = quantkit.quantize_model(built.proto, calibration=built.feeds(32))
    assert result.report.agreement.worst_sqnr.sqnr_db >= 20
    assert result.report.agreement.outputs[0].broken == 0


def test_nothing_is_left_float_without_need():
    report = options(long_model(), refine=False)
    assert report.int8_weight_share == 1.0
    assert not [node for node in report.nodes if node.reason.startswith("left float")]
