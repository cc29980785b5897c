"""Image models: residual, squeeze-and-excite, gates, decoders, detector heads, and what surrounds their Convs."""

import numpy as np

from corpus.builder import Builder, Built, entry, vector


def _resnet(constants="initializer", opset=13):
    b = Builder(1, constants)
    x = b.op("Relu", b.bn(b.conv("x", 3, 8, bias=False), 8))
    y = b.op("Relu", b.bn(b.conv(x, 8, 8, bias=False), 8))
    y = b.bn(b.conv(y, 8, 8, bias=False), 8)
    x = b.op("Relu", b.op("Add", x, y))
    x = b.op("Flatten", b.op("GlobalAveragePool", b.conv(x, 8, 16)))
    x = b.op("Gemm", x, b.weight(5, 16), b.const(np.zeros(5, np.float32)), transB=1)
    return Built(b.model(x, opset=opset), int8_ops=("QLinearConv", "QLinearAdd", "QGemm"))


@entry
def resnet():
    return _resnet()


@entry
def resnet_constant_nodes_opset11():
    return _resnet("node", 11)


@entry
def resnet_opset9():
    return _resnet(opset=9)


@entry
def resnet_opset22():
    return _resnet(opset=22)


@entry
def mobilenet_squeeze_excite():
    b = Builder(2)
    x = b.op("HardSwish", b.conv("x", 3, 16))
    x = b.op("HardSwish", b.conv(x, 16, 16, group=16))
    s = b.op("Relu", b.conv(b.op("GlobalAveragePool", x), 16, 4, 1))
    s = b.op("HardSigmoid", b.conv(s, 4, 16, 1), alpha=1 / 6, beta=0.5)
    x = b.op("Mul", x, s)
    return Built(b.model(b.conv(x, 16, 8, 1), opset=14), int8_ops=("QLinearConv", "QLinearMul", "QLinearAdd"))


@entry
def hard_swish_in_pieces():
    b = Builder(3, "node")
    x = b.conv("x", 3, 8)
    gate = b.op("Clip", b.op("Add", x, b.const(np.float32(3))), b.const(np.float32(0)), b.const(np.float32(6)))
    x = b.op("Div", b.op("Mul", x, gate), b.const(np.float32(6)))
    x = b.op("Add", b.op("Mul", x, b.const(np.float32([1.7]))), b.const(np.float32([-0.4])))
    return Built(b.model(b.conv(x, 8, 8), opset=12), int8_ops=("QLinearConv", "QLinearMul", "QLinearAdd"))


@entry
def decoder():
    b = Builder(4)
    x = b.op("Relu", b.conv("x", 3, 8))
    x = b.op("Relu", b.bn(b.op("ConvTranspose", x, b.weight(8, 6, 2, 2), strides=[2, 2]), 6))
    x = b.op("ConvTranspose", x, b.weight(6, 2, 3, 3), b.const(np.ones(4, np.float32)), group=2)
    return Built(b.model(b.op("Sigmoid", x)), shape=(1, 3, 48, 48))


@entry
def detector_head():
    """Boxes in pixels and scores in [0, 1] in one Concat."""
    b = Builder(11)
    f = b.op("Relu", b.conv("x", 3, 8))
    boxes = b.op("Mul", b.op("Sigmoid", b.conv(f, 8, 4, 1)), b.const(np.float32(640)))
    scores = b.op("Sigmoid", b.conv(f, 8, 3, 1))
    return Built(b.model(b.op("Concat", boxes, scores, axis=1)), int8_ops=("QLinearConv",))


@entry
def one_and_three_dimensional():
    b = Builder(12)
    x = b.op("Relu", b.conv("x", 4, 8, rank=1))
    x = b.op("Unsqueeze", b.conv(x, 8, 8, rank=1, group=2), b.const(np.array([2, 3])))
    x = b.op("Relu", b.conv(x, 8, 4, rank=3))
    return Built(b.model(x, [vector("x", "n", 4, "t")]), (2, 4, 20), ("QLinearConv",))


@entry
def old_upsample():
    b = Builder(16)
    x = b.op("Relu", b.conv("x", 3, 8))
    x = b.op("Upsample", x, b.const(np.float32([1, 1, 2, 2])), mode="nearest")
    return Built(b.model(b.conv(x, 8, 4), opset=9), int8_ops=("QLinearConv", "Resize"))


@entry
def softmax_over_several_axes():
    """Before opset 13, Softmax normalized all axes from `axis` on."""
    b = Builder(17)
    x = b.op("Softmax", b.conv("x", 3, 4), axis=1)
    return Built(b.model(x, opset=11))


@entry
def clip_not_at_zero():
    b = Builder(18)
    x = b.op("Clip", b.conv("x", 3, 8), b.const(np.float32(0.2)), b.const(np.float32(0.9)))
    return Built(b.model(b.conv(x, 8, 4)))


@entry
def negative_factor():
    b = Builder(19)
    x = b.op("MaxPool", b.conv("x", 3, 8), kernel_shape=[2, 2])
    x = b.op("Mul", x, b.const(np.float32([[[-2.0]]])))
    return Built(b.model(b.conv(x, 8, 4)), int8_ops=("QLinearMul",))


@entry
def two_outputs():
    """A tensor that is an output of the model and goes on as well."""
    b = Builder(21)
    x = b.op("Relu", b.conv("x", 3, 8))
    return Built(b.model([x, b.conv(x, 8, 4)]))


@entry
def gated_units():
    """SiLU, HardSwish and depthwise Convs whose channels differ a lot in range."""
    b = Builder(27)
    spread = np.exp(b.rng.normal(size=16) * 1.5).astype(np.float32)
    x = b.op("Mul", b.conv("x", 3, 16), b.const(spread.reshape(16, 1, 1)))
    x = b.op("Mul", x, b.op("Sigmoid", x))
    # What a channel lacks in range, the next weights give it in gain: all of them matter.
    w = b.rng.normal(size=(16, 1, 3, 3)).astype(np.float32) * 0.3 / spread.reshape(16, 1, 1, 1)
    x = b.op("HardSwish", b.op("Conv", x, b.const(w, "w"), group=16, pads=[1] * 4))
    x = b.op("Add", b.op("Mul", x, b.const(np.float32(1.3))), b.const(np.float32(-0.2)))
    return Built(b.model(b.conv(x, 16, 4, 1), opset=14))


@entry
def shared_conv_input():
    b = Builder(23)
    x = b.conv("x", 3, 8)
    a, c = b.op("Split", x, outputs=2, axis=1)
    y = b.op("Concat", b.op("Sigmoid", a), b.op("LeakyRelu", c, alpha=0.1), x, axis=1)
    y = b.op("AveragePool", y, kernel_shape=[2, 2], strides=[2, 2])
    return Built(b.model(b.conv(y, 16, 4)), int8_ops=("QLinearConcat", "QLinearAveragePool", "QLinearSigmoid"))
