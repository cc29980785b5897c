"""LSTMs against onnxruntime (LSTM, DynamicQuantizeLSTM) and torch (LSTM, quantized dynamic).

    python benchmarks/rnn.py [--hidden 128,256,512,1024] [--seq 1,32,128] [--batch 1,8] [--threads 1] [--rounds 5]

One process, turns interleaved, medians. Inputs are as wide as the state. "of limit" is the share of what bounds a step:
with batch 1 the bandwidth at which one core reads as many bytes as R has, again and again; with more rows the peak of
multiply-adds (measured for codes, a quarter of that for float32); both over the whole time of the call.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import warnings

import numpy as np
import onnxruntime as ort
import peak
import torch
from harness import machine, pin, race
from onnx import TensorProto, helper

import quantkit as qk
from quantkit import _kernels

TYPES = {"int8": TensorProto.INT8, "float32": TensorProto.FLOAT}


def session_call(op: str, domain: str, constants: dict[str, np.ndarray], x: np.ndarray, hidden: int, threads: int):
    """One node in onnxruntime."""
    quantized = ["", "", "", "", "ws", "wz", "rs", "rz"] if domain else []
    node = helper.make_node(op, ["x", "w", "r", "b", *quantized], ["y", "h", "c"], domain=domain, hidden_size=hidden)
    graph = helper.make_graph(
        [node],
        op,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "h", "c")],
        [helper.make_tensor(n, TYPES[v.dtype.name], v.shape, v.tobytes(), raw=True) for n, v in constants.items()],
    )
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})


def contestants(hidden: int, seq: int, batch: int, threads: int):
    """Calls by name: of float32 weights, and of codes."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((seq, batch, hidden)).astype(np.float32)
    rows = 4 * hidden
    w, r, b = (
        (rng.uniform(-1, 1, shape) / math.sqrt(hidden)).astype(np.float32)
        for shape in ((1, rows, hidden), (1, rows, hidden), (1, 2 * rows))
    )
    scales = [np.abs(v).max(axis=2) / np.float32(127) for v in (w, r)]
    codes = [np.rint(v / s[..., None]).astype(np.int8) for v, s in zip((w, r), scales, strict=True)]
    packed = [qk.ops.pack_rnn(v) for v in (w, r)]
    packed8 = [qk.ops.pack_rnn(v, s) for v, s in zip(codes, scales, strict=True)]
    zeros = np.zeros((1, rows), np.int8)
    dynamic = {"ws": scales[0], "wz": zeros, "rs": scales[1], "rz": zeros, "b": b}
    dynamic |= {n: np.ascontiguousarray(v.transpose(0, 2, 1)) for n, v in zip("wr", codes, strict=True)}
    layer = torch.nn.LSTM(hidden, hidden).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces where its quantization moves
        layer8 = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(layer), {torch.nn.LSTM}, dtype=torch.qint8)[
            0
        ]
    tensor = torch.from_numpy(x)

    def in_torch(module):
        with torch.inference_mode():
            return module(tensor)

    real = {
        "quantkit": lambda: qk.ops.lstm(x, *packed, b),
        "onnxruntime": session_call("LSTM", "", {"w": w, "r": r, "b": b}, x, hidden, threads),
        "torch": lambda: in_torch(layer),
    }
    quantized = {
        "quantkit": lambda: qk.ops.lstm(x, *packed8, b),
        "onnxruntime": session_call("DynamicQuantizeLSTM", "com.microsoft", dynamic, x, hidden, threads),
        "torch": lambda: in_torch(layer8),
    }
    for sides in (real, quantized):
        assert np.abs(sides["quantkit"]()[0] - sides["onnxruntime"]()[0]).max() < 0.05
    return {"float32": real, "int8": quantized}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hidden", default="128,256,512,1024")
    parser.add_argument("--seq", default="1,32,128")
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--weights", default="float32,int8")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--target", type=float, default=0.001, help="seconds a turn")
    options = parser.parse_args()
    pin(options.threads)
    _kernels.set_num_threads(options.threads)
    torch.set_num_threads(options.threads)
    print(f"{machine()}; {options.threads} thread(s); {qk.cpu.active_isa()}; load {os.getloadavg()[0]:.1f}")
    print(f"onnxruntime {ort.__version__}, torch {torch.__version__}; peak {peak.multiply_adds() / 1e9:.0f} GOP/s\n")
    print("| hidden | seq | batch | weights | quantkit us | of limit | onnxruntime us | torch us | ratio | A/A |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    ratios = []
    for batch in map(int, options.batch.split(",")):
        for hidden in map(int, options.hidden.split(",")):
            for seq in map(int, options.seq.split(",")):
                calls = contestants(hidden, seq, batch, options.threads)
                for weights in options.weights.split(","):
                    medians = race(calls[weights], rounds=options.rounds, target=options.target)
                    ours, itemsize = medians["quantkit"], 1 if weights == "int8" else 4
                    products = 8 * hidden * hidden * seq * batch
                    if batch == 1:
                        nbytes = 4 * hidden * hidden * itemsize
                        limit = seq * nbytes / peak.read_bandwidth(nbytes) / ours / options.threads
                    else:
                        limit = 2 * products * itemsize / peak.multiply_adds() / ours / options.threads
                    ratios.append(min(medians["onnxruntime"], medians["torch"]) / ours)
                    times = " | ".join(f"{medians[name] * 1e6:,.1f}" for name in ("onnxruntime", "torch"))
                    print(
                        f"| {hidden} | {seq} | {batch} | {weights} | {ours * 1e6:,.1f} | {limit:.2f} | {times} "
                        f"| {ratios[-1]:.2f} | {medians['A/A']:.2f} |",
                        flush=True,
                    )
    print(f"\n{len(ratios)} rows: geometric mean {statistics.geometric_mean(ratios):.2f}, lowest {min(ratios):.2f}")


if __name__ == "__main__":
    main()
