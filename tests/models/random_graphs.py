"""Random valid graphs over the op table, for property tests: 4-d activations through Convs, pools, gates and joins."""

import numpy as np
from corpus import Builder, Built

CHANNELS = 8
UNARY = ("Relu", "Sigmoid", "HardSwish", "LeakyRelu", "Clip", "HardSigmoid", "Tanh", "Identity")
STEPS = (
    "conv",
    "depthwise",
    "pointwise",
    "transposed",
    "unary",
    "batchnorm",
    "factor",
    "shift",
    "add",
    "mul",
    "concat",
    "split",
    "maxpool",
    "averagepool",
    "resize",
    "transpose",
    "matmul",
    "gate",
)


def build(steps, seed, constants="initializer"):
    """Return a model of these `steps`; each is a name and a number that makes its choices."""
    b = Builder(seed, constants)
    made = [b.conv("x", 3, CHANNELS)]
    for name, choice in steps:
        made.append(_step(b, made, name, choice))
    # Whatever was never read is an output too, so that no step is dead.
    read = {name for node in b.nodes for name in node.input}
    outputs = [name for name in dict.fromkeys(made) if name not in read]
    return Built(b.model(outputs, opset=14), shape=(2, 3, 8, 8))


def _step(b, made, name, choice):
    x = made[-1 - choice % min(3, len(made))]
    other = made[choice % len(made)]
    c = CHANNELS
    if name in ("conv", "depthwise", "pointwise"):
        group = {"conv": (1, 2, 4)[choice % 3], "depthwise": c, "pointwise": 1}[name]
        return b.conv(x, c, c, 1 if name == "pointwise" else 3, group=group, bias=bool(choice % 2))
    if name == "transposed":
        return b.op("ConvTranspose", x, b.weight(c, c, 3, 3, scale=0.12), pads=[1] * 4)
    if name == "unary":
        kind = UNARY[choice % len(UNARY)]
        if kind == "Clip":
            return b.op("Clip", x, b.const(np.float32(-0.3 * (choice % 2))), b.const(np.float32(1 + choice % 3)))
        return b.op(kind, x)
    if name == "batchnorm":
        return b.bn(x, c)
    if name == "factor":
        value = np.float32([0.5, 2.0, -1.5, 0.0][choice % 4])
        return b.op("Mul" if choice % 2 else "Div", x, b.const(value if value else np.float32(3)))
    if name == "shift":
        return b.op("Add", x, b.const(b.rng.normal(size=(c, 1, 1) if choice % 2 else (1,)).astype(np.float32)))
    if name in ("add", "mul"):
        return b.op(name.capitalize(), x, other)
    if name == "concat":
        return b.conv(b.op("Concat", x, other, axis=1), 2 * c, c, 1)
    if name == "split":
        parts = b.op("Split", x, outputs=2, axis=1)
        return b.op("Concat", *parts[:: -1 if choice % 2 else 1], axis=1)
    if name in ("maxpool", "averagepool"):
        kind = "MaxPool" if name == "maxpool" else "AveragePool"
        return b.op(kind, x, kernel_shape=[3, 3], pads=[1] * 4)
    if name == "resize":
        up = b.op("Resize", x, "", b.const(np.float32([1, 1, 2, 2])), mode=("nearest", "linear")[choice % 2])
        return b.op("MaxPool", up, kernel_shape=[2, 2], strides=[2, 2])
    if name == "transpose":
        return b.op("Transpose", b.op("Transpose", x, perm=[0, 2, 3, 1]), perm=[0, 3, 1, 2])
    if name == "matmul":
        row = b.op("MatMul", x, b.weight(8, 8, scale=0.3))
        return b.op("Add", row, b.const(b.rng.normal(size=8).astype(np.float32))) if choice % 2 else row
    gate = b.op("HardSigmoid", b.conv(b.op("GlobalAveragePool", x), c, c, 1), alpha=1 / 6)
    return b.op("Mul", x, gate)
