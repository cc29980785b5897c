"""The passes over the values of one tensor: range, codes and error, copy. A piece at a time, whatever its size.

The pieces are the same for any number of workers, so the bytes and the reported errors are too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from quantkit import _kernels, ops
from quantkit.qparams import QParams, choose_qparams
from quantkit.sqnr import sqnr_db
from quantkit.weights.rules import Grid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from quantkit.weights.rules import Options
    from quantkit.weights.source import SourceTensor

PIECE = 1 << 19  # elements at a time: few enough for the cache, enough to outweigh the calls
_RANGE = np.dtype([("low", "f8"), ("high", "f8"), ("nonfinite", "i8")])
_NOTHING = np.array((np.inf, -np.inf, 0), _RANGE)
_ACCOUNT = np.dtype([("signal", "f8"), ("noise", "f8"), ("most", "f8"), ("crc", "i8")])
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


def to_native(bits: NDArray[Any]) -> NDArray[Any]:
    """Return values as the kernels take them; bfloat16 stays bits."""
    if bits.dtype.isnative and bits.flags.aligned:
        return bits
    return bits.astype(bits.dtype.newbyteorder("="))


def to_float(bits: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return real values as NumPy knows them; exact."""
    if dtype == "BF16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return to_native(bits)


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


def _range_of(values: NDArray[Any], part: Part, dtype: str) -> Range:
    channels = part.high - part.low
    ranges = np.full(channels, _NOTHING, _RANGE)
    if channels == 1:
        _kernels.value_range(values, ranges, -1, dtype == "BF16")
    else:
        _kernels.value_range(values.reshape(part.shape), ranges, 1, dtype == "BF16")
    return Range(ranges["low"], ranges["high"], int(ranges["nonfinite"][0]))


def find_range(tensor: SourceTensor, grid: Grid) -> Range:
    """Read a tensor and return its range."""
    low, high, nonfinite = np.full(grid.channels, np.inf), np.full(grid.channels, -np.inf), 0
    read = tensor.open()
    for part in parts(grid):
        found = _range_of(to_native(read(part.start, part.stop)), part, tensor.dtype)
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
        return sqnr_db(self.signal, self.noise, math.inf)


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
    result, codes, account = Coded(), np.empty(0, options.dtype.codes), np.zeros((), _ACCOUNT)
    at_once = grid.outer == 1 and grid.inner <= PIECE
    whole = None if at_once else find_range(tensor, grid).qparams(options)
    if whole is not None:
        _write_qparams(whole, 0, options, writes, result)
    read = tensor.open()
    for part in parts(grid):
        values = to_native(read(part.start, part.stop))
        if whole is None:
            qparams = _range_of(values, part, tensor.dtype).qparams(options)
            _write_qparams(qparams, part.low, options, writes, result)
            scale, zero_point = qparams.scale, qparams.zero_point
        else:
            scale, zero_point = whole.scale[part.low : part.high], whole.zero_point[part.low : part.high]
        if codes.size < values.size:
            codes = np.empty(values.size, codes.dtype)
        coded = codes[: values.size]
        _code(values, part, scale, zero_point, tensor.dtype, coded, account)
        writes[0](part.start, coded)
    result.signal, result.noise, result.max_error, result.crcs[0] = account.item()
    return result


def _code(
    values: NDArray[Any],
    part: Part,
    scale: NDArray[np.float32],
    zero_point: NDArray[Any],
    dtype: str,
    codes: NDArray[Any],
    account: NDArray[Any],
) -> None:
    """Quantize a part, and add to the account what its codes lost."""
    # Where squares of float32 would overflow or vanish, the error is measured in float64.
    if dtype != "F64" and 1e-12 < float(scale.max()) * 256 < 1e15:
        zeros = zero_point.astype(np.int32)
        _kernels.quantize_measured(values, codes, scale, zeros, part.shape, account, dtype == "BF16")
        return
    values, box = to_float(values, dtype), part.shape
    if len(scale) == 1:
        ops.quantize_linear(values, float(scale[0]), int(zero_point[0]), out=codes)
    else:
        ops.quantize_linear(values.reshape(box), scale, zero_point, axis=1, out=codes.reshape(box))
    real = np.empty(box)
    ops.dequantize_linear(codes.reshape(box), scale, zero_point, axis=1 if len(scale) > 1 else None, out=real)
    wide = values.astype(np.float64, copy=False).reshape(box)
    error = real - wide
    account["signal"] += np.square(wide).sum()
    account["noise"] += np.square(error).sum()
    account["most"] = max(float(account["most"]), float(np.abs(error).max()))
    account["crc"] = _kernels.crc32(codes, int(account["crc"]))


def _write_qparams(qparams: QParams, low: int, options: Options, writes: Sequence[Write], result: Coded) -> None:
    for i, data in ((1, qparams.scale.astype("<f4")), (2, qparams.zero_point.astype(options.dtype.codes))):
        writes[i](low * data.itemsize, data)
        result.crcs[i] = _kernels.crc32(data, result.crcs[i])


def copy(tensor: SourceTensor, write: Write) -> int:
    """Read a tensor, hand its bytes to `write`, and return their CRC-32."""
    crc, read = 0, tensor.open()
    for start in range(0, tensor.size, PIECE):
        bits = read(start, min(start + PIECE, tensor.size))
        data = np.ascontiguousarray(bits).view(np.uint8)
        write(start * bits.itemsize, data)
        crc = _kernels.crc32(data, crc)
    return crc
