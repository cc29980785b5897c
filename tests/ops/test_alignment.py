"""Arrays whose elements lie on no boundary of their size: read through a copy, refused where they are to be written."""

import ml_dtypes
import numpy as np
import oracle
import pytest

from quantkit import ops
from quantkit.errors import InvalidArgument

RNG = np.random.default_rng(0)
REFUSED = "wanted out whose elements lie on boundaries of their . bytes, got one that is not aligned"


def shifted(values):
    """Return a copy that begins one byte beyond a boundary."""
    room = np.empty(values.nbytes + 1, np.uint8)[1:].view(values.dtype).reshape(values.shape)
    room[...] = values
    assert not room.flags.aligned
    return room


def field(values):
    """Return a copy whose elements are fields of packed records, 1 + itemsize bytes apart."""
    records = np.empty(values.shape, [("gap", "u1"), ("value", values.dtype)])
    records["value"] = values
    return records["value"]


@pytest.mark.parametrize("placed", [shifted, field])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_reals_are_copied(isa, placed, dtype):
    x = RNG.normal(size=(5, 67)).astype(dtype)
    scale = np.full(67, 0.02, np.float32)
    for args, axis in [((0.02, 100), None), ((scale, 100), 1)]:
        expected = ops.quantize_linear(x, *args, axis=axis)
        assert np.array_equal(ops.quantize_linear(placed(x), *args, axis=axis), expected)
    assert ops.finite_range(placed(x)) == ops.finite_range(x)
    assert np.array_equal(ops.histogram(placed(x), -1, 1, 8), ops.histogram(x, -1, 1, 8))
    for got, expected in zip(ops.dynamic_quantize_linear(placed(x)), ops.dynamic_quantize_linear(x), strict=True):
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("placed", [shifted, field])
def test_codes_are_copied(isa, placed):
    q = RNG.integers(-(10**6), 10**6, (5, 67), np.int32)
    assert np.array_equal(ops.dequantize_linear(placed(q), 0.5, 3), ops.dequantize_linear(q, 0.5, 3))
    assert np.array_equal(ops.requantize(placed(q), 1e-4, 0, 0.5, 7), ops.requantize(q, 1e-4, 0, 0.5, 7))


@pytest.mark.parametrize("placed", [shifted, field])
def test_outputs_are_refused(placed):
    q = RNG.integers(0, 256, (5, 67), np.uint8)
    b = RNG.integers(-128, 128, (67, 9), np.int8)
    with pytest.raises(InvalidArgument, match=REFUSED):
        ops.dequantize_linear(q, 0.5, 3, out=placed(np.empty((5, 67), np.float32)))
    for right in (b, ops.pack_matmul(b)):
        with pytest.raises(InvalidArgument, match=REFUSED):
            ops.matmul_integer(q, right, out=placed(np.empty((5, 9), np.int32)))
        with pytest.raises(InvalidArgument, match=REFUSED):
            ops.matmul_integer_to_float(q, right, 0.1, 0.1, out=placed(np.empty((5, 9), np.float32)))
    with pytest.raises(InvalidArgument, match=REFUSED):
        ops.conv_integer(q[None, None], b[:4, None, None, :2], out=placed(np.empty((1, 4, 5, 66), np.int32)))


def test_parameters_are_copied(isa):
    a, b = RNG.integers(0, 256, (5, 30), np.uint8), RNG.integers(-128, 128, (30, 9), np.int8)
    zero, bias = RNG.integers(0, 99, 5).astype(np.int32), RNG.integers(-999, 999, 9).astype(np.int32)
    assert np.array_equal(ops.matmul_integer(a, b, shifted(zero)), oracle.matmul_integer(a, b, zero))
    expected = ops.matmul_integer_to_float(a, b, 0.1, np.full(9, 0.2), 0, 0, bias)
    got = ops.matmul_integer_to_float(a, b, 0.1, shifted(np.full(9, 0.2)), 0, 0, shifted(bias))
    assert np.array_equal(got, expected)
