"""``quantkit quantize``: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from quantkit.cli import options
from quantkit.cli.console import progress
from quantkit.cli.show import check_report, finish
from quantkit.ranges import METHODS, RangeMethod


@click.command(short_help="Quantize a model to int8 and verify it.")
@click.argument("model", type=options.PATH)
@click.option("-o", "--output", required=True, type=options.PATH, help="The int8 model to write.")
@click.option(
    "--calibration",
    type=options.PLACE,
    help="A folder of images or of their shards, or its URL; an .npz or .npy file, or a folder of those. Needed by "
    "--mode static.",
)
@click.option(
    "--validation",
    type=options.PLACE,
    help="Data to verify with, all of it. Default: a quarter of the calibration data is held out for that.",
)
@options.preset
@click.option(
    "--mode",
    type=click.Choice(["static", "dynamic", "weight_only"]),
    default="static",
    show_default=True,
    help="static: int8 with calibrated ranges. dynamic: ranges found at run time. weight_only: int8 in the file only.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["qdq", "qoperator"]),
    default="qdq",
    show_default=True,
    help="How a static model says what is int8.",
)
@click.option(
    "--target",
    type=click.Choice(["onnxruntime", "portable"]),
    default="onnxruntime",
    show_default=True,
    help="portable: only operators of the ONNX standard.",
)
@click.option(
    "--include",
    multiple=True,
    metavar="NAME",
    help="Quantize nothing but these nodes; named as for --exclude, which is stronger. May be repeated.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="NAME",
    help="Leave these nodes float: a node's or tensor's name, a pattern with * and ?, an operator type, or FROM..TO "
    "for the nodes on the paths between two of them. May be repeated.",
)
@click.option(
    "--calibration-method",
    type=click.Choice(METHODS),
    default="minmax",
    show_default=True,
    help="static: how much of what calibration saw a scale covers: all; a percentile; the least squared error; the "
    "least change of the distribution.",
)
@click.option(
    "--percentile",
    type=options.Real(50, 100, min_open=True),
    default=RangeMethod.percentile,
    show_default=True,
    help="For --calibration-method percentile: the share of the values that the scale covers, in percent.",
)
@click.option(
    "--refine/--no-refine",
    default=True,
    show_default=True,
    help="static: try a few ways and keep the one that agrees best with the float model.",
)
@click.option(
    "--allow-slower",
    is_flag=True,
    help="static: keep int8 also where onnxruntime would be slower than in float. Without it those nodes stay float.",
)
@click.option(
    "--avoid-saturation",
    is_flag=True,
    help="Keep the numbers the same on CPUs without VNNI, at the cost of some precision of the weights.",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="static: let the workers of a Dask cluster see the calibration samples: its address, or local.",
)
@options.samples
@options.class_axis
@options.threads
@options.thresholds
@options.report
@options.as_json
def quantize(
    model: Path,
    output: Path,
    calibration: Path | str | None,
    validation: Path | str | None,
    form: str,
    report: Path | None,
    as_json: bool,
    **more: Any,
) -> int:
    """Quantize MODEL to int8, verify it beside the float model, and say what was done.

    The ONNX file that comes out runs in onnxruntime. Exit code 1 when its measured agreement falls short or some
    inputs could not be read; 2 when nothing was written.
    """
    given = click.get_current_context().get_parameter_source("percentile")
    if given is not ParameterSource.DEFAULT and more["calibration_method"] != "percentile":
        raise click.UsageError(
            f"--percentile goes with --calibration-method percentile, got {more['calibration_method']}"
        )
    check_report(report, model, output)
    from quantkit.models.quantizer import quantize_model

    thresholds = options.make_thresholds(more)
    samples = more.pop("samples")
    with progress() as tell:
        result = quantize_model(
            model,
            output,
            calibration=calibration,
            validation=validation,
            format=form,
            limit=samples,
            thresholds=thresholds,
            progress=tell,
            **more,
        )
    return finish(result.report, report, as_json, output)
