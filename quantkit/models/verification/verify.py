"""The float and the int8 model side by side in onnxruntime, on samples that calibration never saw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quantkit.errors import CalibrationError, InvalidArgument, ModelError
from quantkit.models.data.feeds import FeedSource
from quantkit.models.inputs import Feed
from quantkit.models.progress import Progress
from quantkit.models.runtime import Session, open_session
from quantkit.models.verification.agreement import Accuracy, Agreement
from quantkit.models.verification.compare_outputs import OutputComparison
from quantkit.models.verification.latency import Latency, measure_latency
from quantkit.models.verification.output_classes import class_axes

if TYPE_CHECKING:
    from quantkit.graph.io import ModelSource

__all__ = ["Agreement", "Latency", "measure_latency", "verify"]


def verify(
    float_model: ModelSource,
    int8_model: ModelSource,
    feeds: FeedSource | Iterable[Feed],
    *,
    labels: Iterable[Any] | None = None,
    class_axis: int | None = None,
    threads: int = 0,
    progress: Progress | None = None,
) -> Agreement:
    """Run both models on every feed and measure how their outputs agree.

    Parameters
    ----------
    float_model, int8_model : path, bytes or ModelProto
    feeds : FeedSource or iterable of {input: array}
        One is alive at a time.
    labels : iterable, optional
        True classes of each feed's rows, in the order of `feeds`; -1 where unknown. A FeedSource brings its own.
    class_axis : int, optional
        Axis of the first float output whose argmax is a decision. By default the axis of a final Softmax or
        LogSoftmax; where classes are known, the last axis of an output with one row a sample.
    threads : int, default 0
        Threads of each model; 0 lets onnxruntime decide.
    progress : callable, optional
        Told ``("verify", feeds done, feeds in all or None)``.

    Returns
    -------
    Agreement

    Raises
    ------
    ModelError
        When a model does not load or run, or their outputs cannot be matched.
    CalibrationError
        When there is not a single feed, or labels and feeds differ in number.
    InvalidArgument
        When the first output has no axis `class_axis`, or for a number of threads that cannot be.
    """
    before = open_session(float_model, "the float model", threads=threads)
    after = open_session(int8_model, "the int8 model", threads=threads)
    warnings: list[str] = []
    order = _match_outputs(before, after, warnings)
    axes = class_axes(float_model)
    if class_axis is not None:
        check_class_axis(before, class_axis)
        axes = {**axes, before.outputs[0]: class_axis}
    pairs = _pairs(feeds, labels)
    comparisons: list[OutputComparison] | None = None
    scorer = _Scorer(before.outputs, feeds.class_count if isinstance(feeds, FeedSource) and labels is None else None)
    samples = 0
    total = len(feeds) if isinstance(feeds, Sized) else None
    for feed, truth in pairs:
        expected = before.run(feed)
        got = after.run({spec.name: feed[spec.name] for spec in after.inputs if spec.name in feed})
        if comparisons is None:
            if class_axis is not None:
                _check_axis(class_axis, np.ndim(expected[0]), before.outputs[0])
            if truth is not None and not axes:
                axes = _classes_by_labels(before, expected, truth)
            comparisons = [
                OutputComparison(name, shape, axes.get(name))
                for name, shape in zip(before.outputs, before.output_shapes, strict=True)
            ]
            scorer.axes = axes
        got = [got[i] for i in order]
        for comparison, a, b in zip(comparisons, expected, got, strict=True):
            comparison.add(_flat(a), _flat(b))
        if truth is not None:
            scorer.add(expected, got, truth)
        samples += 1
        if progress is not None:
            progress("verify", samples, total)
    if comparisons is None:
        raise CalibrationError("there is no sample to compare the models on")
    results = [comparison.result() for comparison in comparisons]
    for result in results:
        if result.nonfinite:
            warnings.append(f"output {result.name!r}: {result.nonfinite} elements are NaN or infinite in both models")
    accuracy = scorer.result()
    return Agreement(samples, results, accuracy, warnings + scorer.warnings)


def check_class_axis(model: Session, axis: int) -> None:
    """Raise `InvalidArgument` when the first output of `model` is known to have no such axis."""
    shape = model.output_shapes[0]
    if isinstance(shape, list) and shape:  # onnxruntime says [] for what is not known, too
        _check_axis(axis, len(shape), model.outputs[0])


def _check_axis(axis: int, rank: int, output: str) -> None:
    if not -rank <= axis < rank:
        raise InvalidArgument(f"class_axis (--class-axis): output {output!r} has {rank} axes, got axis {axis}")


def _match_outputs(before: Session, after: Session, warnings: list[str]) -> list[int]:
    """Return, for each output of the float model, its place among the int8 model's."""
    wanted = {spec.name for spec in after.inputs}
    unknown = wanted - {spec.name for spec in before.inputs}
    if unknown:
        names = ", ".join(map(repr, sorted(unknown)))
        raise ModelError(f"{after.title} has inputs that {before.title} does not have: {names}")
    if set(before.outputs) <= set(after.outputs):
        return [after.outputs.index(name) for name in before.outputs]
    if len(before.outputs) == len(after.outputs):
        warnings.append("the outputs have other names in the int8 model and were matched by their order")
        return list(range(len(before.outputs)))
    missing = ", ".join(repr(name) for name in before.outputs if name not in after.outputs)
    raise ModelError(f"{after.title} lacks the output {missing} of {before.title}; it has {after.outputs}")


def _pairs(feeds: Any, labels: Iterable[Any] | None) -> Iterator[tuple[Feed, NDArray[np.int32] | None]]:
    if labels is None:
        if isinstance(feeds, FeedSource):
            yield from feeds.labelled()
        else:
            yield from ((feed, None) for feed in feeds)
        return
    end = object()
    known = iter(labels)
    for feed in feeds:
        truth = next(known, end)
        if truth is end:
            raise CalibrationError("there are fewer labels than feeds")
        yield feed, np.atleast_1d(np.asarray(truth, dtype=np.int32)).ravel()
    if next(known, end) is not end:
        raise CalibrationError("there are more labels than feeds")


def _flat(value: Any) -> NDArray[Any]:
    """Return an output as one array; sequences and maps (scikit-learn's) are laid out in a row."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, dict):
        return _flat([value[key] for key in sorted(value)])
    if isinstance(value, list):
        parts = [_flat(item).ravel() for item in value]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)
    return np.asarray(value)


def _classes_by_labels(session: Session, outputs: Sequence[Any], truth: NDArray[np.int32]) -> dict[str, int]:
    """Find the first output with one row of scores for each label."""
    for name, value in zip(session.outputs, outputs, strict=True):
        array = np.asarray(value) if isinstance(value, np.ndarray) else np.zeros(0)
        if array.ndim == 2 and array.dtype.kind == "f" and array.shape[0] == truth.size and array.shape[1] > 1:
            return {name: 1}
    return {}


class _Scorer:
    """Counts how many true classes both models find, in the first output that decides one for each row."""

    def __init__(self, outputs: list[str], folders: int | None) -> None:
        self._folders, self._classes = folders, 0
        self.axes: dict[str, int] = {}
        self.warnings: list[str] = []
        self._outputs = outputs
        self._count = self._before = self._after = self._unfit = self._beyond = 0

    def add(self, expected: Sequence[Any], got: Sequence[Any], truth: NDArray[np.int32]) -> None:
        for i, name in enumerate(self._outputs):
            axis = self.axes.get(name)
            if (
                axis is None
                or not isinstance(expected[i], np.ndarray)
                or not -expected[i].ndim <= axis < expected[i].ndim
            ):
                continue
            classes = self._classes = expected[i].shape[axis]
            before, after = (np.asarray(value).argmax(axis).ravel() for value in (expected[i], got[i]))
            if before.size == truth.size == after.size:
                known = truth >= 0
                self._beyond = max(self._beyond, int((truth >= classes).sum()))
                self._count += int(known.sum())
                self._before += int((before == truth)[known].sum())
                self._after += int((after == truth)[known].sum())
                return
        self._unfit += 1

    def result(self) -> Accuracy | None:
        why = ""
        if self._folders not in (None, self._classes) and self._classes:
            why = f"there are {self._folders} class folders, but the model has {self._classes} classes"
        elif self._beyond:
            why = f"there are labels beyond the model's {self._classes} classes"
        elif self._unfit:
            why = "no output has one row of class scores for each sample"
        if why or not self._count:
            self.warnings += [f"accuracy was not measured: {why}"] if why else []
            return None
        if self._before < self._count / 2:
            self.warnings.append(
                f"the float model finds only {self._before} of {self._count} classes: are the class folders or labels "
                "in the order of the model's classes?"
            )
        return Accuracy(self._count, self._before, self._after)
