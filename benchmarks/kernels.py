"""Integer products against onnxruntime and torch: every matmul shape of BERT-base, ResNet-50 and MobileNetV2.

    python benchmarks/kernels.py [--models bert,resnet,mobilenet] [--batches 1,8] [--outputs int32,uint8]
                                 [--threads 1] [--rounds 9] [--quantile 0.5] [--no-torch] [--isa NAME]

One process, turns interleaved, medians of two races that agree. Convolutions of 1x1 count as the products that they
are. "of limit" is the share of the peak of multiply-adds, or, for a single row, of the bandwidth at which one core
reads as many bytes again and again; both measured in this run.
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
from harness import machine, pin, steady
from onnx import TensorProto, helper

import quantkit as qk
from quantkit import _kernels

TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int32": TensorProto.INT32, "float32": TensorProto.FLOAT}
A_ZERO, B_ZERO, Y_ZERO = 113, 0, 121


def conv1x1(pixels: int, *pairs: tuple[int, int]) -> list[tuple[int, int, int]]:
    return [(pixels, out, into) for into, out in pairs]


# (M, N, K) at batch 1; the batch multiplies M.
SHAPES = {
    "bert": [(128, 768, 768), (128, 3072, 768), (128, 768, 3072), (1, 768, 768)],
    "resnet": [
        *conv1x1(3136, (64, 64), (64, 256), (256, 64), (256, 128)),
        *conv1x1(784, (128, 512), (512, 128), (256, 512), (512, 256)),
        *conv1x1(196, (256, 1024), (1024, 256), (512, 1024), (1024, 512)),
        *conv1x1(49, (512, 2048), (2048, 512), (1024, 2048)),
        (1, 1000, 2048),
    ],
    "mobilenet": [
        *conv1x1(12544, (32, 16), (16, 96)),
        *conv1x1(3136, (96, 24), (24, 144), (144, 24)),
        *conv1x1(784, (144, 32), (32, 192), (192, 32)),
        *conv1x1(196, (192, 64), (64, 384), (384, 64), (384, 96), (96, 576), (576, 96)),
        *conv1x1(49, (576, 160), (160, 960), (960, 160), (960, 320), (320, 1280)),
        (1, 1000, 1280),
    ],
    "square": [(512, 512, 512), (1024, 1024, 1024), (1, 4096, 4096)],
}
# Attention: both operands are activations, so that packing counts. (heads, M, N, K) at batch 1.
BATCHED = {"bert": [(12, 128, 128, 64), (12, 128, 64, 128)]}


def session_call(op: str, inputs: dict[str, np.ndarray], constants: dict[str, np.ndarray], y: np.ndarray, threads: int):
    """One node in onnxruntime, its inputs and output bound to the given memory."""
    names = [*inputs, *constants]
    order = {
        "MatMulInteger": ["a", "b", "az", "bz"],
        "QLinearMatMul": ["a", "as", "az", "b", "bs", "bz", "ys", "yz"],
    }[op]
    assert sorted(names) == sorted(order)
    graph = helper.make_graph(
        [helper.make_node(op, order, ["y"])],
        op,
        [helper.make_tensor_value_info(n, TYPES[v.dtype.name], v.shape) for n, v in inputs.items()],
        [helper.make_tensor_value_info("y", TYPES[y.dtype.name], y.shape)],
        [helper.make_tensor(n, TYPES[v.dtype.name], v.shape, v.tobytes(), raw=True) for n, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for n, v in inputs.items():
        binding.bind_input(n, "cpu", 0, v.dtype, v.shape, v.ctypes.data)
    binding.bind_output("y", "cpu", 0, y.dtype, y.shape, y.ctypes.data)
    # The binding holds addresses alone: the arrays must live as long as the call.
    return lambda held=(inputs, y): session.run_with_iobinding(binding)


def torch_calls(a: np.ndarray, b: np.ndarray, scales: tuple[float, float, float]):
    import torch

    warnings.simplefilter("ignore")  # torch announces the removal of its quint8 tensors
    a_scale, b_scale, y_scale = scales
    x = torch._make_per_tensor_quantized_tensor(torch.from_numpy(a), a_scale, A_ZERO)
    w = torch._make_per_tensor_quantized_tensor(torch.from_numpy(np.ascontiguousarray(b.T)), b_scale, B_ZERO)
    made = {}
    for engine in ("fbgemm", "onednn"):
        if engine in torch.backends.quantized.supported_engines:
            torch.backends.quantized.engine = engine
            packed = torch.ops.quantized.linear_prepack(w, None)
            made[engine] = lambda p=packed: torch.ops.quantized.linear(x, p, y_scale, Y_ZERO)
    return made


def contestants(shape: tuple[int, ...], out: str, threads: int, with_torch: bool):
    *batch, m, n, k = shape
    rng = np.random.default_rng(0)
    a = rng.integers(0, 256, (*batch, m, k), np.uint8)
    b = rng.integers(-127, 128, (*batch, k, n), np.int8)
    a_scale, b_scale, y_scale = np.float32(0.02), np.float32(0.01), np.float32(0.02 * 0.01 * 75 * math.sqrt(k))
    a_zero, b_zero, y_zero = np.uint8(A_ZERO), np.int8(B_ZERO), np.uint8(Y_ZERO)
    y, y_ort = np.empty((*batch, m, n), out), np.empty((*batch, m, n), out)
    right = b if batch else qk.ops.pack_matmul(b)
    inputs, constants = {"a": a}, {"az": np.asarray(a_zero), "bz": np.asarray(b_zero)}
    (inputs if batch else constants)["b"] = b
    if out == "int32":
        sides = {
            "quantkit": lambda: qk.ops.matmul_integer(a, right, A_ZERO, B_ZERO, out=y),
            "onnxruntime": session_call("MatMulInteger", inputs, constants, y_ort, threads),
        }
    else:
        constants |= {"as": np.asarray(a_scale), "bs": np.asarray(b_scale), "ys": np.asarray(y_scale)}
        constants["yz"] = np.asarray(y_zero)
        parameters = (float(a_scale), A_ZERO, right, float(b_scale), B_ZERO, float(y_scale), Y_ZERO)
        sides = {
            "quantkit": lambda: qk.ops.qlinear_matmul(a, *parameters, out=y),
            "onnxruntime": session_call("QLinearMatMul", inputs, constants, y_ort, threads),
        }
        if with_torch and not batch:
            sides |= torch_calls(a, b, (float(a_scale), float(b_scale), float(y_scale)))
    for call in sides.values():
        call()
    assert np.array_equal(y, y_ort), f"quantkit and onnxruntime differ at {shape}"
    return sides


def rows(models: list[str], batches: list[int]):
    for model in models:
        seen = set()
        for batch in batches:
            for m, n, k in SHAPES[model]:
                shape = (m * batch, n, k)
                if shape not in seen:
                    seen.add(shape)
                    yield model, shape
            for heads, m, n, k in BATCHED.get(model, []):
                yield model, (heads * batch, m, n, k)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default="bert,resnet,mobilenet,square")
    parser.add_argument("--batches", default="1,8", help="a run of one batch takes about two minutes")
    parser.add_argument("--outputs", default="int32,uint8")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9, help="of each race")
    parser.add_argument("--quantile", type=float, default=0.5, help="of turns; lower where others use the machine")
    parser.add_argument("--target", type=float, default=0.001, help="seconds a turn")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--isa", help="of quantkit alone")
    options = parser.parse_args()
    pin(options.threads)
    if options.isa:
        _kernels.use_isa(options.isa)
    _kernels.set_num_threads(options.threads)
    if not options.no_torch:
        import torch

        torch.set_num_threads(options.threads)
    print(
        f"{machine()}; {options.threads} thread(s); quantkit uses {qk.cpu.active_isa()}; load {os.getloadavg()[0]:.1f}"
    )
    print(f"onnxruntime {ort.__version__}; peak of one core {peak.multiply_adds() / 1e9:.0f} GOP/s")
    print("\n| model | M x N x K | out | quantkit us | GOP/s | of limit | best peer | best peer / quantkit | A/A |")
    print("|---|---|---|---|---|---|---|---|---|")
    ratios = []
    for model, shape in rows(options.models.split(","), [int(b) for b in options.batches.split(",")]):
        *batch, m, n, k = shape
        for out in options.outputs.split(","):
            sides = contestants(shape, out, options.threads, not options.no_torch)
            medians = steady(sides, rounds=options.rounds, target=options.target, quantile=options.quantile)
            ours, aa = medians.pop("quantkit"), medians.pop("A/A")
            best = min(medians, key=medians.__getitem__)
            operations = 2 * math.prod(shape)
            if m == 1 and not batch:
                limit = n * k / ours / peak.read_bandwidth(n * k) / options.threads
            else:
                limit = operations / ours / peak.multiply_adds() / options.threads
            ratios.append(medians[best] / ours)
            name = " x ".join(map(str, shape[-3:]))
            print(
                f"| {model} | {f'{shape[0]} of ' if batch else ''}{name} | {out} | {ours * 1e6:,.1f} "
                f"| {operations / ours / 1e9:.0f} | {limit:.2f} | {best} {medians[best] * 1e6:,.1f} us "
                f"| {ratios[-1]:.2f} | {aa:.2f} |",
                flush=True,
            )
    print(f"\n{len(ratios)} rows: geometric mean {statistics.geometric_mean(ratios):.2f}, lowest {min(ratios):.2f}")


if __name__ == "__main__":
    main()
