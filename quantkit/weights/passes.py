"""The passes over the values of one tensor: range, codes and error, copy. A piece at a time, whatever its size.

The pieces are the same for any number of workers, so the bytes and the reported errors are too.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from quantkit import ops
from quantkit.qparams import QParams, choose_qparams
from quantkit.weights.rules import Grid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from quantkit.weights.rules import Options
    from quantkit.weights.source import SourceTensor

PIECE = 1 << 19  # elements at a time: few enough for the cache, enough to outweigh the calls
_RUN = 1 << 10  # float32 squares are added up over runs of this length, and the runs in float64
_HUGE = float(np.finfo(np.float32).max)
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


class Unfit(Exception):
    """A tensor holds values that no code can stand for; `find_problem` says which."""


class Range(NamedTuple):
    """Lowest and highest finite value of each channel, and how many values are not finite."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    nonfinite: int

    def reach(self) -> float:
        """Largest magnitude."""
        return max(-float(np.min(self.low)), float(np.max(self.high)))

    def qparams(self, options: Options) -> QParams:
        """Choose one scale and zero point a channel."""
        if self.nonfinite or self.reach() > _HUGE:
            raise Unfit
        return choose_qparams(self.low, self.high, options.dtype, symmetric=options.symmetric, axis=0)


def _range_of(values: NDArray[Any], part: Part) -> Range:
    if part.high - part.low == 1:
        low, high, nonfinite = ops.finite_range(values)
        return Range(np.array([low]), np.array([high]), nonfinite)
    return Range(*ops.finite_range(values.reshape(part.shape), axis=1))


def find_range(tensor: SourceTensor, grid: Grid) -> Range:
    """Read a tensor and return its range."""
    low, high, nonfinite = np.full(grid.channels, np.inf), np.full(grid.channels, -np.inf), 0
    read = tensor.open()
    for part in parts(grid):
        found = _range_of(to_float(read(part.start, part.stop), tensor.dtype), part)
        here = slice(part.low, part.high)
        np.minimum(low[here], found.low, out=low[here])
        np.maximum(high[here], found.high, out=high[here])
        nonfinite += found.nonfinite
    return Range(low, high, nonfinite)


def find_problem(tensor: SourceTensor) -> str | None:
    """Read a tensor and return why no codes can stand for its values, or None."""
    found = find_range(tensor, Grid(1, 1, tensor.size, None, None, ()))
    if found.nonfinite:
        return f"holds {found.nonfinite} values that are NaN or infinite"
    return f"reaches {found.reach():.3g}, beyond float32" if found.reach() > _HUGE else None


@dataclass
class Coded:
    """What quantizing a tensor came to.

    Attributes
    ----------
    crcs : list of int
        CRC-32 of the codes, the scales and the zero points.
    max_error : float
        Largest distance between a value and what its code stands for.
    signal, noise : float
        Sums of squares of the values and of those distances.
    """

    crcs: list[int] = field(default_factory=lambda: [0, 0, 0])
    max_error: float = 0.0
    signal: float = 0.0
    noise: float = 0.0

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantization noise in dB; None where there is no noise."""
        if self.noise <= 0:
            return None
        return 10 * math.log10(self.signal / self.noise) if self.signal > 0 else -math.inf


def quantize(tensor: SourceTensor, grid: Grid, options: Options, writes: Sequence[Write]) -> Coded:
    """Quantize a tensor, and measure what its codes lost.

    Where a piece holds its channels whole, the tensor is read once, and nothing grows with the number of channels;
    else twice, for the range and for the codes.

    Parameters
    ----------
    writes : three callables
        Take the first byte and the data of codes, scales and zero points.

    Raises
    ------
    Unfit
        At values that are not finite in float32.
    """
    result, rooms = Coded(), _Rooms(options.dtype.codes)
    at_once = grid.outer == 1 and grid.inner <= PIECE
    whole = None if at_once else find_range(tensor, grid).qparams(options)
    if whole is not None:
        _write_qparams(whole, 0, options, writes, result)
    read = tensor.open()
    for part in parts(grid):
        values = to_float(read(part.start, part.stop), tensor.dtype)
        if whole is None:
            qparams = _range_of(values, part).qparams(options)
            _write_qparams(qparams, part.low, options, writes, result)
            scale, zero_point = qparams.scale, qparams.zero_point
        else:
            scale, zero_point = whole.scale[part.low : part.high], whole.zero_point[part.low : part.high]
        # Where squares of float32 would overflow or vanish, the error is measured in float64.
        wide = values.dtype == np.float64 or not 1e-12 < float(scale.max()) * 256 < 1e15
        codes, real = rooms.take(values.size, wide)
        if len(scale) == 1:
            number, zero = float(scale[0]), int(zero_point[0])
            ops.quantize_linear(values, number, zero, out=codes)
            ops.dequantize_linear(codes, number, zero, out=real)
        else:
            box = part.shape
            ops.quantize_linear(values.reshape(box), scale, zero_point, axis=1, out=codes.reshape(box))
            ops.dequantize_linear(codes.reshape(box), scale, zero_point, axis=1, out=real.reshape(box))
        writes[0](part.start, codes)
        result.crcs[0] = zlib.crc32(codes.data, result.crcs[0])
        values = values.astype(real.dtype, copy=False)
        result.signal += _sum_of_squares(values)
        np.subtract(real, values, out=real)
        result.noise += _sum_of_squares(real)
        result.max_error = max(result.max_error, float(real.max()), -float(real.min()))
    return result


class _Rooms:
    """Arrays for the codes and the dequantized values of a piece, used again for the next."""

    def __init__(self, codes: np.dtype[Any]) -> None:
        self._codes = np.empty(0, codes)
        self._real: dict[bool, NDArray[Any]] = {False: np.empty(0, np.float32), True: np.empty(0, np.float64)}

    def take(self, count: int, wide: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        if self._codes.size < count:
            self._codes = np.empty(count, self._codes.dtype)
        if self._real[wide].size < count:
            self._real[wide] = np.empty(count, self._real[wide].dtype)
        return self._codes[:count], self._real[wide][:count]


def _write_qparams(qparams: QParams, low: int, options: Options, writes: Sequence[Write], result: Coded) -> None:
    for i, data in ((1, qparams.scale.astype("<f4")), (2, qparams.zero_point.astype(options.dtype.codes))):
        writes[i](low * data.itemsize, data)
        result.crcs[i] = zlib.crc32(data.data, result.crcs[i])


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
