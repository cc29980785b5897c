"""quantize_linear, dequantize_linear and dynamic_quantize_linear as users call them."""

import ml_dtypes
import numpy as np
import oracle
import pytest

from quantkit import ops, qint8, quint8
from quantkit.errors import InvalidArgument, InvalidDType, InvalidQParams, QuantkitError, ShapeMismatch

X = np.float32([-1.0, 0.0, 0.25, 0.75, 1.0, 300.0])


def test_defaults():
    q = ops.quantize_linear(X, 0.5)
    assert q.dtype == np.uint8
    assert q.tolist() == [0, 0, 0, 2, 2, 255]
    assert ops.dequantize_linear(q, 0.5).dtype == np.float32


def test_lists_and_numbers_are_float32():
    # 0.35 / float32(0.1) is below 3.5 in float64, and exactly 3.5 in float32.
    assert ops.quantize_linear([0.35], 0.1).tolist() == [4]
    assert ops.quantize_linear(np.float64([0.35]), 0.1).tolist() == [3]
    q = ops.quantize_linear(1.5, 0.5)
    assert q.shape == ()
    assert q == 3
    assert ops.dequantize_linear(np.uint8(3), 0.5) == 1.5


@pytest.mark.parametrize("ragged", [[[1.0], [1.0, 2.0]], [1.0, [2.0]]])
def test_what_is_no_array(ragged):
    with pytest.raises(InvalidDType, match="quantize_linear: x cannot be read as an array"):
        ops.quantize_linear(ragged, 1.0)
    with pytest.raises(InvalidDType, match="dequantize_linear: q cannot be read as an array"):
        ops.dequantize_linear(ragged, 1.0)


def test_empty_and_zero_dimensional():
    assert ops.quantize_linear(np.zeros((0, 3), np.float32), 1.0).shape == (0, 3)
    assert ops.quantize_linear(np.zeros((0, 3), np.float32), [1, 2, 3], 0, axis=1).shape == (0, 3)
    assert ops.quantize_linear(np.float32(7.0), 1.0).shape == ()
    assert ops.dequantize_linear(np.zeros((2, 0), np.uint8), 1.0).shape == (2, 0)


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({}, np.uint8),
        ({"zero_point": np.int8(-3)}, np.int8),
        ({"zero_point": np.uint8(3)}, np.uint8),
        ({"dtype": np.int8}, np.int8),
        ({"dtype": "int8"}, np.int8),
        ({"dtype": qint8}, np.int8),
        ({"dtype": quint8, "zero_point": np.int8(3)}, np.uint8),
        ({"out": np.empty(6, np.int8)}, np.int8),
    ],
)
def test_dtype_of_the_codes(kwargs, expected):
    assert ops.quantize_linear(X, 0.5, **kwargs).dtype == expected


def test_out_is_returned():
    out = np.empty(6, np.uint8)
    assert ops.quantize_linear(X, 0.5, out=out) is out
    real = np.empty(6, np.float64)
    assert ops.dequantize_linear(out, 0.5, out=real) is real
    assert real.tolist() == [0, 0, 0, 1, 1, 127.5]


def test_dequantize_to_the_dtype_of_the_scale():
    q = np.arange(5, dtype=np.uint8)
    assert ops.dequantize_linear(q, np.float16(0.1)).dtype == np.float16
    assert ops.dequantize_linear(q, ml_dtypes.bfloat16(0.1)).dtype == ml_dtypes.bfloat16
    assert ops.dequantize_linear(q, np.float64(0.1)).dtype == np.float32


def test_int32_codes():
    q = np.int32([-(2**31), -1, 0, 2**31 - 1])
    expected = oracle.dequantize_linear(q, 0.25)
    assert np.array_equal(ops.dequantize_linear(q, 0.25), expected)
    assert np.array_equal(ops.dequantize_linear(q, 0.25, 5), oracle.dequantize_linear(q, 0.25, 5))


def test_out_that_overlaps_the_input():
    for shift in (0, 1, 3, 200):
        raw = np.zeros(4096, np.uint8)
        x = raw[: 4 * 256].view(np.float32)
        x[:] = np.linspace(-3, 3, 256)
        expected = oracle.quantize_linear(x.copy(), 0.03, 128)
        assert np.array_equal(ops.quantize_linear(x, 0.03, 128, out=raw[shift : shift + 256]), expected)


def test_big_endian_input():
    assert ops.quantize_linear(X.astype(">f4"), 0.5).tolist() == ops.quantize_linear(X, 0.5).tolist()


def test_a_zero_point_of_one_serves_all_channels():
    x = np.ones((2, 3), np.float32)
    assert ops.quantize_linear(x, [1, 0.5, 0.25], 7, axis=1).tolist() == [[8, 9, 11]] * 2
    assert ops.quantize_linear(x, 0.5, [1, 2, 3], axis=-1).tolist() == [[3, 4, 5]] * 2
    assert ops.quantize_linear(x, np.float32([0.5]), np.uint8([1])).tolist() == [[3] * 3] * 2


BAD_QPARAMS = [
    ({"scale": 0.0}, "scale must be finite and > 0, got 0.0"),
    ({"scale": -1.0}, "scale must be finite and > 0, got -1.0"),
    ({"scale": np.nan}, "scale must be finite and > 0, got nan"),
    ({"scale": np.inf}, "scale must be finite and > 0, got inf"),
    ({"scale": 1e-60}, r"scale must be finite and > 0, got 1e-60 \(0.0 in float32\)"),
    ({"scale": 1e60}, r"scale must be finite and > 0, got 1e\+60 \(inf in float32\)"),
    ({"scale": [1, 2, 0, 1, 1, 1], "axis": 0}, "got 0.0 at channel 2"),
    ({"scale": "a"}, "scale must be a real number"),
    ({"scale": None}, "scale must be a real number"),
    ({"scale": 1j}, "scale must be a real number"),
    ({"scale": [[1.0]]}, r"0-d or 1-d, got shape \(1, 1\)"),
    ({"zero_point": 256}, r"zero_point must be in \[0, 255\] for quint8, got 256"),
    ({"zero_point": -1}, r"zero_point must be in \[0, 255\] for quint8, got -1"),
    ({"zero_point": 2**70}, "zero_point must be"),
    ({"zero_point": np.nan}, "zero_point must be finite for quint8, got nan"),
    ({"zero_point": 128, "dtype": np.int8}, r"in \[-128, 127\] for qint8, got 128"),
    ({"zero_point": [0, 0, 0, 0, 300, 0], "axis": 0}, "got 300 at channel 4"),
    ({"zero_point": "a"}, "zero_point must be an integer, a float"),
    ({"zero_point": True}, "zero_point must be an integer, a float"),
]


@pytest.mark.parametrize(("kwargs", "message"), BAD_QPARAMS, ids=lambda v: str(v)[:40])
def test_bad_parameters(kwargs, message):
    arguments = {"scale": 1.0, "zero_point": 0, **kwargs}
    out = np.full(6, 77, arguments.get("dtype", np.uint8))
    with pytest.raises(InvalidQParams, match=message) as caught:
        ops.quantize_linear(X, **arguments, out=out)
    assert "quantize_linear: " in str(caught.value)
    assert (out == 77).all()
    if "dtype" not in kwargs:
        with pytest.raises(InvalidQParams, match=message):
            ops.dequantize_linear(np.zeros(6, np.uint8), **arguments)


BAD_CALLS = [
    (InvalidDType, "x must be float16, bfloat16, float32 or float64, got int64", {"x": np.arange(3)}),
    (InvalidDType, "got <U1", {"x": np.array(["a"])}),
    (InvalidDType, "got object", {"x": None}),
    (InvalidDType, "wanted quint8", {"dtype": np.int16}),
    (InvalidDType, "wanted out of uint8, got int8", {"dtype": np.uint8, "out": np.empty(6, np.int8)}),
    (InvalidDType, "wanted out of uint8, got float32", {"out": np.empty(6, np.float32)}),
    (InvalidDType, "wanted out of uint8, got list", {"out": [0] * 6}),
    (ShapeMismatch, r"wanted out of shape \(6,\), got \(7,\)", {"out": np.empty(7, np.uint8)}),
    (ShapeMismatch, r"wanted out of shape \(6,\), got \(6, 1\)", {"out": np.empty((6, 1), np.uint8)}),
    (ShapeMismatch, "6 scales or zero points need axis=", {"scale": np.ones(6)}),
    (ShapeMismatch, "wants 6 values of scale, got 5", {"scale": np.ones(5), "axis": 0}),
    (ShapeMismatch, "wants 6 values of zero_point, got 2", {"zero_point": [1, 2], "axis": 0}),
    (ShapeMismatch, "axis 1 is out of range for an array of 1", {"axis": 1}),
    (ShapeMismatch, "axis -2 is out of range", {"axis": -2}),
    (InvalidDType, "axis must be an integer", {"axis": "x"}),
]


@pytest.mark.parametrize(("error", "message", "kwargs"), BAD_CALLS, ids=lambda v: str(v)[:40])
def test_bad_calls(error, message, kwargs):
    with pytest.raises(error, match=message) as caught:
        ops.quantize_linear(**{"x": X, "scale": 1.0, **kwargs})
    assert isinstance(caught.value, QuantkitError)


BAD_DEQUANTIZE = [
    (InvalidDType, "q must be uint8, int8 or int32, got float32", {"q": X}),
    (InvalidDType, "q must be uint8, int8 or int32, got bool", {"q": X > 0}),
    (InvalidDType, "wanted out of float16, bfloat16, float32 or float64, got int32", {"out": np.empty(1, np.int32)}),
    (ShapeMismatch, r"wanted out of shape \(1,\), got \(2,\)", {"out": np.empty(2, np.float16)}),
]


@pytest.mark.parametrize(("error", "message", "kwargs"), BAD_DEQUANTIZE, ids=lambda v: str(v)[:40])
def test_bad_dequantize_calls(error, message, kwargs):
    with pytest.raises(error, match=message):
        ops.dequantize_linear(**{"q": np.uint8([1]), "scale": 1.0, **kwargs})


def test_dynamic_refuses_what_no_scale_can_serve():
    with pytest.raises(InvalidArgument, match="wanted finite values, got 2 that are NaN or infinite"):
        ops.dynamic_quantize_linear(np.float32([1, np.nan, np.inf]))


def test_read_only_out():
    out = np.empty(6, np.uint8)
    out.flags.writeable = False
    with pytest.raises(InvalidDType, match="out is read-only"):
        ops.quantize_linear(X, 1.0, out=out)


def test_seventeen_dimensions_that_do_not_merge():
    base = np.zeros((3,) * 17, np.float16)[(slice(None, None, 2),) * 17]
    with pytest.raises(ShapeMismatch, match="wanted at most 16 dimensions that do not merge"):
        ops.quantize_linear(base, 1.0, out=np.empty(base.shape, np.uint8))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_dynamic_equals_the_oracle(isa, dtype):
    rng = np.random.default_rng(0)
    for n in (0, 1, 2, 17, 1000):
        for low, high in [(-1, 1), (0, 5), (-7, 0), (3, 4), (-4, -3), (0, 0), (-1e4, 1e-3)]:
            x = rng.uniform(low, high, n).astype(dtype)
            q, scale, zero_point = ops.dynamic_quantize_linear(x)
            expected_scale, expected_zero_point = oracle.dynamic_qparams(x.astype(np.float32))
            assert (scale, zero_point) == (expected_scale, expected_zero_point)
            assert (scale.dtype, zero_point.dtype) == (np.float32, np.uint8)
            assert np.array_equal(q, oracle.quantize_linear(x, scale, int(zero_point)))


def test_dynamic_range_of_denormals_and_of_the_largest():
    tiny = np.float32([1e-45, 0])
    q, scale, _ = ops.dynamic_quantize_linear(tiny)
    assert scale == np.finfo(np.float32).tiny  # 1e-45 / 255 would be zero
    assert q.tolist() == [0, 0]
    q, scale, zero_point = ops.dynamic_quantize_linear(np.float32([-3e38, 3e38]))
    assert np.isfinite(scale)
    assert q.tolist() == [0, 255]
    assert zero_point == 128
