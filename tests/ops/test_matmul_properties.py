"""Products of any shape, layout, dtype, zero points and end, against the oracle, by hypothesis.

``QUANTKIT_PRODUCT_CASES=20000`` runs so many cases over all instruction sets; the suite runs a few hundred.
"""

import os

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit import _kernels, ops
from quantkit._kernels import MatmulPlan, PackedMatmul

CASES = int(os.environ.get("QUANTKIT_PRODUCT_CASES", "600"))

# Sizes near the steps of tiles, panels, groups and chunks, and any others.
rows = st.one_of(st.integers(1, 20), st.integers(1, 70))
columns = st.one_of(st.integers(1, 70), st.sampled_from([15, 16, 17, 31, 33, 47, 49, 63, 64, 65, 127, 129]))
depths = st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 255, 256, 257, 258, 300, 515]))
dtypes = st.sampled_from([np.uint8, np.int8])


@st.composite
def matrices(draw, shape, dtype):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["any", "any", "extremes", "constant", "narrow"]))
    if kind == "extremes":
        values = rng.choice([info.min, info.max], shape).astype(dtype)
    elif kind == "constant":
        values = np.full(shape, draw(st.integers(info.min, info.max)), dtype)
    else:
        middle, reach = (info.min + info.max + 1) // 2, 64 if kind == "narrow" else 128
        values = rng.integers(middle - reach, middle + reach, shape).astype(dtype)
    layout = draw(st.sampled_from(["C", "F", "reversed", "spread"]))
    if layout == "reversed":
        return values[::-1, ::-1].copy()[::-1, ::-1]
    if layout == "spread":
        room = np.zeros((shape[0] * 2, shape[1] * 3), dtype)
        room[::2, ::3] = values
        return room[::2, ::3]
    return np.asarray(values, order=layout)


@st.composite
def zero_points(draw, count, dtype):
    info = np.iinfo(dtype)
    if draw(st.booleans()):
        return draw(st.integers(info.min, info.max))
    return np.random.default_rng(draw(st.integers(0, 999))).integers(info.min, info.max + 1, count).astype(np.int32)


def check(data):
    m, n, k = data.draw(rows), data.draw(columns), data.draw(depths)
    a_dtype, b_dtype = data.draw(dtypes), data.draw(dtypes)
    a, b = data.draw(matrices((m, k), a_dtype)), data.draw(matrices((k, n), b_dtype))
    a_zero, b_zero = data.draw(zero_points(m, a_dtype)), data.draw(zero_points(n, b_dtype))
    sums = oracle.matmul_integer(a, b, a_zero, b_zero)
    for right in (b, PackedMatmul(b)):
        assert np.array_equal(ops.matmul_integer(a, right, a_zero, b_zero), sums)
    if not isinstance(a_zero, int):
        return
    # An end of every kind, over the same sums.
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    out = data.draw(st.sampled_from(["uint8", "int8"]))
    low, high = oracle.LIMITS[np.dtype(out)]
    bias = rng.integers(-(10**6), 10**6, n).astype(np.int32)
    largest = max(float(np.abs(sums.astype(np.float64)).max()), 1.0)
    scale = (rng.uniform(0.1, 3, n) * 128 / largest).astype(np.float32)
    zero_point = int(rng.integers(low, high + 1))
    table = rng.integers(0, 256, 256, np.uint8)
    low, high = sorted(int(v) for v in rng.integers(low, high + 1, 2))
    with_bias = (sums.astype(np.int64) + bias).astype(np.int32)
    codes = oracle.requantize(with_bias, scale, zero_point, out, low, high)
    for lookup in (None, table):
        plan = MatmulPlan(
            PackedMatmul(b), a_dtype == np.int8, a_zero, b_zero, bias, out, scale, zero_point, low, high, lookup
        )
        y = np.empty((m, n), out)
        plan.run(a, y)
        assert np.array_equal(y, codes if lookup is None else table[codes.view(np.uint8)].view(out))
    real = np.empty((m, n), np.float32)
    MatmulPlan(PackedMatmul(b), a_dtype == np.int8, a_zero, b_zero, bias, "float32", scale).run(a, real)
    assert np.array_equal(real, with_bias.astype(np.float32) * scale)


@settings(max_examples=max(CASES // len(_kernels.isas()), 1), deadline=None)
@given(data=st.data())
def check_many(data):
    check(data)


@pytest.mark.slow
@pytest.mark.parametrize("name", _kernels.isas())
def test_products(name):
    before = _kernels.use_isa(name)
    try:
        check_many()
    finally:
        _kernels.use_isa(before)
