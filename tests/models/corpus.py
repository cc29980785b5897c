"""Small seeded models, each built around something that breaks quantizers, with inputs to run them on."""

from collections.abc import Callable
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

MODELS: dict[str, Callable[[], "Built"]] = {}


@dataclass
class Built:
    proto: onnx.ModelProto
    shape: tuple[int, ...] = (1, 3, 16, 16)
    int8_ops: tuple[str, ...] = ()  # operators that onnxruntime must run once quantized statically
    least_db: float = 25.0
    names: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtype: type = np.float32

    def __post_init__(self):
        """Give the outputs the ranks that they turn out to have."""
        options = ort.SessionOptions()
        options.log_severity_level = 4
        results = ort.InferenceSession(self.proto.SerializeToString(), options).run(None, self.feeds(1)[0])
        for value, result in zip(self.proto.graph.output, results, strict=True):
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            shape.SetInParent()
            for i in range(result.ndim):
                shape.dim.add(dim_param=f"{value.name}_{i}")

    def feeds(self, count: int, seed: int = 0):
        rng = np.random.default_rng(seed)
        shapes = self.names or {"x": self.shape}
        return [{k: rng.normal(size=s).astype(self.dtype) for k, s in shapes.items()} for _ in range(count)]


class Builder:
    """Nodes and constants, one call each."""

    def __init__(self, seed: int = 0, constants: str = "initializer"):
        self.rng, self.constants = np.random.default_rng(seed), constants
        self.nodes, self.initializers, self.count = [], [], 0

    def name(self, hint):
        self.count += 1
        return f"{hint}_{self.count}"

    def const(self, values, hint="c"):
        values = np.asarray(values)
        name = self.name(hint)
        tensor = numpy_helper.from_array(values, name)
        if self.constants == "node":
            self.nodes.append(helper.make_node("Constant", [], [name], name=f"make_{name}", value=tensor))
        else:
            self.initializers.append(tensor)
        return name

    def weight(self, *shape, scale=None):
        fan = np.prod(shape[1:]) if len(shape) > 1 else 1
        return self.const((self.rng.normal(size=shape) * (scale or fan**-0.5)).astype(np.float32), "w")

    def op(self, op_type, *inputs, outputs=1, domain="", **attributes):
        names = [self.name(op_type.lower()) for _ in range(outputs)]
        self.nodes.append(
            helper.make_node(op_type, inputs, names, name=f"{op_type}_{self.count}", domain=domain, **attributes)
        )
        return names[0] if outputs == 1 else names

    def conv(self, x, cin, cout, kernel=3, bias=True, group=1, rank=2, **attributes):
        inputs = [x, self.weight(cout, cin // group, *[kernel] * rank)]
        if bias:
            inputs.append(self.const(self.rng.normal(size=cout).astype(np.float32) * 0.1, "b"))
        attributes.setdefault("pads", [kernel // 2] * 2 * rank)
        return self.op("Conv", *inputs, group=group, **attributes)

    def bn(self, x, channels):
        r = self.rng
        stats = [r.uniform(0.5, 2, channels), r.normal(size=channels), r.normal(size=channels) * 0.1]
        stats.append(r.uniform(0.5, 2, channels))
        return self.op("BatchNormalization", x, *[self.const(s.astype(np.float32), "bn") for s in stats])

    def model(self, outputs, inputs=None, opset=13, ir=None, elem=TensorProto.FLOAT, domains=()):
        outputs = [outputs] if isinstance(outputs, str) else outputs
        graph = helper.make_graph(
            self.nodes,
            "corpus",
            inputs or [helper.make_tensor_value_info("x", elem, ["n", 3, None, None])],
            [helper.make_tensor_value_info(name, elem, None) for name in outputs],
            self.initializers,
        )
        imports = [helper.make_opsetid("", opset), *[helper.make_opsetid(d, 1) for d in domains]]
        proto = helper.make_model(graph, opset_imports=imports, ir_version=ir or max(4, min(10, opset - 5)))
        return proto


def vector(name, *shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def entry(function):
    MODELS[function.__name__] = function
    return function


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
def transformer():
    b = Builder(5)
    width, heads = 32, 4
    inputs = [vector("x", "n", "t", width)]

    def linear(x, cin, cout):
        bias = b.const((b.rng.normal(size=cout) * 0.1).astype(np.float32))
        return b.op("Add", b.op("MatMul", x, b.weight(cin, cout, scale=cin**-0.5)), bias)

    def split(x):
        shape = b.const(np.array([0, 0, heads, width // heads]))
        return b.op("Transpose", b.op("Reshape", x, shape), perm=[0, 2, 1, 3])

    def norm(x):
        ones = b.const(np.ones(width, np.float32))
        return b.op("LayerNormalization", x, ones, b.const(np.zeros(width, np.float32)))

    h = norm("x")
    q, k, v = (split(linear(h, width, width)) for _ in range(3))
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2]))
    weights = b.op("Softmax", b.op("Mul", scores, b.const(np.float32(8**-0.5))), axis=-1)
    mixed = b.op("Transpose", b.op("MatMul", weights, v), perm=[0, 2, 1, 3])
    x = b.op("Add", "x", linear(b.op("Reshape", mixed, b.const(np.array([0, 0, width]))), width, width))
    h = b.op("Relu", linear(norm(x), width, 64))
    x = b.op("Add", x, linear(h, 64, width))
    return Built(b.model(x, inputs, opset=17), (2, 24, width), ("MatMulIntegerToFloat",))


@entry
def gemm_factors():
    b = Builder(6)
    x = b.op(
        "Gemm", "x", b.weight(12, 8), b.const(b.rng.normal(size=12).astype(np.float32)), transB=1, alpha=0.5, beta=3.0
    )
    x = b.op("Relu", x)
    x = b.op("Gemm", x, b.weight(12, 4), b.const(np.float32([[1.0]])), beta=2.0)
    return Built(b.model(x, [vector("x", "n", 8)]), (5, 8), ("QGemm",))


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
def tied_weights():
    b = Builder(8)
    w = b.weight(16, 16, scale=0.25)
    bias = b.const(b.rng.normal(size=16).astype(np.float32))
    x = b.op("Relu", b.op("Add", b.op("MatMul", "x", w), bias))
    return Built(b.model(b.op("MatMul", x, w), [vector("x", "n", 16)]), (6, 16))


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
def captured_by_if():
    """A body that reads a computed tensor and holds a weight."""
    b = Builder(13)
    x = b.op("Relu", b.op("MatMul", "x", b.weight(8, 8, scale=0.3)))
    condition = b.op("Greater", b.op("ReduceMean", x, keepdims=0), b.const(np.float32(0)))
    bodies = []
    for i in range(2):
        w = numpy_helper.from_array((b.rng.normal(size=(8, 4)) * 0.3).astype(np.float32), f"w_{i}")
        node = helper.make_node("MatMul", [x, f"w_{i}"], [f"y_{i}"], name=f"inner_{i}")
        bodies.append(helper.make_graph([node], f"body_{i}", [], [vector(f"y_{i}", None, 4)], [w]))
    y = b.op("If", condition, then_branch=bodies[0], else_branch=bodies[1])
    return Built(b.model(y, [vector("x", "n", 8)]), (5, 8))


@entry
def constant_left_operand():
    b = Builder(14)
    x = b.op("MatMul", b.weight(6, 8, scale=0.3), "x")
    return Built(b.model(x, [vector("x", "n", 8, 5)]), (2, 8, 5))


@entry
def stacked_matrices():
    b = Builder(15)
    x = b.op("MatMul", "x", b.weight(3, 8, 6, scale=0.3))
    return Built(b.model(x, [vector("x", 3, "m", 8)]), (3, 5, 8))


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
def custom_domain():
    b = Builder(20)
    x = b.op("Relu", b.conv("x", 3, 8))
    x = b.op("Gelu", x, domain="com.microsoft")
    return Built(b.model(b.conv(x, 8, 4), domains=("com.microsoft",)))


@entry
def two_outputs():
    """A tensor that is an output of the model and goes on as well."""
    b = Builder(21)
    x = b.op("Relu", b.conv("x", 3, 8))
    return Built(b.model([x, b.conv(x, 8, 4)]))


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


@entry
def embedding():
    b = Builder(26)
    table = b.rng.normal(size=(300, 32)).astype(np.float32) * b.rng.uniform(0.1, 3, size=(1, 32)).astype(np.float32)
    x = b.op("Gather", b.const(table, "w"), b.op("Cast", b.op("Abs", b.op("Mul", "x", b.const(np.float32(50)))), to=7))
    return Built(b.model(b.op("MatMul", x, b.weight(32, 16, scale=0.2)), [vector("x", "n", "t")]), (3, 7))


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
def bodies_that_compute():
    """A Loop whose body holds a Conv, and an If of which only one branch is ever taken."""
    b = Builder(28)
    w = numpy_helper.from_array((b.rng.normal(size=(3, 3, 3, 3)) * 0.15).astype(np.float32), "loop_w")
    nodes = [
        helper.make_node("Conv", ["s", "loop_w"], ["c"], name="loop_conv", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["t"]),
        helper.make_node("Identity", ["going"], ["next"]),
    ]
    loop = helper.make_graph(
        nodes,
        "loop",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            vector("s", None, 3, None, None),
        ],
        [helper.make_tensor_value_info("next", TensorProto.BOOL, []), vector("t", None, 3, None, None)],
        [w],
    )
    x = b.op("Loop", b.const(np.int64(3)), "", "x", body=loop)
    branches = []
    for i in range(2):
        weight = numpy_helper.from_array((b.rng.normal(size=(4, 3, 1, 1))).astype(np.float32), f"if_w_{i}")
        node = helper.make_node("Conv", [x, f"if_w_{i}"], [f"y_{i}"], name=f"if_conv_{i}")
        branches.append(helper.make_graph([node], f"branch_{i}", [], [vector(f"y_{i}", None, 4, None, None)], [weight]))
    condition = b.op("GreaterOrEqual", b.op("ReduceMin", x, keepdims=0), b.const(np.float32(-1)))
    y = b.op("If", condition, then_branch=branches[0], else_branch=branches[1])
    return Built(b.model(y, opset=16))


@entry
def scan():
    """A Scan whose body holds a product with its state, as recurrent layers are exported by hand."""
    b = Builder(29)
    h = 16
    weights = [
        numpy_helper.from_array((b.rng.normal(size=(n, h)) * n**-0.5).astype(np.float32), name)
        for n, name in ((12, "scan_w"), (h, "scan_r"))
    ]
    nodes = [
        helper.make_node("MatMul", ["step", "scan_w"], ["p"], name="scan_input"),
        helper.make_node("MatMul", ["state", "scan_r"], ["q"], name="scan_state"),
        helper.make_node("Add", ["p", "q"], ["s"]),
        helper.make_node("Tanh", ["s"], ["next"]),
        helper.make_node("Identity", ["next"], ["row"]),
    ]
    body = helper.make_graph(
        nodes,
        "scan",
        [vector("state", None, h), vector("step", None, 12)],
        [vector("next", None, h), vector("row", None, h)],
    )
    body.initializer.extend(weights)
    start = b.const(np.zeros((2, h), np.float32))
    last, rows = b.op("Scan", start, "x", outputs=2, body=body, num_scan_inputs=1)
    y = b.op("MatMul", rows, b.weight(h, 4, scale=0.3))
    return Built(b.model([y, last], [vector("x", "t", 2, 12)], opset=16), (9, 2, 12))


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


@entry
def shared_conv_input():
    b = Builder(23)
    x = b.conv("x", 3, 8)
    a, c = b.op("Split", x, outputs=2, axis=1)
    y = b.op("Concat", b.op("Sigmoid", a), b.op("LeakyRelu", c, alpha=0.1), x, axis=1)
    y = b.op("AveragePool", y, kernel_shape=[2, 2], strides=[2, 2])
    return Built(b.model(b.conv(y, 16, 4)), int8_ops=("QLinearConcat", "QLinearAveragePool", "QLinearSigmoid"))
