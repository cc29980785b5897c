"""What CPUs without VNNI could make of the weights, against what their instruction does."""

import numpy as np
import pytest
from corpus import MODELS

import quantkit
from quantkit.graph import load_model
from quantkit.models.forms.saturation import PAIR_LIMIT, find_saturation, pair_sums, quantize_within_pairs


def saturates(row):
    """Whether vpmaddubsw could saturate on a row of weights: all choices of 0 and 255 for two neighbours."""
    row = [*row, *[0] * (len(row) % 2)]
    pairs = zip(row[::2], row[1::2], strict=True)
    sums = [255 * (x0 * int(a) + x1 * int(b)) for a, b in pairs for x0 in (0, 1) for x1 in (0, 1)]
    return min(sums) < -32768 or max(sums) > 32767


@pytest.mark.parametrize("seed", range(20))
def test_the_limit_is_that_of_the_instruction(seed):
    rng = np.random.default_rng(seed)
    codes = np.clip(rng.normal(size=(40, 7)) * 40, -127, 127).astype(np.int8)
    assert [saturates(row) for row in codes] == (pair_sums(codes, 0, 1) > PAIR_LIMIT).tolist()


def test_neighbours_of_a_conv_lie_along_channels_and_along_taps():
    codes = np.zeros((3, 4, 1, 2), np.int8)
    codes[0, 0, 0] = [100, 90]  # taps of one channel
    codes[1, 2:4, 0, 1] = [-80, -70]  # channels of one tap
    codes[2, 1:3, 0, 0] = [120, 120]  # neighbours, but of no pair
    assert pair_sums(codes, 0, None).tolist() == [190, 150, 120]


@pytest.mark.parametrize(("axis", "depth"), [(0, 1), (1, 0), (None, 0), (0, None)])
def test_channels_give_up_no_more_than_they_must(axis, depth):
    shape = (6, 5, 3, 3) if depth is None else (6, 40)
    values = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    found = quantize_within_pairs(values, axis, 0.0, depth)
    sums = np.atleast_1d(pair_sums(found.codes, axis, depth))
    assert sums.max() <= PAIR_LIMIT
    reach = np.abs(np.moveaxis(found.codes, axis or 0, 0).astype(int)).reshape(len(sums), -1).max(axis=1)
    assert np.all((sums >= PAIR_LIMIT - 2) | (reach == 127))


def quantize(name, **options):
    built = MODELS[name]()
    return built, quantkit.quantize_model(built.proto, calibration=built.feeds(16), measure=False, **options)


@pytest.mark.parametrize("name", ["resnet", "transformer", "lstm", "gemm_factors", "constant_left_operand"])
@pytest.mark.parametrize("options", [{}, {"format": "qoperator"}, {"mode": "dynamic"}])
def test_avoided_everywhere(name, options):
    _, result = quantize(name, avoid_saturation=True, **options)
    assert result.report.saturation.nodes == []
    assert find_saturation(load_model(result.model)).nodes == []
    assert "exact without VNNI: yes" in result.report.summary()
    assert "exact without VNNI: yes" in result.report.to_html()


@pytest.mark.parametrize("name", ["resnet", "transformer", "lstm"])
def test_what_could_saturate_is_named(name):
    _, result = quantize(name)
    found = result.report.saturation.nodes
    assert found
    assert all(node.worst > PAIR_LIMIT and node.channels >= 1 for node in found)
    assert "exact without VNNI: no" in result.report.summary()
    assert result.report.to_dict()["saturation"]["nodes"][0]["worst"] == found[0].worst


def test_depthwise_kernels_widen_first():
    _, result = quantize("mobilenet_squeeze_excite")
    depthwise = [i.name for i in result.model.graph.initializer if list(i.dims) == [16, 1, 3, 3]]
    assert depthwise
    readers = {n.output[0] for n in result.model.graph.node if n.input and n.input[0] in depthwise}
    convs = [n.name for n in result.model.graph.node if set(n.input) & readers]
    assert not {n.name for n in result.report.saturation.nodes} & set(convs)
