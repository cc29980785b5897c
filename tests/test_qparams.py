"""QParams and how they are chosen."""

import pickle

import numpy as np
import oracle
import pytest

from quantkit import QParams, choose_qparams, qint8, quint8
from quantkit.errors import InvalidDType, InvalidQParams
from quantkit.qparams import as_qdtype


def test_per_tensor_parameters_are_python_numbers():
    params = QParams(np.float64(0.1), np.uint8(3))
    assert (params.scale, params.zero_point, params.axis) == (float(np.float32(0.1)), 3, None)
    assert type(params.zero_point) is int
    assert not params.per_channel
    assert not params.has_float_zero_point
    assert QParams(1, 2.5).has_float_zero_point


def test_per_channel_parameters_are_frozen_arrays():
    params = QParams([0.1, 0.2], 7, axis=-1)
    assert params.zero_point.tolist() == [7, 7]
    with pytest.raises(ValueError, match="read-only"):
        params.scale[0] = 1
    assert params == pickle.loads(pickle.dumps(params))
    assert hash(params) == hash(QParams([0.1, 0.2], [7, 7], axis=-1))
    assert params != QParams([0.1, 0.2], 7, axis=0)
    assert params != QParams([0.1, 0.2], 7.0, axis=-1)
    assert QParams(1) != 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0,), "scale must be finite and > 0, got 0.0"),
        ((1e-50,), r"got 1e-50 \(0.0 in float32\)"),
        ((1e39,), r"got 1e\+39 \(inf in float32\)"),
        (([1.0, -2.0], 0, 0), "got -2.0 at channel 1"),
        (([1.0, 2.0],), r"per-channel parameters of shape \(2,\) need an axis"),
        (([1.0, 2.0], [1, 2, 3], 0), "differ in length: 2 and 3"),
        ((1.0, np.nan), "zero_point must be finite"),
        ((1.0, 0, 0.5), "axis must be an integer"),
        (("x",), "scale must be a real number"),
    ],
)
def test_bad_parameters(arguments, message):
    with pytest.raises(InvalidQParams, match=message):
        QParams(*arguments)


@pytest.mark.parametrize(
    ("low", "high", "dtype", "symmetric", "scale", "zero_point"),
    [
        (0, 255, quint8, False, 1, 0),
        (-1, 1, quint8, False, *oracle.dynamic_qparams(np.float32([-1, 1]))),
        (3, 5, quint8, False, np.float32(5) / np.float32(255), 0),
        (-5, -3, quint8, False, np.float32(5) / np.float32(255), 255),
        (0, 0, quint8, False, 1, 0),
        (0, 255, qint8, False, 1, -128),
        (-2, 1, qint8, True, np.float32(2) / np.float32(127), 0),
        (-2, 1, quint8, True, np.float32(2) / np.float32(127), 128),
        (0, 1e-45, quint8, False, np.finfo(np.float32).tiny, 0),
    ],
)
def test_chosen_from_a_range(low, high, dtype, symmetric, scale, zero_point):
    params = choose_qparams(low, high, dtype, symmetric=symmetric)
    assert (params.scale, params.zero_point) == (float(scale), zero_point)


def test_channels_are_chosen_one_by_one():
    low, high = np.array([-1, 0, -3.0]), np.array([1, 4, 0.0])
    params = choose_qparams(low, high, axis=1)
    for i in range(3):
        one = choose_qparams(low[i], high[i])
        assert (params.scale[i], params.zero_point[i]) == (one.scale, one.zero_point)


@pytest.mark.parametrize("low", [-3.4028235e38, -3.4e38, -1e38, -3e37, 0])
@pytest.mark.parametrize("high", [3.4028235e38, 3.4e38, 2e38, 1e30])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_ranges_that_nearly_fill_float32_stay_finite(low, high, dtype):
    params = choose_qparams(low, high, dtype)
    info = np.iinfo(dtype)
    ends = oracle.dequantize_linear(np.array([info.min, info.max], dtype), params.scale, params.zero_point)
    assert np.isfinite(ends).all()
    assert np.allclose(ends, [low, high], rtol=0.01, atol=params.scale)


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (1, 0, r"low <= high, got \[1.0, 0.0\]"),
        (0, np.inf, "wanted a finite range"),
        ([0, np.nan], [1, 1], "at channel 1"),
        ("a", 1, "wanted two real numbers"),
        ([0, 1], [1, 2, 3], "two arrays of one length"),
    ],
)
def test_ranges_that_cannot_be(low, high, message):
    with pytest.raises(InvalidQParams, match=message):
        choose_qparams(low, high)


def test_quantized_dtypes():
    assert as_qdtype("quint8") is quint8
    assert as_qdtype(np.int8) is qint8
    assert pickle.loads(pickle.dumps(quint8)) is quint8
    assert repr(qint8) == "quantkit.qint8"
    for other in (np.int16, "int4", None, 3):
        with pytest.raises(InvalidDType, match="wanted quint8"):
            as_qdtype(other)
