"""How well two runs of a model agree: the numbers, their JSON, and when they fall short.

Pure NumPy. Memory does not grow with the number of samples.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import inf, isfinite, sqrt
from typing import Any

from quantkit.errors import InvalidArgument


@dataclass(frozen=True)
class Thresholds:
    """When a quantized model falls short of its float model.

    Attributes
    ----------
    min_sqnr : float, default 20.0
        Decibels, for every float output as a whole. 20 dB: the noise has a tenth of the signal's amplitude.
    min_slice_sqnr : float, default 3.0
        Decibels, for the worst slice of every output's channel axis: at 3 dB most of the slice is gone (scores that
        share a scale with box coordinates, for example), however good the output looks as a whole.
    max_accuracy_drop : float, default 0.5
        Percentage points, where the true classes are known. A single changed decision never counts.
    min_argmax : float, default 0.95
        Share of decisions that must stay, where the true classes are not known or the float model misses most. With
        few decisions a miss counts only when the 95 % Wilson interval lies below as a whole.
    min_equal : float, default 0.99
        Share of equal elements in outputs that are not floats, as long as no float output judges the model.
    """

    min_sqnr: float = 20.0
    min_slice_sqnr: float = 3.0
    max_accuracy_drop: float = 0.5
    min_argmax: float = 0.95
    min_equal: float = 0.99

    def __post_init__(self) -> None:
        for name, low, high in (
            ("min_sqnr", -inf, inf),
            ("min_slice_sqnr", -inf, inf),
            ("max_accuracy_drop", 0.0, 100.0),
            ("min_argmax", 0.0, 1.0),
            ("min_equal", 0.0, 1.0),
        ):
            value = getattr(self, name)
            if not (isfinite(value) and low <= value <= high):
                wanted = "a finite number" if low == -inf else f"{low:g} to {high:g}"
                raise InvalidArgument(f"threshold {name}: wanted {wanted}, got {value}")


def wilson_interval(hits: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the Wilson score interval of a share, 95 % by default; (0, 1) for no trials."""
    if count == 0:
        return 0.0, 1.0
    share, square = hits / count, z * z
    centre = (share + square / (2 * count)) / (1 + square / count)
    half = z * sqrt(share * (1 - share) / count + square / (4 * count * count)) / (1 + square / count)
    return (0.0 if hits == 0 else centre - half), (1.0 if hits == count else centre + half)


@dataclass(frozen=True)
class WorstSlice:
    """The slice of an output's channel axis with the lowest SQNR, among those that matter.

    A slice matters when its peak is at least 1e-4 of the output's peak: boxes in pixels and scores below 1 both do,
    a channel that is always zero does not. Where the axis holds classes, all slices have one meaning, and the share
    is 1e-2.
    """

    axis: int
    index: int
    sqnr_db: float
    low: float
    high: float


@dataclass(frozen=True)
class Decisions:
    """argmax over the class axis: how many decisions there were and how many stayed."""

    axis: int
    count: int
    kept: int

    @property
    def share(self) -> float:
        """Share of the decisions that stayed."""
        return self.kept / self.count if self.count else 1.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the share."""
        return wilson_interval(self.kept, self.count)


@dataclass(frozen=True)
class OutputAgreement:
    """How one output of the int8 model agrees with the float model's.

    Attributes
    ----------
    name, dtype : str
    elements : int
        Compared elements. Elements that are NaN or infinite in both models are left out.
    sqnr_db, cosine, max_error : float or None
        None for outputs that are not floats, and where nothing was compared.
    low, high : float or None
        Range of the float model's output.
    equal : float or None
        Share of equal elements, for outputs that are not floats.
    worst_slice : WorstSlice or None
    decisions : Decisions or None
    nonfinite : int
        Elements that are NaN or infinite in both models alike.
    broken : int
        Elements that are NaN or infinite in one model and not, or otherwise, in the other.
    reshaped : int
        Samples for which the shapes differ; nothing of them was compared.
    """

    name: str
    dtype: str
    elements: int
    sqnr_db: float | None = None
    cosine: float | None = None
    max_error: float | None = None
    low: float | None = None
    high: float | None = None
    equal: float | None = None
    worst_slice: WorstSlice | None = None
    decisions: Decisions | None = None
    nonfinite: int = 0
    broken: int = 0
    reshaped: int = 0


@dataclass(frozen=True)
class Accuracy:
    """Share of samples whose true class both models find, as counts."""

    count: int
    float_correct: int
    int8_correct: int

    @property
    def float_share(self) -> float:
        """Accuracy of the float model, 0 to 1."""
        return self.float_correct / self.count

    @property
    def int8_share(self) -> float:
        """Accuracy of the int8 model, 0 to 1."""
        return self.int8_correct / self.count

    @property
    def drop(self) -> float:
        """Percentage points lost; negative where int8 is better."""
        return 100 * (self.float_correct - self.int8_correct) / self.count


@dataclass(frozen=True)
class Agreement:
    """How an int8 model agrees with its float model on samples.

    Attributes
    ----------
    samples : int
        Feeds that both models ran.
    outputs : list of OutputAgreement
    accuracy : Accuracy or None
        Where the true classes are known.
    warnings : list of str
    """

    samples: int
    outputs: list[OutputAgreement]
    accuracy: Accuracy | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def worst_sqnr(self) -> OutputAgreement | None:
        """The float output with the lowest SQNR."""
        measured = [output for output in self.outputs if output.sqnr_db is not None]
        return min(measured, key=lambda output: output.sqnr_db or 0.0, default=None)

    @property
    def decisions(self) -> Decisions | None:
        """All argmax decisions of all outputs together; None where no output has classes."""
        found = [output.decisions for output in self.outputs if output.decisions is not None]
        if not found:
            return None
        return Decisions(found[0].axis, sum(d.count for d in found), sum(d.kept for d in found))

    def shortfalls(self, thresholds: Thresholds | None = None) -> list[str]:
        """Say, a line each, where the agreement is below the thresholds."""
        limit = thresholds or Thresholds()
        found = []
        seen = (o.elements or o.nonfinite or o.broken or o.reshaped for o in self.outputs)
        if self.outputs and not any(seen):
            found.append("not verified: the outputs were empty in every sample")
        for output in self.outputs:
            # Labels that even the float model does not find are no judge: then the decisions are looked at as well.
            judged = self.accuracy is not None and self.accuracy.float_share >= 0.5
            found += _output_shortfalls(output, limit, judged)
        accuracy = self.accuracy
        if accuracy is not None:
            lost = accuracy.float_correct - accuracy.int8_correct
            if accuracy.drop > limit.max_accuracy_drop and lost > 1:
                found.append(
                    f"accuracy fell by {accuracy.drop:.2f} points, from {accuracy.float_share:.2%} to "
                    f"{accuracy.int8_share:.2%} (at most {limit.max_accuracy_drop:g} wanted)"
                )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; derived shares included."""
        outputs = []
        for output in self.outputs:
            plain = asdict(output)
            if output.decisions is not None:
                plain["decisions"] |= {"share": output.decisions.share, "interval": list(output.decisions.interval)}
            outputs.append(plain)
        accuracy = None
        if self.accuracy is not None:
            a = self.accuracy
            accuracy = asdict(a) | {"float": a.float_share, "int8": a.int8_share, "drop_points": a.drop}
        return {
            "samples": self.samples,
            "outputs": outputs,
            "accuracy": accuracy,
            "warnings": list(self.warnings),
        }


def _output_shortfalls(output: OutputAgreement, limit: Thresholds, judged: bool) -> list[str]:
    found = []
    name = f"output {output.name!r}"
    if not output.elements and output.nonfinite:
        found.append(f"{name}: not verified: all its elements are NaN or infinite in both models")
    if output.reshaped:
        found.append(f"{name}: the shape differs from the float model's in {output.reshaped} samples")
    if output.broken:
        found.append(f"{name}: {output.broken} elements are NaN or infinite in one model only")
    if output.sqnr_db is not None and output.sqnr_db < limit.min_sqnr:
        found.append(f"{name}: SQNR {output.sqnr_db:.1f} dB (at least {limit.min_sqnr:g} wanted)")
    worst = output.worst_slice
    if worst is not None and worst.sqnr_db < limit.min_slice_sqnr:
        found.append(
            f"{name}: slice {worst.index} of axis {worst.axis} is lost, SQNR {worst.sqnr_db:.1f} dB "
            f"(at least {limit.min_slice_sqnr:g} wanted)"
        )
    chosen = output.decisions
    if chosen is not None and not judged:
        measure = chosen.share if chosen.count >= 100 else chosen.interval[1]
        if measure < limit.min_argmax:
            found.append(
                f"{name}: {chosen.kept} of {chosen.count} decisions stayed (at least {limit.min_argmax:.0%} wanted)"
            )
    if output.equal is not None and output.equal < limit.min_equal:
        found.append(f"{name}: {output.equal:.1%} of the elements are equal (at least {limit.min_equal:.0%} wanted)")
    return found
