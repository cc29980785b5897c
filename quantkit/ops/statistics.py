"""What calibration needs to know of real values: their range and their histogram, in one pass each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit import _kernels
from quantkit.errors import InvalidArgument
from quantkit.ops._devices import cuda_elements, on_gpu
from quantkit.ops._operands import as_floats, as_number, normalize_axis
from quantkit.storage import Array
from quantkit.streams.queue import current, queued, recording
from quantkit.text import told

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

MAX_BINS = 1 << 20
_RANGE = np.dtype([("low", np.float64), ("high", np.float64), ("nonfinite", np.int64)])
_NOTHING = np.array((np.inf, -np.inf, 0), _RANGE)


def finite_range(x: ArrayLike, *, axis: int | None = None) -> tuple[Any, Any, Any]:
    """Lowest and highest finite value.

    Parameters
    ----------
    x : array_like of float16, bfloat16, float32 or float64
        Any shape and strides.
    axis : int, optional
        Give one range for each index of this axis.

    Returns
    -------
    low, high : float, or float64 ndarray of shape (channels,)
        ``inf`` and ``-inf`` where there is no finite value.
    nonfinite : int
        How many values were NaN or infinite; they are left out.
    """
    if on_gpu(x):
        there: tuple[Any, Any, Any] = cuda_elements.finite_range(x, axis)
        return there
    if (stream := current()) is not None:
        found: tuple[Any, Any, Any] = queued(stream, finite_range, (x,), (), None, axis=axis)
        return found
    floats, is_bf16 = as_floats(x, "finite_range")
    index = -1 if axis is None else normalize_axis(axis, floats.ndim, "finite_range")
    # At least one: the first also counts what is not finite.
    ranges = np.full(1 if axis is None else floats.shape[index], _NOTHING, _RANGE)
    counted = ranges if ranges.size else np.full(1, _NOTHING, _RANGE)
    _kernels.value_range(floats, ranges, index, is_bf16)
    low, high, nonfinite = ranges["low"], ranges["high"], counted["nonfinite"][:1].reshape(())
    if axis is None:
        low, high = low.reshape(()), high.reshape(())
    if recording():
        return low, high, nonfinite
    return (low.item(), high.item(), nonfinite.item()) if axis is None else (low.copy(), high.copy(), nonfinite.item())


def histogram(x: ArrayLike, low: float, high: float, bins: int, *, counts: Any = None) -> Any:
    """Count the finite values of `x` in `bins` equal bins over [low, high].

    Parameters
    ----------
    x : array_like of float16, bfloat16, float32 or float64
        Any shape and strides; float64 is rounded to float32.
    low, high : float
        Finite, low < high. Values outside count in the first or last bin.
    bins : int
        From 1 to 1,048,576.
    counts : int64 ndarray of shape (bins,), optional
        Added to and returned, so that batches accumulate.

    Returns
    -------
    int64 ndarray of shape (bins,)
        Bin ``floor((x - low) * (bins / (high - low)))``, evaluated in float32 with each step rounded.

    Raises
    ------
    InvalidArgument
        For a range, a number of bins or `counts` that cannot serve.
    """
    if on_gpu(x):
        return _histogram(x, counts, low, high, bins, out=counts)
    if (stream := current()) is not None:
        return queued(stream, _histogram, (x, counts), (low, high, bins), counts)
    return _histogram(x, counts, low, high, bins, out=counts)


def _histogram(x: Any, before: Any, low: float, high: float, bins: int, *, out: Any = None) -> Any:
    """`before` and `out` are the same counts, named twice because they are read as well as written."""
    verb, counts = "histogram", np.asarray(out) if isinstance(out, Array) else out
    there = on_gpu(x)
    floats, is_bf16 = (x, False) if there else as_floats(x, verb)
    if not (isinstance(bins, (int, np.integer)) and 1 <= bins <= MAX_BINS):
        raise InvalidArgument(f"{verb}: bins must be an integer from 1 to {MAX_BINS}, got {told(bins)}")
    low, high = as_number(low, verb, "low"), as_number(high, verb, "high")
    with np.errstate(over="ignore"):
        low32, high32 = np.float32(low), np.float32(high)
    if not (np.isfinite(low32) and np.isfinite(high32) and low32 < high32):
        raise InvalidArgument(f"{verb}: wanted a finite float32 range with low < high, got [{low}, {high}]")
    with np.errstate(over="ignore"):
        per_unit = np.float32(bins / (float(high32) - float(low32)))
    if not np.isfinite(per_unit):
        raise InvalidArgument(f"{verb}: the range [{low}, {high}] is too narrow for {bins} bins in float32")
    if counts is None:
        counts = np.zeros(bins, np.int64)
    elif counts.dtype != np.int64 or counts.shape != (bins,) or not counts.flags.c_contiguous:
        raise InvalidArgument(
            f"{verb}: counts must be a contiguous int64 array of shape ({bins},), got {counts.dtype} {counts.shape}"
        )
    if there:
        return cuda_elements.histogram(floats, low32, per_unit, bins, counts)
    _kernels.histogram(floats, float(low32), float(per_unit), counts, is_bf16)
    return counts if out is None else out
