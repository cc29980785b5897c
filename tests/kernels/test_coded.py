"""Quantizing with an account, and CRC-32: the oracle's codes, the same sums on every instruction set, zlib's CRC."""

import zlib

import ml_dtypes
import numpy as np
import pytest
from guard import guarded

from quantkit import _kernels, ops
from quantkit.errors import InvalidDType, InvalidQParams, ShapeMismatch

ACCOUNT = np.dtype([("signal", "f8"), ("noise", "f8"), ("most", "f8"), ("crc", "i8")])
BOXES = [(1, 1, 1), (1, 1, 31), (1, 1, 33), (1, 5, 4097), (3, 7, 1), (2, 40, 65), (2, 40, 63), (1, 3, 9000)]


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 63, 64, 127, 128, 129, 143, 144, 191, 192, 193, 1000, 4099])
def test_crc32_is_that_of_zlib(isa, n):
    data = guarded(np.random.default_rng(n).integers(0, 256, n).astype(np.uint8))
    for before in (0, 1, 0xFFFFFFFF, 123456789):
        assert _kernels.crc32(data, before) == zlib.crc32(data, before)


def coded(x, box, dtype, scale, zero_point):
    codes, account = guarded(np.empty(x.size, dtype)), np.zeros((), ACCOUNT)
    bits = x.view(np.uint16) if x.dtype.name == "bfloat16" else x
    _kernels.quantize_measured(guarded(bits), codes, scale, zero_point, box, account, x.dtype.name == "bfloat16")
    return codes, account


@pytest.mark.parametrize("box", BOXES, ids=str)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("source", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_codes_loss_and_crc(box, dtype, source):
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(box) * np.linspace(0.1, 3, box[1])[:, None]).astype(source)
    scale = np.linspace(0.01, 0.05, box[1]).astype(np.float32)
    middle = 0 if dtype is np.int8 else 128
    zero_point = rng.integers(middle - 20, middle + 20, box[1]).astype(np.int32)
    for s, z in ((scale, zero_point), (scale[:1], zero_point[:1])):
        axis = 1 if s.size == box[1] and box[1] > 1 else None
        arguments = (s, z) if axis == 1 else (float(s[0]), int(z[0]))
        expected = ops.quantize_linear(x, *arguments, axis=axis, dtype=dtype)
        error = ops.dequantize_linear(expected, *arguments, axis=axis) - x.astype(np.float32)
        found = set()
        for isa in _kernels.isas():
            before = _kernels.use_isa(isa)
            codes, account = coded(x.reshape(-1), box, dtype, s, z)
            _kernels.use_isa(before)
            assert np.array_equal(codes, expected.reshape(-1))
            assert account["crc"] == zlib.crc32(expected)
            assert account["most"] == np.abs(error).max()
            assert np.isclose(account["noise"], np.square(error, dtype=np.float64).sum(), rtol=2e-6, atol=0)
            assert np.isclose(account["signal"], np.square(x, dtype=np.float64).sum(), rtol=2e-6, atol=0)
            found.add(account.tobytes())
        assert len(found) == 1  # the same bits, whatever the vectors


def test_the_account_goes_on():
    x = np.linspace(-1, 1, 999, dtype=np.float32)
    one, two, account = np.empty(500, np.int8), np.empty(499, np.int8), np.zeros((), ACCOUNT)
    s, z = np.float32([0.01]), np.int32([0])
    _kernels.quantize_measured(x[:500], one, s, z, (1, 1, 500), account)
    first = account["signal"].item()
    _kernels.quantize_measured(x[500:], two, s, z, (1, 1, 499), account)
    assert account["signal"] > first
    assert account["crc"] == zlib.crc32(np.concatenate([one, two]))


def test_what_does_not_fit_is_refused():
    x, codes, s, z = np.ones(12, np.float32), np.empty(12, np.int8), np.ones(3, np.float32), np.zeros(3, np.int32)

    def call(x=x, codes=codes, s=s, z=z, box=(2, 3, 2), account=None):
        _kernels.quantize_measured(x, codes, s, z, box, np.zeros((), ACCOUNT) if account is None else account)

    call()
    for fault, wrong in [
        (InvalidDType, {"x": x.astype(np.float64)}),
        (InvalidDType, {"codes": np.empty(12, np.int32)}),
        (ShapeMismatch, {"box": (2, 3, 3)}),
        (ShapeMismatch, {"box": (12, 1, 1)}),
        (ShapeMismatch, {"box": (-2, -3, 2)}),
        (ShapeMismatch, {"codes": np.empty(11, np.int8)}),
        (ShapeMismatch, {"codes": x.view(np.int8)[:12]}),
        (ShapeMismatch, {"z": z[:2]}),
        (ShapeMismatch, {"account": np.zeros(3)}),
        (InvalidQParams, {"s": np.float32([1, 0, 1])}),
        (InvalidQParams, {"s": np.float32([1, np.nan, 1])}),
        (InvalidQParams, {"z": np.int32([0, 0, 400])}),
    ]:
        with pytest.raises(fault, match="wanted"):
            call(**wrong)
