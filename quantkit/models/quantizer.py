"""`quantize_model`: the stages in their order."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx

from quantkit.errors import CalibrationError, InvalidArgument, ModelError
from quantkit.graph import Graph, Model, Node, load_model, raise_opset, save_model
from quantkit.graph.io import ModelSource, model_bytes, stored_bytes
from quantkit.graph.quantized_ops import is_cast_weight, is_quantized
from quantkit.graph.sizes import model_size
from quantkit.graph.spill import Spill
from quantkit.models.calibration.calibrate import Wanted, calibrate
from quantkit.models.calibration.moment_observer import add_moments
from quantkit.models.calibration.moments import input_views
from quantkit.models.calibration.spread import calibrate_on_cluster, check_data
from quantkit.models.calibration.statistics import Calibration
from quantkit.models.data.feeds import FeedSource, open_data
from quantkit.models.data.image_data import RECIPE_KEY, recipe_of
from quantkit.models.forms.rewrite import quantize_dynamic, quantize_weights_only
from quantkit.models.forms.saturation import find_saturation
from quantkit.models.inputs import InputSpec
from quantkit.models.passes.channel_groups import channel_views, find_groups
from quantkit.models.passes.half import has_half, weights_in_double, widen
from quantkit.models.passes.prepare import prepare
from quantkit.models.planning.plan import observed_tensors
from quantkit.models.planning.selection import match_excluded
from quantkit.models.progress import Progress
from quantkit.models.refinement.refine import Refiner
from quantkit.models.refinement.speed import is_short_and_slower
from quantkit.models.report.account import Account, tensor_ranges
from quantkit.models.report.report import QuantizationResult, Report, versions
from quantkit.models.runtime import Session, check_threads, describe_model, open_session
from quantkit.models.verification.agreement import Agreement, Thresholds
from quantkit.models.verification.check import check_model, check_target, checks_passed
from quantkit.models.verification.execution import execution
from quantkit.models.verification.verify import check_class_axis, measure_latency, verify
from quantkit.ranges import RangeMethod
from quantkit.text import told

MODES = ("static", "dynamic", "weight_only")
FORMATS = ("qdq", "qoperator")
TARGETS = ("onnxruntime", "portable")
# onnxruntime writes the graph that it executes with all weights, so a larger model is only loaded.
_MAX_COUNTED_BYTES = 256 << 20

Seen = dict[Graph, Calibration]


def quantize_model(
    model: ModelSource,
    output: str | os.PathLike[str] | None = None,
    *,
    calibration: Any = None,
    validation: Any = None,
    mode: str = "static",
    format: str = "qdq",
    target: str = "onnxruntime",
    preset: Any = None,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    calibration_method: str = "minmax",
    percentile: float = 99.99,
    limit: int | None = None,
    seed: int = 0,
    refine: bool = True,
    allow_slower: bool = False,
    avoid_saturation: bool = False,
    measure: bool = True,
    class_axis: int | None = None,
    threads: int = 0,
    thresholds: Thresholds | None = None,
    scheduler: Any = None,
    progress: Progress | None = None,
) -> QuantizationResult:
    """Quantize an ONNX model to int8, and measure what that did to it.

    Parameters
    ----------
    model : path, bytes or ModelProto
        The float model; never changed.
    output : path, optional
        Where to write the int8 model. It is only written once it loads in onnxruntime, passes onnx.checker and ran on
        the held-out samples.
    calibration : optional
        Samples: a folder of images or of their shards (a path, a URL or `open_images`), an .npz or .npy file or a
        folder of them, or an iterable of ``{input: array}``.
        Needed for ``mode="static"``; elsewhere used to measure agreement.
    validation : optional
        Samples to measure agreement with, all of them. By default a part of `calibration` is held out for that.
    mode : {"static", "dynamic", "weight_only"}
        Calibrated int8 activations and weights; activations quantized at run time; int8 weights and float arithmetic.
    format : {"qdq", "qoperator"}
        How static int8 is written.
    target : {"onnxruntime", "portable"}
        ``"portable"`` avoids every operator outside ai.onnx and forms that only onnxruntime runs well.
    preset : str or Recipe, optional
        How images are prepared. By default what the model's metadata says; the int8 model's metadata says it too.
    include : iterable of str
        Quantize nothing but these: as `exclude`.
    exclude : iterable of str
        Node names, tensor names, operator types, glob patterns over names, or ``FROM..TO`` for the nodes on the paths
        between two tensors or nodes, to leave float. Stronger than `include`.
    calibration_method : {"minmax", "percentile", "mse", "entropy"}
        How much of what calibration saw a static scale covers; see `quantkit.ranges`.
    percentile : float
        How much that is for ``calibration_method="percentile"``, in percent.
    limit : int, optional
        Use at most this many samples of `calibration`.
    seed : int
        Chooses the samples that are held out.
    refine : bool
        Static only: try a few ways and keep the one whose outputs agree best with the float model; see `refinement`.
    allow_slower : bool
        By default nodes that onnxruntime would run slower in int8 stay float, as a model of time says (`costs.py`),
        which is the same on every machine; only where the finished file measures slower twice does a measurement
        decide (`speed.py`). True, or `refine` False, leaves out both; `measure` False leaves out the measurement.
    avoid_saturation : bool
        Keep the numbers the same on CPUs without VNNI: channels of weights that could saturate there get as much less
        range as that takes; see `saturation.py`.
    measure : bool
        Compare with the float model, and time both.
    class_axis : int, optional
        Axis of the first output along which classes lie.
    threads : int
        Threads of the agreement runs, at most 256; 0 lets onnxruntime decide. Latency is measured on one.
    thresholds : Thresholds, optional
        When `Report.shortfalls` says that agreement falls short.
    scheduler : str or distributed.Client, optional
        Static only: have the workers of a Dask cluster see the calibration samples, as `process_images` takes it. They
        must reach the data by the name that it has here.
    progress : callable, optional
        Called as ``progress(stage, done, total)``.

    Returns
    -------
    QuantizationResult

    Raises
    ------
    ModelError
        When the model cannot be loaded or run, is int8 already, or has nothing that can be quantized.
    CalibrationError
        When the samples do not fit the model, or static quantization got none.
    InvalidArgument
        For an option that is unknown or cannot be, or an entry of `include` or `exclude` that matches nothing.
    OutputError
        When the output cannot be written; nothing is left behind.
    """
    for value, known, what in ((mode, MODES, "mode"), (format, FORMATS, "format"), (target, TARGETS, "target")):
        if value not in known:
            raise InvalidArgument(f"{what} must be one of {', '.join(known)}, got {value!r}")
    if mode == "static" and calibration is None:
        raise CalibrationError(
            "static quantization needs samples: give calibration data (--calibration, calibration=), or mode dynamic"
        )
    if mode != "static" and format != "qdq":
        raise InvalidArgument(f"format {format} is a form of static int8: it does not go with mode {mode}")
    method = RangeMethod(calibration_method, percentile)
    included, excluded = _entries("include", include), _entries("exclude", exclude)
    if mode != "static" and method.needs_histogram:
        raise InvalidArgument(f"calibration_method {calibration_method} chooses static ranges: mode {mode} has none")
    if scheduler is not None:
        if mode != "static":
            raise InvalidArgument(f"scheduler: workers calibrate static ranges: mode {mode} has none")
        check_data(calibration)
    check_threads(threads)
    if output is not None:
        check_target(output, model)
    job = _Job(model, mode, format, target, progress)
    job.report.thresholds = thresholds or Thresholds()
    job.class_axis, job.threads, job.measure, job.refine = class_axis, threads, measure, refine
    job.allow_slower, job.within_pairs, job.method = allow_slower, avoid_saturation, method
    job.include, job.exclude, job.scheduler = included, excluded, scheduler
    return job.run(output, calibration, validation, preset, limit, seed)


class _Job:
    """One call of `quantize_model`."""

    def __init__(self, source: ModelSource, mode: str, form: str, target: str, progress: Progress | None) -> None:
        self.source, self.mode, self.form, self.target = source, mode, form, target
        self._progress = progress
        self.reference = source  # what the outputs are compared with
        self.class_axis: int | None = None
        self.threads, self.measure, self.refine, self.allow_slower = 0, True, True, False
        self.within_pairs = False
        self.method = RangeMethod()
        self.scheduler: Any = None
        self.include: list[str] = []
        self.exclude: list[str] = []
        named = isinstance(source, (str, os.PathLike))
        self.report = Report(source=str(source) if named else None, versions=versions())
        self.report.options = {"mode": mode, "format": form, "target": target}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        self.tell(name, 0, None)
        yield
        self.report.timings[name] = time.perf_counter() - started

    def tell(self, stage: str, done: int, total: int | None) -> None:
        if self._progress is not None:
            self._progress(stage, done, total)

    def run(
        self,
        output: str | os.PathLike[str] | None,
        samples: Any,
        validation: Any,
        preset: Any,
        limit: int | None,
        seed: int,
    ) -> QuantizationResult:
        report, self.samples = self.report, samples
        report.options |= {"preset": None if preset is None else str(preset), "exclude": self.exclude}
        report.options |= {"include": self.include, "calibration_method": self.method.name}
        with self.stage("load"):
            model = load_model(self.source)
            checks = checks_passed(self.source)
            _refuse_int8(model)
            if stored_bytes(model) > _MAX_COUNTED_BYTES:
                model.tensors.spill = Spill(None if output is None else Path(output).resolve().parent)
            feeds = held_out = None
            if samples is not None or validation is not None:
                # Loading the float model costs its size in memory; without data there is nothing to run it on.
                session = self._open_float(model)
                self.inputs = inputs = session.inputs
                if self.class_axis is not None:
                    check_class_axis(session, self.class_axis)
                del session
                recipe = preset if preset is not None else recipe_of(self.source)
                feeds, held_out = self._open(inputs, samples, validation, recipe, limit, seed)
        if weights_in_double(model):
            report.warnings.append("the model computes in float64; the quantized one does so in float32")
        with self.stage("prepare"):
            excluded = match_excluded(model, self.exclude, self.include)
            model = prepare(model)
        seen = self._calibrate(model, feeds, set(excluded)) if self.mode == "static" and feeds is not None else None
        model = self._rewrite(model, seen, excluded, feeds if self.refine else None)
        used = feeds or held_out
        _stamp(model, report, used.recipe if used is not None else None)
        agreement: list[Any] = []
        counted = stored_bytes(model) <= _MAX_COUNTED_BYTES

        def check(candidate: Path | bytes) -> None:
            """Reload the candidate; what raises here keeps it from being written."""
            given = str(candidate) if isinstance(candidate, Path) else candidate
            if checks:
                check_model(given, max(checks), f"{describe_model(self.source)}: the quantized model")
            if counted:
                report.execution = execution(given, title=f"{describe_model(self.source)}: the quantized model")
            else:
                open_session(given, f"{describe_model(self.source)}: the quantized model")
            if self.measure and held_out is not None:
                agreement.append(self._verify(given, held_out))

        path = None
        if output is not None:
            path = save_model(model, output, check=check)
            result = onnx.load(str(path), load_external_data=False)
            report.output, report.int8_bytes = str(path), model_size(path)
        else:
            data = model_bytes(model)
            check(data)
            result = onnx.load_model_from_string(data)
            report.int8_bytes = len(data)
        if agreement:
            report.agreement = agreement[0]
            report.warnings += agreement[0].warnings
        for source in (feeds, held_out):
            if source is not None:
                report.warnings += [note for note in source.notes if note not in report.warnings]
                report.skipped |= source.skipped
        report.float_bytes = model_size(self.source)
        return QuantizationResult(path, result, report)

    def _open_float(self, model: Model) -> Session:
        """Open the float model; where onnxruntime cannot run its half precision, the same model in float32."""
        try:
            return open_session(self.source, describe_model(self.source))
        except ModelError:
            if not has_half(model):
                raise
        wide = raise_opset(load_model(self.source))
        widen(wide)
        self.reference = model_bytes(wide)
        self.report.warnings.append("onnxruntime cannot run the float model's half precision: compared with float32")
        return open_session(self.reference, describe_model(self.source))

    def _open(
        self, inputs: list[InputSpec], samples: Any, validation: Any, recipe: Any, limit: int | None, seed: int
    ) -> tuple[FeedSource | None, FeedSource | None]:
        title = describe_model(self.source)
        held_out = None if validation is None else open_data(validation, inputs, recipe=recipe, seed=seed, model=title)
        if samples is None:
            return None, held_out
        data = open_data(samples, inputs, recipe=recipe, limit=limit, seed=seed, model=title)
        if held_out is not None:
            return data, held_out
        return data.split() if self.mode == "static" else (None, data)

    def _verify(self, candidate: str | bytes, held_out: FeedSource) -> Agreement:
        with self.stage("verify"):
            found = verify(
                self.reference,
                candidate,
                held_out,
                class_axis=self.class_axis,
                threads=self.threads,
                progress=self._progress,
            )
        with self.stage("latency"):
            self.report.latency = timed = measure_latency(self.reference, candidate, next(iter(held_out)))
        if self.mode != "weight_only" and not self.allow_slower and is_short_and_slower(timed):
            self.report.warnings.append(
                f"slower than float in onnxruntime on one thread ({timed.int8_ms / timed.float_ms:.2f}x the time): a "
                "run this short is mostly calls and nodes, of which int8 has more; mode weight_only keeps float "
                "arithmetic"
            )
        return found

    def _calibrate(self, model: Model, feeds: FeedSource, excluded: set[Node]) -> Seen:
        def tell(done: int) -> None:
            self.tell("calibrate", done, len(feeds))

        with self.stage("calibrate"):
            wanted = {}
            for graph in model.graph.walk():
                by_channel = channel_views(graph, find_groups(graph, excluded))
                wanted[graph] = Wanted(tuple(dict.fromkeys([*observed_tensors(graph), *by_channel])), by_channel)
            if self.scheduler is None:
                seen = calibrate(model, wanted, _Counted(feeds, tell), self.method)
            else:
                place = self.scheduler, self.method, tell
                seen = calibrate_on_cluster(model, wanted, feeds, self.samples, self.inputs, *place)
            if self.refine and model.tensors.spill is None:
                views = {graph: input_views(graph, excluded) for graph in model.graph.walk()}
                add_moments(model, views, seen, feeds)
        self.report.calibration_samples = seen[model.graph].batches
        self.report.warnings += seen[model.graph].warnings
        return seen

    def _rewrite(self, model: Model, seen: Seen | None, excluded: dict[Node, str], probes: FeedSource | None) -> Model:
        """Return the quantized model, and write decisions and ranges into the report."""
        report = self.report
        if seen is not None:
            refiner = Refiner(model, seen, excluded, self.form, self.target, within_pairs=self.within_pairs)
            with self.stage("rewrite" if probes is None else "refine"):
                if probes is None:
                    best = refiner.make(equalized=True)
                else:
                    best = refiner.best(self.reference, probes, lambda done, total: self.tell("refine", done, total))
                    if not self.allow_slower:
                        best = refiner.balanced(best)
            if probes is not None and self.measure and not self.allow_slower:
                with self.stage("speed"):
                    best = refiner.faster(self.reference, best, report.warnings)
            model, report.nodes = best.model, best.records
            report.blocks = refiner.blocks
            report.ranges = [r for plan, found in best.plans for r in tensor_ranges(plan, found)]
            report.options["refined"] = best.label
        else:
            with self.stage("rewrite"):
                account = Account(model, None)
                if self.mode == "dynamic":
                    decisions = quantize_dynamic(model, excluded, self.target, within_pairs=self.within_pairs)
                else:
                    decisions = quantize_weights_only(model, excluded)
                report.nodes = account.records(decisions)
        if self.mode != "weight_only":
            report.saturation = find_saturation(model)
        if not any(node.decision in ("static", "dynamic", "weight_only") for node in self.report.nodes):
            raise ModelError(f"{describe_model(self.source)}: nothing to quantize: {self._why_nothing()}")
        return model

    def _why_nothing(self) -> str:
        reasons = self.report.float_reasons()
        weighted = [(reason, nodes) for reason, nodes in reasons if any(n.weight_elements for n in nodes)]
        if not weighted:
            return "it has no Conv, ConvTranspose, Gemm or MatMul with constant float weights"
        reason, nodes = weighted[0]
        first = next(node for node in nodes if node.weight_elements)
        return f"{first.op_type} node {first.name!r}: {reason}"


class _Counted:
    """Feeds that tell how many were given out, each time that they are gone through."""

    def __init__(self, feeds: FeedSource, tell: Callable[[int], None]) -> None:
        self._feeds, self._tell = feeds, tell

    def __iter__(self) -> Iterator[Any]:
        for done, feed in enumerate(self._feeds):
            self._tell(done)
            yield feed


def _entries(option: str, given: Iterable[str]) -> list[str]:
    entries: Any = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else [given]
    for entry in entries:
        if not isinstance(entry, str):
            raise InvalidArgument(f"{option}: wanted names, got {told(entry)}")
    return list(entries)


def _refuse_int8(model: Model) -> None:
    for graph in model.graph.walk():
        for node in graph.nodes:
            if is_quantized(node.op_type) or is_cast_weight(graph, node):
                raise ModelError(f"{model.tensors.where}: is quantized already: it has the {node!r}")


def _stamp(model: Model, report: Report, recipe: Any) -> None:
    """Say in the file where it comes from; nothing that changes from run to run."""
    for graph in model.graph.walk():
        for node in graph.nodes:
            node.proto = None  # the exporter's stack traces and comments, which can outweigh int8 weights
    model.header.producer_name = "quantkit"
    model.header.producer_version = report.versions["quantkit"]
    for key in ("mode", "format", "target"):
        model.metadata[f"quantkit.{key}"] = str(report.options[key])
    if recipe is not None:
        model.metadata[RECIPE_KEY] = recipe.to_json()
