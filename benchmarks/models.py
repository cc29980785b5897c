"""Quantized models beside onnxruntime.quantization: size, accuracy, speed, and how much of a model is int8.

    python benchmarks/models.py [--models DIR ...] [--only PATTERN] [--mode static] [--no-peers]
    python benchmarks/models.py --large [--folder DIR]

The corpus of the tests comes first, then every .onnx file of the given folders, and the models of rapidocr and
silero-vad where those packages are installed. Each side gets the same 24 samples to calibrate with and 12 others to be
measured on. Times are medians of interleaved runs, one thread, CPU time; A/A is how far two medians of the float model
lay apart in the same measurement. `--large` quantizes a made model of 2.5 GB in every mode and prints its memory.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from harness import machine
from model_feeds import feeds_for

from quantkit import quantize_model
from quantkit.graph.sizes import model_size
from quantkit.jobs.inspect import inspect_model
from quantkit.models.verification.verify import measure_latency, verify

TESTS = Path(__file__).resolve().parents[1] / "tests" / "models"
PACKAGES = {"rapidocr_onnxruntime": "models", "silero_vad": "data"}
CALIBRATION, HELD_OUT = 24, 12
COLUMNS = ("model", "tool", "int8 weights", "int8 MACs", "SQNR dB", "worst slice dB", "size", "speed", "A/A", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", action="append", default=[], type=Path, metavar="DIR")
    parser.add_argument("--only", default="*", help="pattern over model names")
    parser.add_argument("--mode", default="static", choices=["static", "dynamic", "weight_only"])
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument(
        "--folder", type=Path, help="where the made model of --large lies; a temporary folder by default"
    )
    parser.add_argument("--large-child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    ort.set_default_logger_severity(4)
    if options.large_child:
        large_child(*options.large_child)
        return
    if options.large:
        large(options.folder)
        return
    print(f"{machine()}; onnxruntime {ort.__version__}, numpy {np.__version__}; mode {options.mode}\n")
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)
    with tempfile.TemporaryDirectory(prefix="quantkit-") as folder:
        for name, path, calibration, held_out in models(options.models, Path(folder)):
            if not fnmatch(name, options.only):
                continue
            print(row(name, "quantkit", ours, path, calibration, held_out, options.mode), flush=True)
            if not options.no_peers and options.mode != "weight_only":
                print(
                    row(name, "onnxruntime.quantization", peer, path, calibration, held_out, options.mode), flush=True
                )


def models(folders: list[Path], scratch: Path) -> Iterator[tuple[str, Path, list[Any], list[Any]]]:
    """Yield name, file, and feeds to calibrate with and to measure on."""
    sys.path.insert(0, str(TESTS))
    from corpus import MODELS

    for name, make in MODELS.items():
        built = make()
        path = scratch / f"{name}.onnx"
        path.write_bytes(built.proto.SerializeToString())
        yield name, path, built.feeds(CALIBRATION), built.feeds(HELD_OUT, 99)
    for package, inside in PACKAGES.items():
        found = importlib.util.find_spec(package)
        if found is not None and found.submodule_search_locations:
            folders = [*folders, Path(found.submodule_search_locations[0]) / inside]
    for folder in folders:
        for path in sorted(folder.glob("*.onnx")):
            feeds = feeds_for(path, CALIBRATION + HELD_OUT)
            yield path.stem, path, feeds[:CALIBRATION], feeds[CALIBRATION:]


def row(name: str, tool: str, quantize: Any, path: Path, calibration: list[Any], held_out: list[Any], mode: str) -> str:
    """Return one line of the table; what fails is named."""
    with tempfile.TemporaryDirectory(prefix="quantkit-") as folder:
        target = Path(folder) / "int8.onnx"
        started = time.perf_counter()
        try:
            weights, macs = quantize(path, target, calibration, mode)
            seconds = time.perf_counter() - started
            agreement = verify(str(path), str(target), held_out)
            latency = measure_latency(str(path), str(target), held_out[0])
        except Exception as error:  # a peer's failure is a result
            return f"| {name} | {tool} | failed: {type(error).__name__}: {' '.join(str(error).split())[:90]} |"
        measured = [output for output in agreement.outputs if output.sqnr_db is not None]
        slices = [output.worst_slice.sqnr_db for output in measured if output.worst_slice is not None]
        cells = (
            name,
            tool,
            share(weights),
            share(macs),
            ", ".join(f"{output.sqnr_db:.1f}" for output in measured),
            f"{min(slices):.1f}" if slices else "-",
            f"{model_size(target) / model_size(path):.2f}",
            f"{latency.speedup:.2f}",
            f"{latency.spread:.3f}",
            f"{seconds:.1f}",
        )
    return "| " + " | ".join(cells) + " |"


def share(value: float | None) -> str:
    """Return a share as text."""
    return "-" if value is None else f"{100 * value:.1f} %"


def ours(path: Path, target: Path, calibration: list[Any], mode: str) -> tuple[float | None, float | None]:
    """Quantize with the defaults."""
    report = quantize_model(path, target, calibration=calibration, mode=mode).report
    return report.int8_weight_share, report.int8_mac_share


class Reader:
    """Feeds in the form that onnxruntime.quantization wants."""

    def __init__(self, feeds: list[Any]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Any:
        return next(self._feeds, None)


def peer(path: Path, target: Path, calibration: list[Any], mode: str) -> tuple[float | None, float | None]:
    """Quantize with onnxruntime as its documentation advises: preprocessed, QDQ, weights by channel."""
    from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    logging.disable(logging.WARNING)  # a line for each bias that it leaves float
    ready = target.with_name("preprocessed.onnx")
    try:
        with contextlib.chdir(target.parent):  # what fails in it leaves files in the current folder
            quant_pre_process(str(path.resolve()), str(ready))
    except Exception:
        ready = path  # many do without
    if mode == "dynamic":
        quantize_dynamic(str(ready), str(target), per_channel=True)
    else:
        types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
        quantize_static(str(ready), str(target), Reader(calibration), per_channel=True, **types)
    return inspect_model(target).int8_weight_share, None


def large(folder: Path | None) -> None:
    """Quantize a made model of 2.5 GB in each mode, each in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="quantkit-", dir=folder) as place:
        path = Path(place) / "large.onnx"
        write_large(path)
        size = model_size(path)
        print(f"{machine()}; a model of {size / 1e9:.2f} GB with external data, not measured against the float model\n")
        print(
            "| mode | size | anonymous memory, peak | of the float size | seconds |\n|---|---|---|---|---|", flush=True
        )
        for mode in ("weight_only", "dynamic", "static"):
            command = [sys.executable, __file__, "--large-child", str(path), mode, str(size)]
            subprocess.run(command, check=True)


def large_child(path: str, mode: str, size: str) -> None:
    """Quantize and print one row."""
    import threading

    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    feeds = [{"x": np.random.default_rng(i).normal(size=(1, 8192)).astype(np.float32)} for i in range(4)]
    calibration = feeds if mode == "static" else None
    try:
        result = quantize_model(path, Path(path).with_name("q.onnx"), mode=mode, calibration=calibration, measure=False)
    finally:
        done.set()
        watcher.join()
    print(
        f"| {mode} | {result.report.size_ratio:.3f} | {peak[0] / 1e9:.2f} GB | {peak[0] / int(size):.2f} "
        f"| {time.perf_counter() - started:.0f} |",
        flush=True,
    )


def anonymous_bytes() -> int:
    """Return this process's anonymous memory; where the system does not tell, its peak of all memory."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def write_large(path: Path, side: int = 8192, count: int = 10) -> None:
    """Write `count` products of `side` x `side`, external data and all, a slice at a time."""
    rng = np.random.default_rng(0)
    block = (rng.normal(size=(side // 16, side)) * side**-0.5).astype(np.float32)
    nodes, tensors, x = [], [], "x"
    with path.with_suffix(".data").open("wb") as file:
        for i in range(count):
            tensor = onnx.TensorProto(name=f"w{i}", data_type=onnx.TensorProto.FLOAT, dims=[side, side])
            tensor.data_location = onnx.TensorProto.EXTERNAL
            length = 4 * side * side
            for key, value in (
                ("location", path.with_suffix(".data").name),
                ("offset", file.tell()),
                ("length", length),
            ):
                tensor.external_data.add(key=key, value=str(value))
            for j in range(16):
                file.write(np.roll(block, 16 * i + j, axis=1).tobytes())
            tensors.append(tensor)
            nodes += [
                onnx.helper.make_node("MatMul", [x, f"w{i}"], [f"m{i}"], name=f"product{i}"),
                onnx.helper.make_node("Relu", [f"m{i}"], [f"r{i}"], name=f"relu{i}"),
            ]
            x = f"r{i}"
    info = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["n", side]) for n in ("x", x)]
    graph = onnx.helper.make_graph(nodes, "large", info[:1], info[1:], tensors)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


if __name__ == "__main__":
    main()
