"""``quantkit bench``: how fast the kernels are on this machine."""

from __future__ import annotations

import click

from quantkit import cpu
from quantkit.cli import options
from quantkit.cli.console import progress, say, say_json
from quantkit.text import table


@click.command(short_help="Measure the kernels on this machine.")
@click.option("--peers", is_flag=True, help="Also measure onnxruntime, NumPy, and torch where it is installed.")
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True, help="Turns of each contestant.")
@options.as_json
def bench(peers: bool, rounds: int, as_json: bool) -> int:
    """Measure the kernels on this machine, on one core.

    Contestants take turns in one process; medians are compared. Ratios above 1 mean that quantkit is faster.
    """
    from quantkit.jobs.bench import ELEMENTS, PRODUCTS
    from quantkit.jobs.bench import bench as measure
    from quantkit.jobs.race import machine, pin

    pin(1)
    rows = []
    with progress() as tell:
        for row in measure(peers, rounds):
            rows.append(row)
            tell("bench", len(rows), 2 * len(ELEMENTS) + len(PRODUCTS))
    if as_json:
        say_json({"machine": machine(), "isa": cpu.active_isa(), "rows": [row.to_dict() for row in rows]})
        return 0
    names = list(dict.fromkeys(name for row in rows for name in row.peers))
    lines = [
        (
            row.job,
            row.size,
            f"{row.seconds * 1e6:,.1f} us",
            f"{row.rate:,.1f} {row.unit}",
            f"{row.copy:.2f}" if row.copy is not None else "-",
            *(f"{row.peers[name]:.2f}" if name in row.peers else "-" for name in names),
            f"{row.spread:.2f}",
        )
        for row in rows
    ]
    say(f"{machine()}; kernels: {cpu.active_isa()}")
    say("\n".join(table(lines, ("job", "size", "a call", "rate", "copy", *names, "A/A"), left=(0, 1))))
    say("copy, peers: their time over ours; a copy of as many bytes. A/A: ours over ours, the noise of this run")
    return 0
