"""Running sums over the outputs of two models: one object an output, fed sample by sample."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.models.inputs import is_float
from quantkit.models.verification.agreement import Decisions, OutputAgreement, WorstSlice
from quantkit.sqnr import sqnr_db

_MATTERS = 1e-4  # of the output's peak: a slice below it is left out of the worst
_MATTERS_AMONG_CLASSES = 1e-2


def channel_axis(rank: int, declared: list[Any] | None, class_axis: int | None) -> int | None:
    """Return the axis whose slices mean different things, as far as the shape tells.

    The class axis where there is one. Else axis 1 of a matrix or of images; of sequences and detections (three
    dimensions) the fixed one, and of two fixed ones the shorter; the last where images are channels-last.
    """
    if rank < 2:
        return None
    if class_axis is not None:
        return class_axis % rank
    if declared is None or len(declared) != rank:
        return 1
    fixed = [isinstance(dim, int) and dim > 0 for dim in declared]
    if rank == 3 and fixed[1] and fixed[2]:
        return 1 if declared[1] <= declared[2] else 2
    return rank - 1 if fixed[rank - 1] and not fixed[1] else 1


def slices_that_matter(low: NDArray[np.float64], high: NDArray[np.float64], *, among_classes: bool) -> NDArray[np.intp]:
    """Return the indices of the slices whose peak is large enough beside the output's to be looked at."""
    peak = np.maximum(-low, high)
    share = _MATTERS_AMONG_CLASSES if among_classes else _MATTERS
    return np.flatnonzero((peak >= share * peak.max(initial=0.0)) & (peak > 0))


class OutputComparison:
    """Running comparison of one output.

    Parameters
    ----------
    name : str
    declared : list, optional
        Shape as the model declares it.
    class_axis : int, optional
        Axis whose argmax is a decision.
    """

    def __init__(self, name: str, declared: list[Any] | None = None, class_axis: int | None = None) -> None:
        self.name, self._declared, self._class_axis = name, declared, class_axis
        self.dtype = ""
        self._float = True
        self._elements = self._equal = self._nonfinite = self._broken = self._reshaped = 0
        self._signal = self._noise = self._dot = self._other = 0.0
        self._max_error, self._low, self._high = 0.0, np.inf, -np.inf
        self._axis: int | None = None
        self._slices: NDArray[np.float64] | None = None  # rows: signal, noise, low, high
        self._sliced = True
        self._decisions = self._kept = 0
        self._decision_axis: int | None = None

    def add(self, before: Any, after: Any) -> None:
        """Add one sample: the float model's array and the int8 model's."""
        a, b = np.asarray(before), np.asarray(after)
        self.dtype = self.dtype or a.dtype.name
        if a.shape != b.shape:
            self._reshaped += 1
            return
        if not is_float(a.dtype):
            self._float = False
            self._elements += a.size
            self._equal += int(np.count_nonzero(a == b))
            return
        a, b = a.astype(np.float64), b.astype(np.float64)
        self._decide(a, b)
        both = np.isfinite(a) & np.isfinite(b)
        if not both.all():
            alike = (np.isnan(a) & np.isnan(b)) | (a == b)
            self._nonfinite += int(np.count_nonzero(~both & alike))
            self._broken += int(np.count_nonzero(~both & ~alike))
            a, b = np.where(both, a, 0.0), np.where(both, b, 0.0)
        count = int(np.count_nonzero(both))
        if not count:
            return
        self._elements += count
        error = a - b
        self._max_error = max(self._max_error, float(np.abs(error).max()))
        finite = a if count == a.size else a[both]
        self._low, self._high = min(self._low, float(finite.min())), max(self._high, float(finite.max()))
        self._signal += float(np.vdot(a, a))
        self._noise += float(np.vdot(error, error))
        self._dot += float(np.vdot(a, b))
        self._other += float(np.vdot(b, b))
        self._add_slices(a, error)

    def _add_slices(self, a: NDArray[np.float64], error: NDArray[np.float64]) -> None:
        axis = channel_axis(a.ndim, self._declared, self._class_axis)
        if axis is None or not self._sliced:
            return
        rest = tuple(i for i in range(a.ndim) if i != axis)
        rows = np.stack([(a * a).sum(rest), (error * error).sum(rest), a.min(rest), a.max(rest)])
        if self._slices is None:
            self._axis, self._slices = axis, rows
        elif self._axis != axis or self._slices.shape != rows.shape:
            self._sliced, self._slices = False, None  # the axis changes its length: its slices have no identity
        else:
            self._slices[:2] += rows[:2]
            np.minimum(self._slices[2], rows[2], out=self._slices[2])
            np.maximum(self._slices[3], rows[3], out=self._slices[3])

    def _decide(self, a: NDArray[np.float64], b: NDArray[np.float64]) -> None:
        axis = self._class_axis
        if axis is None or not -a.ndim <= axis < a.ndim or a.shape[axis] < 2 or not a.size:
            return
        self._decision_axis = axis % a.ndim
        chosen = a.argmax(axis)
        self._decisions += chosen.size
        self._kept += int(np.count_nonzero(chosen == b.argmax(axis)))

    def result(self) -> OutputAgreement:
        """Return the numbers so far."""
        counts: dict[str, Any] = {"nonfinite": self._nonfinite, "broken": self._broken, "reshaped": self._reshaped}
        if not self._float:
            share = self._equal / self._elements if self._elements else None
            return OutputAgreement(self.name, self.dtype, self._elements, equal=share, **counts)
        decisions = None
        if self._decision_axis is not None:
            decisions = Decisions(self._decision_axis, self._decisions, self._kept)
        if not self._elements:
            return OutputAgreement(self.name, self.dtype, 0, decisions=decisions, **counts)
        norm = (self._signal * self._other) ** 0.5
        return OutputAgreement(
            self.name,
            self.dtype,
            self._elements,
            sqnr_db=sqnr_db(self._signal, self._noise),
            cosine=min(max(self._dot / norm, -1.0), 1.0) if norm else float(self._signal == self._other),
            max_error=self._max_error,
            low=self._low,
            high=self._high,
            worst_slice=self._worst(),
            decisions=decisions,
            **counts,
        )

    def _worst(self) -> WorstSlice | None:
        if self._slices is None or self._axis is None or self._slices.shape[1] < 2:
            return None
        signal, noise, low, high = self._slices
        eligible = slices_that_matter(low, high, among_classes=self._class_axis is not None)
        if not eligible.size:
            return None
        levels = [sqnr_db(float(signal[i]), float(noise[i])) for i in eligible]
        worst = int(np.argmin(levels))
        index = int(eligible[worst])
        return WorstSlice(self._axis, index, levels[worst], float(low[index]), float(high[index]))
