"""Everything that wants a GPU, in one run of less than ten minutes: ``python benchmarks/cuda.py``.

First whether the kernels are right on this GPU (the tests of tests/cuda), then what they reach, beside torch and CuPy
where those are installed. All sides are interleaved, medians are printed, with the spread of the same side measured
twice. The bounds are measured here as well: the bandwidth of a copy, and torch._int_mm as int8 peak.

``--no-tests`` skips the tests, ``--seconds`` bounds each row, ``--small`` only shows that the script runs.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import quantkit as qk

ROOT = Path(__file__).parents[1]
rng = np.random.default_rng(0)


def timed(calls, seconds):
    """Milliseconds of each call: medians of interleaved rounds between two events, and the A/A spread of the first."""
    stream = qk.default_stream("cuda:0")
    samples = {name: [] for name in calls}
    again = []
    for call in calls.values():
        call()
    stream.synchronize()
    repeats = {}
    for name, call in calls.items():
        begin = time.perf_counter()
        call()
        stream.synchronize()
        repeats[name] = max(1, min(200, int(0.01 / max(time.perf_counter() - begin, 1e-6))))
    end_of_time = time.monotonic() + seconds
    while time.monotonic() < end_of_time or len(again) < 5:
        for name, call in [*calls.items(), (None, next(iter(calls.values())))]:
            count = repeats[name or next(iter(calls))]
            begin, end = qk.Event(enable_timing=True), qk.Event(enable_timing=True)
            begin.record(stream)
            for _ in range(count):
                call()
            end.record(stream)
            (samples[name] if name else again).append(begin.elapsed_time(end) / count)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    first = next(iter(medians.values()))
    return medians, abs(statistics.median(again) / first - 1)


def row(title, medians, spread, work, unit, bound=None):
    """Print one line: our rate, its share of a bound, and the peers' rates."""
    parts = [f"{title:34}"]
    for name, ms in medians.items():
        parts.append(f"{name} {work / ms / 1e6:9.1f} {unit}")
    if bound:
        parts.append(f"= {work / medians['quantkit'] / 1e6 / bound:.2f} of the bound")
    print("  ".join(parts) + f"  (A/A {spread:.1%})", flush=True)


def gpu(x):
    made = qk.from_numpy(x).to("cuda:0")
    return made.storage() if isinstance(made, qk.QTensor) else made


def torch_of(x):
    return torch.from_dlpack(x)


def elementwise(seconds, small):
    n = 1 << 16 if small else 256 << 20
    source, target = qk.ByteStorage.empty(n, device="cuda:0"), qk.ByteStorage.empty(n, device="cuda:0")
    medians, spread = timed({"quantkit": lambda: target.copy_(source)}, seconds)
    bandwidth = 2 * n / medians["quantkit"] / 1e6
    row(f"copy, {n / 2**20:g} MiB", medians, spread, 2 * n, "GB/s")
    for count in (1 << 12,) if small else (16 << 20, 64 << 20):
        name = f"{count / 2**20:g} Mi"
        x = gpu(rng.standard_normal(count).astype(np.float32))
        q = qk.empty(count, device="cuda:0").storage()
        y = qk.empty(count, dtype=np.float32, device="cuda:0")
        calls = {"quantkit": lambda x=x, q=q: qk.ops.quantize_linear(x, 0.02, 128, out=q)}
        if torch:
            a, b = torch_of(x), torch_of(q)
            calls["torch"] = lambda a=a: torch.quantize_per_tensor(a, 0.02, 128, torch.quint8)
        if cupy:
            c = cupy.asarray(x)
            kernel = cupy.ElementwiseKernel(
                "float32 x", "uint8 y", "y = min(max(rintf(x / 0.02f) + 128.0f, 0.0f), 255.0f)", "quantize"
            )
            calls["CuPy"] = lambda c=c, k=kernel: k(c)
        row(f"quantize float32, {name}", *timed(calls, seconds), 5 * count, "GB/s", bandwidth)
        calls = {"quantkit": lambda q=q, y=y: qk.ops.dequantize_linear(q, 0.02, 128, out=y)}
        if torch:
            calls["torch"] = lambda b=b: (b.to(torch.float32) - 128) * 0.02
        row(f"dequantize to float32, {name}", *timed(calls, seconds), 5 * count, "GB/s", bandwidth)
        table = rng.permutation(256).astype(np.uint8)
        calls = {"quantkit": lambda q=q, t=table: qk.ops.lookup(q, t, out=q)}
        row(f"lookup, {name}", *timed(calls, seconds), 2 * count, "GB/s", bandwidth)


def products(seconds, small):
    for m, n, k in (
        ((32, 48, 64),)
        if small
        else ((4096, 4096, 4096), (8192, 8192, 8192), (1024, 1024, 1024), (16, 4096, 4096), (3136, 64, 64))
    ):
        a = gpu(rng.integers(-128, 128, (m, k), np.int8))
        b = rng.integers(-127, 128, (k, n), np.int8)
        packed = qk.ops.pack_matmul(gpu(b))
        out = qk.empty(m, n, dtype=np.int32, device="cuda:0")
        calls = {"quantkit": lambda a=a, p=packed, o=out: qk.ops.matmul_integer(a, p, out=o)}
        bound = None
        if torch and m > 16:
            left, right = torch_of(a), torch.from_numpy(b).cuda().t().contiguous().t()
            calls["torch._int_mm"] = lambda x=left, y=right: torch._int_mm(x, y)
        medians, spread = timed(calls, seconds)
        if "torch._int_mm" in medians:
            bound = 2 * m * n * k / medians["torch._int_mm"] / 1e6
        row(f"int8 matmul {m}x{n}x{k}", medians, spread, 2 * m * n * k, "GOP/s", bound)
        codes = qk.empty(m, n, device="cuda:0").storage()
        scale = np.full(n, 1e-3, np.float32)
        calls = {
            "quantkit": lambda a=a, p=packed, o=codes, s=scale: qk.ops.qlinear_matmul(
                a, 0.1, 0, p, s, 0, 0.1, np.uint8(7), out=o
            )
        }
        row("  with fused requantize", *timed(calls, seconds), 2 * m * n * k, "GOP/s", bound)


def convolutions(seconds, small):
    for batch, c, size, m, kernel, stride, group in (
        (32, 64, 56, 64, 3, 1, 1), (32, 256, 14, 256, 3, 1, 1), (32, 64, 56, 256, 1, 1, 1), (32, 3, 224, 64, 7, 2, 1),
        (32, 144, 56, 144, 3, 1, 144),
    ):  # fmt: skip
        if small:
            batch, size = 1, size // 14  # noqa: PLW2901
        x = rng.integers(0, 256, (batch, size, size, c), np.uint8)
        there = gpu(x).permute(0, 3, 1, 2)
        w = rng.integers(-127, 128, (m, c // group, kernel, kernel), np.int8)
        packed = qk.ops.pack_conv(gpu(w), group)
        pad, out = kernel // 2, (size + 2 * (kernel // 2) - kernel) // stride + 1
        y = gpu(np.zeros((batch, out, out, m), np.uint8)).permute(0, 3, 1, 2)
        calls = {
            "quantkit": lambda x=there, p=packed, y=y, pad=pad, s=stride: qk.ops.qlinear_conv(
                x, 0.1, 128, p, 0.01, 0, 0.5, np.uint8(128), pads=(pad,) * 4, strides=(s, s), out=y
            )
        }
        if torch:
            image = torch.from_numpy(x).cuda().permute(0, 3, 1, 2).half().contiguous(memory_format=torch.channels_last)
            weights = torch.from_numpy(w).cuda().half().contiguous(memory_format=torch.channels_last)
            calls["torch float16"] = lambda i=image, v=weights, s=stride, p=pad, g=group: torch.conv2d(
                i, v, stride=s, padding=p, groups=g
            )
        work = 2 * batch * out * out * m * (c // group) * kernel * kernel
        row(f"conv {c}->{m} {kernel}x{kernel}/{stride} @{size} g{group}", *timed(calls, seconds), work, "GOP/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-tests", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    # Python puts the folder of a script first on its path, and there this file would stand for cuda-python's `cuda`.
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
    if not qk.cuda.is_available():
        sys.exit(f"no GPU can be used here: {qk.cuda.why_not()}")
    began = time.monotonic()
    print(f"{qk.cuda.device_name()}, {qk.cuda.memory_info()[1] / 2**30:.0f} GiB", flush=True)
    if not options.no_tests:
        tests = [sys.executable, "-m", "pytest", "-q", "-x", "tests/cuda", "-k", "gpu", "-p", "no:cacheprovider"]
        if subprocess.run(tests, cwd=ROOT, check=False).returncode:
            sys.exit("the tests of tests/cuda fail on this GPU; nothing was measured")
    try:
        import torch
    except ImportError:
        torch = None
    try:
        import cupy
    except ImportError:
        cupy = None
    if torch and not torch.cuda.is_available():
        torch = None
    for part in (elementwise, products, convolutions):
        part(options.seconds, options.small)
    print(f"{time.monotonic() - began:.0f} s")
