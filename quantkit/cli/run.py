"""``quantkit run``: a model over a folder of images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quantkit.cli import options
from quantkit.cli.console import say_json, say_lines, standing
from quantkit.cli.rates import rates
from quantkit.errors import FormatError
from quantkit.files import file_problem
from quantkit.text import counted

if TYPE_CHECKING:
    from quantkit.jobs.predict import PredictResult

_LISTED = 10


@click.command(short_help="Run a model over a folder of images.")
@click.argument("model", type=options.PATH)
@click.option("--images", required=True, type=options.PLACE, help="A folder of images, or of shards of them.")
@click.option(
    "-o",
    "--output",
    required=True,
    type=options.PATH,
    help=".csv or .jsonl: the best classes of each image. .npz: every output.",
)
@options.recipe(default=None)
@click.option("--classes", type=options.PATH, metavar="FILE", help="Names of the classes, one a line.")
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="Classes of each image.")
@click.option("--batch", type=click.IntRange(1), metavar="N", help="Images at once, where the model leaves it open.")
@options.streams
@options.threads
@click.option("--max-pixels", type=click.IntRange(1), metavar="N", help="Larger images fail. Default: 89,478,485.")
@options.as_json
def run(
    model: Path,
    images: Path | str,
    output: Path,
    preset: str | None,
    changes: dict[str, Any],
    classes: Path | None,
    top: int,
    batch: int | None,
    streams: int | None,
    threads: int,
    max_pixels: int | None,
    as_json: bool,
) -> int:
    """Run MODEL over images and write what it says of each.

    Images are decoded while the model works. Exit code 1 when some files could not be decoded (listed).
    """
    from quantkit.images.decode import MAX_PIXELS
    from quantkit.jobs.predict import predict_images

    given = preset is not None or changes or options.given_steps()
    recipe = options.make_recipe(preset or str(model), changes) if given else None
    with rates("images") as tell:
        result = predict_images(
            model,
            images,
            output,
            preset=recipe,
            streams=streams,
            batch=batch,
            top=top,
            class_names=None if classes is None else _names(classes),
            threads=threads,
            max_pixels=max_pixels or MAX_PIXELS,
            progress=tell,
        )
    with standing(output):
        if as_json:
            say_json(result.to_dict())
        else:
            say_lines(describe(result, str(images)))
    return 1 if result.failed else 0


def describe(result: PredictResult, source: str) -> list[str]:
    """Return what was done as lines of text."""
    rate = f", {result.images / result.seconds:,.0f} images/s" if result.seconds else ""
    limit = "decoding" if result.waited > 0.5 else "the model"
    lines = [
        f"{result.model} over {source} -> {result.output} (recipe {result.recipe.name!r})",
        f"{counted(result.images, 'image')}, {result.failed} failed; {result.seconds:.1f} s{rate}; limited by {limit}",
    ]
    if result.labelled:
        share = 100 * result.correct / result.labelled
        lines.append(f"the class of their folder: {result.correct:,} of {result.labelled:,} ({share:.2f} %)")
    lines += [f"failed: {path}: {error}" for path, error in list(result.failures.items())[:_LISTED]]
    if result.failed > _LISTED:
        lines.append(f"and {result.failed - _LISTED} more: they are in {result.output}")
    return lines


def _names(path: Path) -> list[str]:
    problem = file_problem(path)
    if problem is not None:
        raise FormatError(f"{path}: {problem}")
    try:
        return path.read_text("utf-8").splitlines()
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: is not UTF-8: {error}") from None
