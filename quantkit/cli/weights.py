"""``quantkit weights``: weight files to 8 bits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quantkit.cli import options
from quantkit.cli.console import fail, note, on_terminal, progress, say, say_json, show_table, standing
from quantkit.text import counted

if TYPE_CHECKING:
    from quantkit.weights import WeightsResult

SCHEMA = 1
WORST = 10  # tensors in the table; --json has all


@click.command(short_help="Quantize weight files to 8 bits.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "-o", "--output", required=True, type=options.PATH, help="The .safetensors file to write; for several, a folder."
)
@click.option("--dtype", type=click.Choice(["qint8", "quint8"]), default="qint8", show_default=True)
@click.option(
    "--granularity",
    type=click.Choice(["channel", "tensor", "block"]),
    default="channel",
    show_default=True,
    help="What has a scale of its own.",
)
@click.option("--axis", type=int, help="Axis of the output channels. Default: what an ONNX graph says, else 0.")
@click.option(
    "--block",
    type=click.Choice(["32", "64", "128"]),
    default="64",
    show_default=True,
    help="Elements of a block, for --granularity block.",
)
@click.option(
    "--symmetric/--asymmetric", default=None, help="Zero point in the middle. Default: for qint8 yes, for quint8 no."
)
@click.option("--include", multiple=True, metavar="NAME", help="Quantize only these names or patterns. Repeatable.")
@click.option("--exclude", multiple=True, metavar="NAME", help="Leave these float. Repeatable.")
@click.option("--drop", multiple=True, metavar="NAME", help="Leave these out of the result. Repeatable.")
@click.option(
    "--min-elements",
    type=click.IntRange(min=0),
    default=1024,
    show_default=True,
    help="Leave smaller tensors float. Those of one dimension always are.",
)
@click.option("--streams", type=click.IntRange(1, 256), show_default="all CPUs", help="Tensors worked on at a time.")
@click.option("--resume/--no-resume", default=True, show_default=True, help="Go on where a killed run stopped.")
@click.option(
    "--min-sqnr",
    type=options.Real(),
    default=20.0,
    show_default=True,
    help="For exit code 0: least SQNR in dB of each quantized tensor.",
)
@options.as_json
def weights(files: tuple[str, ...], output: Path, block: str, min_sqnr: float, as_json: bool, **more: Any) -> int:
    """Quantize weight files (.safetensors or its index, .npz, .pth, .onnx) to 8-bit safetensors files.

    A folder, a pattern, or several FILEs are a batch. Exit code 1 when a tensor was left float because it holds NaN
    or infinite values, when one falls short of --min-sqnr, or when a file of a batch failed; 2 when nothing was
    written.
    """
    from quantkit.weights import WeightsBatch, quantize_weights

    source = files[0] if len(files) == 1 else files
    with progress("tensors") as tell:
        found = quantize_weights(source, output, block=int(block), progress=tell, **more)
    shortfalls = found.shortfalls(min_sqnr)
    results = found.results if isinstance(found, WeightsBatch) else (found,)
    with standing(output):
        if as_json:
            say_json({"schema": SCHEMA, **found.to_json(), "shortfalls": shortfalls})
        else:
            for result in results:
                _show(result)
    for line in [text for result in results for text in result.notes]:
        note(f"note: {line}")
    if not results:
        for line in shortfalls:
            fail(line)
        return 2
    for line in shortfalls:
        note(f"falls short: {line}")
    return 1 if shortfalls else 0


def _show(result: WeightsResult) -> None:
    say(result.summary())
    if result.resumed:
        say(f"  {counted(result.resumed, 'tensor')} had been finished by an earlier run")
    reasons = Counter((row.decision, row.reason) for row in result.tensors if row.decision in {"float", "copied"})
    for (decision, reason), count in reasons.most_common():
        say(f"  {count} {decision}: {reason}")
    measured = [row for row in result.tensors if row.sqnr_db is not None]
    worst = sorted(measured, key=lambda row: row.sqnr_db or 0.0)[:WORST]
    if worst and not on_terminal():
        say(f"  lowest SQNR {worst[0].sqnr_db:.1f} dB: {worst[0].name}, max error {worst[0].max_error:.3g}")
    elif worst:
        rows = [
            [
                row.name,
                "x".join(map(str, row.shape)),
                row.source_dtype,
                "tensor" if row.axis is None else f"axis {row.axis}" if row.block is None else f"blocks of {row.block}",
                f"{row.max_error:.3g}",
                f"{row.sqnr_db:.1f}",
            ]
            for row in worst
        ]
        columns = ("tensor", "shape", "from", "scales", "max error", "SQNR dB")
        show_table(columns, rows, left=(0, 1, 2, 3), title="lowest SQNR")
