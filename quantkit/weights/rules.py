"""Which tensors are quantized, and how: the options and the one place that decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from quantkit.errors import FormatError, InvalidArgument
from quantkit.files import DTYPES
from quantkit.qparams import QDType, as_qdtype, qint8

if TYPE_CHECKING:
    from quantkit.weights.source import SourceTensor

FLOATS = ("F32", "BF16", "F16", "F64")
GRANULARITIES = ("tensor", "channel", "block")
BLOCKS = (32, 64, 128)


@dataclass(frozen=True)
class Grid:
    """A tensor seen as [outer, channels, inner], C order, with one scale for each index of the middle.

    Attributes
    ----------
    axis : int or None
        The channel axis of the tensor; 0 for blocks; None for one scale in all.
    block : int or None
        Elements of a block.
    shape : tuple of int
        Of scale and zero point: () for one, (channels,), or (rows, blocks of a row).
    """

    outer: int
    channels: int
    inner: int
    axis: int | None
    block: int | None
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Decision:
    """What happens to a tensor: quantized on a grid, or left as it is for a reason."""

    grid: Grid | None
    reason: str


@dataclass(frozen=True)
class Options:
    """How to quantize; `quantize_weights` has the words."""

    dtype: QDType
    granularity: str
    axis: int | None
    block: int
    symmetric: bool
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    drop: tuple[str, ...]
    min_elements: int

    @classmethod
    def check(
        cls,
        dtype: Any,
        granularity: str,
        axis: int | None,
        block: int,
        symmetric: bool | None,
        include: Sequence[str] | str,
        exclude: Sequence[str] | str,
        drop: Sequence[str] | str,
        min_elements: int,
    ) -> Options:
        """Return checked options; `InvalidArgument` names the one at fault."""
        kind = as_qdtype(dtype)
        if granularity not in GRANULARITIES:
            raise InvalidArgument(f"granularity must be one of {', '.join(GRANULARITIES)}, got {granularity!r}")
        if block not in BLOCKS:
            raise InvalidArgument(f"block must be one of {', '.join(map(str, BLOCKS))}, got {block!r}")
        if axis is not None and not (isinstance(axis, int) and not isinstance(axis, bool)):
            raise InvalidArgument(f"axis must be an integer or None, got {axis!r}")
        if not isinstance(min_elements, int) or min_elements < 0:
            raise InvalidArgument(f"min_elements must be an integer >= 0, got {min_elements!r}")
        patterns = []
        for option, given in (("include", include), ("exclude", exclude), ("drop", drop)):
            several = (given,) if isinstance(given, str) else tuple(given)
            if not all(isinstance(p, str) for p in several):
                raise InvalidArgument(f"{option} must be patterns of names, got {given!r}")
            patterns.append(several)
        even = kind is qint8 if symmetric is None else bool(symmetric)
        return cls(kind, granularity, axis, block, even, patterns[0], patterns[1], patterns[2], min_elements)

    def to_json(self) -> dict[str, Any]:
        """Return the options as JSON holds them."""
        return {**asdict(self), "dtype": self.dtype.name}


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def is_dropped(name: str, options: Options) -> bool:
    """Whether a tensor is left out of the result altogether."""
    return _matches(name, options.drop)


def unmatched(names: Sequence[str], options: Options) -> list[str]:
    """Return a line for each pattern that no name matches."""
    found = []
    for option in ("include", "exclude", "drop"):
        for pattern in getattr(options, option):
            if not any(fnmatchcase(name, pattern) for name in names):
                found.append(f"{option} pattern {pattern!r} matches no tensor")
    return found


def check_dtype(path: str, tensor: SourceTensor) -> None:
    """Raise `FormatError` when a file of tensors cannot hold the tensor."""
    if tensor.dtype not in DTYPES:
        raise FormatError(
            f"{path}: tensor {tensor.name!r} holds {tensor.dtype}, which a file of tensors cannot; leave it out with "
            f"drop={tensor.name!r}"
        )


def decide(tensor: SourceTensor, options: Options) -> Decision:
    """Decide by name, dtype and shape alone; that its values serve is found when they are read."""
    if tensor.dtype not in FLOATS:
        bits = "is 8 bits already" if DTYPES[tensor.dtype].itemsize == 1 else "is no floating-point tensor"
        return Decision(None, f"{tensor.dtype} {bits}")
    if _matches(tensor.name, options.exclude):
        return Decision(None, "excluded by its name")
    if options.include and not _matches(tensor.name, options.include):
        return Decision(None, "not included by its name")
    if not tensor.size:
        return Decision(None, "has no elements")
    if len(tensor.shape) < 2:
        return Decision(None, "has fewer than two dimensions")
    if tensor.size < options.min_elements:
        return Decision(None, f"has fewer than {options.min_elements} elements")
    grid, reason = _grid(tensor, options)
    # Codes, and for each channel a float32 scale and a zero point of one byte.
    if tensor.size + 5 * grid.channels >= tensor.nbytes:
        return Decision(None, f"{grid.channels} scales would make it larger")
    return Decision(grid, reason)


def _grid(tensor: SourceTensor, options: Options) -> tuple[Grid, str]:
    shape, ndim = tensor.shape, len(tensor.shape)
    if options.granularity == "tensor":
        return Grid(1, 1, tensor.size, None, None, ()), ""
    axis = options.axis if options.axis is not None else (tensor.axis or 0)
    if not -ndim <= axis < ndim:
        advice = "; exclude it" if -8 <= axis < 8 else ""  # no tensor has more dimensions: the number is wrong
        raise InvalidArgument(f"axis {axis} does not fit tensor {tensor.name!r} of shape {shape}{advice}")
    axis %= ndim
    reason = ""
    if options.granularity == "block":
        row = tensor.size // shape[0]
        if axis == 0 and row % options.block == 0:
            per_row = row // options.block
            return Grid(1, shape[0] * per_row, options.block, 0, options.block, (shape[0], per_row)), ""
        reason = f"per channel: rows of {row} make no blocks of {options.block}"
        if axis != 0:
            reason = f"per channel: blocks of {options.block} along axis {axis - 1} would cross its channels"
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    return Grid(outer, shape[axis], inner, axis, None, (shape[axis],)), reason
