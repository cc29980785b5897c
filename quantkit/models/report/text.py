"""A report in words: the rows that a newcomer reads first, shared by the plain text, the terminal and the page."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from quantkit.models.verification.agreement import Agreement, OutputAgreement
from quantkit.sqnr import SQNR_LIMIT
from quantkit.text import Row, counted, number, percent, printable, size, table

if TYPE_CHECKING:
    from quantkit.models.report.report import Report
    from quantkit.models.verification.latency import Latency

DECISION_WORDS = {
    "static": "int8",
    "dynamic": "int8 with ranges found at run time",
    "weight_only": "with int8 weights only",
    "passthrough": "passing int8 through",
    "float": "float",
}


def decibels(value: float | None) -> str:
    """Return an SQNR as text."""
    if value is None:
        return "-"
    return "exact" if value >= SQNR_LIMIT else f"{value:.1f} dB"


def milliseconds(value: float) -> str:
    """Return a time with three significant digits."""
    return f"{value:.3f} ms" if value < 1 else f"{value:.2f} ms" if value < 100 else f"{value:.0f} ms"


def speed(latency: Latency) -> str:
    """Say how much faster the int8 model is, and what the measurement can tell apart."""
    ratio = latency.speedup
    words = f"{ratio:.2f}x as fast" if ratio >= 1 else f"{1 / ratio:.2f}x as slow"
    return f"{words} (noise {percent(latency.spread)})"


def headline(report: Report) -> list[Row]:
    """Return the rows (what, float, int8, compared) of the first table: size, accuracy, time."""
    rows: list[Row] = []
    if report.float_bytes is not None and report.int8_bytes is not None:
        ratio = f"{report.size_ratio:.2f}x the size" if report.size_ratio is not None else ""
        rows.append(("file size", size(report.float_bytes), size(report.int8_bytes), ratio))
    accuracy = report.agreement.accuracy if report.agreement else None
    if accuracy is not None:
        drop = "no change" if accuracy.drop == 0 else f"{-accuracy.drop:+.2f} points"
        shares = percent(accuracy.float_share, 2), percent(accuracy.int8_share, 2)
        rows.append(("accuracy", *shares, f"{drop}, {accuracy.count} samples"))
    if report.latency is not None:
        times = milliseconds(report.latency.float_ms), milliseconds(report.latency.int8_ms)
        threads = "one thread" if report.latency.threads == 1 else f"{report.latency.threads} threads"
        rows.append((f"time a run, {threads}", *times, speed(report.latency)))
    return rows


OUTPUT_COLUMNS: Row = ("output", "SQNR", "cosine", "max error", "range", "worst slice", "same decision")
OUTPUT_LEFT = (0, 4, 5, 6)
HEADLINE_COLUMNS: Row = ("", "float", "int8", "")
HEADLINE_LEFT = (0, 3)


def output_row(output: OutputAgreement) -> Row:
    """Return one output as the cells of `OUTPUT_COLUMNS`."""
    if output.sqnr_db is None:
        what = "equal" if output.equal is not None else "-"
        cells: Row = (output.name, percent(output.equal, 2) + " " + what if output.equal is not None else "-")
        return (*cells, "-", "-", output.dtype, "-", "-")
    worst = output.worst_slice
    sliced = "-" if worst is None else f"{decibels(worst.sqnr_db)} (axis {worst.axis}, {worst.index})"
    chosen = "-"
    if output.decisions is not None:
        d = output.decisions
        chosen = f"{d.kept} of {d.count}"
        if d.count < 100:
            low, high = d.interval
            chosen += f" (95 %: {percent(low)} to {percent(high)})"
    return (
        output.name,
        decibels(output.sqnr_db),
        "1" if output.cosine == 1 else f"{output.cosine:.6f}",
        number(output.max_error),
        f"{number(output.low)} .. {number(output.high)}",
        sliced,
        chosen,
    )


def shares(report: Report) -> str:
    """Say how much of the model is int8."""
    parts = []
    if report.int8_weight_share is not None:
        parts.append(f"{percent(report.int8_weight_share)} of the weights")
    if report.int8_mac_share is not None:
        parts.append(f"{percent(report.int8_mac_share)} of the multiply-accumulates")
    return " and ".join(parts)


def node_lines(report: Report, most: int = 8) -> list[str]:
    """Say what became of the nodes, and of those that compute in float why; the largest `most` reasons of each kind."""
    if not report.nodes:
        return []
    counts = report.decisions()
    listed = ", ".join(f"{n} {DECISION_WORDS[decision]}" for decision, n in counts.items())
    lines = [f"{counted(len(report.nodes), 'node')}: {listed}"]
    if shares(report):
        lines.append(f"in int8: {shares(report)}")
    groups = report.float_reasons()
    for reason, nodes in groups[:most]:
        names = ", ".join(dict.fromkeys(node.op_type for node in nodes))
        lines.append(f"  {len(nodes)} float ({names}): {reason}")
    if len(groups) > most:
        lines.append(f"  {sum(len(nodes) for _, nodes in groups[most:])} float for other reasons")
    if report.options.get("mode") != "weight_only":
        stored = report.float_reasons("weight_only")
        for reason, nodes in stored[:most]:
            names = ", ".join(dict.fromkeys(node.op_type for node in nodes))
            lines.append(f"  {len(nodes)} with int8 weights only ({names}): {reason}")
        if len(stored) > most:
            lines.append(f"  {sum(len(nodes) for _, nodes in stored[most:])} with int8 weights only for other reasons")
    return lines


def saturation_lines(report: Report, most: int = 3) -> list[str]:
    """Say whether a CPU without VNNI computes the same integers."""
    found = report.saturation
    if found is None:
        return []
    if not found.nodes:
        return ["exact without VNNI: yes, no pair of products can exceed 16 bits"]
    listed = ", ".join(f"{n.channels} channels of {n.name!r}" for n in found.nodes[:most])
    more = f" and {len(found.nodes) - most} more nodes" if len(found.nodes) > most else ""
    return [f"exact without VNNI: no, {listed}{more} could saturate on such a CPU; --avoid-saturation keeps them exact"]


LOW_DB = 20.0


def execution_lines(report: Report, most: int = 4) -> list[str]:
    """Say what onnxruntime runs in int8, and which products it computes in float although their operands are int8."""
    found = report.execution
    if found is None:
        return []
    kinds = ", ".join(f"{count} {op_type}" for op_type, count in list(found.int8.items())[:6])
    lines = [
        f"onnxruntime runs {counted(found.int8_count, 'node')} in int8{f' ({kinds})' if kinds else ''}, "
        f"{counted(found.conversions, 'conversion')} and {counted(found.other + len(found.unfused), 'other')}"
    ]
    if found.unfused:
        names = ", ".join(map(repr, found.unfused[:most])) + (", ..." if len(found.unfused) > most else "")
        lines.append(f"  not fused, so computed in float from int8 operands: {len(found.unfused)} ({names})")
    return lines


def why_low(report: Report, most: int = 3) -> list[str]:
    """Say which parts of the model cost the outputs most, where one is below 20 dB."""
    if report.agreement is None:
        return []
    low = [o for o in report.agreement.outputs if o.sqnr_db is not None and o.sqnr_db < LOW_DB]
    if not low:
        return []
    names = ", ".join(f"{output.name!r} ({decibels(output.sqnr_db)})" for output in low)
    lines = [f"below {LOW_DB:.0f} dB: {names}"]
    for block in report.blocks[:most]:
        done = "left float" if block.left_float else "in int8"
        lines.append(
            f"  {block.nodes} nodes from {block.first!r} to {block.last!r}: {decibels(block.sqnr_db)} with them "
            f"alone in int8, {decibels(block.base_db)} with everything ({done})"
        )
    if not report.blocks:
        lines.append("  what its parts cost was not measured: that takes refine, samples and a model of at most 64 MB")
    return lines


def agreement_title(agreement: Agreement) -> str:
    """Return the heading of the agreement table."""
    return f"agreement with the float model on {counted(agreement.samples, 'sample')}"


def title(report: Report) -> str:
    """Return the first line: from which file to which, and how."""
    names = [PurePath(path).name for path in (report.source, report.output) if path]
    how = ", ".join(str(report.options[key]) for key in ("mode", "format", "target") if report.options.get(key))
    text = printable(" -> ".join(names)) or "model"
    return f"{text} ({how})" if how else text


def summary(report: Report) -> str:
    """Return the whole report as plain text."""
    lines = [title(report), ""]
    rows = headline(report)
    if rows:
        lines += [*table(rows, HEADLINE_COLUMNS, HEADLINE_LEFT), ""]
    if report.agreement is not None:
        lines.append(agreement_title(report.agreement))
        lines += [*table([output_row(o) for o in report.agreement.outputs], OUTPUT_COLUMNS, OUTPUT_LEFT), ""]
    return "\n".join([*lines, *tail(report)]).rstrip() + "\n"


SHORT = "falls short: "


def tail(report: Report) -> list[str]:
    """Return the lines below the tables: nodes, time taken, notes, files skipped, and what falls short."""
    lines = [*node_lines(report), *execution_lines(report), *saturation_lines(report), *why_low(report)]
    if report.nodes and report.agreement is None:
        lines.append(f"not verified: {report.unverified}")
    if report.timings:
        lines.append("seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in report.timings.items()))
    said = [*report.warnings, *(report.agreement.warnings if report.agreement else [])]
    lines += [f"note: {warning}" for warning in dict.fromkeys(said)]
    lines += skipped_lines(report.skipped)
    return lines + [SHORT + line for line in report.shortfalls()]


def skipped_lines(skipped: dict[str, str], most: int = 10) -> list[str]:
    """List the data files that could not be read, the first `most` by name."""
    lines = [f"skipped: {path}: {reason}" for path, reason in list(skipped.items())[:most]]
    if len(skipped) > most:
        lines.append(f"skipped: and {len(skipped) - most} more files")
    return lines
