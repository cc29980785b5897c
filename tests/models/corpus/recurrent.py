"""LSTM, GRU and RNN."""

import numpy as np
from onnx import helper

from corpus.builder import Builder, Built, entry, vector


@entry
def lstm():
    b = Builder(25)
    h = 24
    bias = b.const((b.rng.normal(size=(2, 8 * h)) * 0.1).astype(np.float32))
    weights = [b.const((b.rng.normal(size=(2, 4 * h, n)) * n**-0.5).astype(np.float32), "w") for n in (12, h)]
    b.count += 1
    b.nodes.append(
        helper.make_node(
            "LSTM",
            ["x", *weights, bias],
            ["steps", "", "cell"],
            name="lstm",
            hidden_size=h,
            direction="bidirectional",
        )
    )
    return Built(b.model(["steps", "cell"], [vector("x", "t", "n", 12)]), (9, 2, 12))


def _recurrent(op_type, gates):
    b = Builder(30)
    h = 20
    weights = [b.const((b.rng.normal(size=(1, gates * h, n)) * n**-0.5).astype(np.float32), "w") for n in (12, h)]
    bias = b.const((b.rng.normal(size=(1, 2 * gates * h)) * 0.1).astype(np.float32))
    x = b.op(op_type, "x", *weights, bias, hidden_size=h, outputs=2)[0]
    y = b.op("MatMul", b.op("Squeeze", x, b.const(np.array([1]))), b.weight(h, 4, scale=0.3))
    return Built(b.model(y, [vector("x", "t", "n", 12)]), (9, 2, 12))


def gru():
    """No corpus model: its weights stay float where that is faster."""
    return _recurrent("GRU", 3)


def rnn():
    return _recurrent("RNN", 1)
