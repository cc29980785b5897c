"""How onnxruntime executes a model: the graph that its optimizer leaves, and what each of its nodes costs."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import GraphProto, NodeProto, TensorProto

from quantkit.graph.io import ModelSource
from quantkit.graph.quantized_ops import computes_int8
from quantkit.graph.tensors import TensorReader
from quantkit.models.inputs import Feed
from quantkit.models.runtime import Session, open_session

_KERNEL = "_kernel_time"
_CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")
_PRODUCTS = ("Conv", "FusedConv", "ConvTranspose", "MatMul", "FusedMatMul", "Gemm", "FusedGemm")


@dataclass
class Execution:
    """What onnxruntime makes of an int8 file on this machine.

    Attributes
    ----------
    int8 : dict of str to int
        Nodes that compute or move codes, by operator.
    unfused : list of str
        Products that dequantize their operands and compute in float: names of their outputs.
    conversions : int
        QuantizeLinear and DequantizeLinear of activations that are left between int8 and float.
    other : int
        All other nodes: float arithmetic, shapes and layouts.
    """

    int8: dict[str, int] = field(default_factory=dict)
    unfused: list[str] = field(default_factory=list)
    conversions: int = 0
    other: int = 0

    @property
    def int8_count(self) -> int:
        """Number of nodes that compute or move codes."""
        return sum(self.int8.values())


@dataclass(frozen=True)
class NodeTime:
    """One node as it was executed, in this order.

    Attributes
    ----------
    names : tuple of str
        Its name and those of its outputs.
    microseconds : float
        The least of several runs.
    """

    names: tuple[str, ...]
    microseconds: float


def execution(model: ModelSource, *, title: str = "the model") -> Execution:
    """Count how onnxruntime executes `model`, bodies included.

    Raises
    ------
    ModelError
        When it does not load.
    """
    with tempfile.TemporaryDirectory(prefix="quantkit-") as folder:
        _open(model, Path(folder), None, title)
        graph = onnx.load(str(Path(folder) / "optimized.onnx"), load_external_data=False).graph
    found = Execution()
    counts: Counter[str] = Counter()
    _count(graph, {}, found, counts)
    found.int8 = dict(counts.most_common())
    return found


def node_times(model: ModelSource, feed: Feed, runs: int, *, tensors: TensorReader | None = None) -> list[NodeTime]:
    """Profile `model` on one thread over `runs` runs on `feed`.

    Raises
    ------
    ModelError
        When it does not load or run.
    """
    with tempfile.TemporaryDirectory(prefix="quantkit-") as folder:
        session = _open(model, Path(folder), tensors, "the model", profiled=True)
        given = {spec.name: feed[spec.name] for spec in session.inputs}
        for _ in range(runs):
            session.run(given)
        events = json.loads(Path(session.end_profiling()).read_bytes())
        graph = onnx.load(str(Path(folder) / "optimized.onnx"), load_external_data=False).graph
    outputs = {node.name: tuple(node.output) for node in _nodes(graph)}
    times: dict[str, float] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
            name = event["name"].removesuffix(_KERNEL)
            times[name] = min(float(event["dur"]), times.get(name, float("inf")))
    return [NodeTime((name, *outputs.get(name, ())), spent) for name, spent in times.items()]


def _open(
    model: ModelSource, folder: Path, tensors: TensorReader | None, title: str, *, profiled: bool = False
) -> Session:
    def configure(options: Any) -> None:
        options.optimized_model_filepath = str(folder / "optimized.onnx")
        if profiled:
            options.enable_profiling = True
            options.profile_file_prefix = str(folder / "profile")

    return open_session(model, title, threads=1, tensors=tensors, configure=configure)


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                yield from _nodes(body)


def _count(graph: GraphProto, outer: dict[str, str], found: Execution, counts: Counter[str]) -> None:
    """Count the nodes of one scope; `outer` maps the tensors around it to what they are."""
    known = {**outer, **{tensor.name: "constant" for tensor in graph.initializer}}
    codes = {t.name for t in graph.initializer if t.data_type in (TensorProto.INT8, TensorProto.UINT8)}
    for node in graph.node:
        kinds = [known.get(name, "") for name in node.input]
        made = ""
        if node.op_type in _CONVERSIONS:
            constant = bool(kinds) and kinds[0] == "constant"
            made = "codes" if node.op_type == "QuantizeLinear" else "weight" if constant else "values"
            if made == "weight":
                found.other += 1
            else:
                found.conversions += 1
        elif computes_int8(node.op_type):
            counts[node.op_type] += 1
            made = "codes" if node.op_type.startswith("QLinear") or node.op_type == "QGemm" else ""
        elif node.op_type in _PRODUCTS and "values" in kinds and ("weight" in kinds or kinds.count("values") > 1):
            found.unfused.append(node.output[0])
        elif kinds and (kinds[0] == "codes" or (node.op_type == "Gather" and node.input[0] in codes)):
            counts[node.op_type] += 1
            made = "codes"
        else:
            found.other += 1
        known.update((name, made) for name in node.output)
        for attribute in node.attribute:
            for body in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                _count(body, known, found, counts)
