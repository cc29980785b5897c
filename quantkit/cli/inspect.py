"""``quantkit inspect``: what is in an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from quantkit import text
from quantkit.cli import options
from quantkit.cli.console import on_terminal, say, say_json, show_table

if TYPE_CHECKING:
    from quantkit.jobs.inspect import Inspection, QuantizedTensor

_FORMS = {
    "qdq": "QDQ (QuantizeLinear and DequantizeLinear around the operators)",
    "qoperator": "QOperator (operators that compute on codes)",
    "dynamic": "dynamic (ranges found at run time)",
    "weight_only": "weight-only (int8 in the file, float in the computation)",
}
_COLUMNS = ("tensor", "kind", "type", "scales", "scale", "zero point", "range")


@click.command(short_help="Show what is in an ONNX file.")
@click.argument("file", type=options.PATH)
@click.option("--all", "everything", is_flag=True, help="List every quantized tensor, not only the first 20.")
@options.as_json
def inspect(file: Path, everything: bool, as_json: bool) -> int:
    """Show what is in the ONNX model FILE: inputs, sizes, what is int8, scales and ranges.

    Works on models of any tool. Nothing is run. A scale that is not finite and > 0 is an error.
    """
    from quantkit.jobs.inspect import inspect_model

    found = inspect_model(file)
    if as_json:
        say_json(found.to_dict())
        return 0
    for line in describe(found):
        say(line)
    shown = found.quantized if everything else found.quantized[:20]
    rows = [_row(item) for item in shown]
    if rows:
        say(f"\nquantized tensors: {len(found.quantized)}")
        if on_terminal():
            show_table(_COLUMNS, rows, left=(0, 1, 2, 6))
        else:
            say("\n".join(text.table(rows, _COLUMNS, left=(0, 1, 2, 6))))
        if len(shown) < len(found.quantized):
            say(f"and {len(found.quantized) - len(shown)} more: --all lists them")
    return 0


def describe(found: Inspection) -> list[str]:
    """Return the lines above the table of quantized tensors."""
    opsets = ", ".join(f"{domain} {version}" for domain, version in found.opsets.items())
    made_by = f", made by {text.printable(found.producer)}" if found.producer else ""
    name = text.printable
    lines = [f"{name(found.path)}: {text.size(found.bytes)}, opset {opsets}, IR version {found.ir_version}{made_by}"]
    lines += [f"external data: {name(path)}, {text.size(count)}" for path, count in found.external.items()]
    lines += [f"input   {name(item)}: {kind}" for item, kind in found.inputs.items()]
    lines += [f"output  {name(item)}: {kind}" for item, kind in found.outputs.items()]
    if found.metadata:
        lines.append(f"metadata: {', '.join(map(name, found.metadata))}")
    lines.append(f"form: {', '.join(_FORMS[form] for form in found.form) or 'float, nothing is quantized'}")
    if found.int8_weight_share is not None:
        lines.append(f"weights in 8 bits or fewer: {text.percent(found.int8_weight_share)}")
    rows = [
        (kind, str(item.tensors), f"{item.elements:,}", text.size(item.bytes))
        for kind, item in sorted(found.stored.items(), key=lambda entry: -entry[1].bytes)
    ]
    if rows:
        lines += ["", *text.table(rows, ("stored as", "tensors", "elements", "bytes"))]
    total = sum(found.operators.values())
    counted = ", ".join(f"{count} {name(item)}" for item, count in found.operators.items())
    return [*lines, "", f"{text.counted(total, 'node')}: {counted}" if total else "no nodes"]


def _row(item: QuantizedTensor) -> tuple[str, ...]:
    def span(pair: tuple[float, float]) -> str:
        low, high = pair
        return text.number(low) if low == high else f"{text.number(low)} .. {text.number(high)}"

    scales = "1" if item.axis is None else f"{item.channels} (axis {item.axis})"
    zeros = str(item.zero_point[0]) if len(set(item.zero_point)) == 1 else "{} .. {}".format(*item.zero_point)
    limits = f"{text.number(item.low)} .. {text.number(item.high)}"
    return (item.tensor, item.kind, item.dtype, scales, span(item.scale), zeros, limits)
