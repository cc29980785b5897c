"""OpenCV's INTER_LINEAR on 8-bit pixels, to the last bit."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit import _kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ONE = 1 << 11  # what the weights of two neighbours add up to


def resize_opencv_linear(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Resize as OpenCV's INTER_LINEAR does on uint8, to the last bit.

    Two neighbours on each axis and no smoothing while shrinking, in fixed point: weights of 11 bits, 4 bits dropped
    between the axes. An exact half on both axes is the rounded mean of four pixels.

    Parameters
    ----------
    pixels : ndarray of uint8, shape (height, width, channels)
        1 or 3 channels, or 4 of which the last one is dropped.
    height, width : int
        Of the result.

    Returns
    -------
    ndarray of uint8, shape (height, width, channels)
        Of a new array whose channels lie one behind the other; `pixels` itself where the size is the same.
    """
    before = pixels.shape[:2]
    if before == (height, width):
        return pixels[..., :3]
    made = np.empty((min(pixels.shape[2], 3), height, width), np.uint8)
    source = np.ascontiguousarray(pixels)
    if before == (2 * height, 2 * width):
        _kernels.resize_linear(source, made)
    else:
        columns = _neighbours(before[1], width, clamp=True)
        _kernels.resize_linear(source, made, columns, _neighbours(before[0], height, clamp=False))
    return made.transpose(1, 2, 0)


@functools.lru_cache(maxsize=256)
def _neighbours(before: int, after: int, *, clamp: bool) -> tuple[NDArray[Any], ...]:
    """Return both neighbours of each output position on one axis, int32, and their weights, int16 of shape (after, 2).

    OpenCV puts the weight of positions beyond the edge on the edge along a row (`clamp`), but not down a column, where
    both neighbours are the edge and each is rounded by itself.
    """
    scale = 1.0 / (after / before)  # not before / after: the last bit of the position would differ
    position = ((np.arange(after) + 0.5) * scale - 0.5).astype(np.float32)
    first = np.floor(position).astype(np.int64)
    share = position - first.astype(np.float32)
    if clamp:
        share[(first < 0) | (first >= before - 1)] = 0
    weights = np.rint(np.stack([np.float32(1) - share, share], axis=1) * np.float32(_ONE)).astype(np.int16)
    near, far = (np.clip(first + k, 0, before - 1).astype(np.int32) for k in (0, 1))
    found = near, far, weights
    for array in found:
        array.flags.writeable = False  # shared by all threads
    return found
