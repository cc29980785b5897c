"""A pass of its own over the first samples: second moments of what the weights are multiplied with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np
from onnx import ModelProto

from quantkit.errors import ModelError
from quantkit.graph import Graph, Model
from quantkit.graph.tensors import TensorReader
from quantkit.models.calibration.calibrate import Driver, Wanted, with_outputs
from quantkit.models.calibration.moments import InputView, Moments
from quantkit.models.calibration.statistics import Calibration
from quantkit.models.inputs import Feed
from quantkit.models.runtime import Session, open_session

_TITLE = "the float model"
_BATCHES = 32
_BATCH_ROWS = 256
_ROWS = 4096
# What one run may hand out of onnxruntime at a time.
_FETCHED_BYTES = 64 << 20


def add_moments(
    model: Model,
    views: Mapping[Graph, tuple[InputView, ...]],
    found: Mapping[Graph, Calibration],
    batches: Iterable[Feed],
) -> None:
    """Add to `found`, by a pass over the first batches, the moments of `views`."""

    def observer(proto: ModelProto, graph: Graph, names: Sequence[str]) -> MomentObserver:
        return MomentObserver(proto, [v for v in views[graph] if v.tensor in names], found[graph], model.tensors)

    wanted = {graph: Wanted(tuple(dict.fromkeys(view.tensor for view in views[graph]))) for graph in views}
    driver = Driver(model, wanted, None, observer)
    for feeds in islice(batches, _BATCHES):
        driver.update(feeds)


class MomentObserver:
    """Takes rows of inputs of weights.

    Parameters
    ----------
    proto : ModelProto
        The float model.
    views : sequence of InputView
    result : Calibration
        Of the first pass.
    tensors : TensorReader, optional
        Where external data lies.
    """

    def __init__(
        self,
        proto: ModelProto,
        views: Sequence[InputView],
        result: Calibration,
        tensors: TensorReader | None = None,
    ) -> None:
        made = {name for node in proto.graph.node for name in node.output}
        given = {value.name for value in proto.graph.input}
        known = made | given
        self._views = [v for v in views if v.tensor in known and v.tensor in result.tensors]
        self._result = result
        self._runs: list[list[str]] = []
        size = 0
        for name in dict.fromkeys(view.tensor for view in self._views if view.tensor in made):
            size += 4 * result[name].elements
            if not self._runs or size > _FETCHED_BYTES:
                self._runs.append([])
                size = 4 * result[name].elements
            self._runs[-1].append(name)
        self._session: Session | None = None
        wanted = [name for run in self._runs for name in run]
        if wanted:
            self._session = open_session(with_outputs(proto, wanted), _TITLE, tensors=tensors)
        self.input_names = given if self._session is None else {spec.name for spec in self._session.inputs}
        self._batches = 0

    def update(self, feeds: Feed) -> None:
        """Run one batch; one that onnxruntime refuses is left out."""
        self._batches += 1
        self._take(feeds)
        for names in self._runs:
            assert self._session is not None
            try:
                values = self._session.run(feeds, names)
            except ModelError:
                return
            self._take(dict(zip(names, values, strict=True)))

    def _take(self, values: Mapping[str, object]) -> None:
        for i, view in enumerate(self._views):
            found = self._result.moments.setdefault(view, Moments(view))
            if view.tensor in values and found.count < _ROWS:
                value = np.asarray(values[view.tensor])
                if value.dtype == np.float32 and np.all(np.isfinite(value)):
                    found.update(view.rows(value, _BATCH_ROWS, np.random.default_rng((self._batches, i))))
