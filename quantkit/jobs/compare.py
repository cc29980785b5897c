"""Compare a float model with an int8 one, whoever made it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from quantkit.graph.sizes import model_size
from quantkit.models.data.feeds import FeedSource, open_data
from quantkit.models.data.image_data import recipe_of
from quantkit.models.progress import Progress
from quantkit.models.report.report import Report, versions
from quantkit.models.runtime import check_threads, describe_model, open_session
from quantkit.models.verification.agreement import Thresholds
from quantkit.models.verification.verify import measure_latency, verify

if TYPE_CHECKING:
    from quantkit.graph.io import ModelSource

__all__ = ["compare_models"]


def compare_models(
    float_model: ModelSource,
    int8_model: ModelSource,
    data: Any,
    *,
    preset: Any = None,
    limit: int | None = None,
    class_axis: int | None = None,
    threads: int = 0,
    thresholds: Thresholds | None = None,
    latency: bool = True,
    progress: Progress | None = None,
) -> Report:
    """Run both models on the same data and report sizes, agreement, accuracy where classes are known, and latency.

    Parameters
    ----------
    float_model, int8_model : path, bytes or ModelProto
    data : whatever `quantkit.models.data.feeds.open_data` takes
    preset : str or Recipe, optional
        How to prepare images; by default what the metadata of either model says.
    limit : int, optional
        Use at most this many samples.
    class_axis : int, optional
        Axis of the first output whose argmax is a decision.
    threads : int, default 0
        Threads of the agreement runs, at most 256; 0 lets onnxruntime decide. Latency is measured on one.
    thresholds : Thresholds, optional
        When the agreement falls short.
    latency : bool, default True
        Whether to time both models.
    progress : callable, optional
        Told ``(stage, done, in all or None)``.

    Returns
    -------
    Report
        Without nodes and ranges.

    Raises
    ------
    ModelError, CalibrationError
        Naming the file, input or output at fault.
    InvalidArgument
        For a number of threads, a class axis or a threshold that cannot be.
    """
    check_threads(threads)
    started = time.perf_counter()
    session = open_session(float_model)
    recipe = preset if preset is not None else recipe_of(float_model) or recipe_of(int8_model)
    source = open_data(data, session.inputs, recipe=recipe, limit=limit, model=describe_model(float_model))
    del session
    report = Report(
        source=describe_model(float_model),
        output=describe_model(int8_model),
        float_bytes=model_size(float_model),
        int8_bytes=model_size(int8_model),
        versions=versions(),
        thresholds=thresholds or Thresholds(),
    )
    report.agreement = verify(
        float_model, int8_model, source, class_axis=class_axis, threads=threads, progress=progress
    )
    report.timings["verify"] = time.perf_counter() - started
    if latency:
        started = time.perf_counter()
        report.latency = measure_latency(float_model, int8_model, first_feed(source))
        report.timings["latency"] = time.perf_counter() - started
    report.warnings += source.notes
    report.skipped.update(source.skipped)
    return report


def first_feed(source: FeedSource) -> Any:
    """Return the first feed of a source that is known to have one."""
    return next(iter(source))
