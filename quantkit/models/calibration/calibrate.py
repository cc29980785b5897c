"""Calibrate: run the float model over the samples and keep what each tensor's values look like.

The reductions run inside the model: for every observed tensor three small outputs (minimum, maximum, shape) are added,
so that no activation ever leaves onnxruntime and memory does not depend on the number of samples. Where that form does
not run (an empty tensor, a type without a reduction), the tensors themselves are fetched and reduced here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from quantkit import ops
from quantkit.errors import CalibrationError, ModelError
from quantkit.graph import Graph, Model
from quantkit.graph.control_flow import ControlFlowRunner, Segment
from quantkit.graph.tensors import TensorReader
from quantkit.models.calibration.histograms import HistogramObserver
from quantkit.models.calibration.statistics import Calibration, ChannelStats, ChannelView, TensorStats
from quantkit.models.inputs import Feed
from quantkit.models.runtime import Session, open_session
from quantkit.ranges import RangeMethod

_TITLE = "the float model"
Views = Mapping[str, ChannelView]
_CHANNEL_REDUCTIONS = ("ReduceMin", "ReduceMax", "ReduceSumSquare", "ReduceMean")


def with_outputs(proto: ModelProto, names: Iterable[str]) -> ModelProto:
    """Return `proto` whose only outputs are `names`; their types are left to onnxruntime."""
    out = ModelProto()
    out.CopyFrom(proto)
    del out.graph.output[:]
    for name in names:
        out.graph.output.add(name=name)
    return out


class Observer:
    """Collects statistics of the float tensors `names` of a model.

    Parameters
    ----------
    proto : ModelProto
        The float model.
    names : iterable of str
        Tensors of its main graph. Those that are no float tensors are ignored.
    by_channel : dict of str to ChannelView
        Those of which each channel is wanted too.
    result : Calibration, optional
        Where to collect.
    tensors : TensorReader, optional
        Where external data lies.
    """

    def __init__(
        self,
        proto: ModelProto,
        names: Iterable[str],
        by_channel: Views | None = None,
        result: Calibration | None = None,
        tensors: TensorReader | None = None,
    ) -> None:
        self._proto = proto
        # A weight without elements has no channels to observe.
        self._by_channel = {name: view for name, view in (by_channel or {}).items() if view.length != 0}
        wanted = dict.fromkeys(names)
        inputs = {value.name: value.type.tensor_type.elem_type for value in proto.graph.input}
        made = [name for name in wanted if name not in inputs]
        self._fetcher = open_session(with_outputs(proto, made or [proto.graph.output[0].name]), _TITLE, tensors=tensors)
        types = dict(zip(self._fetcher.outputs, self._fetcher.output_types, strict=True))
        self.names = [
            name for name in wanted if types.get(name) == "tensor(float)" or inputs.get(name) == TensorProto.FLOAT
        ]
        self._made = set(made)
        self._channel_names = [name for name in self.names if name in self._by_channel]
        self._reducer: Session | None = (
            open_session(self._reducing_model(), _TITLE, tensors=tensors) if self.names else None
        )
        self.input_names = {spec.name for spec in self._fetcher.inputs}
        self.result = result if result is not None else Calibration()
        for name in self.names:
            self.result.tensors.setdefault(name, TensorStats())

    def _reducing_model(self) -> ModelProto:
        out = with_outputs(self._proto, ())
        taken = {name for node in self._proto.graph.node for name in (*node.output, node.name)}
        prefix = "qk_stat"
        while any(name.startswith(prefix) for name in taken):
            prefix += "_"
        for i, name in enumerate(self.names):
            for kind, op_type in (("low", "ReduceMin"), ("high", "ReduceMax"), ("shape", "Shape")):
                output = f"{prefix}_{kind}_{i}"
                attributes: dict[str, Any] = {} if op_type == "Shape" else {"keepdims": 0}
                out.graph.node.append(helper.make_node(op_type, [name], [output], name=output, **attributes))
                out.graph.output.add(name=output)
        opset = max(o.version for o in out.opset_import if o.domain in ("", "ai.onnx"))
        for i, name in enumerate(self._channel_names):
            self._add_channel_outputs(out, name, f"{prefix}_channel_{i}", opset)
        return out

    def _add_channel_outputs(self, out: ModelProto, name: str, prefix: str, opset: int) -> None:
        view = self._by_channel[name]
        axes = [0] if view.rank is None else [0, *range(2, view.rank)]
        if view.rank is None:
            shape = numpy_helper.from_array(np.array([-1, view.length], np.int64), f"{prefix}_shape")
            out.graph.initializer.append(shape)
            out.graph.node.append(helper.make_node("Reshape", [name, shape.name], [f"{prefix}_rows"], name=prefix))
            name = f"{prefix}_rows"
        if opset >= 18:
            out.graph.initializer.append(numpy_helper.from_array(np.array(axes, np.int64), f"{prefix}_axes"))
        for op_type in _CHANNEL_REDUCTIONS:
            output = f"{prefix}_{op_type}"
            inputs = [name, f"{prefix}_axes"] if opset >= 18 else [name]
            attributes: dict[str, Any] = {"keepdims": 0} if opset >= 18 else {"keepdims": 0, "axes": axes}
            out.graph.node.append(helper.make_node(op_type, inputs, [output], name=output, **attributes))
            out.graph.output.add(name=output)

    def update(self, feeds: Feed) -> None:
        """Run one batch.

        Raises
        ------
        CalibrationError
            When the float model itself fails on it.
        """
        if not self.names:
            return
        values: list[Any] | None = None
        if self._reducer is not None:
            try:
                values = self._reducer.run(feeds)
            except ModelError:
                # A reduction that does not run (an empty tensor) must not end the calibration.
                self._reducer = None
        if values is None:
            self._fetch(feeds, self.names, channels=True)
            return
        shapes = {name: values[3 * i + 2] for i, name in enumerate(self.names)}
        self._update_channels(values[3 * len(self.names) :], shapes)
        odd = []
        for i, name in enumerate(self.names):
            low, high, shape = values[3 * i : 3 * i + 3]
            if np.isfinite(low) and np.isfinite(high):
                self.result.tensors[name].update(float(low), float(high), 0, shape)
            else:
                odd.append(name)
        self._fetch(feeds, odd)

    def _update_channels(self, values: list[Any], shapes: dict[str, Any]) -> None:
        step = len(_CHANNEL_REDUCTIONS)
        for i, name in enumerate(self._channel_names):
            low, high, squares, mean = (np.asarray(v, np.float64) for v in values[step * i : step * (i + 1)])
            count = int(np.prod(shapes[name])) // max(1, low.size)
            self._merge_channels(name, ChannelStats(low, high, squares, mean * count, count))

    def _merge_channels(self, name: str, found: ChannelStats) -> None:
        if name in self.result.channels:
            self.result.channels[name].update(found)
        else:
            self.result.channels[name] = found

    def _reduce_channels(self, name: str, value: Any) -> None:
        view = self._by_channel[name]
        rows = np.moveaxis(value, -1 if view.rank is None else 1, 0)
        rows = rows.reshape(len(rows), -1).astype(np.float64)
        if rows.size:
            sums = (rows.min(1), rows.max(1), (rows**2).sum(1), rows.sum(1))
            self._merge_channels(name, ChannelStats(*sums, rows.shape[1]))

    def _fetch(self, feeds: Feed, names: Sequence[str], *, channels: bool = False) -> None:
        made = [name for name in names if name in self._made]
        try:
            fetched = dict(zip(made, self._fetcher.run(feeds, made), strict=True)) if made else {}
        except ModelError as error:
            raise CalibrationError(f"{error} (on a calibration sample)") from None
        for name in names:
            value = np.asarray(fetched[name] if name in fetched else feeds[name])
            low, high, nonfinite = ops.finite_range(value)
            self.result.tensors[name].update(float(low), float(high), int(nonfinite), value.shape)
            if channels and name in self._by_channel:
                self._reduce_channels(name, value)


@dataclass(frozen=True)
class Wanted:
    """What to observe in one graph: tensors, and those of them of which each channel is wanted too."""

    names: tuple[str, ...]
    by_channel: Views = field(default_factory=dict)


def calibrate(
    model: Model, wanted: Mapping[Graph, Wanted], batches: Iterable[Feed], method: RangeMethod | None = None
) -> dict[Graph, Calibration]:
    """Observe tensors of `model`, in its main graph and in bodies, over `batches`; one batch is alive at a time.

    Parameters
    ----------
    model : Model
    wanted : mapping of Graph to Wanted
    batches : iterable of feeds
        Gone through twice where `method` needs histograms.
    method : RangeMethod, optional
        How ranges are chosen; by default they hold every value.

    Returns
    -------
    dict of Graph to Calibration
        For each graph of the model. A body that was never run has seen no batch.

    Raises
    ------
    CalibrationError
        When there is no batch, or the float model fails on one.
    ModelError
        When onnxruntime cannot load the model.
    """
    found = {graph: Calibration() for graph in model.graph.walk()}
    main = found[model.graph]
    driver = range_driver(model, wanted, found)
    for feeds in batches:
        main.batches += 1
        driver.update(feeds)
    if not main.batches:
        raise CalibrationError("the calibration data has no samples")
    name_left_out([main, *(found[graph] for graph in found if graph is not model.graph)])
    if method is not None and method.needs_histogram:
        for calibration in found.values():
            for stats in calibration.tensors.values():
                stats.method = method
        driver = histogram_driver(model, wanted, found)
        for feeds in batches:
            driver.update(feeds)
    return found


def name_left_out(found: Sequence[Calibration]) -> None:
    """Warn, in the first of `found`, of values that no range holds."""
    for calibration in found:
        for name, stats in calibration.tensors.items():
            if stats.nonfinite:
                found[0].warnings.append(
                    f"tensor {name!r}: {stats.nonfinite} NaN or infinite values were left out of its range"
                )


def range_driver(model: Model, wanted: Mapping[Graph, Wanted], found: Mapping[Graph, Calibration]) -> Driver:
    """Return what collects ranges, and sums of channels, into `found`."""

    def observer(proto: ModelProto, graph: Graph, names: Sequence[str]) -> Observer:
        return Observer(proto, names, wanted[graph].by_channel, found[graph], model.tensors)

    return Driver(model, wanted, found, observer)


def histogram_driver(model: Model, wanted: Mapping[Graph, Wanted], found: Mapping[Graph, Calibration]) -> Driver:
    """Return what counts histograms over the ranges in `found`, into it."""

    def observer(proto: ModelProto, graph: Graph, names: Sequence[str]) -> HistogramObserver:
        return HistogramObserver(proto, names, found[graph], wanted[graph].by_channel, model.tensors)

    return Driver(model, wanted, None, observer)


class Driver:
    """Runs observers over a model: one over all of it, or where it has bodies, one over each segment."""

    def __init__(
        self,
        model: Model,
        wanted: Mapping[Graph, Wanted],
        found: Mapping[Graph, Calibration] | None,
        observer: Callable[[ModelProto, Graph, Sequence[str]], Any],
    ) -> None:
        self._model, self._wanted, self._found, self._make = model, wanted, found, observer
        self._stepper = _Stepper(model, wanted, found, observer) if len(list(model.graph.walk())) > 1 else None
        self._observer: Any = None

    def update(self, feeds: Feed) -> None:
        """Run one batch."""
        if self._stepper is not None:
            try:
                self._stepper.update(feeds)
                return
            except (ModelError, TypeError, ValueError, KeyError, IndexError) as error:
                self._stepper = None
                if self._found is not None:
                    self._found[self._model.graph].warnings.append(
                        f"the bodies of the model are not calibrated: {error}"
                    )
                    for calibration in self._found.values():
                        calibration.tensors.clear()
                        calibration.channels.clear()
        if self._observer is None:
            graph = self._model.graph
            self._observer = self._make(self._model.to_proto(), graph, self._wanted[graph].names)
        self._observer.update({name: value for name, value in feeds.items() if name in self._observer.input_names})


class _Stepper:
    """Observes a model with bodies, segment by segment."""

    def __init__(
        self,
        model: Model,
        wanted: Mapping[Graph, Wanted],
        found: Mapping[Graph, Calibration] | None,
        observer: Callable[[ModelProto, Graph, Sequence[str]], Any],
    ) -> None:
        self._wanted, self._found, self._make = wanted, found, observer
        self._runner: ControlFlowRunner | None = None
        self._model = model
        self._sessions: dict[Segment, tuple[Session | None, Any]] = {}

    def update(self, feeds: Feed) -> None:
        if self._runner is None:
            self._runner = ControlFlowRunner(self._model.graph, self._run)
        self._runner.run(dict(feeds))

    def _run(self, segment: Segment, values: Feed) -> Feed:
        if segment not in self._sessions:
            self._sessions[segment] = self._open(segment, values)
        session, observer = self._sessions[segment]
        observer.update(values)
        if self._found is not None:
            self._found[segment.graph].batches += segment.graph.parent is not None
        return dict(zip(segment.outputs, session.run(values), strict=True)) if session is not None else {}

    def _open(self, segment: Segment, values: Feed) -> tuple[Session | None, Any]:
        proto = segment.to_proto(values)
        made = {name for node in segment.nodes for name in node.outputs}
        names = [name for name in self._wanted[segment.graph].names if name in made or name in segment.inputs]
        if not proto.graph.output:
            proto.graph.output.add(name=next(name for node in segment.nodes for name in node.outputs if name))
        observer = self._make(proto, segment.graph, names)
        session = open_session(proto, _TITLE, tensors=self._model.tensors) if segment.outputs else None
        return session, observer
