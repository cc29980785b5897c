"""What was done to a model and how well it went: the data, its JSON and its plain text.

The JSON has a version of its own (`SCHEMA`): keys are only ever added while that number stays. Numbers that do not
exist are null; nothing in it is NaN or infinite.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkit.models.verification.agreement import Agreement, Thresholds
from quantkit.models.verification.latency import Latency

if TYPE_CHECKING:
    from onnx import ModelProto

    from quantkit.models.forms.saturation import Saturation
    from quantkit.models.verification.execution import Execution

SCHEMA = 1

# What can be decided about a node, in the order in which reports list it.
DECISIONS = ("static", "dynamic", "weight_only", "passthrough", "float")
_COMPUTES_IN_INT8 = {"static", "dynamic"}
_HOLDS_INT8 = {"static", "dynamic", "weight_only"}


@dataclass(frozen=True)
class NodeRecord:
    """What was decided about one node of the float model, and why.

    Attributes
    ----------
    name, op_type : str
        As in the float model.
    decision : str
        One of `DECISIONS`: ``static`` and ``dynamic`` compute in int8, ``weight_only`` stores int8 and computes in
        float, ``passthrough`` moves codes without computing, ``float`` is left as it was.
    reason : str
        One clause that a user understands.
    weight_elements : int
        Elements of the node's constant float operands that count as weights; a tied weight counts at its first user.
    macs : int, optional
        Multiply-accumulates of one run, where the shapes are known.
    """

    name: str
    op_type: str
    decision: str
    reason: str
    weight_elements: int = 0
    macs: int | None = None

    def __post_init__(self) -> None:
        if self.decision not in DECISIONS:
            raise ValueError(f"decision must be one of {', '.join(DECISIONS)}, got {self.decision!r}")


@dataclass(frozen=True)
class TensorRange:
    """The calibrated range of one activation and the parameters that came of it.

    Attributes
    ----------
    tensor : str
    low, high : float
        What calibration saw.
    scale : float
    zero_point : int
    dtype : str
        ``uint8`` or ``int8``.
    nonfinite : int
        NaN and infinite values that calibration left out.
    """

    tensor: str
    low: float
    high: float
    scale: float
    zero_point: int
    dtype: str = "uint8"
    nonfinite: int = 0


@dataclass(frozen=True)
class BlockCost:
    """What a part of the model costs the outputs.

    Attributes
    ----------
    first, last : str
        Names of the first and the last node.
    nodes : int
    sqnr_db, base_db : float
        Of the worst output on a few calibration samples: with this part alone in int8, and with everything.
    left_float : bool
        Whether it was left float in the end.
    """

    first: str
    last: str
    nodes: int
    sqnr_db: float
    base_db: float
    left_float: bool = False


@dataclass
class Report:
    """Everything that is known about one quantization.

    Attributes
    ----------
    source, output : str or None
        Paths, where there are files.
    options : dict
        mode, format, target and whatever else was asked for; plain values.
    nodes : list of NodeRecord
    ranges : list of TensorRange
    agreement : Agreement or None
        Measured beside the float model on samples that took no part in calibration.
    latency : Latency or None
    blocks : list of BlockCost
        Where the outputs fell short of 22 dB: what each tenth of the model costs, the dearest first.
    execution : Execution or None
        How onnxruntime executes the file on this machine.
    saturation : Saturation or None
        Which channels could saturate on a CPU without VNNI.
    float_bytes, int8_bytes : int or None
        Sizes of the model files, external data included.
    calibration_samples : int or None
    timings : dict of str to float
        Seconds by stage.
    warnings : list of str
    skipped : dict of str to str
        Files of the data that could not be read, and why.
    versions : dict of str to str
    thresholds : Thresholds
        When the agreement falls short.
    """

    source: str | None = None
    output: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    nodes: list[NodeRecord] = field(default_factory=list)
    ranges: list[TensorRange] = field(default_factory=list)
    agreement: Agreement | None = None
    latency: Latency | None = None
    blocks: list[BlockCost] = field(default_factory=list)
    execution: Execution | None = None
    saturation: Saturation | None = None
    float_bytes: int | None = None
    int8_bytes: int | None = None
    calibration_samples: int | None = None
    timings: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    thresholds: Thresholds = field(default_factory=Thresholds)

    @property
    def unverified(self) -> str | None:
        """Why nothing was measured, or None where it was."""
        return None if self.agreement is not None else "no data was given to run both models on"

    @property
    def size_ratio(self) -> float | None:
        """int8 bytes over float bytes."""
        if not self.float_bytes or self.int8_bytes is None:
            return None
        return self.int8_bytes / self.float_bytes

    @property
    def int8_weight_share(self) -> float | None:
        """Share of the weight elements that are stored in int8; None without weights."""
        total = sum(node.weight_elements for node in self.nodes)
        held = sum(node.weight_elements for node in self.nodes if node.decision in _HOLDS_INT8)
        return held / total if total else None

    @property
    def int8_mac_share(self) -> float | None:
        """Share of the multiply-accumulates done in int8; None where no shapes are known."""
        total = sum(node.macs or 0 for node in self.nodes)
        done = sum(node.macs or 0 for node in self.nodes if node.decision in _COMPUTES_IN_INT8)
        return done / total if total else None

    def decisions(self) -> dict[str, int]:
        """Count the nodes by decision, in the order of `DECISIONS`."""
        counts = Counter(node.decision for node in self.nodes)
        return {decision: counts[decision] for decision in DECISIONS if counts[decision]}

    def float_reasons(self, decision: str = "float") -> list[tuple[str, list[NodeRecord]]]:
        """Group the nodes left float, or with another decision, by reason; most weight elements first, then nodes."""
        groups: dict[str, list[NodeRecord]] = {}
        for node in self.nodes:
            if node.decision == decision:
                groups.setdefault(node.reason, []).append(node)
        return sorted(groups.items(), key=lambda g: (-sum(n.weight_elements for n in g[1]), -len(g[1]), g[0]))

    def shortfalls(self) -> list[str]:
        """Say, a line each, where the measured agreement falls short, or what data could not be read."""
        found = [] if self.agreement is None else self.agreement.shortfalls(self.thresholds)
        if self.skipped:
            found.append(f"{len(self.skipped)} of the data files could not be read")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, as `to_json` writes them."""
        return {
            "schema": SCHEMA,
            "source": self.source,
            "output": self.output,
            "options": dict(self.options),
            "size": {"float_bytes": self.float_bytes, "int8_bytes": self.int8_bytes, "ratio": self.size_ratio},
            "int8_weight_share": self.int8_weight_share,
            "int8_mac_share": self.int8_mac_share,
            "decisions": self.decisions(),
            "calibration_samples": self.calibration_samples,
            "agreement": None if self.agreement is None else self.agreement.to_dict(),
            "unverified": self.unverified,
            "latency": None if self.latency is None else self.latency.to_dict(),
            "blocks": [asdict(block) for block in self.blocks],
            "execution": None if self.execution is None else asdict(self.execution),
            "saturation": None if self.saturation is None else asdict(self.saturation),
            "shortfalls": self.shortfalls(),
            "thresholds": asdict(self.thresholds),
            "warnings": list(self.warnings),
            "skipped": dict(self.skipped),
            "timings": dict(self.timings),
            "versions": dict(self.versions),
            "nodes": [asdict(node) for node in self.nodes],
            "ranges": [asdict(item) for item in self.ranges],
        }

    def to_json(self, indent: int | None = 2) -> str:
        """Return the report as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def summary(self) -> str:
        """Return the report as a few lines of plain text."""
        from quantkit.models.report.text import summary

        return summary(self)

    def to_html(self) -> str:
        """Return the report as one self-contained HTML page."""
        from quantkit.models.report.html import page

        return page(self)


def versions() -> dict[str, str]:
    """Return the versions of quantkit and of the libraries whose numbers a report holds."""
    found = {"quantkit": "unknown"}
    for name in ("quantkit", "onnxruntime", "onnx", "numpy"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@dataclass
class QuantizationResult:
    """What `quantize_model` returns.

    Attributes
    ----------
    path : Path or None
        The file that was written; None where no output was asked for.
    model : onnx.ModelProto
        The quantized model. Weights that went to an external data file stay there.
    report : Report
    """

    path: Path | None
    model: ModelProto
    report: Report
