"""The passes over the values of one tensor: range, codes and error, copy. A piece at a time, whatever its size.

The pieces are the same for any number of workers, so the bytes and the reported errors are too.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from quantkit import ops
from quantkit.qparams import QDType, QParams, choose_qparams

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from quantkit.weights.rules import Grid, Options
    from quantkit.weights.source import SourceTensor

PIECE = 1 << 17  # elements at a time: they, their codes and their error stay in the cache
_RUN = 1 << 10  # float32 squares are added up over runs of this length, and the runs in float64
Write = Callable[[int, Any], None]


class Part(NamedTuple):
    """Elements start to stop in C order: an [outer, high - low, inner] box of a `Grid`."""

    start: int
    stop: int
    low: int
    high: int
    shape: tuple[int, int, int]


def parts(grid: Grid) -> Iterator[Part]:
    """Cut a grid into contiguous boxes of about `PIECE` elements."""
    outer, channels, inner = grid.outer, grid.channels, grid.inner
    row = channels * inner
    if row <= PIECE:
        step = max(1, PIECE // row)
        for o in range(0, outer, step):
            count = min(step, outer - o)
            yield Part(o * row, (o + count) * row, 0, channels, (count, channels, inner))
    elif inner <= PIECE:
        step = max(1, PIECE // inner)
        for o in range(outer):
            for c in range(0, channels, step):
                count = min(step, channels - c)
                start = o * row + c * inner
                yield Part(start, start + count * inner, c, c + count, (1, count, inner))
    else:
        for line in range(outer * channels):
            c = line % channels
            for i in range(0, inner, PIECE):
                count = min(PIECE, inner - i)
                start = line * inner + i
                yield Part(start, start + count, c, c + 1, (1, 1, count))


def to_float(bits: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return real values as the kernels take them; exact."""
    if dtype == "BF16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits if bits.dtype.isnative else bits.astype(bits.dtype.newbyteorder("="))


@dataclass
class Range:
    """Lowest and highest value of each channel, and how many values are no finite numbers."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    nonfinite: int = 0

    def problem(self) -> str | None:
        """Return why such values cannot be quantized, or None."""
        if self.nonfinite:
            return f"holds {self.nonfinite} values that are NaN or infinite"
        reach = max(-float(self.low.min()), float(self.high.max()))
        if reach > float(np.finfo(np.float32).max):
            return f"reaches {reach:.3g}, beyond float32"
        return None


def find_range(tensor: SourceTensor, grid: Grid) -> Range:
    """Read a tensor once and return its range."""
    found = Range(np.full(grid.channels, np.inf), np.full(grid.channels, -np.inf))
    read = tensor.open()
    for part in parts(grid):
        values = to_float(read(part.start, part.stop), tensor.dtype)
        low, high, nonfinite = _range_of(values, part)
        here = slice(part.low, part.high)
        np.minimum(found.low[here], low, out=found.low[here])
        np.maximum(found.high[here], high, out=found.high[here])
        found.nonfinite += nonfinite
    return found


def _range_of(values: NDArray[Any], part: Part) -> tuple[Any, Any, int]:
    if part.high - part.low == 1:
        return ops.finite_range(values)
    return ops.finite_range(values.reshape(part.shape), axis=1)


def qparams_of(found: Range, options: Options) -> QParams:
    """Choose one scale and zero point a channel."""
    return choose_qparams(found.low, found.high, options.dtype, symmetric=options.symmetric, axis=0)


@dataclass
class Coded:
    """What quantizing a tensor came to.

    Attributes
    ----------
    crc : int
        CRC-32 of the codes.
    max_error : float
        Largest distance between a value and what its code stands for.
    signal, noise : float
        Sums of squares of the values and of those distances.
    """

    crc: int = 0
    max_error: float = 0.0
    signal: float = 0.0
    noise: float = 0.0

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantization noise in dB; None where there is no noise."""
        if self.noise <= 0:
            return None
        return 10 * math.log10(self.signal / self.noise) if self.signal > 0 else -math.inf


def quantize(tensor: SourceTensor, grid: Grid, qparams: QParams, dtype: QDType, write: Write) -> Coded:
    """Read a tensor again, hand its codes to ``write(first byte, codes)``, and measure what they lost."""
    result = Coded()
    read = tensor.open()
    reach = float(np.max(qparams.scale)) * 256
    # Where squares of float32 would overflow or vanish, the error is measured in float64.
    wide = tensor.dtype == "F64" or not 1e-12 < reach < 1e15
    codes_room = np.empty(0, dtype.codes)
    real_room = np.empty(0, np.float64 if wide else np.float32)
    for part in parts(grid):
        count = part.stop - part.start
        if codes_room.size < count:
            codes_room, real_room = np.empty(count, codes_room.dtype), np.empty(count, real_room.dtype)
        codes, real = codes_room[:count], real_room[:count]
        values = to_float(read(part.start, part.stop), tensor.dtype)
        scale, zero_point = qparams.scale[part.low : part.high], qparams.zero_point[part.low : part.high]
        if part.high - part.low == 1:
            number, zero = float(scale[0]), int(zero_point[0])
            ops.quantize_linear(values, number, zero, out=codes)
            ops.dequantize_linear(codes, number, zero, out=real)
        else:
            box = part.shape
            ops.quantize_linear(values.reshape(box), scale, zero_point, axis=1, out=codes.reshape(box))
            ops.dequantize_linear(codes.reshape(box), scale, zero_point, axis=1, out=real.reshape(box))
        write(part.start, codes)
        result.crc = zlib.crc32(codes.data, result.crc)
        values = values.astype(real.dtype, copy=False)
        result.signal += _sum_of_squares(values)
        np.subtract(real, values, out=real)
        result.noise += _sum_of_squares(real)
        result.max_error = max(result.max_error, float(real.max()), -float(real.min()))
    return result


def _sum_of_squares(values: NDArray[Any]) -> float:
    whole = values.size // _RUN * _RUN
    total = 0.0
    for runs in (values[:whole].reshape(-1, _RUN), values[whole:].reshape(1, -1)):
        # One product a run: too short for a threaded BLAS, and one call for all of them.
        total += float(np.matmul(runs[:, None, :], runs[:, :, None]).sum(dtype=np.float64))
    return total


def copy(tensor: SourceTensor, write: Write) -> int:
    """Read a tensor, hand its bytes to `write`, and return their CRC-32."""
    crc, read = 0, tensor.open()
    for start in range(0, tensor.size, PIECE):
        bits = read(start, min(start + PIECE, tensor.size))
        data = np.ascontiguousarray(bits).view(np.uint8)
        write(start * bits.itemsize, data)
        crc = zlib.crc32(data.data, crc)
    return crc
