"""Weights and names that are not where, or what, one expects: hidden, dead, tiny, half, taken names, custom domains."""

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper, numpy_helper

from corpus.builder import Builder, Built, entry


@entry
def hidden_weights():
    """Weights behind Identity, Transpose, Cast and Reshape."""
    b = Builder(7, "node")
    w = b.op("Transpose", b.weight(3, 8, 3, 3), perm=[1, 0, 2, 3])
    x = b.op("Relu", b.op("Conv", "x", b.op("Identity", w), pads=[1] * 4))
    half = b.const((b.rng.normal(size=(8, 8, 1, 1)) * 0.3).astype(np.float16))
    x = b.op("Relu", b.op("Conv", x, b.op("Cast", half, to=TensorProto.FLOAT)))
    flat = b.op("Reshape", b.weight(4, 8, scale=0.3), b.const(np.array([4, 8, 1, 1])))
    return Built(b.model(b.op("Conv", x, flat), opset=11), int8_ops=("QLinearConv",))


@entry
def dead_channel():
    """An all-zero output channel whose bias is all it gives."""
    b = Builder(9)
    w = (b.rng.normal(size=(4, 3, 3, 3)) * 0.2).astype(np.float32)
    w[2] = 0
    bias = b.const(np.float32([0.1, -0.2, 0.33, 0.4]))
    return Built(b.model(b.op("Conv", "x", b.const(w), bias, pads=[1] * 4)))


@entry
def tiny_weights_large_bias():
    """x_scale * weight_scale so small that the bias overflows int32 unless the channel gives way."""
    b = Builder(10)
    w = (b.rng.normal(size=(4, 3, 1, 1)) * 0.2).astype(np.float32)
    w[1] *= 1e-9
    bias = b.const(np.float32([0.1, 700.0, 0.33, 0.4]))
    return Built(b.model(b.op("Conv", "x", b.const(w), bias)))


@entry
def custom_domain():
    b = Builder(20)
    x = b.op("Relu", b.conv("x", 3, 8))
    x = b.op("Gelu", x, domain="com.microsoft")
    return Built(b.model(b.conv(x, 8, 4), domains=("com.microsoft",)))


@entry
def names_in_the_way():
    """Tensors that already have the names a quantizer likes to give."""
    b = Builder(22)
    nodes = [("x", "x_q", "x_dq"), ("x_dq", "x_dq_q", "x_scale")]
    for source, weight, result in nodes:
        tensor = (b.rng.normal(size=(3, 3, 1, 1)) * 0.5).astype(np.float32)
        b.initializers.append(numpy_helper.from_array(tensor, weight))
        b.nodes.append(helper.make_node("Conv", [source, weight], [result]))
    return Built(b.model("x_scale"))


def _half(dtype, elem):
    b = Builder(24)
    x = b.op("Relu", b.bn(b.conv("x", 3, 8), 8))
    x = b.op("Flatten", b.op("GlobalAveragePool", b.conv(x, 8, 8)))
    b.op("Gemm", x, b.weight(8, 4), b.const(np.ones(4, np.float32)))
    for tensor in b.initializers:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))
    inputs = [helper.make_tensor_value_info("x", elem, ["n", 3, None, None])]
    return b.model(b.nodes[-1].output[0], inputs, elem=elem, opset=17)


@entry
def float16():
    return Built(_half(np.float16, TensorProto.FLOAT16), dtype=np.float16)


def bfloat16():
    """Onnxruntime has no kernels for it on the CPU, so it is no corpus model; its inputs and outputs are float32."""
    proto = _half(ml_dtypes.bfloat16, TensorProto.FLOAT)
    proto.graph.node.insert(0, helper.make_node("Cast", ["x"], ["x_half"], to=TensorProto.BFLOAT16))
    proto.graph.node[1].input[0] = "x_half"
    last = proto.graph.node[-1]
    output = last.output[0]
    last.output[0] = "y_half"
    proto.graph.node.append(helper.make_node("Cast", ["y_half"], [output], to=TensorProto.FLOAT))
    return proto


@entry
def standardized_weights():
    """NFNets normalize their weights: exporters leave a BatchNormalization or means of constants in the graph."""
    b = Builder(34)
    w = b.weight(8, 3, 3, 3)
    flat = b.op("Reshape", w, b.const(np.array([1, 8, 27])))
    gain, zeros = b.const(np.linspace(0.1, 0.4, 8, dtype=np.float32)), b.const(np.zeros(8, np.float32))
    stats = [b.const(np.full(8, v, np.float32)) for v in (0.01, 0.1)]
    flat = b.op("BatchNormalization", flat, gain, zeros, *stats)
    x = b.op("Relu", b.op("Conv", "x", b.op("Reshape", flat, b.const(np.array([8, 3, 3, 3]))), pads=[1] * 4))
    w = b.weight(8, 8, 3, 3)
    mean = b.op("ReduceMean", w, axes=[1, 2, 3])
    centered = b.op("Sub", w, mean)
    spread = b.op("Sqrt", b.op("ReduceMean", b.op("Mul", centered, centered), axes=[1, 2, 3]))
    w = b.op("Mul", b.op("Div", centered, spread), b.op("Expand", b.const(np.float32([[[[0.1]]]])), b.op("Shape", w)))
    return Built(b.model(b.op("Conv", x, w, pads=[1] * 4), opset=14), int8_ops=("QLinearConv",))
