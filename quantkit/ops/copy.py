"""copy: elements from one array to another."""

from __future__ import annotations

from typing import Any

import numpy as np

from quantkit import _kernels
from quantkit.errors import InvalidDType, ShapeMismatch
from quantkit.ops._devices import cuda_elements, on_gpu
from quantkit.ops._operands import as_array, copied, plain
from quantkit.storage import Array
from quantkit.streams.queue import current, queued


def copy(x: Any, *, out: Any = None) -> Any:
    """Copy an array. On a stream this is the asynchronous clone.

    Parameters
    ----------
    x : array_like
        Elements of 1, 2, 4 or 8 bytes, of any strides; of a QTensor, its codes.
    out : array of the same shape and dtype, optional
        Filled and returned; any strides, and it may overlap `x`.

    Returns
    -------
    ndarray
        Contiguous in C order; `out` where it was given.

    Raises
    ------
    InvalidDType, ShapeMismatch
        Naming what was wanted and what came.
    """
    if type(x) is not np.ndarray and on_gpu(x, out):
        return cuda_elements.copy(x, out)
    if (stream := current()) is not None:
        return queued(stream, copy, (x,), (), out)
    x = as_array(x, "copy", "x")
    if x.dtype.hasobject or x.dtype.itemsize not in (1, 2, 4, 8):
        raise InvalidDType(f"copy: wanted elements of 1, 2, 4 or 8 bytes, got {x.dtype}")
    if out is None:
        y = np.empty(x.shape, x.dtype)
        _kernels.copy(plain(x), plain(y))
        return y
    y = np.asarray(out) if isinstance(out, Array) else out
    if not isinstance(y, np.ndarray) or y.shape != x.shape or y.dtype != x.dtype:
        what = f"{y.dtype} {y.shape}" if isinstance(y, np.ndarray) else type(y).__name__
        raise ShapeMismatch(f"copy: wanted out of {x.dtype} {x.shape}, got {what}")
    _kernels.copy(plain(copied(x) if np.may_share_memory(x, y) else x), plain(y))
    return out
