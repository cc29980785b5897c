"""rnn, lstm and gru: equal to the oracle on every instruction set, for any threads; and what they refuse."""

import math

import numpy as np
import oracle
import pytest
from guard import guarded
from hypothesis import given, settings
from hypothesis import strategies as st

import quantkit as qk
from quantkit import _kernels
from quantkit.errors import InvalidArgument, InvalidDType, InvalidQParams, QuantkitError, ShapeMismatch

VERBS = {"rnn": qk.ops.rnn, "lstm": qk.ops.lstm, "gru": qk.ops.gru}
GATES = {"rnn": 1, "lstm": 4, "gru": 3}
EACH = {"rnn": 1, "lstm": 3, "gru": 2}


def floats(rng, *shape, spread=0.7):
    return (rng.standard_normal(shape) * spread).astype(np.float32)


def weights(rng, kind, *shape):
    """Weights of a kind, and the scale and zero point that come with them."""
    if kind == "float32":
        return floats(rng, *shape), None, 0
    codes = rng.integers(*((0, 256) if kind == "uint8" else (-128, 128)), shape).astype(kind)
    scale = rng.uniform(0.001, 0.01, shape[:2]).astype(np.float32)
    return codes, scale, rng.integers(100, 150, shape[:2]) if kind == "uint8" else rng.integers(-3, 4, shape[:2])


def both(cell, x, w, r, rest, *, w_scale=None, w_zero=0, r_scale=None, r_zero=0, alpha=(), beta=(), **how):
    """Results of the verb and of the oracle."""
    names = {"activation_alpha": list(alpha), "activation_beta": list(beta)}
    got = VERBS[cell](
        x, w, r, *rest, w_scale=w_scale, w_zero_point=w_zero, r_scale=r_scale, r_zero_point=r_zero, **names, **how
    )
    with np.errstate(all="ignore"):
        how |= {"w_scale": w_scale, "w_zero": w_zero, "r_scale": r_scale, "r_zero": r_zero}
        wanted = oracle.recurrent(cell, x, w, r, *rest, alpha=alpha, beta=beta, **how)
    return got, wanted


def assert_same(got, wanted):
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        assert (g.dtype, g.shape) == (np.float32, w.shape)
        assert np.array_equal(g, w, equal_nan=True)


@st.composite
def layers(draw):
    """A random layer: every attribute and input of ONNX, every kind of weights."""
    cell = draw(st.sampled_from(list(VERBS)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    directions = 2 if direction == "bidirectional" else 1
    seq, batch = draw(st.integers(0, 4)), draw(st.integers(0, 3))
    width, hidden = draw(st.integers(0, 9)), draw(st.sampled_from([1, 3, 16, 22, 70]))
    rows = GATES[cell] * hidden
    w, w_scale, w_zero = weights(rng, draw(st.sampled_from(["float32", "int8", "uint8"])), directions, rows, width)
    r, r_scale, r_zero = weights(rng, draw(st.sampled_from(["float32", "int8", "uint8"])), directions, rows, hidden)
    state = (directions, batch, hidden)
    lengths = rng.integers(0, seq + 1, batch).astype(np.int32)
    optional = [floats(rng, directions, 2 * rows), lengths, floats(rng, *state)]
    how = {"direction": direction, "clip": draw(st.sampled_from([np.inf, 0.3]))}
    if cell == "lstm":
        optional += [floats(rng, *state), floats(rng, directions, 3 * hidden)]
        how["input_forget"] = draw(st.sampled_from([0, 1]))
    if cell == "gru":
        how["linear_before_reset"] = draw(st.sampled_from([0, 1]))
    if draw(st.booleans()):
        names = draw(st.lists(st.sampled_from(list(oracle.ACTIVATIONS)), min_size=EACH[cell] * directions, max_size=6))
        how["activations"] = names = names[: EACH[cell] * directions]
        how["alpha"] = [0.3] * draw(st.integers(0, sum(n in oracle.ALPHA for n in names)))
        how["beta"] = [0.7] * draw(st.integers(0, sum(n in oracle.BETA for n in names)))
    optional = [v if draw(st.booleans()) else None for v in optional]
    scales = {"w_scale": w_scale, "w_zero": w_zero, "r_scale": r_scale, "r_zero": r_zero}
    return cell, floats(rng, seq, batch, width), w, r, optional, {**scales, **how}


@settings(max_examples=150)
@given(layers())
def test_equal_to_the_oracle(layer):
    cell, x, w, r, optional, how = layer
    assert_same(*both(cell, x, w, r, optional, **how))


@pytest.mark.parametrize("kind", ["float32", "int8", "uint8"])
@pytest.mark.parametrize("hidden", [15, 16, 17, 64, 80, 129])
@pytest.mark.parametrize("cell", VERBS)
def test_sizes_on_every_isa(cell, hidden, kind, isa):
    rng = np.random.default_rng(hidden)
    rows = GATES[cell] * hidden
    w, w_scale, w_zero = weights(rng, kind, 2, rows, 7)
    r, r_scale, r_zero = weights(rng, kind, 2, rows, hidden)
    scales = {"w_scale": w_scale, "w_zero": w_zero, "r_scale": r_scale, "r_zero": r_zero}
    x, b = floats(rng, 2, 7, 7), floats(rng, 2, 2 * rows)
    assert_same(*both(cell, x, w, r, [b], direction="bidirectional", **scales))


@pytest.mark.parametrize("name", oracle.ACTIVATIONS)
def test_activations_on_every_isa(name, isa):
    """One unit with weight 1, so that the state is the activation of the input; special values among them."""
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 0.625, -0.625, 87, -87, 88, -88, 3e38, -3e38]
    values = np.concatenate([np.float32(special), np.linspace(-100, 100, 4001, dtype=np.float32)])
    for v in (values, np.random.default_rng(0).standard_normal(5000).astype(np.float32)):
        one, zero = np.ones((1, 1, 1), np.float32), np.zeros((1, 1, 1), np.float32)
        got, _ = qk.ops.rnn(v.reshape(1, -1, 1), one, zero, activations=[name])
        with np.errstate(all="ignore"):
            wanted = oracle.activation_functions([name])[0](v + np.float32(0))
        assert np.array_equal(got.ravel(), wanted, equal_nan=True)


# The largest errors over 200,001 values, in units of the last place of the true value.
ULP = {"Sigmoid": 2.3, "Tanh": 1.5, "Elu": 1.8, "Softplus": 2.6}


@pytest.mark.parametrize("name", ULP)
def test_error_of_activations(name):
    x = np.linspace(-30, 30, 200_001, dtype=np.float32)
    one, zero = np.ones((1, 1, 1), np.float32), np.zeros((1, 1, 1), np.float32)
    got = qk.ops.rnn(x.reshape(1, -1, 1), one, zero, activations=[name])[0].ravel()
    wide = x.astype(np.float64)
    true = {
        "Sigmoid": lambda v: 1 / (1 + np.exp(-v)),
        "Tanh": np.tanh,
        "Elu": lambda v: np.where(v < 0, np.expm1(np.minimum(v, 0)), v),
        "Softplus": lambda v: np.logaddexp(v, 0),
    }[name](wide)
    ulp = np.abs(got - true) / np.spacing(np.abs(true).astype(np.float32))
    assert ulp.max() <= ULP[name], ulp.max()


@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize("cell", VERBS)
def test_threads_and_batches_change_nothing(cell, kind):
    rng = np.random.default_rng(3)
    hidden, batch = 256, 130
    w, w_scale, w_zero = weights(rng, kind, 2, GATES[cell] * hidden, 40)
    r, r_scale, r_zero = weights(rng, kind, 2, GATES[cell] * hidden, hidden)
    packed = qk.ops.pack_rnn(w, w_scale, w_zero), qk.ops.pack_rnn(r, r_scale, r_zero)
    x = floats(rng, 5, batch, 40)
    before = _kernels.num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            _kernels.set_num_threads(threads)
            results.append(VERBS[cell](x, *packed, direction="bidirectional"))
    finally:
        _kernels.set_num_threads(before)
    for other in results[1:]:
        assert_same(other, results[0])
    for n in (0, 64, 129):  # a row does not depend on its neighbours
        alone = VERBS[cell](x[:, n : n + 1], *packed, direction="bidirectional")
        assert np.array_equal(alone[0][:, :, 0], results[0][0][:, :, n])
        assert np.array_equal(alone[1][:, 0], results[0][1][:, n])


@pytest.mark.parametrize("cell", VERBS)
def test_layout_and_strides(cell):
    rng = np.random.default_rng(4)
    rows = GATES[cell] * 6
    x, w, r = floats(rng, 4, 3, 5), floats(rng, 2, rows, 5), floats(rng, 2, rows, 6)
    h = floats(rng, 2, 3, 6)
    how = {"direction": "bidirectional", "sequence_lens": np.uint8([4, 0, 2])}
    more = {"initial_c": h[::-1]} if cell == "lstm" else {}
    wanted = VERBS[cell](x, w, r, initial_h=h, **more, **how)
    strided = np.asfortranarray(x)[:, :, ::-1][:, :, ::-1]
    more = {"initial_c": np.asfortranarray(h[::-1])} if cell == "lstm" else {}
    assert_same(VERBS[cell](strided, w[:, ::-1][:, ::-1], r, initial_h=np.asfortranarray(h), **more, **how), wanted)
    more = {"initial_c": h[::-1].swapaxes(0, 1)} if cell == "lstm" else {}
    got = VERBS[cell](x.swapaxes(0, 1), w, r, initial_h=h.swapaxes(0, 1), **more, **how, layout=1)
    assert np.array_equal(got[0], wanted[0].transpose(2, 0, 1, 3))
    for g, v in zip(got[1:], wanted[1:], strict=True):
        assert np.array_equal(g, v.swapaxes(0, 1))


@pytest.mark.parametrize("where", ["begin", "end"])
@pytest.mark.parametrize("kind", ["float32", "int8", "uint8"])
@pytest.mark.parametrize("cell", VERBS)
def test_guard_pages(cell, kind, where, isa):
    rng = np.random.default_rng(6)
    rows = GATES[cell] * 19
    w, w_scale, w_zero = weights(rng, kind, 1, rows, 5)
    r, r_scale, r_zero = weights(rng, kind, 1, rows, 19)
    scales = {"w_scale": w_scale, "w_zero_point": w_zero, "r_scale": r_scale, "r_zero_point": r_zero}
    operands = [floats(rng, 3, 2, 5), w, r, floats(rng, 1, 2 * rows), np.int32([3, 1]), floats(rng, 1, 2, 19)]
    if cell == "lstm":
        operands += [floats(rng, 1, 2, 19), floats(rng, 1, 57)]
    wanted = VERBS[cell](*operands, **scales)
    got = VERBS[cell](*[guarded(v, where) for v in operands], **scales)
    assert_same(got, wanted)


def test_tensors_and_scales_of_every_shape():
    rng = np.random.default_rng(7)
    x, w, r = floats(rng, 3, 2, 5), floats(rng, 1, 24, 5), floats(rng, 1, 24, 6)
    for axis in (None, 1, 0):
        tw, tr = qk.quantize(w, dtype=qk.qint8, axis=axis), qk.quantize(r, dtype=qk.quint8, axis=axis)
        scale = [np.broadcast_to(np.asarray(t.scale), 24) if axis != 0 else t.scale for t in (tw, tr)]
        zero = [np.broadcast_to(np.asarray(t.zero_point), 24) if axis != 0 else t.zero_point for t in (tw, tr)]
        got = qk.ops.lstm(x, tw, tr)
        how = {"w_scale": scale[0], "w_zero_point": zero[0], "r_scale": scale[1], "r_zero_point": zero[1]}
        assert_same(qk.ops.lstm(x, tw.int_repr(), tr.int_repr(), **how), got)
        assert_same(qk.ops.lstm(x, qk.ops.pack_rnn(tw), qk.ops.pack_rnn(tr)), got)
        exact = qk.ops.lstm(x, w, r)
        assert max(np.abs(g - e).max() for g, e in zip(got, exact, strict=True)) < 0.05


def test_packed_weights_keep_their_plan_only_while_it_fits():
    rng = np.random.default_rng(8)
    x, b = floats(rng, 2, 1, 4), floats(rng, 1, 16)
    w, r = floats(rng, 1, 8, 4), floats(rng, 1, 8, 2)
    packed = qk.ops.pack_rnn(w), qk.ops.pack_rnn(r)
    assert "PackedRnn(shape=(1, 8, 4), dtype=float32)" in repr(packed)
    first = qk.ops.lstm(x, *packed, b)
    assert_same(qk.ops.lstm(x, *packed, b), first)
    b += 1  # in place: the plan must not outlive what it was made of
    assert_same(qk.ops.lstm(x, *packed, b), qk.ops.lstm(x, w, r, b))
    assert_same(qk.ops.lstm(x, *packed, b, direction="reverse"), qk.ops.lstm(x, w, r, b, direction="reverse"))
    names = ["Relu", "Tanh", "Elu"]
    for alpha in ([0.5], [0.25]):
        how = {"activations": names, "activation_alpha": alpha}
        assert_same(qk.ops.lstm(x, *packed, b, **how), qk.ops.lstm(x, w, r, b, **how))
    other = qk.ops.pack_rnn(w[:, ::-1])
    assert_same(qk.ops.lstm(x, other, packed[1], b), qk.ops.lstm(x, w[:, ::-1], r, b))


X, W, R = np.zeros((3, 2, 5), np.float32), np.zeros((1, 24, 5), np.float32), np.zeros((1, 24, 6), np.float32)
CODES, BAD = np.zeros((1, 24, 6), np.int8), np.full((3, 2, 5), np.nan, np.float32)
REFUSALS = [
    (lambda f: f(X.astype(np.float64), W, R), InvalidDType, "lstm: x must be float32, got float64"),
    (lambda f: f(X[0], W, R), ShapeMismatch, r"lstm: wanted x of shape \(seq, batch, 5\), got \(2, 5\)"),
    (lambda f: f(X[..., :4], W, R, layout=1), ShapeMismatch, r"x of shape \(batch, seq, 5\), got \(3, 2, 4\)"),
    (lambda f: f(X, W[:, :20], R), ShapeMismatch, r"w of shape \(1, 24, input\) beside this r, got \(1, 20, 5\)"),
    (lambda f: f(X, W, R[:, :20]), ShapeMismatch, r"r of shape \(1, 4 \* hidden, hidden\) .*, got \(1, 20, 6\)"),
    (lambda f: f(X, W, R, direction="bidirectional"), ShapeMismatch, r"\(2, 4 \* hidden, hidden\) for direction='bi"),
    (lambda f: f(X, W[0], R), ShapeMismatch, r"w of shape \(1 or 2 directions, gates \* hidden, K\), got \(24, 5\)"),
    (lambda f: f(X, W, R.astype(np.float16)), InvalidDType, "r must be float32, uint8 or int8, got float16"),
    (lambda f: f(X, W, CODES), InvalidQParams, "r of int8 wants r_scale, got None"),
    (lambda f: f(X, W, R, r_scale=1.0), InvalidArgument, "r is float32; wanted no r_scale"),
    (lambda f: f(X, W, CODES, r_scale=-1.0), InvalidQParams, "lstm: r_scale must be finite and > 0, got -1.0"),
    (lambda f: f(X, W, CODES, r_scale=[1.0] * 5), ShapeMismatch, r"r_scale: wanted one value, or shape \(24,\)"),
    (lambda f: f(X, W, CODES, r_scale=1.0, r_zero_point=200), InvalidQParams, "r_zero_point must be in"),
    (lambda f: f(X, W, CODES, r_scale=1.0, r_zero_point=0.5), InvalidQParams, "r_zero_point must be an integer"),
    (lambda f: f(X, qk.ops.pack_rnn(W), R, w_scale=1.0), InvalidArgument, "w is packed and has its scale already"),
    (lambda f: f(X, W, qk.quantize(R, axis=2)), InvalidQParams, "along axis 0 or 1, got axis 2"),
    (lambda f: f(X, W, R, np.zeros((1, 24), np.float32)), ShapeMismatch, r"b of shape \(1, 48\), got \(1, 24\)"),
    (lambda f: f(X, W, R, np.zeros((1, 48))), InvalidDType, "lstm: b must be float32, got float64"),
    (lambda f: f(X, W, R, sequence_lens=[1, 2, 3]), ShapeMismatch, r"sequence_lens of shape \(2,\), got \(3,\)"),
    (lambda f: f(X, W, R, sequence_lens=[1, 4]), InvalidArgument, r"must lie in \[0, 3\], got 4 for row 1"),
    (lambda f: f(X, W, R, sequence_lens=[-1, 2]), InvalidArgument, r"must lie in \[0, 3\], got -1 for row 0"),
    (lambda f: f(X, W, R, sequence_lens=[2**40, 2]), InvalidArgument, r"must lie in \[0, 3\]"),
    (lambda f: f(X, W, R, sequence_lens=[1.0, 2]), InvalidDType, "sequence_lens must be int32, got float64"),
    (lambda f: f(X, W, R, initial_h=X), ShapeMismatch, r"initial_h of shape \(1, 2, 6\) .*, got \(3, 2, 5\)"),
    (lambda f: f(X, W, R, initial_c=X), ShapeMismatch, r"initial_c of shape \(1, 2, 6\) .*, got \(3, 2, 5\)"),
    (lambda f: f(X, W, R, p=X), ShapeMismatch, r"p of shape \(1, 18\), got \(3, 2, 5\)"),
    (lambda f: f(X, W, R, direction="both"), InvalidArgument, "one of forward, reverse, bidirectional, got 'both'"),
    (lambda f: f(X, W, R, activations=["Tanh"]), InvalidArgument, r"wanted 3 activations \(3 a direction\), got 1"),
    (lambda f: f(X, W, R, activations=["Tanh"] * 2 + ["Sin"]), InvalidArgument, "an activation of Relu, .*, got 'Sin'"),
    (lambda f: f(X, W, R, activation_alpha=[1.0]), InvalidArgument, "at most 0 values of activation_alpha"),
    (lambda f: f(X, W, R, activation_beta=[None]), InvalidDType, "activation_beta must be a real number, got None"),
    (lambda f: f(X, W, R, clip=0), InvalidArgument, "clip must be > 0, got 0"),
    (lambda f: f(X, W, R, clip=np.nan), InvalidArgument, "clip must be > 0, got nan"),
    (lambda f: f(X, W, R, clip="x"), InvalidDType, "clip must be a real number, got 'x'"),
    (lambda f: f(X, W, R, hidden_size=7), ShapeMismatch, r"hidden_size is 7, but r of shape \(1, 24, 6\) has 6"),
    (lambda f: f(X, W, R, layout=2), InvalidArgument, "layout must be 0 or 1, got 2"),
    (lambda f: f(X, W, R, input_forget="x"), InvalidArgument, "input_forget must be 0 or 1, got 'x'"),
    (lambda f: f([[1], [2, 3]], W, R), InvalidDType, "lstm: x cannot be read as an array"),
    (
        lambda f: f(BAD, CODES[..., :5], R, w_scale=1.0),
        InvalidArgument,
        "^lstm: weights .* finite x and states, got 30 values",
    ),
]


@pytest.mark.parametrize("case", range(len(REFUSALS)))
def test_refusals(case):
    call, error, message = REFUSALS[case]
    with pytest.raises(error, match=message) as raised:
        call(qk.ops.lstm)
    assert isinstance(raised.value, QuantkitError)
    assert len(str(raised.value)) < 250


def test_operands_on_a_gpu_are_refused_by_name():
    class Elsewhere:
        device = "cuda:0"

        def __array__(self, dtype=None, copy=None):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

    for at, name in enumerate(["x", "w", "r"]):
        operands = [X, W, R]
        operands[at] = Elsewhere()
        with pytest.raises(InvalidDType, match=f"lstm: {name} cannot be read as an array: can't convert cuda:0"):
            qk.ops.lstm(*operands)


def test_nan_stays_with_float_weights_and_in_its_row():
    x = X.copy()
    x[1, 0, 0] = np.nan
    y, y_h, _ = qk.ops.lstm(x, W + 1, R + 1)
    assert np.isnan(y[1:, 0, 0]).all()
    assert np.isnan(y_h[0, 0]).all()
    assert np.isfinite(y[0]).all()
    assert np.isfinite(y[:, 0, 1]).all()
    assert math.isclose(float(y[0, 0, 0, 0]), 0.0)
