"""rnn, lstm and gru against onnxruntime: within a bound that is derived for each layer; codes against its int8 LSTM."""

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import quantkit as qk

VERBS = {"RNN": qk.ops.rnn, "LSTM": qk.ops.lstm, "GRU": qk.ops.gru}
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
DEFAULTS = {"RNN": ["Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}
NAMES = ["x", "w", "r", "b", "lengths", "h", "c", "p"]
UNIT = 2.0**-24
# Of an activation, against the true value, relative to max(1, |value|), on either side.
OF_ACTIVATION = 5e-7

# True functions in float64, none steeper than 1 with the alpha and beta below; ThresholdedRelu jumps, but for alpha 0.
TRUE = {
    "Relu": lambda v: np.maximum(v, 0),
    "Tanh": np.tanh,
    "Sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "Affine": lambda v: 0.5 * v + 0.25,
    "LeakyRelu": lambda v: np.where(v < 0, 0.5 * v, v),
    "ScaledTanh": lambda v: 0.5 * np.tanh(0.25 * v),
    "HardSigmoid": lambda v: np.clip(0.5 * v + 0.25, 0, 1),
    "Elu": lambda v: np.where(v < 0, 0.5 * np.expm1(np.minimum(v, 0)), v),
    "Softsign": lambda v: v / (1 + np.abs(v)),
    "Softplus": lambda v: np.logaddexp(v, 0),
}
WITH_ALPHA = {"Affine", "LeakyRelu", "ScaledTanh", "HardSigmoid", "Elu"}
WITH_BETA = {"Affine", "ScaledTanh", "HardSigmoid"}


def session(op, inputs, domain="", **attributes):
    """Results of one node in onnxruntime; `inputs` by name, None where there is none."""
    given_ = {n: v for n, v in inputs.items() if v is not None}
    names = [n if v is not None else "" for n, v in inputs.items()]
    outputs = ["y", "y_h", "y_c"] if "LSTM" in op else ["y", "y_h"]
    node = helper.make_node(op, names, outputs, domain=domain, **attributes)
    types = {n: helper.np_dtype_to_tensor_dtype(v.dtype) for n, v in given_.items()}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, types[n], v.shape) for n, v in given_.items() if n not in ("w", "r")],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [helper.make_tensor(n, types[n], given_[n].shape, given_[n].tobytes(), raw=True) for n in ("w", "r")],
    )
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    made = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return made.run(None, {n: v for n, v in given_.items() if n not in ("w", "r")})


def bound(op, x, w, r, b, lengths, h, c, p, names, clip, before_reset, input_forget, backwards):
    """How far any float32 evaluation of one direction may be from the true values: of Y, Y_h and Y_c.

    Every value is carried in float64 with a bound of its error: sums of n products in any order are within n * 2^-24 of
    the sum of magnitudes, and errors of operands go through products and activations of slope at most 1.
    """
    x, w, r = (v.astype(np.float64) for v in (x, w, r))
    seq, batch, width = x.shape
    hidden, gates = r.shape[1], GATES[op]
    b = np.zeros((2, gates, hidden)) if b is None else b.astype(np.float64).reshape(2, gates, hidden)
    p = np.zeros((3, hidden)) if p is None else p.astype(np.float64).reshape(3, hidden)
    factor = (width + hidden + 12) * UNIT

    def act(name, v, e, clipped=True):
        value = TRUE[name](np.clip(v, -clip, clip) if clipped else v)
        return value, e + OF_ACTIVATION * np.maximum(1, np.abs(value)) + 4 * UNIT * np.abs(v)

    def product(a, ea, v, ev):
        return a * v, np.abs(a) * ev + np.abs(v) * ea + ea * ev + 2 * UNIT * np.abs(a * v)

    y, errors = np.zeros((seq, batch, hidden)), np.zeros((3, batch, hidden))
    everywhere = np.zeros((seq, batch, hidden))
    for n in range(batch):
        state = np.zeros(hidden) if h is None else h[n].astype(np.float64)
        cell = np.zeros(hidden) if c is None else c[n].astype(np.float64)
        es, ec = np.zeros(hidden), np.zeros(hidden)

        def of(v, e, vector):
            """Product with R, and its error."""
            return (r @ v).reshape(gates, -1), (np.abs(r) @ e + factor * (np.abs(r) @ np.abs(v))).reshape(gates, -1)

        length = seq if lengths is None else lengths[n]
        for step in range(length):
            t = length - 1 - step if backwards else step
            xg = (w @ x[t, n]).reshape(gates, -1)
            ex = factor * ((np.abs(w) @ np.abs(x[t, n])).reshape(gates, -1) + np.abs(b).sum(0))
            hg, eh = of(state, es, r)
            pre, e = xg + b.sum(0) + hg, ex + eh
            if op == "RNN":
                state, es = act(names[0], pre[0], e[0])
            elif op == "LSTM":

                def peeped(g, q, v, ev, pre=pre, e=e):
                    return pre[g] + p[q] * v, e[g] + np.abs(p[q]) * ev + 4 * UNIT * np.abs(p[q] * v)

                i, ei = act(names[0], *peeped(0, 0, cell, ec))
                f, ef = (1 - i, ei + UNIT) if input_forget else act(names[0], *peeped(2, 2, cell, ec))
                new, en = act(names[1], pre[3], e[3])
                (left, el), (right, er) = product(f, ef, cell, ec), product(i, ei, new, en)
                cell, ec = left + right, el + er + UNIT * np.abs(left + right)
                o, eo = act(names[0], *peeped(1, 1, cell, ec))
                state, es = product(o, eo, *act(names[2], cell, ec, clipped=False))
            else:
                (z, ez), (reset, er) = act(names[0], pre[0], e[0]), act(names[0], pre[1], e[1])
                if before_reset:
                    inner, ei = product(reset, er, hg[2] + b[1, 2], eh[2] + factor * np.abs(b[1, 2]))
                    new, en = act(names[1], xg[2] + b[0, 2] + inner, ex[2] + ei)
                else:
                    hg, eh = of(*product(reset, er, state, es), r)
                    new, en = act(names[1], xg[2] + b[:, 2].sum(0) + hg[2], ex[2] + eh[2])
                (left, el), (right, er) = product(1 - z, ez + UNIT, new, en), product(z, ez, state, es)
                state, es = left + right, el + er + UNIT * np.abs(left + right)
            y[t, n], everywhere[t, n] = state, es
        errors[1, n], errors[2, n] = es, ec
    return everywhere, errors[1], errors[2]


@st.composite
def layers(draw):
    op = draw(st.sampled_from(list(VERBS)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    directions = 2 if direction == "bidirectional" else 1
    seq, batch, width, hidden = (draw(st.integers(1, most)) for most in (6, 4, 9, 20))

    def floats(*shape):
        return (rng.standard_normal(shape) * 0.4).astype(np.float32)

    inputs = {
        "x": floats(seq, batch, width),
        "w": floats(directions, GATES[op] * hidden, width),
        "r": floats(directions, GATES[op] * hidden, hidden),
        "b": floats(directions, 2 * GATES[op] * hidden),
        "lengths": rng.integers(1, seq + 1, batch).astype(np.int32),
        "h": floats(directions, batch, hidden),
    }
    attributes = {"direction": direction}
    if op == "LSTM":
        inputs |= {"c": floats(directions, batch, hidden), "p": floats(directions, 3 * hidden)}
        attributes["input_forget"] = draw(st.sampled_from([0, 1]))
    if op == "GRU":
        attributes["linear_before_reset"] = draw(st.sampled_from([0, 1]))
    if draw(st.booleans()):
        attributes["clip"] = draw(st.sampled_from([0.25, 2.0]))
    for name in list(inputs)[3:]:
        if draw(st.booleans()):
            inputs[name] = None
    if draw(st.booleans()):
        each = len(DEFAULTS[op]) * directions
        names = draw(st.lists(st.sampled_from(list(TRUE)), min_size=each, max_size=each))
        attributes["activations"] = names
        attributes["activation_alpha"] = [0.5] * sum(n in WITH_ALPHA for n in names)
        attributes["activation_beta"] = [0.25] * sum(n in WITH_BETA for n in names)
    return op, inputs, attributes


@settings(max_examples=120)
@given(layers())
def test_within_the_derived_bound(layer):
    op, inputs, attributes = layer
    direction = attributes["direction"]
    for name in ("activation_alpha", "activation_beta"):
        if not attributes.get(name):
            attributes.pop(name, None)
    names = attributes.get("activations") or DEFAULTS[op] * (2 if direction == "bidirectional" else 1)
    got = VERBS[op](*inputs.values(), **attributes)
    wanted = session(op, inputs, hidden_size=inputs["r"].shape[2], **attributes)
    each = len(DEFAULTS[op])
    for d in range(inputs["w"].shape[0]):
        of_direction = [
            None if v is None else v if n in ("x", "lengths") else v[d] for n, v in inputs.items()
        ] + [None] * (8 - len(inputs))  # fmt: skip
        limits = bound(
            op,
            *of_direction,
            names[d * each : (d + 1) * each],
            attributes.get("clip", np.inf),
            attributes.get("linear_before_reset", 0),
            attributes.get("input_forget", 0),
            direction == "reverse" or d == 1,
        )
        for g, w, limit in zip(got, wanted, limits, strict=False):
            apart = np.abs(g.astype(np.float64) - w)
            assert (
                (apart[:, d] if g.ndim == 4 else apart[d]) <= 2 * limit
            ).all()  # each is within one of the true value


def test_thresholded_relu_at_zero_is_relu():
    rng = np.random.default_rng(0)
    shapes = {"x": (3, 2, 4), "w": (1, 5, 4), "r": (1, 5, 5)}
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    how = {"activations": ["ThresholdedRelu"], "activation_alpha": [0.0]}
    wanted = session("RNN", inputs, hidden_size=5, **how)[0]
    assert np.allclose(qk.ops.rnn(*inputs.values(), **how)[0], wanted, rtol=1e-5)


def signal_to_noise(true, got):
    return 10 * np.log10((true.astype(np.float64) ** 2).sum() / ((true.astype(np.float64) - got) ** 2).sum())


def quantized(w, per_row):
    """int8 codes in [-127, 127] and scales of shape (directions, rows)."""
    most = np.abs(w).max(axis=2) if per_row else np.broadcast_to(np.abs(w).max(axis=(1, 2))[:, None], w.shape[:2])
    scale = (most / 127).astype(np.float32)
    return np.rint(w / scale[..., None]).astype(np.int8), scale


@pytest.mark.parametrize("per_row", [False, True], ids=["a scale", "a scale a row"])
@pytest.mark.parametrize(("batch", "uneven"), [(1, False), (8, False), (8, True)], ids=["1", "8", "8 uneven"])
def test_codes_agree_with_the_float_layer_better_than_dynamic_quantize_lstm(per_row, batch, uneven):
    rng = np.random.default_rng(2)
    seq, width, hidden = 32, 64, 128
    x = rng.standard_normal((seq, batch, width)).astype(np.float32)
    if uneven:  # rows of very different size, which one scale for all of them serves badly
        x *= np.geomspace(0.05, 5, batch).astype(np.float32)[:, None]
    w, r, b = (
        rng.uniform(-1, 1, s).astype(np.float32) / np.float32(hidden**0.5)
        for s in ((1, 4 * hidden, width), (1, 4 * hidden, hidden), (1, 8 * hidden))
    )
    (w8, w_scale), (r8, r_scale) = quantized(w, per_row), quantized(r, per_row)
    true = qk.ops.lstm(x, w, r, b)[0]
    ours = qk.ops.lstm(x, w8, r8, b, w_scale=w_scale, r_scale=r_scale)[0]
    shape = (1, 4 * hidden) if per_row else (1,)
    zeros = np.zeros(shape, np.int8)
    scales = [s if per_row else s[:, 0] for s in (w_scale, r_scale)]
    inputs = {"x": x, "w": w8.transpose(0, 2, 1).copy(), "r": r8.transpose(0, 2, 1).copy(), "b": b}
    inputs |= {"lengths": None, "h": None, "c": None, "p": None}
    inputs |= {"ws": scales[0], "wz": zeros, "rs": scales[1], "rz": zeros}
    theirs = session("DynamicQuantizeLSTM", inputs, "com.microsoft", hidden_size=hidden)[0]
    own, other = ([signal_to_noise(true[:, :, n], y[:, :, n]) for n in range(batch)] for y in (ours, theirs))
    assert min(own) > 30
    assert min(own) > min(other) - 0.5  # the worst row
    assert min(signal_to_noise(theirs[:, :, n], ours[:, :, n]) for n in range(batch)) > (15 if uneven else 30)
    if uneven:
        assert min(own) > min(other) + 6
