"""quantize and dequantize against onnxruntime, torch, NumPy and a copy that moves as many bytes.

    python benchmarks/quantize.py [--sizes 4096,65536,...] [--rounds 15] [--svg docs/quantize.svg]

Every side writes into memory that it was given before, except torch, whose quantize and dequantize always allocate.
"""

from __future__ import annotations

import argparse
import importlib.util
import warnings

import numpy as np
import onnx
import onnxruntime as ort
from harness import machine, pin, race
from onnx import TensorProto, helper
from picture import bars

import quantkit as qk

SCALE, ZERO_POINT = 0.0173, 121


def onnxruntime_call(op: str, x: np.ndarray, y: np.ndarray):
    """One node in onnxruntime, its input and output bound to the given memory."""
    types = {"float32": TensorProto.FLOAT, "uint8": TensorProto.UINT8}
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "s", "z"], ["y"])],
        op,
        [helper.make_tensor_value_info("x", types[x.dtype.name], x.shape)],
        [helper.make_tensor_value_info("y", types[y.dtype.name], y.shape)],
        [
            helper.make_tensor("s", TensorProto.FLOAT, [], [SCALE]),
            helper.make_tensor("z", TensorProto.UINT8, [], [ZERO_POINT]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.checker.check_model(model)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, x.dtype, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, y.dtype, y.shape, y.ctypes.data)
    # The binding holds addresses alone: x and y must live as long as the call.
    return lambda held=(x, y): session.run_with_iobinding(binding)


def numpy_quantize(x: np.ndarray, y: np.ndarray):
    work = np.empty_like(x)
    scale, low, high = np.float32(SCALE), np.float32(-ZERO_POINT), np.float32(255 - ZERO_POINT)

    def call():
        np.divide(x, scale, out=work)
        np.rint(work, out=work)
        np.clip(work, low, high, out=work)
        np.add(work, np.float32(ZERO_POINT), out=work)
        np.copyto(y, work, casting="unsafe")

    return call


def numpy_dequantize(q: np.ndarray, y: np.ndarray):
    scale, zero_point = np.float32(SCALE), np.float32(ZERO_POINT)

    def call():
        np.subtract(q, zero_point, out=y)
        np.multiply(y, scale, out=y)

    return call


def copy_of(nbytes: int):
    """A copy that reads and writes `nbytes` in all."""
    source, target = np.ones(nbytes // 2, np.uint8), np.zeros(nbytes // 2, np.uint8)
    return lambda: np.copyto(target, source)


def torch_call(op: str, x: np.ndarray):
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch announces the removal of its quint8 tensors
    tx = torch.from_numpy(x)
    if op == "quantize":
        return lambda: torch.quantize_per_tensor(tx, SCALE, ZERO_POINT, torch.quint8)
    tq = torch.quantize_per_tensor(tx, SCALE, ZERO_POINT, torch.quint8)
    return lambda: torch.dequantize(tq)


def contestants(op: str, n: int):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(n) * 0.8).astype(np.float32)
    q = qk.ops.quantize_linear(x, SCALE, ZERO_POINT)
    if op == "quantize":
        y, y_ort = np.empty(n, np.uint8), np.empty(n, np.uint8)
        sides = {
            "quantkit": lambda: qk.ops.quantize_linear(x, SCALE, ZERO_POINT, out=y),
            "onnxruntime": onnxruntime_call("QuantizeLinear", x, y_ort),
            "numpy": numpy_quantize(x, np.empty(n, np.uint8)),
        }
    else:
        y, y_ort = np.empty(n, np.float32), np.empty(n, np.float32)
        sides = {
            "quantkit": lambda: qk.ops.dequantize_linear(q, SCALE, ZERO_POINT, out=y),
            "onnxruntime": onnxruntime_call("DequantizeLinear", q, y_ort),
            "numpy": numpy_dequantize(q, np.empty(n, np.float32)),
        }
    if importlib.util.find_spec("torch"):
        sides["torch"] = torch_call(op, x)
    sides["copy"] = copy_of(5 * n)
    for call in sides.values():
        call()
    assert np.array_equal(y, y_ort), "quantkit and onnxruntime differ"
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", default="4096,16384,65536,262144,1048576,4194304,16777216")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--svg", help="also draw the ratios to the best peer into this file")
    options = parser.parse_args()
    pin(1)
    print(f"{machine()}; quantkit uses {qk.cpu.active_isa()}; onnxruntime {ort.__version__}, numpy {np.__version__}")
    print("\n| job | elements | quantkit us | GB/s | best peer | best peer / quantkit | copy / quantkit | A/A |")
    print("|---|---|---|---|---|---|---|---|")
    drawn = []
    for op in ("quantize", "dequantize"):
        for n in map(int, options.sizes.split(",")):
            medians = race(contestants(op, n), rounds=options.rounds)
            ours = medians["quantkit"]
            peers = {name: medians[name] for name in ("onnxruntime", "torch", "numpy") if name in medians}
            best = min(peers, key=peers.__getitem__)
            print(
                f"| {op} | {n:,} | {ours * 1e6:,.2f} | {5 * n / ours / 1e9:.1f} | {best} {peers[best] * 1e6:,.1f} us "
                f"| {peers[best] / ours:.2f} | {medians['copy'] / ours:.2f} | {medians['A/A']:.2f} |",
                flush=True,
            )
            size = f"{n >> 10} Ki" if n < 1 << 20 else f"{n >> 20} Mi"
            drawn.append((f"{op} {size}", peers[best] / ours, best))
    if options.svg:
        title = "quantize and dequantize, float32 and uint8, one core"
        note = f"times as fast as the best of onnxruntime {ort.__version__}, torch and NumPy; medians, same process"
        with open(options.svg, "w") as file:
            file.write(bars(title, note, drawn))


if __name__ == "__main__":
    main()
