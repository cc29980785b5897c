"""Models of a few nodes, as bytes, and their int8 likenesses."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def model(nodes, inputs, outputs, weights=(), *, opset=17, ir_version=8):
    """Serialize a model; `inputs` and `outputs` are (name, numpy dtype or TensorProto type, shape)."""

    def info(name, dtype, shape):
        kind = dtype if isinstance(dtype, int) else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return helper.make_tensor_value_info(name, kind, shape)

    graph = helper.make_graph(
        nodes,
        "g",
        [info(*item) for item in inputs],
        [info(*item) for item in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in dict(weights).items()],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version
    ).SerializeToString()


def linear(weight, *, softmax=False, output="y"):
    """x[N, K] @ weight, softmax over the classes or not."""
    weight = np.asarray(weight, np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h" if softmax else output])]
    if softmax:
        nodes.append(helper.make_node("Softmax", ["h"], [output], axis=-1))
    return model(
        nodes,
        [("x", np.float32, ["N", weight.shape[0]])],
        [(output, np.float32, ["N", weight.shape[1]])],
        {"w": weight},
    )


def linear_int8(weight, scale):
    """The same with its weight in int8 behind a DequantizeLinear."""
    codes = np.clip(np.rint(np.asarray(weight) / scale), -127, 127).astype(np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    weights = {"wq": codes, "ws": np.float32(scale), "wz": np.int8(0)}
    return model(
        nodes,
        [("x", np.float32, ["N", codes.shape[0]])],
        [("y", np.float32, ["N", codes.shape[1]])],
        weights,
    )


STRING = TensorProto.STRING


def qdq(*, x_scale=0.02, w_scale=(0.01, 0.02, 0.03), x_zero=128, axis=1):
    """A Gemm between QuantizeLinear and DequantizeLinear, its weight in int8 per channel, its bias in int32."""
    dq = "DequantizeLinear"
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], name="q"),
        helper.make_node(dq, ["xq", "xs", "xz"], ["xd"], name="dx"),
        helper.make_node(dq, ["wq", "ws"], ["w"], name="dw", axis=axis),
        helper.make_node(dq, ["bq", "bs"], ["b"], name="db", axis=0),
        helper.make_node("Gemm", ["xd", "w", "b"], ["y"], name="fc"),
    ]
    weights = {
        "xs": np.float32(x_scale),
        "xz": np.uint8(x_zero),
        "wq": np.arange(12, dtype=np.int8).reshape(4, 3),
        "ws": np.asarray(w_scale, np.float32),
        "bq": np.arange(3, dtype=np.int32),
        "bs": np.asarray(w_scale, np.float32) * np.float32(x_scale),
    }
    return model(nodes, [("x", np.float32, ["N", 4])], [("y", np.float32, ["N", 3])], weights)


def qoperator():
    """A QLinearMatMul whose codes come from outside."""
    nodes = [helper.make_node("QLinearMatMul", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"], name="mm")]
    weights = {
        "xs": np.float32(0.5),
        "xz": np.uint8(0),
        "w": np.ones((4, 3), np.int8),
        "ws": np.float32(0.25),
        "wz": np.int8(0),
        "ys": np.float32(1.0),
        "yz": np.uint8(10),
    }
    return model(nodes, [("x", np.uint8, ["N", 4])], [("y", np.uint8, ["N", 3])], weights)


def dynamic():
    """A MatMulInteger behind a DynamicQuantizeLinear."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["xq", "xs", "xz"]),
        helper.make_node("MatMulInteger", ["xq", "w", "xz"], ["y"]),
    ]
    return model(nodes, [("x", np.float32, [1, 4])], [("y", np.int32, [1, 3])], {"w": np.ones((4, 3), np.int8)})
