"""qlinear_conv on the convolutions of three networks, against onnxruntime and torch in their best layouts.

    python benchmarks/conv.py [--networks resnet50,mobilenetv2,yolov8n] [--batch 1] [--threads 1 | all] [--rounds 7]
                              [--record FILE] [--seconds S]

With --record, rows that FILE (JSON lines) has already are not measured again, so that a table may be taken in pieces of
--seconds. Medians of two races that agree within 8 %. With several threads, sides rest before their turns: workers of
the peers spin for a while after a call.

uint8 activations, int8 weights with one scale a channel, int32 bias, requantized to uint8. quantkit and onnxruntime
write into memory that they were given before; torch always allocates. GOP/s count a multiply-add as 2.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import time
import warnings
from pathlib import Path

import numpy as np
import onnxruntime as ort
from harness import machine, pin, steady
from layers import NETWORKS
from onnx import TensorProto, helper, numpy_helper

import quantkit as qk
from quantkit import _kernels

X_SCALE, X_ZERO, Y_SCALE, Y_ZERO = 0.05, 121, 0.3, 3


def make_operands(layer: tuple[int, ...], batch: int):
    channels, size, outputs, kernel, stride, group = layer
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (batch, channels, size, size), np.uint8)
    w = rng.integers(-127, 128, (outputs, channels // group, kernel, kernel), np.int8)
    w_scale = (rng.uniform(0.5, 1, outputs) / (74 * 74 * math.sqrt(w[0].size))).astype(np.float32) * 60 * 6
    bias = rng.integers(-1000, 1000, outputs).astype(np.int32)
    attributes = {"strides": [stride] * 2, "pads": [kernel // 2] * 4, "group": group}
    out = (size + kernel // 2 * 2 - kernel) // stride + 1
    return x, w, w_scale, bias, attributes, (batch, outputs, out, out)


def last(x: np.ndarray) -> np.ndarray:
    """The same values, channels-last in memory, as (N, H, W, C)."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def onnxruntime_call(x, w, w_scale, bias, attributes, y, threads: int, channels_last: bool):
    """One QLinearConv in onnxruntime, input and output bound to the given memory."""
    constants = [np.float32(X_SCALE), np.uint8(X_ZERO), w, w_scale, np.zeros(w.shape[0], np.int8)]
    constants += [np.float32(Y_SCALE), np.uint8(Y_ZERO), bias]
    names = [f"c{i}" for i in range(len(constants))]
    domain = "com.microsoft" if channels_last else ""
    more = {"channels_last": 1} if channels_last else {}
    node = helper.make_node("QLinearConv", ["x", *names], ["y"], domain=domain, **attributes, **more)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, y.shape)],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in zip(names, constants, strict=True)],
    )
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, x.dtype, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, y.dtype, y.shape, y.ctypes.data)
    # The binding holds addresses alone: x and y must live as long as the call.
    return lambda held=(x, y): session.run_with_iobinding(binding)


def torch_call(x, w, w_scale, bias, attributes, threads: int):
    import torch

    warnings.simplefilter("ignore")  # torch announces the removal of its quantized tensors
    torch.set_num_threads(threads)
    tx = torch._make_per_tensor_quantized_tensor(torch.from_numpy(x), X_SCALE, X_ZERO)
    tx = tx.contiguous(memory_format=torch.channels_last)
    zeros = torch.zeros(len(w_scale), dtype=torch.int64)
    tw = torch._make_per_channel_quantized_tensor(torch.from_numpy(w), torch.from_numpy(w_scale).double(), zeros, 0)
    tb = torch.from_numpy((bias * w_scale * np.float32(X_SCALE)).astype(np.float32))
    stride, pad, group = attributes["strides"], attributes["pads"][:2], attributes["group"]
    packed = torch.ops.quantized.conv2d_prepack(tw, tb, stride, pad, [1, 1], group)
    return lambda: torch.ops.quantized.conv2d(tx, packed, Y_SCALE, Y_ZERO)


def contestants(layer: tuple[int, ...], batch: int, threads: int):
    x, w, w_scale, bias, attributes, shape = make_operands(layer, batch)
    x_last = last(x)
    packed = qk.ops.pack_conv(w, attributes["group"])

    def ours(x, out):
        given = (x, X_SCALE, X_ZERO, packed, w_scale, 0, Y_SCALE, Y_ZERO, bias)
        return lambda: qk.ops.qlinear_conv(*given, **attributes, out=out)

    shape_last = (shape[0], *shape[2:], shape[1])
    y, y_last, z, z_last = (np.empty(s, np.uint8) for s in (shape, shape_last) * 2)
    sides = {
        "quantkit NHWC": ours(np.moveaxis(x_last, -1, 1), np.moveaxis(y_last, -1, 1)),
        "quantkit NCHW": ours(x, y),
        "onnxruntime NCHW": onnxruntime_call(x, w, w_scale, bias, attributes, z, threads, False),
        "onnxruntime NHWC": onnxruntime_call(x_last, w, w_scale, bias, attributes, z_last, threads, True),
    }
    if importlib.util.find_spec("torch"):
        sides["torch"] = torch_call(x, w, w_scale, bias, attributes, threads)
    for call in sides.values():
        call()
    assert np.array_equal(y, z), "quantkit and onnxruntime differ"
    assert np.array_equal(y_last, z_last), "quantkit and onnxruntime differ, channels-last"
    assert np.array_equal(np.moveaxis(y_last, -1, 1), y), "the two layouts differ"
    return sides, 2 * math.prod(shape) * w[0].size


def name_of(layer: tuple[int, ...]) -> str:
    channels, size, outputs, kernel, stride, group = layer
    kind = "depthwise" if group > 1 else f"-> {outputs}"
    return f"{channels} {kind}, {kernel}x{kernel}{' s2' if stride == 2 else ''} @ {size}"


def measure(layer: tuple[int, ...], batch: int, threads: int, rounds: int) -> dict:
    """One row: GOP/s of each side, and the A/A spread."""
    sides, operations = contestants(layer, batch, threads)
    medians = steady(sides, rounds=rounds, target=0.004, rest=0.02 if threads > 1 else 0)
    spread = medians.pop("A/A")
    speed = {name: operations / t / 1e9 for name, t in medians.items()}
    us = medians["quantkit NHWC"] * 1e6
    return {"layer": layer, "batch": batch, "threads": threads, "us": us, "speed": speed, "A/A": spread}


def rows(options: argparse.Namespace, threads: int):
    """The rows that are wanted, from the record or measured, until the time is over."""
    record = Path(options.record) if options.record else None
    lines = record.read_text().splitlines() if record and record.exists() else []
    known = {(tuple(r["layer"]), r["batch"], r["threads"]): r for r in map(json.loads, lines)}
    end = time.monotonic() + options.seconds
    for network in options.networks.split(","):
        for layer in NETWORKS[network]:
            key = (layer, options.batch, threads)
            if options.only not in name_of(layer):
                continue
            if key not in known:
                if time.monotonic() > end:
                    return
                known[key] = measure(*key, options.rounds)
                if record:
                    with record.open("a") as file:
                        file.write(json.dumps(known[key]) + "\n")
            yield layer, known[key]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", default="1", help="a number, or all")
    parser.add_argument("--rounds", type=int, default=7, help="of each race")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--record", help="JSON lines of the rows measured so far; those are printed as they are")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no more rows are measured")
    options = parser.parse_args()
    threads = len(os.sched_getaffinity(0)) if options.threads == "all" else int(options.threads)
    pin(threads)
    _kernels.set_num_threads(threads)
    print(
        f"{machine()}; quantkit uses {qk.cpu.active_isa()}; onnxruntime {ort.__version__}; batch {options.batch}; "
        f"{threads} thread(s)"
    )
    print(
        "\n| layer | NHWC us | GOP/s | NCHW GOP/s | best peer GOP/s | of NCHW peers | NHWC / best | NCHW / NCHW | A/A |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    ratios: dict[str, list[float]] = {}
    for layer, row in rows(options, threads):
        speed = row["speed"]
        peers = {name: s for name, s in speed.items() if not name.startswith("quantkit")}
        best = max(peers, key=peers.__getitem__)
        ratio = speed["quantkit NHWC"] / peers[best]
        same = speed["quantkit NCHW"] / peers["onnxruntime NCHW"]
        kind = "depthwise" if layer[5] > 1 else "stem" if layer[0] < 4 else "dense"
        ratios.setdefault(kind, []).append(ratio)
        print(
            f"| {name_of(layer)} | {row['us']:,.1f} | {speed['quantkit NHWC']:.0f} "
            f"| {speed['quantkit NCHW']:.0f} | {peers[best]:.0f} {best} | {peers['onnxruntime NCHW']:.0f} "
            f"| {ratio:.2f} | {same:.2f} | {row['A/A']:.2f} |",
            flush=True,
        )
    for kind, values in ratios.items():
        mean = statistics.geometric_mean(values)
        print(f"\n{kind}: geometric mean {mean:.2f}, lowest {min(values):.2f}, {len(values)} rows")


if __name__ == "__main__":
    main()
