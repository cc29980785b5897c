"""Integer product kernels: exactly the oracle, on every instruction set."""

import numpy as np
import oracle
import pytest
from guard import guarded

from quantkit import _kernels
from quantkit._kernels import MatmulPlan, PackedMatmul

# Around the tiles of 4, 6 and 8 rows, panels of 16 to 64 columns, groups of 4 along K and the widened chunk of 1024.
ROWS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13]
COLUMNS = [1, 3, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 80, 127, 128, 129, 145]
DEPTHS = [1, 2, 3, 4, 5, 7, 8, 63, 64, 65, 1023, 1024, 1025, 2051]
SIGNS = [(False, True), (False, False), (True, True), (True, False)]


@pytest.fixture(autouse=True)
def one_thread():
    before = _kernels.num_threads()
    yield
    _kernels.set_num_threads(before)


def codes(rng, shape, signed):
    dtype = np.int8 if signed else np.uint8
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def product(a, b, a_zero=0, b_zero=0):
    per_row = not isinstance(a_zero, int)
    packed = PackedMatmul(b)
    plan = MatmulPlan(packed, a.dtype == np.int8, 0 if per_row else a_zero, b_zero, None, "int32", None)
    out = guarded(np.full((a.shape[0], b.shape[1]), -1, np.int32))
    plan.run(a, out, a_zero if per_row else None)
    return out


@pytest.mark.parametrize(("a_signed", "b_signed"), SIGNS)
def test_every_tile_edge_next_to_a_guard_page(isa, a_signed, b_signed):
    rng = np.random.default_rng(0)
    for m in ROWS:
        for n in COLUMNS:
            k = int(rng.choice(DEPTHS[:11]))
            a, b = guarded(codes(rng, (m, k), a_signed)), guarded(codes(rng, (k, n), b_signed))
            assert np.array_equal(product(a, b), oracle.matmul_integer(a, b)), (m, k, n)


@pytest.mark.parametrize("k", DEPTHS)
def test_every_depth(isa, k):
    rng = np.random.default_rng(k)
    for m, n in [(1, 64), (5, 70), (6, 16), (9, 40)]:
        a, b = guarded(codes(rng, (m, k), False)), guarded(codes(rng, (k, n), True))
        assert np.array_equal(product(a, b), oracle.matmul_integer(a, b))


@pytest.mark.parametrize(("a_signed", "b_signed"), SIGNS)
def test_extremes_do_not_saturate(isa, a_signed, b_signed):
    ends = {False: (0, 255), True: (-128, 127)}
    for a_value in ends[a_signed]:
        for b_value in ends[b_signed]:
            a = np.full((7, 1030), a_value, np.int8 if a_signed else np.uint8)
            b = np.full((1030, 70), b_value, np.int8 if b_signed else np.uint8)
            assert (product(a, b) == a_value * b_value * 1030).all()


def test_int32_wraps(isa):
    k = 70_000
    a, b = np.full((2, k), 255, np.uint8), np.full((k, 17), 255, np.uint8)
    expected = (255 * 255 * k + 2**31) % 2**32 - 2**31
    assert (product(a, b) == expected).all()


@pytest.mark.parametrize(("a_signed", "b_signed"), SIGNS)
def test_zero_points_of_every_kind(isa, a_signed, b_signed):
    rng = np.random.default_rng(1)
    for m, k, n in [(1, 5, 3), (4, 64, 64), (7, 33, 65), (13, 129, 100)]:
        a, b = codes(rng, (m, k), a_signed), codes(rng, (k, n), b_signed)
        low_a, low_b = (-128 if a_signed else 0), (-128 if b_signed else 0)
        a_rows = rng.integers(low_a, low_a + 256, m).astype(np.int32)
        b_columns = rng.integers(low_b, low_b + 256, n).astype(np.int32)
        for a_zero in (low_a, low_a + 255, 3, a_rows):
            for b_zero in (low_b, low_b + 255, 5, b_columns):
                assert np.array_equal(product(a, b, a_zero, b_zero), oracle.matmul_integer(a, b, a_zero, b_zero))


def test_operands_of_any_strides(isa):
    rng = np.random.default_rng(2)
    a, b = codes(rng, (40, 90), False), codes(rng, (90, 200), True)
    for left in (a, np.asfortranarray(a), a[::-1], np.repeat(a, 2, 1)[:, ::2], a[:, ::-1][:, ::-1]):
        for right in (b, np.asfortranarray(b), b[:, ::-1], b[::-1], np.repeat(b, 3, 0)[::3]):
            assert np.array_equal(product(left, right), oracle.matmul_integer(left, right))
    room = np.full((40, 300), 7, np.int32)
    plan = MatmulPlan(PackedMatmul(b), False, 0, 0, None, "int32", None)
    plan.run(a, room[:, 50:250])
    assert np.array_equal(room[:, 50:250], oracle.matmul_integer(a, b))
    assert (room[:, :50] == 7).all()
    assert (room[:, 250:] == 7).all()


@pytest.mark.parametrize("out", ["uint8", "int8"])
def test_requantized_with_bias_clamp_and_table(isa, out):
    rng = np.random.default_rng(3)
    table = rng.permutation(256).astype(np.uint8)
    for m, k, n in [(1, 3, 5), (4, 64, 64), (6, 30, 129), (9, 500, 80), (5, 16, 17)]:
        a, b = codes(rng, (m, k), False), codes(rng, (k, n), True)
        bias = rng.integers(-5000, 5000, n).astype(np.int32)
        scale = (rng.uniform(0.5, 2, n) * 30 / (5000 * np.sqrt(k))).astype(np.float32)
        zero_point = 7
        accumulator = (oracle.matmul_integer(a, b, 9) + bias).astype(np.int32)
        for low, high in [(np.iinfo(out).min, np.iinfo(out).max), (7, 100)]:
            for lookup in (None, table):
                plan = MatmulPlan(PackedMatmul(b), False, 9, 0, bias, out, scale, zero_point, low, high, lookup)
                y = guarded(np.zeros((m, n), out))
                plan.run(a, y)
                expected = oracle.requantize(accumulator, scale, zero_point, out, low, high)
                if lookup is not None:
                    expected = table[expected.view(np.uint8)].view(out)
                assert np.array_equal(y, expected)


def test_requantizing_extreme_accumulators(isa):
    """Accumulators times multipliers far beyond the codes, ties and both signs."""
    a = np.full((3, 1), 255, np.uint8)
    b = np.int8([[-127, 127, 1, -1] * 20])
    for value in (1e-9, 0.5, 1.5, 2.5, 1e6, 3e38):
        scale = np.full(80, value / 255, np.float32)
        for out in ("uint8", "int8"):
            plan = MatmulPlan(PackedMatmul(b), False, 0, 0, None, out, scale, 3, np.iinfo(out).min, np.iinfo(out).max)
            y = np.zeros((3, 80), out)
            plan.run(a, y)
            with np.errstate(over="ignore"):
                assert np.array_equal(y, oracle.requantize(oracle.matmul_integer(a, b), scale, 3, out))


@pytest.mark.parametrize("residual_dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("out", ["uint8", "int8"])
def test_residual_is_added_after_requantizing(isa, out, residual_dtype):
    rng = np.random.default_rng(4)
    for m, k, n in [(1, 3, 5), (4, 64, 64), (9, 100, 130)]:
        a, b = codes(rng, (m, k), False), codes(rng, (k, n), True)
        residual = codes(rng, (m, n), residual_dtype == np.int8)
        own_scale, own_zero, other_scale, other_zero, sum_scale, sum_zero = 0.07, 12, 0.03, -3, 0.11, 5
        scale = np.full(n, 0.004, np.float32)
        low, high = sum_zero, np.iinfo(out).max  # a Relu after the sum
        plan = MatmulPlan(PackedMatmul(b), False, 0, 0, None, out, scale, sum_zero, low, high)
        y = guarded(np.zeros((m, n), out))
        ratios = [np.float32(s) / np.float32(sum_scale) for s in (own_scale, other_scale)]
        plan.run(a, y, None, residual, float(ratios[0]), own_zero, float(ratios[1]), other_zero)
        q = oracle.requantize(oracle.matmul_integer(a, b), scale, own_zero, out)
        total = oracle.qlinear_add(q, own_scale, own_zero, residual, other_scale, other_zero, sum_scale, sum_zero, out)
        assert np.array_equal(y, np.maximum(total, low).astype(out))


def test_float_output(isa):
    rng = np.random.default_rng(5)
    a, b = codes(rng, (9, 70), False), codes(rng, (70, 100), True)
    scale, bias = rng.uniform(0, 1, 100).astype(np.float32), rng.standard_normal(100).astype(np.float32)
    for addend in (None, bias):
        y = np.zeros((9, 100), np.float32)
        MatmulPlan(PackedMatmul(b), False, 3, 0, addend, "float32", scale).run(a, y)
        expected = oracle.matmul_integer(a, b, 3).astype(np.float32) * scale
        assert np.array_equal(y, expected if addend is None else expected + bias)


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_change_nothing(isa, threads):
    _kernels.set_num_threads(threads)
    rng = np.random.default_rng(6)
    for m, k, n in [(1, 700, 900), (300, 100, 64), (64, 300, 500), (1000, 64, 20)]:
        a, b = codes(rng, (m, k), True), codes(rng, (k, n), False)
        b_zero = rng.integers(0, 256, n).astype(np.int32)
        assert np.array_equal(product(a, b, 5, b_zero), oracle.matmul_integer(a, b, 5, b_zero))


def test_empty_products(isa):
    assert product(np.zeros((0, 5), np.uint8), np.zeros((5, 3), np.int8)).shape == (0, 3)
    assert product(np.zeros((2, 5), np.uint8), np.zeros((5, 0), np.int8)).shape == (2, 0)
    assert (product(np.zeros((2, 0), np.uint8), np.zeros((0, 3), np.int8), 3, 4) == 0).all()


@pytest.mark.parametrize("order", ["C", "F"])
def test_half_range_is_told_from_every_byte(isa, order):
    """AVX2 adds pairs of products in 16 bits where all weights lie in [-64, 63]: wrong as soon as one pair does not."""
    a = np.full((7, 70), 255, np.uint8)
    for signed in (True, False):
        zero = 0 if signed else 128
        for value, fits in [(-64, True), (63, True), (-65, False), (64, False)]:
            for n in (1, 8, 33, 70):
                within = np.full((70, n), zero + (-64 if value < 0 else 63), np.int8 if signed else np.uint8, order)
                assert PackedMatmul(within).half_range
                for k, column in [(0, 0), (31, n - 1), (64, n // 2), (68, 0), (69, n - 1)]:
                    b = within.copy(order)
                    b[k, column] = zero + value
                    assert PackedMatmul(b).half_range == fits
                    assert np.array_equal(product(a, b), oracle.matmul_integer(a, b))
                    # As far apart as two neighbours can be: their sum needs 17 bits.
                    b[k - k % 2 : k - k % 2 + 2, column] = zero + (-128 if value < 0 else 127)
                    assert not PackedMatmul(b).half_range
                    assert np.array_equal(product(a, b), oracle.matmul_integer(a, b))
    assert PackedMatmul(np.zeros((0, 5), np.int8)).half_range
