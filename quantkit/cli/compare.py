"""``quantkit compare``: a float and an int8 model side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from quantkit.cli import options
from quantkit.cli.console import progress
from quantkit.cli.show import check_report, finish


@click.command(short_help="Compare a float and an int8 model on the same data.")
@click.argument("float_model", metavar="FLOAT", type=options.PATH)
@click.argument("int8_model", metavar="INT8", type=options.PATH)
@click.option(
    "--data",
    required=True,
    type=options.PLACE,
    help="A folder of images (one folder a class gives accuracy), an .npz or .npy file, or a folder of those.",
)
@options.preset
@options.samples
@options.class_axis
@options.threads
@options.thresholds
@options.report
@options.as_json
def compare(
    float_model: Path,
    int8_model: Path,
    data: Path | str,
    preset: str | None,
    samples: int | None,
    class_axis: int | None,
    threads: int,
    report: Path | None,
    as_json: bool,
    **limits: Any,
) -> int:
    """Run FLOAT and INT8 on the same data and say how well they agree.

    INT8 may come from any tool. Exit code 1 when the agreement falls short or some inputs could not be read.
    """
    check_report(report, float_model, int8_model)
    from quantkit.jobs.compare import compare_models

    thresholds = options.make_thresholds(limits)
    with progress() as tell:
        found = compare_models(
            float_model,
            int8_model,
            data,
            preset=preset,
            limit=samples,
            class_axis=class_axis,
            threads=threads,
            thresholds=thresholds,
            progress=tell,
        )
    return finish(found, report, as_json)
