import operator

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import InvalidDType, InvalidQParams

X = (np.arange(12.0, dtype=np.float32).reshape(3, 4) - 4) / 2
Y = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def tensors():
    return qk.quantize(X, 0.5, 10), qk.quantize(Y, 0.125, 3, dtype=qk.qint8)


@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_arithmetic_is_float32_on_the_real_values(op):
    t, u = tensors()
    u[u == 0] = 1.0
    x, y = t.dequantize(), u.dequantize()
    for got, wanted in [
        (op(t, u), op(x, y)),
        (op(t, 3), op(x, np.float32(3))),
        (op(2.5, u), op(np.float32(2.5), y)),
        (op(t, y.astype(np.float64)), op(x, y)),
        (op(x, u), op(x, y)),
        (op(qk.as_tensor(x), u), op(x, y)),
    ]:
        assert type(got) is np.ndarray
        assert got.dtype == np.float32
        assert np.array_equal(got, wanted)


def test_matmul_and_negative():
    t, u = tensors()
    assert (t @ u.T).dtype == np.float32
    assert np.array_equal(t @ u.T, t.dequantize() @ u.dequantize().T)
    assert np.array_equal(X @ u.T, X @ u.dequantize().T)
    assert np.array_equal(-t, -t.dequantize())


@pytest.mark.parametrize("op", [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge])
def test_comparisons_are_of_real_values(op):
    t, u = tensors()
    for a, b in [(t, u), (t, 0.5), (t, t.clone()), (t, X), (u, u[::-1].clone())]:
        wanted = op(a.dequantize(), b.dequantize() if isinstance(b, qk.QTensor) else b)
        got = op(a, b)
        assert got.dtype == bool
        assert np.array_equal(got, wanted)


def test_comparing_with_something_else():
    t, _ = tensors()
    assert (t == None) is False  # noqa: E711
    assert (t != "a") is True
    assert t.equal(t.clone())
    assert not t.equal(qk.quantize(X, 0.25, 10))
    assert not t.equal(X)
    with pytest.raises(TypeError):
        hash(t)


@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 1)])
@pytest.mark.parametrize("channels", [False, True])
def test_reductions(axis, channels):
    t = qk.quantize(X, [0.5, 0.25, 1.0], 0, dtype=qk.qint8, axis=0) if channels else tensors()[0]
    x = t.dequantize()
    for name in ("sum", "mean", "max", "min"):
        wanted = getattr(x.astype(np.float64), name)(axis).astype(np.float32)
        for got in (getattr(t, name)(axis), getattr(np, name)(t, axis), getattr(np, name)(t, axis=axis)):
            assert got.dtype == np.float32
            assert np.array_equal(got, wanted)
        assert getattr(t, name)(axis, keepdims=True).ndim == 2


def test_sums_do_not_lose_small_values():
    t = qk.full((1 << 20,), 1.0)
    t[0] = 255.0
    assert t.sum() == (1 << 20) + 254


MOVES = {
    "concatenate": lambda a: np.concatenate([a, a], axis=1),
    "concatenate rows": lambda a: np.concatenate([a, a]),
    "stack": lambda a: np.stack([a, a], axis=1),
    "vstack": lambda a: np.vstack((a, a)),
    "hstack": lambda a: np.hstack([a, a, a]),
    "reshape": lambda a: np.reshape(a, (1, 3, 1, 4)),
    "ravel": lambda a: np.ravel(a[0]),
    "transpose": np.transpose,
    "moveaxis": lambda a: np.moveaxis(a, 0, 1),
    "swapaxes": lambda a: np.swapaxes(a, 0, 1),
    "squeeze": lambda a: np.squeeze(a[None]),
    "expand_dims": lambda a: np.expand_dims(a, 1),
    "broadcast_to": lambda a: np.broadcast_to(a, (5, 3, 4)),
    "flip": np.flip,
    "roll": lambda a: np.roll(a, 1, axis=0),
    "take": lambda a: np.take(a, [2, 0], axis=0),
    "tile": lambda a: np.tile(a, (2, 1)),
    "repeat": lambda a: np.repeat(a, 2, axis=0),
    "delete": lambda a: np.delete(a, 1, axis=0),
    "copy": np.copy,
    "split": lambda a: np.split(a, 2, axis=1),
    "array_split": lambda a: np.array_split(a, 2, axis=0)[1],
    "atleast_3d": np.atleast_3d,
    "rot90": np.rot90,
    "diagonal of one channel": lambda a: np.diagonal(a[:1]),
}


@pytest.mark.parametrize("channels", [None, 0, 1])
@pytest.mark.parametrize("name", MOVES)
def test_functions_that_move_data_keep_every_value(name, channels):
    move = MOVES[name]
    if channels is None:
        t = tensors()[0]
    else:
        n = X.shape[channels]
        t = qk.quantize(X, np.array([0.5, 0.25, 1.0, 2.0])[:n], np.arange(n), dtype=qk.qint8, axis=channels)
    wanted = move(t.dequantize())
    got = move(t)
    for g, w in zip(got, wanted, strict=True) if isinstance(wanted, list) else [(got, wanted)]:
        assert isinstance(g, qk.QTensor)
        assert g.shape == w.shape
        assert np.array_equal(g.dequantize(), w)
        if channels is None:
            assert g.qparams == t.qparams
    t.storage().storage()._check_free("test")


def test_views_stay_views():
    t, _ = tensors()
    for view in (np.transpose(t), np.reshape(t, -1), np.flip(t), np.split(t, 2, axis=1)[1]):
        assert view.storage().storage() is t.storage().storage()
    assert isinstance(np.concatenate([t, t]).storage(), qk.QUInt8Storage)


def test_joining_tensors_of_different_parameters_keeps_each_ones():
    a, b = qk.quantize(X, 0.5, 10), qk.quantize(X, 0.25, 20)
    joined = np.concatenate([a, b])
    assert joined.axis == 0
    assert joined.scale.tolist() == [0.5] * 3 + [0.25] * 3
    assert joined.zero_point.tolist() == [10] * 3 + [20] * 3
    assert np.array_equal(joined.dequantize(), np.concatenate([a.dequantize(), b.dequantize()]))
    w = qk.quantize(X, [1.0, 2.0, 3.0], 0, axis=0)
    assert np.concatenate([w, w[:1]]).scale.tolist() == [1.0, 2.0, 3.0, 1.0]
    with pytest.raises(InvalidQParams, match="mixes channels"):
        np.concatenate([w, w[::-1]], axis=1)
    with pytest.raises(InvalidDType, match="quint8 and qint8"):
        np.concatenate([a, tensors()[1]])
    with pytest.raises(InvalidDType, match="ndarray"):
        np.concatenate([a, X])
    with pytest.raises(InvalidQParams, match="float zero points"):
        np.concatenate([a, qk.quantize(X, 0.5, 1.5)])


@pytest.mark.parametrize(
    "call",
    [
        np.exp, np.sqrt, np.sort, np.argmax, np.std, np.unique, np.add.reduce, np.bitwise_and.reduce, np.linalg.norm,
        lambda t: np.add(t, 1, out=t), lambda t: np.concatenate([t, t], out=np.empty((6, 4), np.uint8)),
        lambda t: t.__iadd__(1), lambda t: np.where(t > 0, t, t), lambda t: t % 2, lambda t: t & 1,
    ],
)  # fmt: skip
def test_everything_else_is_a_clear_type_error(call):
    with pytest.raises(TypeError, match=r"QTensor|quantizes"):
        call(tensors()[0])


def test_questions_about_shape():
    t, _ = tensors()
    assert (np.shape(t), np.ndim(t), np.size(t)) == ((3, 4), 2, 12)
    assert np.array_equal(t, t.dequantize())
    assert not np.array_equal(t, t[0])
