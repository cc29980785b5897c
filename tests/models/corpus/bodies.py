"""If, Loop and Scan."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from corpus.builder import Builder, Built, entry, vector


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


@entry
def weights_carried_by_a_loop():
    """An LSTM as tf2onnx writes it: a Loop that hands its weights from step to step, through an Identity or not."""
    b = Builder(31)
    h, f = 16, 12
    kernel, recurrent = b.weight(f, 4 * h, scale=f**-0.5), b.weight(h, 4 * h, scale=h**-0.5)
    zeros = b.const(np.zeros((2, h), np.float32))
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["step"], name="loop_step"),
        helper.make_node("MatMul", ["step", "kernel"], ["a"], name="loop_kernel"),
        helper.make_node("MatMul", ["state", "recurrent"], ["r"], name="loop_recurrent"),
        helper.make_node("Add", ["a", "r"], ["gates"]),
        helper.make_node("Split", ["gates"], ["gi", "gf", "gc", "go"], axis=1),
        *[helper.make_node("Sigmoid", [g], [f"{g}_on"]) for g in ("gi", "gf", "go")],
        helper.make_node("Tanh", ["gc"], ["fresh"]),
        helper.make_node("Mul", ["gf_on", "cell"], ["kept"]),
        helper.make_node("Mul", ["gi_on", "fresh"], ["taken"]),
        helper.make_node("Add", ["kept", "taken"], ["cell_out"]),
        helper.make_node("Tanh", ["cell_out"], ["seen"]),
        helper.make_node("Mul", ["go_on", "seen"], ["state_out"]),
        helper.make_node("Identity", ["kernel"], ["kernel_out"]),
        helper.make_node("Identity", ["going"], ["going_out"]),
    ]
    given = [("i", TensorProto.INT64), ("going", TensorProto.BOOL)]
    carried = [("state", "state_out", 2, h), ("cell", "cell_out", 2, h)]
    carried += [("kernel", "kernel_out", f, 4 * h), ("recurrent", "recurrent", h, 4 * h)]
    body = helper.make_graph(
        nodes,
        "steps",
        [*[helper.make_tensor_value_info(n, t, []) for n, t in given], *[vector(n, *s) for n, _, *s in carried]],
        [helper.make_tensor_value_info("going_out", TensorProto.BOOL, []), *[vector(n, *s) for _, n, *s in carried]],
    )
    out = b.op("Loop", b.const(np.int64(7)), "", zeros, zeros, kernel, recurrent, outputs=4, body=body)
    y = b.op("MatMul", out[0], b.weight(h, 5, scale=h**-0.5))
    return Built(b.model([y, out[2]], [vector("x", 7, 2, f)], opset=13), (7, 2, f))
