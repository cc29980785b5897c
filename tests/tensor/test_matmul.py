"""qk.matmul and ``t @ w``: products of QTensors in integers."""

import numpy as np
import oracle
import pytest

import quantkit as qk
from quantkit.errors import InvalidArgument, InvalidDType, InvalidQParams, ShapeMismatch


def operands(axis=None, kind=qk.qint8):
    rng = np.random.default_rng(0)
    t = qk.quantize(rng.standard_normal((2, 7, 40)))
    w = qk.quantize(rng.standard_normal((40, 30)) / 6, dtype=kind, axis=axis)
    return t, w, rng.standard_normal(30)


def sums_of(t, w):
    return oracle.matmul_integer(np.asarray(t).reshape(-1, 40), np.asarray(w), t.zero_point, w.zero_point)


@pytest.mark.parametrize("kind", [qk.qint8, qk.quint8])
@pytest.mark.parametrize("axis", [None, 1])
def test_codes_are_those_of_the_oracle(isa, axis, kind):
    t, w, bias = operands(axis, kind)
    steps = np.float32(t.scale) * np.asarray(w.scale, np.float32)
    whole = np.rint(bias / steps).astype(np.int32)
    coded = qk.quantize(bias)
    from_codes = np.rint(coded.dequantize().astype(np.float64) / steps).astype(np.int32)
    for given, added in ((None, 0), (bias, whole), (coded, from_codes)):
        y = qk.matmul(t, w, given, scale=0.05, zero_point=100)
        multiplier = oracle.multiplier(t.scale, w.scale, 0.05)
        expected = oracle.requantize(sums_of(t, w) + added, multiplier, 100, np.uint8).reshape(2, 7, 30)
        assert (y.dtype, y.scale, y.zero_point, y.axis) == (qk.quint8, pytest.approx(0.05), 100, None)
        assert np.array_equal(np.asarray(y), expected)


def test_chosen_parameters_are_those_of_the_values():
    t, w, bias = operands(1)
    steps = np.float32(t.scale) * w.scale
    real = ((sums_of(t, w) + np.rint(bias / steps).astype(np.int32)).astype(np.float32) * steps).reshape(2, 7, 30)
    assert qk.matmul(t, w, bias).equal(qk.quantize(real))
    assert qk.matmul(t, w, bias, dtype="qint8").equal(qk.quantize(real, dtype=qk.qint8))


@pytest.mark.parametrize("axis", [None, 1])
def test_operator_multiplies_integers(axis):
    t, w, _ = operands(axis)
    steps = np.float32(t.scale) * np.asarray(w.scale, np.float32)
    expected = (sums_of(t, w).astype(np.float32) * steps).reshape(2, 7, 30)
    y = t @ w
    assert y.dtype == np.float32
    assert np.array_equal(y, expected)
    assert np.array_equal(np.matmul(t, w), expected)
    assert np.array_equal(t[0, 0] @ w, expected[0, 0])
    assert (t[0, 0] @ w[:, 0]).shape == ()
    assert np.allclose(y, t.dequantize() @ w.dequantize(), atol=1e-4)
    batches = qk.quantize(np.random.default_rng(1).standard_normal((2, 40, 5)))
    assert np.allclose(t @ batches, t.dequantize() @ batches.dequantize(), atol=1e-4)


def test_operator_on_real_values_where_integers_do_not_serve():
    t, w, _ = operands()
    exact = t.dequantize() @ w.dequantize()
    by_rows = qk.quantize(w.dequantize(), axis=0)
    floating = qk.quantize(t.dequantize(), scale=t.scale, zero_point=t.zero_point + 0.5)
    for a, b in ((t, w.dequantize()), (t.dequantize(), w), (t, by_rows), (floating, w)):
        y = a @ b
        assert y.dtype == np.float32
        assert np.allclose(y, exact, atol=0.05)
    deep = qk.full((1, 70_000), 255.0)
    assert (deep @ deep.T)[0, 0] == pytest.approx(255.0**2 * 70_000, rel=1e-4)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (InvalidDType, "t must be a QTensor, got ndarray", lambda t, w: qk.matmul(np.asarray(t), w)),
        (InvalidDType, "w must be a QTensor, got ndarray", lambda t, w: qk.matmul(t, np.asarray(w))),
        (InvalidQParams, "t must have one scale", lambda t, w: qk.matmul(qk.quantize(t.dequantize(), axis=0), w)),
        (InvalidQParams, "w must have one scale or", lambda t, w: qk.matmul(t, qk.quantize(w.dequantize(), axis=0))),
        (InvalidQParams, "t has a float zero_point", lambda t, w: qk.matmul(qk.quantize([1.0], 1.0, 0.5), w)),
        (InvalidArgument, "zero_point was given without scale", lambda t, w: qk.matmul(t, w, zero_point=3)),
        (InvalidQParams, r"zero_point must be in \[0, 255\]", lambda t, w: qk.matmul(t, w, scale=1, zero_point=256)),
        (InvalidQParams, "wanted one scale and an integer", lambda t, w: qk.matmul(t, w, scale=1, zero_point=0.5)),
        (ShapeMismatch, "wanted bias of 30 finite numbers", lambda t, w: qk.matmul(t, w, [1.0])),
        (ShapeMismatch, "a bias wants a matrix w", lambda t, w: qk.matmul(t, qk.quantize(np.ones((2, 40, 3))), [1.0])),
        (ShapeMismatch, "K is 40 and 30", lambda t, w: qk.matmul(t, w.T)),
        (
            InvalidArgument,
            "wanted at most 33025 products a sum",
            lambda t, w: qk.matmul(qk.full((1, 70_000), 1), qk.full(70_000, 1)),
        ),
    ],
)
def test_bad_calls(error, message, call):
    with pytest.raises(error, match=message):
        call(*operands()[:2])
