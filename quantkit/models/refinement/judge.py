"""What a candidate is judged by: the noise of every float output, and of the slices of it that matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from quantkit.models.inputs import is_float
from quantkit.models.verification.compare_outputs import channel_axis, slices_that_matter

Array = np.ndarray[Any, Any]

# Noise over signal that is good enough: 22 dB of an output, 8 dB of a slice. Verification wants 20 and 3, on samples
# that these few do not know.
GOOD = 10**-2.2
GOOD_SLICE = 10**-0.8


class Judge:
    """Compares runs with those of the float model.

    Parameters
    ----------
    expected : sequence of lists of arrays
        The float model's outputs, a list a run.
    declared : sequence of lists, optional
        Shapes of the outputs as the model declares them.
    class_axes : mapping of int to int, optional
        Axes of classes, by position of the output.

    Attributes
    ----------
    goals : ndarray of float64
        Noise over signal that is good enough, for each number that `noises` returns: float outputs come first.
    outputs : int
        How many of them are outputs.
    """

    def __init__(
        self,
        expected: Sequence[list[Any]],
        declared: Sequence[list[Any] | None] | None = None,
        class_axes: Mapping[int, int] | None = None,
    ) -> None:
        self._expected = [[np.asarray(value) for value in run] for run in expected]
        count = len(self._expected[0]) if self._expected else 0
        self._signals: dict[int, float] = {}
        self._slices: dict[int, tuple[int, Array, Array]] = {}  # axis, which indices, their signals
        for i in range(count):
            values = [run[i] for run in self._expected if run[i].size]
            if not values or not is_float(values[0].dtype):
                continue
            signal = sum(_energy(value) for value in values)
            if not signal:
                continue
            self._signals[i] = signal
            chosen = (class_axes or {}).get(i)
            axis = channel_axis(values[0].ndim, declared[i] if declared else None, chosen)
            if axis is not None and len({(value.ndim, value.shape[axis]) for value in values}) == 1:
                self._add_slices(i, values, axis, chosen is not None)
        self.outputs = len(self._signals)
        lengths = [len(which) for _, which, _ in self._slices.values()]
        self.goals = np.concatenate([np.full(self.outputs, GOOD), np.full(sum(lengths), GOOD_SLICE)])

    def _add_slices(self, i: int, values: list[Array], axis: int, among_classes: bool) -> None:
        rows = np.zeros((3, values[0].shape[axis]))
        for value in values:
            finite = _by_slice(np.where(np.isfinite(value), value, 0), axis)
            with np.errstate(over="ignore"):
                rows[0] += np.square(finite.astype(np.float64)).sum(axis=1)
            rows[1] = np.minimum(rows[1], finite.min(axis=1))
            rows[2] = np.maximum(rows[2], finite.max(axis=1))
        which = slices_that_matter(rows[1], rows[2], among_classes=among_classes)
        which = which[rows[0, which] > 0]
        if rows.shape[1] > 1 and which.size:
            self._slices[i] = (axis, which, rows[0, which])

    def noises(self, got: Sequence[list[Any]]) -> Array:
        """Return noise over signal of every float output, and of the slices that matter, over all runs."""
        whole = dict.fromkeys(self._signals, 0.0)
        parts = {i: np.zeros(len(which)) for i, (_, which, _) in self._slices.items()}
        for expected, given in zip(self._expected, got, strict=True):
            for i in self._signals:
                x, y = expected[i], np.asarray(given[i])
                if x.shape != y.shape:
                    continue
                error = _squared_error(x, y)
                whole[i] += float(error.sum())
                if i in parts:
                    axis, which, _ = self._slices[i]
                    parts[i] += _by_slice(error, axis)[which].sum(axis=1)
        outputs = [noise / self._signals[i] for i, noise in whole.items()]
        return np.concatenate([np.array(outputs), *(noise / self._slices[i][2] for i, noise in parts.items())])


def _energy(values: Array) -> float:
    finite = values[np.isfinite(values)].astype(np.float64)
    with np.errstate(over="ignore"):
        return float(np.sum(finite**2))


def _squared_error(x: Array, y: Array) -> Array:
    """Return the squared error where `x` is finite: infinite where `y` alone is not."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        error: Array = np.nan_to_num(np.square(x - y), nan=np.inf, posinf=np.inf)
    error[~np.isfinite(x)] = 0.0
    return error


def _by_slice(values: Array, axis: int) -> Array:
    return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
