"""Pillow's resize on RGB pixels, to the last bit, only the part that is kept, and straight into channels first.

Pillow resizes in fixed point: weights of 22 bits along the rows, a rounded byte, weights of 22 bits down the columns.
The same integers here give the same pixels, on faster kernels.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit import _kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_BITS, _LOW_BITS = 22, 11


def _box(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where((x > -0.5) & (x <= 0.5), 1.0, 0.0)


def _bilinear(x: NDArray[np.float64]) -> NDArray[np.float64]:
    x = np.abs(x)
    return np.where(x < 1.0, 1.0 - x, 0.0)


def _bicubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    a, x = -0.5, np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


# Filter and half its width. Those that need a sine are left to Pillow: its last bit is the C library's.
_FILTERS: dict[str, tuple[Callable[[NDArray[np.float64]], NDArray[np.float64]], float]] = {
    "box": (_box, 0.5),
    "bilinear": (_bilinear, 1.0),
    "bicubic": (_bicubic, 2.0),
}
FILTERS = frozenset(_FILTERS)
_MOST_TAPS = 2048  # sums of that many fit 32 bits


@functools.lru_cache(maxsize=256)
def _weights(
    before: int, low_end: float, high_end: float, after: int, first: int, count: int, name: str
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]] | None:
    """Return first source index, high and low part of the weights of outputs `first` to ``first + count - 1``.

    The `after` outputs cover the source, which has `before` pixels, from `low_end` to `high_end`.
    """
    function, support = _FILTERS[name]
    scale = (high_end - low_end) / after
    stretch = max(scale, 1.0)
    support *= stretch
    taps = math.ceil(support) * 2 + 1
    if taps > _MOST_TAPS:
        return None
    center = low_end + (np.arange(first, first + count) + 0.5) * scale
    begin = np.maximum((center - support + 0.5).astype(np.int64), 0)
    end = np.minimum((center + support + 0.5).astype(np.int64), before)
    place = np.arange(taps)
    weights = function((place + begin[:, None] - center[:, None] + 0.5) * (1.0 / stretch))
    weights[place >= (end - begin)[:, None]] = 0.0
    total = np.zeros(count)
    for t in range(taps):  # in this order: a pairwise sum has another last bit
        total += weights[:, t]
    weights /= np.where(total == 0, 1.0, total)[:, None]
    scaled = weights * (1 << _BITS)
    whole = np.trunc(scaled + np.where(weights < 0, -0.5, 0.5)).astype(np.int64)
    padded = np.zeros((count, -(-int((end - begin).max()) // 4) * 4), np.int64)
    width = min(taps, padded.shape[1])
    padded[:, :width] = whole[:, :width]
    # Taps of weight 0 may lie beyond the end, but not more than 3 of them: the others move to the front.
    shift = np.maximum(begin + padded.shape[1] - before - 3, 0)
    for i in np.flatnonzero(shift).tolist():
        n = min(int(shift[i]), int(begin[i]))
        padded[i] = np.concatenate([np.zeros(n, np.int64), padded[i, : padded.shape[1] - n]])
        begin[i] -= n
    if (begin + padded.shape[1] > before + 3).any():
        return None  # an image of fewer pixels than taps
    high = padded >> _LOW_BITS
    low = padded - (high << _LOW_BITS)
    found = begin.astype(np.int32), high.astype(np.int16), low.astype(np.int16)
    for array in found:
        array.flags.writeable = False  # shared by all threads
    return found


def resample(
    pixels: NDArray[np.uint8],
    size: tuple[int, int],
    name: str,
    region: tuple[int, int, int, int],
    box: tuple[float, float, float, float] | None = None,
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8] | None:
    """Resize as Pillow does and return one region of the result, or None where only Pillow can.

    Parameters
    ----------
    pixels : ndarray of uint8, shape (height, width, 3), or 4 of which the last one is dropped; C-contiguous
    size : (height, width)
        Of the whole result.
    name : str
        One of `FILTERS`.
    region : (top, left, height, width)
    box : (left, top, right, bottom), optional
        The part of the source that the result covers; all of it by default.
    out : ndarray of uint8, optional
        Where to put the result, if it has its shape; C-contiguous.

    Returns
    -------
    ndarray of uint8, shape (3, height, width), or None
    """
    # Newer versions of Pillow go down the columns first where that is less work.
    if pixels.shape[0] - size[0] > max(0, 2 * (pixels.shape[1] - size[1])):
        return None
    top, left, height, width = region
    x0, y0, x1, y1 = box or (0.0, 0.0, pixels.shape[1], pixels.shape[0])
    columns = _weights(pixels.shape[1], x0, x1, size[1], left, width, name)
    rows = _weights(pixels.shape[0], y0, y1, size[0], top, height, name)
    if columns is None or rows is None:
        return None
    made = out if out is not None and out.shape == (3, height, width) else np.empty((3, height, width), np.uint8)
    _kernels.resize(pixels, made, columns, rows)
    return made
