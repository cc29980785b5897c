"""Quantized weights back to a plain safetensors file of floats."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit import ops
from quantkit.cpu import num_threads
from quantkit.errors import InvalidArgument
from quantkit.files import DTYPES, check_output, plan_tensors, resumable_write
from quantkit.parallel import ordered_map
from quantkit.weights.opened import Weights, open_weights
from quantkit.weights.passes import parts, to_float
from quantkit.weights.rules import FLOATS, Grid
from quantkit.weights.stored import KEY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from quantkit.weights.quantizer import Progress

_PIECE = 1 << 20  # elements copied at a time


def dequantize_weights(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    streams: int | None = None,
    progress: Progress | None = None,
) -> str:
    """Write the real values of quantized weights to a safetensors file that any loader takes.

    Every name of the source is there; tied tensors are written once for each name, because the format cannot say more.

    Parameters
    ----------
    path : path
        A file of `quantize_weights`.
    output : path
    dtype : {"F32", "F16", "BF16", "F64"}, optional
        Of all floating-point tensors; by default what each was in the source.
    streams : int, optional
        How many tensors are worked on at a time; by default one for each usable CPU.
    progress : callable, optional
        Called with ``(stage, tensors done, tensors in all)``.

    Returns
    -------
    str
        `output`.

    Raises
    ------
    FormatError, InvalidArgument, OutputError
        When `path` holds no quantized weights; for another dtype; when the output cannot be written.
    """
    if dtype is not None and dtype not in FLOATS:
        raise InvalidArgument(f"dtype must be one of {', '.join(FLOATS)}, got {dtype!r}")
    count = num_threads() if streams is None else streams
    if not isinstance(count, int) or count < 1:
        raise InvalidArgument(f"streams must be an integer >= 1, got {streams!r}")
    real = check_output(output)
    weights = open_weights(path)
    if real == os.path.realpath(path):
        raise InvalidArgument(f"the output {os.fspath(output)} is the source")
    labels = {name: dtype if dtype and weights.dtype(name) in FLOATS else weights.dtype(name) for name in weights}
    metadata = {k: v for k, v in weights.metadata.items() if k != KEY}
    layout = plan_tensors({n: (labels[n], weights.shape(n)) for n in weights}, metadata or None)
    with resumable_write(output, "", resume=False) as file:
        file.resize(layout.size)
        file.write_at(0, layout.head)

        def work(name: str) -> None:
            offset = layout.offset(name)
            for start, values in _values(weights, name):
                bits = np.ascontiguousarray(from_float(name, values, labels[name]))
                file.write_at(offset + start * bits.itemsize, bits.view(np.uint8))

        names = list(layout)
        for done, _ in enumerate(ordered_map(work, names, workers=count), 1):
            if progress is not None:
                progress("export", done, len(names))
    return os.fspath(output)


def _values(weights: Weights, name: str) -> Any:
    """Yield (first element, values) of one tensor, piece by piece."""
    target = weights.ties.get(name, name)
    weight, bits = weights.quantized.get(target), weights._file[target].reshape(-1)
    label = weights.dtype(name)
    if weight is None:
        for start in range(0, bits.size, _PIECE):
            plain = bits[start : start + _PIECE]
            yield start, to_float(plain, label) if label in FLOATS else plain
        return
    scale, zero_point = (a.ravel() for a in weights._parameters(weight))
    for part in parts(_grid(weights.shape(name), weight.axis, weight.block)):
        codes = bits[part.start : part.stop].reshape(part.shape)
        out = np.empty(part.shape, np.float64 if label == "F64" else np.float32)
        here = slice(part.low, part.high)
        ops.dequantize_linear(codes, scale[here], zero_point[here].astype(np.int32), axis=1, out=out)
        yield part.start, out.reshape(-1)


def _grid(shape: tuple[int, ...], axis: int | None, block: int | None) -> Grid:
    size = int(np.prod(shape, dtype=np.int64))
    if axis is None:
        return Grid(1, 1, size, None, None, ())
    if block is not None:
        return Grid(1, size // block, block, 0, block, ())
    inner = int(np.prod(shape[axis + 1 :], dtype=np.int64))
    return Grid(size // max(shape[axis] * inner, 1), shape[axis], inner, axis, None, ())


def from_float(name: str, values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return the bits of real values in another floating-point type, rounded to nearest, ties to even.

    Raises
    ------
    InvalidArgument
        When a finite value of tensor `name` has none there.
    """
    if dtype != "BF16":
        with np.errstate(over="ignore"):
            cast = values.astype(DTYPES[dtype], copy=False)
        if cast.itemsize < values.itemsize and np.any(np.isinf(cast) & np.isfinite(values)):
            raise InvalidArgument(f"tensor {name!r} reaches beyond {dtype}; choose another dtype")
        return cast
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0) | (bits >> 16).astype(np.uint16), rounded)
