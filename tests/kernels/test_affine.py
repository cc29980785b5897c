"""quantize and dequantize kernels: exactly the oracle, on every instruction set."""

import itertools

import ml_dtypes
import numpy as np
import oracle
import pytest
from guard import guarded

from quantkit import ops

BF16 = np.dtype(ml_dtypes.bfloat16)
REALS = [np.dtype(np.float16), BF16, np.dtype(np.float32), np.dtype(np.float64)]
CODES = [np.dtype(np.uint8), np.dtype(np.int8)]
# Around the steps of 8, 16, 32 and 64 elements, the gathered chunk of 1024, and what streams past the caches needs.
SIZES = [0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 255, 256, 257, 1023, 1024, 1025, 4099]
SCALES = [1.0, 0.1, 0.0173, 3.0, 1e-20, 1e-35, 2.0**-100, 2.0**-101, 2.0**100, 2.0**101, 1e37]
SPECIALS = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1.1754944e-38, 3.4e38, -3.4e38, 0.5, 1.5, 2.5, -0.5]


def zero_points(dtype):
    info = np.iinfo(dtype)
    return [info.min, 0, info.max, 3, 123.675, -7.5, 1e30, -1e30, 0.0]


def reals(n, dtype, scale, rng):
    """Values over a few thousand steps of the scale, ties among them, with special values spread through them."""
    with np.errstate(all="ignore"):
        steps = rng.uniform(-400, 400, n)
        steps[::3] = np.rint(steps[::3]) + 0.5
        x = (steps * scale).astype(dtype)
        for i, special in enumerate(SPECIALS):
            if n > 4 * i + 3:
                x[4 * i + 3] = special
    return x


def same(actual, expected):
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    bits = f"u{actual.dtype.itemsize}"
    different = np.flatnonzero(actual.ravel().view(bits) != expected.ravel().view(bits))
    assert different.size == 0, (different[:5], actual.ravel()[different[:5]], expected.ravel()[different[:5]])


@pytest.mark.parametrize("dtype", REALS, ids=str)
@pytest.mark.parametrize("codes", CODES, ids=str)
def test_quantize_equals_the_oracle(isa, dtype, codes):
    rng = np.random.default_rng(1)
    for n, scale in itertools.product(SIZES, SCALES):
        x = guarded(reals(n, dtype, scale, rng))
        for zero_point in zero_points(codes):
            out = guarded(np.zeros(n, codes))
            ops.quantize_linear(x, scale, zero_point, dtype=codes, out=out)
            same(out, oracle.quantize_linear(x, scale, zero_point, dtype=codes))


@pytest.mark.parametrize("dtype", REALS, ids=str)
@pytest.mark.parametrize("codes", [*CODES, np.dtype(np.int32)], ids=str)
def test_dequantize_equals_the_oracle(isa, dtype, codes):
    rng = np.random.default_rng(2)
    info = np.iinfo(codes)
    for n, scale in itertools.product(SIZES, SCALES):
        q = guarded(rng.integers(info.min, info.max, n, codes, endpoint=True))
        for zero_point in zero_points(np.int8 if codes == np.int32 else codes):
            out = guarded(np.zeros(n, dtype))
            ops.dequantize_linear(q, scale, zero_point, out=out)
            same(out, oracle.dequantize_linear(q, scale, zero_point, dtype=dtype))


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BF16], ids=str)
def test_every_half_value(isa, dtype):
    x = np.arange(65536, dtype=np.uint16).view(dtype)
    for scale, zero_point in [(1.0, 100), (0.37, 3), (1e-6, 0), (300.0, 255), (0.1, 4.25)]:
        same(ops.quantize_linear(x, scale, zero_point), oracle.quantize_linear(x, scale, zero_point))


@pytest.mark.parametrize("scale", [2.0**-24, 2.0**-25, 3e-8, 257.0, 514.0, 65504.0, 1e30], ids=str)
def test_rounding_to_half_at_its_edges(isa, scale):
    q = np.arange(-128, 128).astype(np.int8)
    for dtype in (np.dtype(np.float16), BF16):
        out = np.empty(q.shape, dtype)
        same(ops.dequantize_linear(q, scale, 0, out=out), oracle.dequantize_linear(q, scale, 0, dtype=dtype))


@pytest.mark.parametrize("offset", range(0, 65, 3))
def test_outputs_at_any_address_and_size_past_the_caches(isa, offset):
    """Outputs of 4 MiB and more go around the caches, which needs aligned stores between an odd head and tail."""
    n = (4 << 20) + 67
    x = np.tile(np.float32([0.1, -3.7, 55.5, 1e9, np.nan, -2.25, 7.0]), n // 7 + 1)[:n]
    expected = oracle.quantize_linear(x[:7], 0.25, 9)
    raw = np.zeros(n + 128, np.uint8)
    out = raw[offset : offset + n]
    ops.quantize_linear(x, 0.25, 9, out=out)
    assert not raw[:offset].any()
    assert not raw[offset + n :].any()
    same(out, np.tile(expected, n // 7 + 1)[:n])


@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_dequantized_outputs_past_the_caches(isa, dtype):
    n = (4 << 20) // dtype.itemsize + 67
    q = np.tile(np.arange(256, dtype=np.uint8), n // 256 + 1)[:n]
    expected = np.tile(oracle.dequantize_linear(q[:256], 0.7, 77, dtype=dtype), n // 256 + 1)[:n]
    for skip in (0, 1, 5, 31):
        raw = np.zeros(n + 64, dtype)
        out = raw[skip : skip + n]
        same(ops.dequantize_linear(q, 0.7, 77, out=out), expected)
        assert not raw[:skip].astype(bool).any()
        assert not raw[skip + n :].astype(bool).any()


SHAPES = [(5,), (3, 4), (2, 3, 4), (1, 7, 1), (4, 1, 5, 3), (300, 3), (17, 5, 2), (3, 40, 20), (2, 9000), (2, 8200, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("floating", [False, True], ids=["int_zp", "float_zp"])
def test_per_axis_equals_the_oracle(isa, shape, floating):
    rng = np.random.default_rng(3)
    for axis in range(len(shape)):
        channels = shape[axis]
        scale = rng.uniform(0.01, 2, channels).astype(np.float32)
        zero_point = rng.integers(0, 256, channels).astype(np.int32)
        if floating:
            zero_point = (zero_point + 0.25).astype(np.float32)
        for dtype in REALS:
            x = reals(int(np.prod(shape)), dtype, 1.0, rng).reshape(shape)
            q = ops.quantize_linear(x, scale, zero_point, axis=axis)
            same(q, oracle.quantize_linear(x, scale, zero_point, axis=axis))
            out = np.empty(shape, dtype)
            ops.dequantize_linear(q, scale, zero_point, axis=axis, out=out)
            same(out, oracle.dequantize_linear(q, scale, zero_point, axis=axis, dtype=dtype))


def test_per_axis_vectors_end_on_a_guard_page(isa):
    for n in SIZES[1:]:
        scale = guarded(np.linspace(0.1, 1, n, dtype=np.float32))
        zero_point = guarded(np.arange(n, dtype=np.int32) % 256)
        x = guarded(np.linspace(-9, 9, n, dtype=np.float32))
        same(ops.quantize_linear(x, scale, zero_point, axis=0), oracle.quantize_linear(x, scale, zero_point, axis=0))


def strided_views(x):
    yield x.T
    yield x[::-1]
    yield x[:, ::-1]
    yield x[::2, 1::3]
    yield np.broadcast_to(x[:, :1], x.shape)
    yield np.broadcast_to(x[0], (5, *x.shape))
    yield x.reshape(x.shape[0], -1, 5).transpose(2, 0, 1)
    yield x.reshape(x.shape[0], -1, 5).transpose(1, 2, 0)[:, 1:4]
    yield x[3:4, 4:5]


@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_any_strides(isa, dtype):
    rng = np.random.default_rng(4)
    x = reals(70 * 1100, dtype, 1.0, rng).reshape(70, 1100)
    for view in strided_views(x):
        expected = oracle.quantize_linear(view, 0.5, 7)
        q = ops.quantize_linear(view, 0.5, 7)
        same(np.ascontiguousarray(q), np.ascontiguousarray(expected))
        # Written through strides, into memory that must stay as it is between the elements.
        room = np.full(tuple(2 * n for n in view.shape), 99, np.uint8)
        out = room[tuple(slice(1, None, 2) for _ in view.shape)]
        ops.quantize_linear(view, 0.5, 7, out=out)
        assert np.array_equal(out, expected)
        out[...] = 99
        assert (room == 99).all()
        back = np.empty(view.shape[::-1], dtype).T
        ops.dequantize_linear(q, 0.5, 7, out=back)
        same(np.ascontiguousarray(back), np.ascontiguousarray(oracle.dequantize_linear(q, 0.5, 7, dtype=dtype)))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_per_axis_through_any_strides(isa, axis):
    rng = np.random.default_rng(5)
    base = reals(24 * 30 * 26, np.dtype(np.float32), 1.0, rng).reshape(24, 30, 26)
    for order in itertools.permutations(range(3)):
        for view in (base.transpose(order), base.transpose(order)[::2, ::-1, 1::3]):
            scale = rng.uniform(0.1, 2, view.shape[axis]).astype(np.float32)
            zero_point = rng.integers(0, 256, view.shape[axis]).astype(np.int32)
            expected = oracle.quantize_linear(view, scale, zero_point, axis=axis)
            assert np.array_equal(ops.quantize_linear(view, scale, zero_point, axis=axis), expected)
            out = np.empty(view.shape, np.uint8)
            assert np.array_equal(ops.quantize_linear(view, scale, zero_point, axis=axis, out=out), expected)


def test_memory_order_is_kept():
    x = np.zeros((2, 3, 4, 5), np.float32).transpose(0, 2, 3, 1)
    assert ops.quantize_linear(x, 1.0).strides == tuple(s // 4 for s in x.strides)


def test_channels_last_input_of_many_dimensions(isa):
    x = np.arange(2**12, dtype=np.float32).reshape((2,) * 12)
    view = x.transpose((5, 3, 1, 11, 0, 2, 4, 6, 8, 10, 7, 9))
    assert np.array_equal(ops.quantize_linear(view, 16.0), oracle.quantize_linear(view, 16.0))


@pytest.mark.slow
def test_more_than_two_to_the_31_elements():
    """One row broadcast without memory of its own, into codes of 2 GiB and some."""
    n = 2**31 + 129
    x = np.broadcast_to(np.float32(3.25), (n,))
    q = ops.quantize_linear(x, 0.5, 1)
    assert q.shape == (n,)
    assert q[-1] == q[2**31] == q[0] == 7  # 6.5 rounds to the even 6
    assert int(np.count_nonzero(q[-200:] == 7)) == 200
