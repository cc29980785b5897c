"""What quantizing weights came to: a row a tensor."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from quantkit.errors import QuantkitError

MIN_SQNR = 20.0  # dB


@dataclass(frozen=True)
class TensorRow:
    """One tensor of the source.

    Attributes
    ----------
    name : str
    shape : tuple of int
    source_dtype : str
        As safetensors names it.
    decision : str
        ``quantized``, ``float`` (a floating-point tensor left as it is), ``copied`` (any other) or ``tied``.
    reason : str
        Why it was not quantized, or not as asked; to what it is tied.
    axis, block : int or None
        Of the scales; both None for one scale in all.
    max_error : float or None
        Largest distance between a value and what its code stands for.
    sqnr_db : float or None
        Signal to quantization noise; None for no noise at all, and for tensors that were not quantized.
    bytes_before, bytes_after : int
        With scales and zero points.
    """

    name: str
    shape: tuple[int, ...]
    source_dtype: str
    decision: str
    reason: str = ""
    axis: int | None = None
    block: int | None = None
    max_error: float | None = None
    sqnr_db: float | None = None
    bytes_before: int = 0
    bytes_after: int = 0


@dataclass(frozen=True)
class WeightsResult:
    """A weight file that was written and checked.

    Attributes
    ----------
    source, path : str
    tensors : tuple of TensorRow
        In the order of the source.
    nonfinite : tuple of str
        Tensors left float because they hold NaN or infinite values, or values beyond float32.
    resumed : int
        How many tensors an interrupted run had finished.
    notes : tuple of str
        Values left out, patterns that match nothing.
    """

    source: str
    path: str
    tensors: tuple[TensorRow, ...]
    nonfinite: tuple[str, ...] = ()
    resumed: int = 0
    notes: tuple[str, ...] = ()

    @property
    def bytes_before(self) -> int:
        """Bytes of all tensors in the source, tied ones once."""
        return sum(row.bytes_before for row in self.tensors)

    @property
    def bytes_after(self) -> int:
        """Bytes of all tensors in the result."""
        return sum(row.bytes_after for row in self.tensors)

    def counts(self) -> dict[str, int]:
        """How many tensors met each decision."""
        return dict(Counter(row.decision for row in self.tensors))

    def shortfalls(self, min_sqnr: float = MIN_SQNR) -> list[str]:
        """Return a line for each tensor that could not be quantized for its values, or lost too much by it."""
        lines = [f"{r.name}: left float: {r.reason}" for r in self.tensors if r.name in self.nonfinite]
        for row in self.tensors:
            if row.sqnr_db is not None and row.sqnr_db < min_sqnr:
                lines.append(f"{row.name}: SQNR {row.sqnr_db:.1f} dB, below {min_sqnr:g}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON holds it."""
        rows = [{**asdict(row), "shape": list(row.shape)} for row in self.tensors]
        return {
            "source": self.source,
            "path": self.path,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "counts": self.counts(),
            "resumed": self.resumed,
            "nonfinite": list(self.nonfinite),
            "notes": list(self.notes),
            "tensors": rows,
        }

    def summary(self) -> str:
        """Return one line."""
        counts = ", ".join(f"{n} {decision}" for decision, n in self.counts().items()) or "no tensors"
        ratio = f", {self.bytes_after / self.bytes_before:.0%}" if self.bytes_before else ""
        return f"{self.path}: {counts}; {self.bytes_before:,} -> {self.bytes_after:,} bytes{ratio}"


@dataclass(frozen=True)
class WeightsBatch:
    """Several weight files.

    Attributes
    ----------
    results : tuple of WeightsResult
        Of those that were written.
    failed : dict of str to QuantkitError
        Source -> why it was not; the others are not touched by it.
    """

    results: tuple[WeightsResult, ...]
    failed: dict[str, QuantkitError] = field(default_factory=dict)

    def shortfalls(self, min_sqnr: float = MIN_SQNR) -> list[str]:
        """Return a line for each file that failed, and for each tensor that fell short."""
        lines = [str(error) for error in self.failed.values()]
        return lines + [f"{r.source}: {line}" for r in self.results for line in r.shortfalls(min_sqnr)]

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON holds it."""
        return {
            "results": [result.to_json() for result in self.results],
            "failed": {source: str(error) for source, error in self.failed.items()},
        }
