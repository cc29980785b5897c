"""A report as one HTML page that needs nothing but itself: no script, style or font from elsewhere."""

from __future__ import annotations

from html import escape
from math import log10
from typing import TYPE_CHECKING

from quantkit.models.report import text
from quantkit.text import number, percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from quantkit.models.report.report import NodeRecord, Report, TensorRange

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #667080; --line: #dfe3e8; --paper: #fff; --card: #f6f7f9;
  --int8: #1f7a5c; --part: #b7791f; --float: #9aa3af; --bad: #b42318; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #98a2b0; --line: #30363f; --paper: #14171b;
  --card: #1c2026; --int8: #4cc39a; --part: #e0b252; --float: #6b7480; --bad: #ff8a7a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1100px; padding: 32px 20px 64px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 36px 0 10px; }
.soft { color: var(--soft); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(270px, 1fr)); gap: 12px; margin: 20px 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; }
.card b { display: block; font-size: 19px; white-space: nowrap; font-variant-numeric: tabular-nums; }
.verdict { margin-top: 14px; border-left: 4px solid var(--int8); padding: 8px 14px; background: var(--card); }
.verdict.short { border-color: var(--bad); }
.bar { display: flex; height: 12px; border-radius: 6px; overflow: hidden; background: var(--line); margin: 6px 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { text-align: left; padding: 6px 10px; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; white-space: nowrap; background: var(--card); }
th button { all: unset; cursor: pointer; }
th button:focus-visible { outline: 2px solid var(--int8); }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
td.n { text-align: right; white-space: nowrap; }
td.name { overflow-wrap: anywhere; font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 13px; }
.tag { padding: 1px 8px; border-radius: 9px; color: var(--paper); font-size: 12px; white-space: nowrap; }
.static, .dynamic { background: var(--int8); } .weight_only, .passthrough { background: var(--part); }
.float { background: var(--float); }
input { font: inherit; padding: 6px 10px; border: 1px solid var(--line); border-radius: 8px; width: 260px;
  background: var(--paper); color: var(--ink); margin-bottom: 10px; }
svg { display: block; } .axis { stroke: var(--line); } .range { stroke: var(--int8); stroke-width: 6; }
.zero { stroke: var(--soft); stroke-dasharray: 2 3; }
ul { padding-left: 20px; }
"""

_SCRIPT = """
document.querySelectorAll("table.sortable").forEach(table => {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, i) => head.firstElementChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(h => h.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => { const c = row.cells[i]; return c.dataset.v === undefined ? c.textContent : +c.dataset.v; };
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const x = key(a), y = key(b);
      const order = typeof x === "number" ? x - y : x.localeCompare(y, undefined, {numeric: true});
      return down ? -order : order;
    });
    table.tBodies[0].append(...rows);
  }));
});
document.querySelectorAll("input[data-for]").forEach(box => box.addEventListener("input", () => {
  const wanted = box.value.toLowerCase();
  for (const row of document.getElementById(box.dataset.for).tBodies[0].rows)
    row.hidden = !row.textContent.toLowerCase().includes(wanted);
}));
"""


def page(report: Report) -> str:
    """Return the report as a complete HTML document."""
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width, initial-scale=1">',
        f"<title>{escape(text.title(report))}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(text.title(report))}</h1>",
        f"<div class=soft>{escape(_provenance(report))}</div>",
        _verdict(report),
        _cards(report),
        _agreement(report),
        _nodes(report),
        _execution(report),
        _ranges(report.ranges),
        _notes(report),
        f"<script>{_SCRIPT}</script></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _provenance(report: Report) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    samples = report.calibration_samples
    calibrated = f"calibrated on {samples} sample{'s' if samples != 1 else ''}" if samples else ""
    return " · ".join(part for part in (calibrated, versions) if part)


def _verdict(report: Report) -> str:
    short = report.shortfalls()
    if short:
        return f"<div class='verdict short'><b>Falls short</b>{_list(short)}</div>"
    if report.agreement is None:
        return "<div class=verdict>Not verified: no data was given to run both models on.</div>"
    return "<div class=verdict><b>Verified</b>: agreement with the float model was measured; nothing falls short.</div>"


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _cards(report: Report) -> str:
    cards = [
        f"<div class=card>{escape(what)}<b>{escape(before)} → {escape(after)}</b>"
        f"<span class=soft>{escape(note)}</span></div>"
        for what, before, after, note in text.headline(report)
    ]
    for what, share in (("weights in int8", report.int8_weight_share), ("work in int8", report.int8_mac_share)):
        if share is not None:
            bar = f"<div class=bar><div class=static style='width:{100 * share:.2f}%'></div></div>"
            cards.append(f"<div class=card>{what}<b>{percent(share)}</b>{bar}</div>")
    return f"<div class=cards>{''.join(cards)}</div>" if cards else ""


def _table(columns: Sequence[str], rows: Iterable[str], name: str = "", sortable: bool = False) -> str:
    heads = "".join(f"<th><button>{escape(c)}</button></th>" if sortable else f"<th>{escape(c)}</th>" for c in columns)
    kind = f" class=sortable id={name}" if sortable else ""
    return (
        f"<div class=wide><table{kind}><thead><tr>{heads}</tr></thead><tbody>\n"
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def _agreement(report: Report) -> str:
    if report.agreement is None:
        return ""
    rows = []
    for output in report.agreement.outputs:
        name, *cells = text.output_row(output)
        rows.append(
            f"<tr><td class=name>{escape(name)}</td>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
        )
    heading = text.agreement_title(report.agreement).capitalize()
    return f"<h2>{escape(heading)}</h2>" + _table(text.OUTPUT_COLUMNS, rows)


def _number(value: int | None) -> str:
    return f"<td class=n data-v={value if value is not None else -1}>{'-' if value is None else f'{value:,}'}</td>"


def _node(place: int, node: NodeRecord) -> str:
    return (
        f"<tr><td class=n data-v={place}>{place}</td><td class=name>{escape(node.name)}</td>"
        f"<td>{escape(node.op_type)}</td><td><span class='tag {node.decision}'>{node.decision}</span></td>"
        f"<td>{escape(node.reason)}</td>{_number(node.weight_elements or None)}{_number(node.macs)}</tr>"
    )


def _nodes(report: Report) -> str:
    if not report.nodes:
        return ""
    total = len(report.nodes)
    counts = report.decisions()
    bar = "".join(
        f"<div class={d} style='width:{100 * n / total:.2f}%' title='{d}: {n}'></div>" for d, n in counts.items()
    )
    said = ", ".join(f"{n} {text.DECISION_WORDS[d]}" for d, n in counts.items())
    columns = ("#", "node", "op", "decision", "why", "weights", "multiply-accumulates")
    rows = (_node(i, node) for i, node in enumerate(report.nodes))
    return (
        f"<h2>Nodes</h2><div class=bar>{bar}</div><p class=soft>{escape(said)}</p>"
        "<input data-for=nodes placeholder='filter nodes' aria-label='filter nodes'>"
        + _table(columns, rows, "nodes", sortable=True)
    )


def _execution(report: Report) -> str:
    said = [*text.execution_lines(report), *text.saturation_lines(report)]
    low = text.why_low(report)
    parts = ["<h2>As executed</h2>" + _list(line.strip() for line in said)] if said else []
    if low:
        parts.append("<h2>Why the agreement is low</h2>" + _list(line.strip() for line in low))
    return "".join(parts)


def _squeeze(value: float, largest: float) -> float:
    """Place a value on -1..1 so that ranges a millionth of the widest are still seen: logarithmic, through zero."""
    decades = 6.0
    if value == 0 or largest == 0:
        return 0.0
    place = max(0.0, 1 + log10(abs(value) / largest) / decades)
    return place if value > 0 else -place


def _ranges(ranges: Sequence[TensorRange]) -> str:
    if not ranges:
        return ""
    largest = max(max(abs(r.low), abs(r.high)) for r in ranges)
    rows = []
    for place, r in enumerate(ranges):
        left, right = (150 + 140 * _squeeze(value, largest) for value in (min(r.low, 0.0), max(r.high, 0.0)))
        drawing = (
            "<svg width=300 height=16 role=img aria-label='range'><line class=axis x1=10 x2=290 y1=8 y2=8 />"
            f"<line class=range x1={left:.1f} x2={max(right, left + 1):.1f} y1=8 y2=8 />"
            "<line class=zero x1=150 x2=150 y1=0 y2=16 /></svg>"
        )
        left_out = f" ({r.nonfinite} NaN or infinite left out)" if r.nonfinite else ""
        rows.append(
            f"<tr><td class=n data-v={place}>{place}</td><td class=name>{escape(r.tensor)}{left_out}</td>"
            f"<td data-v={r.high - r.low!r}>{drawing}</td><td class=n data-v={r.low!r}>{number(r.low)}</td>"
            f"<td class=n data-v={r.high!r}>{number(r.high)}</td><td class=n data-v={r.scale!r}>"
            f"{number(r.scale)}</td><td class=n data-v={r.zero_point}>{r.zero_point}</td>"
            f"<td>{escape(r.dtype)}</td></tr>"
        )
    columns = ("#", "tensor", "range", "low", "high", "scale", "zero point", "type")
    return (
        "<h2>Ranges</h2><p class=soft>Drawn on a logarithmic axis through zero.</p>"
        "<input data-for=ranges placeholder='filter tensors' aria-label='filter tensors'>"
        + _table(columns, rows, "ranges", sortable=True)
    )


def _notes(report: Report) -> str:
    said = [*report.warnings, *(report.agreement.warnings if report.agreement else [])]
    parts = []
    if said:
        parts.append("<h2>Notes</h2>" + _list(dict.fromkeys(said)))
    if report.skipped:
        parts.append("<h2>Files that could not be read</h2>")
        parts.append(_list(f"{path}: {reason}" for path, reason in report.skipped.items()))
    if report.timings:
        rows = [
            f"<tr><td>{escape(name)}</td><td class=n>{value:.2f} s</td></tr>" for name, value in report.timings.items()
        ]
        parts.append("<h2>Time taken</h2>" + _table(("stage", ""), rows))
    return "".join(parts)
