"""Calibrate: run the float model over the samples and keep what each tensor's values look like.

The reductions run inside the model: for every observed tensor three small outputs (minimum, maximum, shape) are added,
so that no activation ever leaves onnxruntime and memory does not depend on the number of samples. Where that form does
not run (an empty tensor, a type without a reduction), the tensors themselves are fetched and reduced here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from quantkit import ops
from quantkit.errors import CalibrationError, ModelError
from quantkit.models.inputs import Feed
from quantkit.models.runtime import Session, open_session

_TITLE = "the float model"


@dataclass
class TensorStats:
    """What was seen of one tensor.

    Attributes
    ----------
    low, high : float
        Range of the finite values; inf and -inf as long as there was none.
    nonfinite : int
        How many NaN and infinities were left out.
    batches : int
        In how many batches the tensor was made.
    shape : tuple of int
        Of the batch with the most elements.
    """

    low: float = np.inf
    high: float = -np.inf
    nonfinite: int = 0
    batches: int = 0
    shape: tuple[int, ...] = ()

    @property
    def seen(self) -> bool:
        """Whether any finite value was seen."""
        return self.low <= self.high

    @property
    def elements(self) -> int:
        """Number of elements of `shape`."""
        return int(np.prod(self.shape, dtype=np.int64))

    def update(self, low: float, high: float, nonfinite: int, shape: Sequence[int]) -> None:
        """Take in one batch."""
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.nonfinite += nonfinite
        self.batches += 1
        if not self.shape or int(np.prod(shape, dtype=np.int64)) > self.elements:
            self.shape = tuple(int(n) for n in shape)


@dataclass
class Calibration:
    """Statistics by tensor name, and how many samples they come from."""

    tensors: dict[str, TensorStats] = field(default_factory=dict)
    batches: int = 0
    warnings: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> TensorStats:
        return self.tensors.get(name) or TensorStats()


def _with_outputs(proto: ModelProto, names: Iterable[str]) -> ModelProto:
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
    """

    def __init__(self, proto: ModelProto, names: Iterable[str]) -> None:
        self._proto = proto
        wanted = dict.fromkeys(names)
        inputs = {value.name: value.type.tensor_type.elem_type for value in proto.graph.input}
        made = [name for name in wanted if name not in inputs]
        self._fetcher = open_session(_with_outputs(proto, made or [proto.graph.output[0].name]), _TITLE)
        types = dict(zip(self._fetcher.outputs, self._fetcher.output_types, strict=True))
        self.names = [
            name for name in wanted if types.get(name) == "tensor(float)" or inputs.get(name) == TensorProto.FLOAT
        ]
        self._made = set(made)
        self._reducer: Session | None = open_session(self._reducing_model(), _TITLE) if self.names else None
        self.input_names = {spec.name for spec in self._fetcher.inputs}
        self.result = Calibration({name: TensorStats() for name in self.names})

    def _reducing_model(self) -> ModelProto:
        out = _with_outputs(self._proto, ())
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
        return out

    def update(self, feeds: Feed) -> None:
        """Run one batch.

        Raises
        ------
        CalibrationError
            When the float model itself fails on it.
        """
        self.result.batches += 1
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
            self._fetch(feeds, self.names)
            return
        odd = []
        for i, name in enumerate(self.names):
            low, high, shape = values[3 * i : 3 * i + 3]
            if np.isfinite(low) and np.isfinite(high):
                self.result.tensors[name].update(float(low), float(high), 0, shape)
            else:
                odd.append(name)
        self._fetch(feeds, odd)

    def _fetch(self, feeds: Feed, names: Sequence[str]) -> None:
        made = [name for name in names if name in self._made]
        try:
            fetched = dict(zip(made, self._fetcher.run(feeds, made), strict=True)) if made else {}
        except ModelError as error:
            raise CalibrationError(f"{error} (on a calibration sample)") from None
        for name in names:
            value = np.asarray(fetched[name] if name in fetched else feeds[name])
            low, high, nonfinite = ops.finite_range(value)
            self.result.tensors[name].update(float(low), float(high), int(nonfinite), value.shape)

    def finish(self) -> Calibration:
        """Return the statistics, with a warning for each tensor that had values to leave out."""
        for name, stats in self.result.tensors.items():
            if stats.nonfinite:
                self.result.warnings.append(
                    f"tensor {name!r}: {stats.nonfinite} NaN or infinite values were left out of its range"
                )
        return self.result


def calibrate(proto: ModelProto, names: Iterable[str], batches: Iterable[Feed]) -> Calibration:
    """Observe the tensors `names` of `proto` over `batches`; one batch is alive at a time.

    Raises
    ------
    CalibrationError
        When there is no batch, or the float model fails on one.
    ModelError
        When onnxruntime cannot load the model.
    """
    observer = Observer(proto, names)
    for feeds in batches:
        observer.update({name: value for name, value in feeds.items() if name in observer.input_names})
    if not observer.result.batches:
        raise CalibrationError("the calibration data has no samples")
    return observer.finish()
