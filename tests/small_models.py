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
