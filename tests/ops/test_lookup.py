"""lookup and requantize as users call them."""

import numpy as np
import oracle
import pytest

from quantkit import ops
from quantkit.errors import InvalidDType, InvalidQParams, ShapeMismatch


def codes(rng, shape, dtype):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def layouts(q):
    yield q
    yield np.asfortranarray(q)
    yield q.transpose(2, 0, 1)
    yield q[:, ::-1, ::2]
    yield np.broadcast_to(q[:1], (4, *q.shape[1:]))


@pytest.mark.parametrize("to", [np.uint8, np.int8])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_lookup_of_any_strides(isa, dtype, to):
    rng = np.random.default_rng(0)
    table = codes(rng, 256, to)
    for q in layouts(codes(rng, (5, 40, 130), dtype)):
        y = ops.lookup(q, table)
        assert (y.dtype, y.shape) == (to, q.shape)
        assert np.array_equal(y, oracle.lookup(q, table))
        out = np.zeros(q.shape, to, order="F")
        assert ops.lookup(q, table, out=out) is out
        assert np.array_equal(out, y)
    assert ops.lookup(dtype(3), table) == table[3]
    assert ops.lookup(np.int8([-1, -128]), table).tolist() == [table[255], table[128]]


def test_lookup_into_its_own_input():
    rng = np.random.default_rng(1)
    q, table = codes(rng, (30, 70), np.uint8), codes(rng, 256, np.uint8)
    expected = table[q]
    shifted = q.copy()
    assert ops.lookup(q, table, out=q) is q
    assert np.array_equal(q, expected)
    ops.lookup(shifted[:-1], table, out=shifted[1:])
    assert np.array_equal(shifted[1:], expected[:-1])
    turned = expected.copy()
    ops.lookup(turned, table, out=turned[::-1])
    assert np.array_equal(turned[::-1], table[expected])


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (InvalidDType, "q must be uint8 or int8, got float32", (np.zeros(3, np.float32), np.zeros(256, np.uint8))),
        (InvalidDType, "table must be uint8 or int8, got int64", (np.zeros(3, np.uint8), np.zeros(256, np.int64))),
        (ShapeMismatch, r"wanted a table of 256 codes, got shape \(255,\)", (np.uint8([1]), np.zeros(255, np.uint8))),
        (ShapeMismatch, r"got shape \(1, 256\)", (np.uint8([1]), np.zeros((1, 256), np.uint8))),
    ],
)
def test_bad_lookups(error, message, arguments):
    with pytest.raises(error, match="lookup: .*" + message):
        ops.lookup(*arguments)


def test_bad_out():
    table = np.zeros(256, np.uint8)
    with pytest.raises(InvalidDType, match="lookup: wanted out of uint8, got int8"):
        ops.lookup(np.uint8([1]), table, out=np.zeros(1, np.int8))
    with pytest.raises(ShapeMismatch, match=r"wanted out of shape \(1,\), got \(2,\)"):
        ops.lookup(np.uint8([1]), table, out=np.zeros(2, np.uint8))
    sealed = np.zeros(1, np.uint8)
    sealed.flags.writeable = False
    with pytest.raises(InvalidDType, match="read-only"):
        ops.lookup(np.uint8([1]), table, out=sealed)


@pytest.mark.parametrize("to", [np.uint8, np.int8])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
def test_requantize_per_tensor(isa, dtype, to):
    rng = np.random.default_rng(2)
    low = -128 if to == np.int8 else 0
    for shape in ((), (7,), (3, 50), (4, 33, 65)):
        q = codes(rng, shape, np.int8 if dtype == np.int8 else np.uint8).astype(dtype)
        if dtype == np.int32:
            q = q * 1000 - 90_000
        integer = 200 if dtype == np.uint8 else 3
        for zero_point, new_zero_point in ((integer, low + 100), (-7.25, 123.675), (integer, 0.5)):
            arguments = (0.013, zero_point, 0.037, new_zero_point)
            y = ops.requantize(q, *arguments, dtype=to)
            assert y.dtype == to
            assert np.array_equal(y, oracle.requantize_codes(q, *arguments, dtype=to))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_requantize_per_channel(isa, axis):
    rng = np.random.default_rng(3)
    for shape in ((5, 60, 70), (3, 2, 4)):  # through tables, and where there is too little for them
        q = codes(rng, shape, np.uint8)
        n = shape[axis]
        scale = rng.uniform(0.01, 0.1, n).astype(np.float32)
        zero_point = codes(rng, n, np.uint8).astype(np.int32)
        new_scale, new_zero_point = 0.05, rng.uniform(0, 200, n).astype(np.float32)
        for view in (q, np.asfortranarray(q), q[:, ::-1]):
            expected = oracle.requantize_codes(view, scale, zero_point, new_scale, new_zero_point, axis)
            actual = ops.requantize(view, scale, zero_point, new_scale, new_zero_point, axis=axis)
            assert np.array_equal(actual, expected)


def test_requantize_chooses_the_dtype():
    q = np.arange(6, dtype=np.uint8)
    assert ops.requantize(q, 0.1, 0, 0.2, 0).dtype == np.uint8
    assert ops.requantize(q, 0.1, 0, 0.2, np.int8(-3)).dtype == np.int8
    assert ops.requantize(q.view(np.int8), 0.1, 0, 0.2, 0).dtype == np.int8
    assert ops.requantize(q.astype(np.int32), 0.1, 0, 0.2, 0).dtype == np.uint8
    out = np.empty(6, np.int8)
    assert ops.requantize(q, 0.1, 0, 0.2, 1, out=out) is out
    assert out.tolist() == [1, 1, 2, 3, 3, 3]
    assert ops.requantize(q, 0.1, 0, 0.2, 1, out=q) is q
    assert q.tolist() == [1, 1, 2, 3, 3, 3]


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (InvalidQParams, "requantize: scale must be finite and > 0", (0, 0, 1, 0)),
        (InvalidQParams, "requantize: new_scale must be finite and > 0", (1, 0, np.inf, 0)),
        (InvalidQParams, r"requantize: zero_point must be in \[0, 255\]", (1, 256, 1, 0)),
        (InvalidQParams, "requantize: new_zero_point must be finite", (1, 0, 1, np.nan)),
        (ShapeMismatch, "requantize: 2 scales or zero points need axis=", (1, 0, [1, 2], 0)),
    ],
)
def test_bad_requantize(error, message, arguments):
    with pytest.raises(error, match=message):
        ops.requantize(np.uint8([1, 2]), *arguments)


def test_requantize_names_the_count_of_channels():
    with pytest.raises(ShapeMismatch, match=r"requantize: axis 0 of shape \(2,\) wants 2 values of new_scale, got 3"):
        ops.requantize(np.uint8([1, 2]), 1, 0, [1, 2, 3], 0, axis=0)
