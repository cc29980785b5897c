"""lookup and requantize: functions of 8-bit codes, which are tables of 256 bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit import _kernels
from quantkit.errors import InvalidDType, ShapeMismatch
from quantkit.ops._devices import cuda_elements, on_gpu
from quantkit.ops._operands import as_array, as_codes, copied, parameters
from quantkit.ops.quantize import dequantize_linear, quantize_linear
from quantkit.qparams import as_qdtype
from quantkit.streams.queue import current, queued

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

_CODES = (np.dtype(np.uint8), np.dtype(np.int8))
_EVERY_BYTE = np.arange(256, dtype=np.uint8)


def _output(verb: str, q: NDArray[Any], dtype: np.dtype[Any], out: Any) -> Any:
    """Return where results go: `out`, checked, or a new array in the memory order of `q`."""
    if out is None:
        return np.empty_like(q, dtype=dtype, subok=False)
    if getattr(out, "dtype", None) != dtype:
        name = getattr(getattr(out, "dtype", None), "name", type(out).__name__)
        raise InvalidDType(f"{verb}: wanted out of {dtype.name}, got {name}")
    return out


def _run(q: NDArray[Any], y: Any, tables: NDArray[Any], axis: int = -1) -> Any:
    tables = tables.view(np.uint8).reshape(-1)
    if not _kernels.lookup(q, y, tables, axis):
        _kernels.lookup(copied(q), y, tables, axis)
    return y


def lookup(q: Any, table: Any, *, out: Any = None) -> Any:
    """Replace every code by an entry of a table: any function of 8-bit codes.

    Parameters
    ----------
    q : array_like of uint8 or int8
        Any shape and strides.
    table : array_like of uint8 or int8, shape (256,)
        Entry `i` serves the code whose byte is `i`: codes 0 to 127, then 128 to 255 of uint8 or -128 to -1 of int8.
        For int8, ``table[code]`` is that entry with Python's negative indices as well.
    out : array of the dtype of `table`, optional
        Filled and returned; any strides, and `q` itself where the dtypes agree.

    Returns
    -------
    ndarray
        Of the dtype of `table` and the shape of `q`, in its memory order; `out` where it was given.

    Raises
    ------
    InvalidDType, ShapeMismatch
        Naming what was wanted and what came.
    """
    if type(q) is not np.ndarray and on_gpu(q, out):
        return cuda_elements.lookup(q, table, out)
    if (stream := current()) is not None:
        return queued(stream, lookup, (q,), (table,), out)
    verb = "lookup"
    q, table = as_array(q, verb, "q"), as_array(table, verb, "table")
    for name, x in (("q", q), ("table", table)):
        if x.dtype not in _CODES:
            raise InvalidDType(f"{verb}: {name} must be uint8 or int8, got {x.dtype}")
    if table.shape != (256,):
        raise ShapeMismatch(f"{verb}: wanted a table of 256 codes, got shape {table.shape}")
    return _run(q, _output(verb, q, table.dtype, out), np.ascontiguousarray(table))


def requantize(
    q: Any,
    scale: Any,
    zero_point: Any,
    new_scale: Any,
    new_zero_point: Any,
    *,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
) -> Any:
    """Express codes in another scale and zero point: `quantize_linear` of `dequantize_linear`, in float32.

    Codes of 8 bits go through a table, so that a pass over them costs no arithmetic.

    Parameters
    ----------
    q : array_like of uint8, int8 or int32
        Any shape and strides.
    scale, zero_point, new_scale, new_zero_point : float and int, or array_like of shape (channels,)
        Of `q`, and of the result. Zero points may be floats on either side.
    axis : int, optional
        The axis that parameters with several values run along.
    dtype : numpy.uint8 or numpy.int8 (or quint8, qint8), optional
        dtype of the result. Without it: that of `out`, else of `new_zero_point` where that is an array or NumPy scalar
        of codes, else of `q` (uint8 for int32).
    out : array of the codes, optional
        Filled and returned; any strides, and `q` itself where the dtypes agree.

    Returns
    -------
    ndarray of uint8 or int8
        Of the shape of `q`, in its memory order; `out` where it was given.

    Raises
    ------
    InvalidQParams, InvalidDType, ShapeMismatch
        Naming what was wanted and what came.
    """
    if type(q) is not np.ndarray and on_gpu(q, out):
        return cuda_elements.requantize(q, (scale, zero_point, new_scale, new_zero_point), axis, dtype, out)
    if (stream := current()) is not None:
        given = (scale, zero_point, new_scale, new_zero_point)
        return queued(stream, requantize, (q,), given, out, axis=axis, dtype=dtype)
    verb = "requantize"
    q = as_codes(q, verb)
    if dtype is None:
        given = (getattr(out, "dtype", None), getattr(new_zero_point, "dtype", None), q.dtype, _CODES[0])
        dtype = next(d for d in given if d in _CODES)
    qdtype = as_qdtype(dtype)
    own = as_qdtype(q.dtype) if q.dtype in _CODES else None
    old_s, old_z, index = parameters(verb, q.shape, scale, zero_point, axis, own)
    new_s, new_z, _ = parameters(verb, q.shape, new_scale, new_zero_point, axis, qdtype, "new_")
    y = _output(verb, q, qdtype.codes, out)
    channels = 1 if axis is None else q.shape[index]
    if own is None or q.size < 256 * channels:
        real = dequantize_linear(q, old_s, old_z, axis=axis)
        return quantize_linear(real, new_s, new_z, axis=axis, dtype=qdtype.codes, out=y)
    rows = np.broadcast_to(_EVERY_BYTE.view(q.dtype), (channels, 256))
    along = None if axis is None else 0
    real = dequantize_linear(rows, old_s, old_z, axis=along)
    return _run(q, y, quantize_linear(real, new_s, new_z, axis=along, dtype=qdtype.codes), index)
