"""Weights of recurrent layers: float32, or codes with a scale for all, for each direction or for each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit._kernels import KeptCall, PackedFloats, PackedMatmul
from quantkit.errors import InvalidArgument, InvalidDType, InvalidQParams, ShapeMismatch
from quantkit.ops._depth import check_depth
from quantkit.ops._operands import as_array
from quantkit.qparams import as_scale, as_zero_point, check_zero_point, qint8, quint8

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CODES = {np.dtype(np.uint8): quint8, np.dtype(np.int8): qint8}


class PackedRnn:
    """Weights of a recurrent layer, W or R, in the order in which the kernels read them; made by `pack_rnn`.

    Attributes
    ----------
    shape : tuple of int
        (directions, gates * hidden, K) of the array that was packed.
    dtype : numpy.dtype
        float32, uint8 or int8.
    nbytes : int
        Bytes held.
    """

    __slots__ = ("dtype", "kept", "nbytes", "parts", "shape")

    def __init__(self, parts: tuple[tuple[Any, Any, Any], ...], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.parts = parts
        self.shape = shape
        self.dtype = dtype
        self.nbytes = sum(part[0].nbytes for part in parts)
        self.kept: tuple[Any, KeptCall] | None = None  # the last layer of which this was R: its W, and its plan

    def __repr__(self) -> str:
        return f"PackedRnn(shape={self.shape}, dtype={self.dtype})"


def _spread(what: str, values: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    """Return `values` for every direction and row."""
    if values.shape in {(), (1,), shape[1:], (shape[0], 1), shape}:
        return np.ascontiguousarray(np.broadcast_to(values, shape))
    raise ShapeMismatch(
        f"{what}: wanted one value, or shape ({shape[1]},), ({shape[0]}, 1) or {shape}, got shape {values.shape}"
    )


def _as_shaped(what: str, values: Any, reader: Any) -> NDArray[Any]:
    array = as_array(values, *what.split(": ", 1))
    read: NDArray[Any] = reader(array.reshape(-1) if array.ndim > 1 else array, what)
    return read.reshape(array.shape)


def packed_rnn(verb: str, name: str, w: Any, scale: Any, zero_point: Any) -> PackedRnn:
    """Pack `w` unless it is; errors begin with `verb` and `name`."""
    if isinstance(w, PackedRnn):
        if scale is not None:
            raise InvalidArgument(f"{verb}: {name} is packed and has its scale already; wanted no {name}_scale")
        return w
    if hasattr(w, "int_repr") and hasattr(w, "axis"):  # a QTensor, which stands above the verbs
        if scale is not None:
            raise InvalidArgument(f"{verb}: {name} is a tensor that has its scale already; wanted no {name}_scale")
        scale, zero_point, axis, w = w.scale, w.zero_point, w.axis, w.int_repr()
        if axis is not None and axis % 3 == 0:
            scale, zero_point = np.reshape(scale, (-1, 1)), np.reshape(zero_point, (-1, 1))
        elif axis is not None and axis % 3 == 2:
            raise InvalidQParams(f"{verb}: {name} must be quantized as a whole or along axis 0 or 1, got axis {axis}")
    w = as_array(w, verb, name)
    if w.dtype != np.float32 and w.dtype not in _CODES:
        raise InvalidDType(f"{verb}: {name} must be float32, uint8 or int8, got {w.dtype}")
    if w.ndim != 3 or not 1 <= w.shape[0] <= 2:
        raise ShapeMismatch(f"{verb}: wanted {name} of shape (1 or 2 directions, gates * hidden, K), got {w.shape}")
    if w.dtype == np.float32:
        if scale is not None:
            raise InvalidArgument(f"{verb}: {name} is float32; wanted no {name}_scale")
        w = np.ascontiguousarray(w) if w.flags.aligned else w.copy()
        return PackedRnn(tuple((PackedFloats(d), None, None) for d in w), w.shape, w.dtype)
    if scale is None:
        raise InvalidQParams(f"{verb}: {name} of {w.dtype} wants {name}_scale, got None")
    what = f"{verb}: {name}_zero_point"
    zeros = _as_shaped(what, zero_point, as_zero_point)
    if zeros.dtype.kind == "f":
        raise InvalidQParams(f"{what} must be an integer (requantize a tensor with a float one first)")
    check_zero_point(zeros.reshape(-1) if zeros.ndim > 1 else zeros, _CODES[w.dtype], what)
    scales = _spread(f"{verb}: {name}_scale", _as_shaped(f"{verb}: {name}_scale", scale, as_scale), w.shape[:2])
    zeros = _spread(what, zeros, w.shape[:2])
    check_depth(verb, w.shape[2], (False, 0), (w.dtype == np.int8, zeros))
    parts = tuple((PackedMatmul(w[d].T), scales[d], zeros[d]) for d in range(w.shape[0]))
    return PackedRnn(parts, w.shape, w.dtype)


def pack_rnn(w: Any, scale: Any = None, zero_point: Any = 0) -> PackedRnn:
    """Pack the weights W or R of a recurrent layer once, for any number of calls.

    Parameters
    ----------
    w : array of float32, uint8 or int8, or QTensor, shape (directions, gates * hidden, K)
        As ONNX has it: W with K = input, R with K = hidden. It is copied: later changes to it are not seen.
    scale : float or array_like of float32, shape (), (gates * hidden,), (directions, 1) or (directions, gates * hidden)
        Of codes, and of them alone: one for all, for each row, or for each direction.
    zero_point : int or array_like, default 0
        Of the same shapes.

    Returns
    -------
    PackedRnn
        Accepted wherever `w` or `r` is; has ``shape``, ``dtype`` and ``nbytes``.

    Raises
    ------
    InvalidDType, ShapeMismatch, InvalidQParams, InvalidArgument
        Naming what was wanted and what came.
    """
    return packed_rnn("pack_rnn", "w", w, scale, zero_point)
