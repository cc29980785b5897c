"""Measure the kernels on this machine, beside a plain copy and beside peers that are installed."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from quantkit import ops
from quantkit.errors import InvalidArgument
from quantkit.jobs.race import race

Call = Callable[[], object]
SCALE, ZERO_POINT = 0.0173, 121
ELEMENTS = (1 << 12, 1 << 16, 1 << 20, 1 << 24)
PRODUCTS = ((512, 512, 512), (3136, 64, 64), (1, 1024, 1024))
PEERS = ("onnxruntime", "torch", "numpy")


@dataclass
class BenchRow:
    """One job at one size.

    Attributes
    ----------
    job, size : str
    seconds : float
        Median of a call.
    rate : float
        Gigabytes read and written a second, or giga-operations (two a multiply-add) a second.
    unit : str
        ``"GB/s"`` or ``"GOP/s"``.
    copy : float or None
        Seconds of a copy that moves as many bytes, over ours.
    peers : dict
        For each peer, its seconds over ours.
    spread : float
        Ratio of two series of ours: how far the others can be trusted.
    """

    job: str
    size: str
    seconds: float
    rate: float
    unit: str
    copy: float | None = None
    peers: dict[str, float] = field(default_factory=dict)
    spread: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain values."""
        return asdict(self)


def onnxruntime_node(op: str, inputs: dict[str, Any], constants: dict[str, Any], output: Any) -> Call:
    """Return a call of one node in onnxruntime on one thread, its inputs and output bound to the given arrays."""
    import onnxruntime
    from onnx import helper, numpy_helper

    def info(name: str, array: Any) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    graph = helper.make_graph(
        [helper.make_node(op, [*inputs, *constants], ["y"])],
        op,
        [info(name, array) for name, array in inputs.items()],
        [info("y", output)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    binding.bind_output("y", "cpu", 0, output.dtype, output.shape, output.ctypes.data)
    # The binding holds addresses alone: the arrays must live as long as the call.
    return lambda held=(inputs, output): session.run_with_iobinding(binding)  # type: ignore[misc]


def numpy_quantize(x: Any, y: Any) -> Call:
    """Return NumPy's shortest exact way, without allocating."""
    work = np.empty_like(x)
    scale, low, high = np.float32(SCALE), np.float32(-ZERO_POINT), np.float32(255 - ZERO_POINT)

    def call() -> None:
        np.divide(x, scale, out=work)
        np.rint(work, out=work)
        np.clip(work, low, high, out=work)
        np.add(work, np.float32(ZERO_POINT), out=work)
        np.copyto(y, work, casting="unsafe")

    return call


def numpy_dequantize(q: Any, y: Any) -> Call:
    """Return NumPy's shortest way, without allocating."""
    scale, zero_point = np.float32(SCALE), np.float32(ZERO_POINT)

    def call() -> None:
        np.subtract(q, zero_point, out=y)
        np.multiply(y, scale, out=y)

    return call


def torch_call(op: str, x: Any) -> Call:
    """Return torch's own, which always allocates its result."""
    import torch

    torch.set_num_threads(1)
    given = torch.from_numpy(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces the removal of its quint8 tensors
        codes = torch.quantize_per_tensor(given, SCALE, ZERO_POINT, torch.quint8)
    if op == "quantize":
        return lambda: torch.quantize_per_tensor(given, SCALE, ZERO_POINT, torch.quint8)
    return lambda: torch.dequantize(codes)


def copy_of(nbytes: int) -> Call:
    """Return a copy that reads and writes `nbytes` in all."""
    source, target = np.ones(nbytes // 2, np.uint8), np.zeros(nbytes // 2, np.uint8)
    return lambda: np.copyto(target, source)


def affine_contestants(op: str, n: int, peers: bool) -> dict[str, Call]:
    """Return the contestants of quantize or dequantize over `n` elements, float32 and uint8, one core."""
    x = (np.random.default_rng(0).standard_normal(n) * 0.8).astype(np.float32)
    q = ops.quantize_linear(x, SCALE, ZERO_POINT)
    given, kind = (x, np.uint8) if op == "quantize" else (q, np.float32)
    y, verb = np.empty(n, kind), ops.quantize_linear if op == "quantize" else ops.dequantize_linear
    sides: dict[str, Call] = {"quantkit": lambda: verb(given, SCALE, ZERO_POINT, out=y)}
    if peers:
        node = "QuantizeLinear" if op == "quantize" else "DequantizeLinear"
        other, constants = np.empty(n, kind), {"s": np.float32(SCALE), "z": np.uint8(ZERO_POINT)}
        sides["onnxruntime"] = onnxruntime_node(node, {"x": given}, constants, other)
        plain = np.empty(n, kind)
        sides["numpy"] = numpy_quantize(x, plain) if op == "quantize" else numpy_dequantize(q, plain)
        if importlib.util.find_spec("torch"):
            sides["torch"] = torch_call(op, x)
        sides["quantkit"](), sides["onnxruntime"]()
        assert np.array_equal(y, other), "quantkit and onnxruntime differ"
    sides["copy"] = copy_of(5 * n)
    return sides


def product_contestants(m: int, k: int, n: int, peers: bool) -> dict[str, Call]:
    """Return the contestants of an integer product with a packed right operand."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (m, k), np.uint8), rng.integers(-127, 128, (k, n), np.int8)
    packed, y = ops.pack_matmul(b), np.empty((m, n), np.int32)
    sides: dict[str, Call] = {"quantkit": lambda: ops.matmul_integer(a, packed, 121, out=y)}
    if peers:
        other = np.empty((m, n), np.int32)
        sides["onnxruntime"] = onnxruntime_node(
            "MatMulInteger", {"a": a}, {"b": b, "za": np.uint8(121), "zb": np.int8(0)}, other
        )
    return sides


def bench(peers: bool = False, rounds: int = 9) -> Iterator[BenchRow]:
    """Measure the kernels, one row after the other.

    Parameters
    ----------
    peers : bool
        Also measure onnxruntime, NumPy, and torch where it is installed.
    rounds : int
        Turns of each contestant.

    Yields
    ------
    BenchRow
    """
    if rounds < 1:
        raise InvalidArgument(f"rounds must be at least 1, got {rounds}")
    for op in ("quantize", "dequantize"):
        for n in ELEMENTS:
            size = f"{n >> 10} Ki" if n < 1 << 20 else f"{n >> 20} Mi"
            yield _row(op, size, 5 * n, "GB/s", race(affine_contestants(op, n, peers), rounds=rounds))
    for m, k, n in PRODUCTS:
        sides = product_contestants(m, k, n, peers)
        yield _row("matmul", f"{m}x{k}x{n}", 2 * m * k * n, "GOP/s", race(sides, rounds=rounds))


def _row(job: str, size: str, work: int, unit: str, medians: dict[str, float]) -> BenchRow:
    ours = medians["quantkit"]
    ratios = {name: medians[name] / ours for name in PEERS if name in medians}
    copy = medians["copy"] / ours if "copy" in medians else None
    return BenchRow(job, size, ours, work / ours / 1e9, unit, copy, ratios, medians["A/A"])
