"""``quantkit images``: a folder of images to quint8 shards."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quantkit.cli import options
from quantkit.cli.console import say_json, say_lines, standing
from quantkit.cli.rates import rates
from quantkit.errors import InvalidArgument
from quantkit.text import counted, size

if TYPE_CHECKING:
    from quantkit.images.process import ProcessResult
    from quantkit.images.scan import ScanResult

_LISTED = 10


@click.command(short_help="Turn a folder of images into quint8 shards.")
@click.argument("folder", type=options.PLACE)
@click.option("-o", "--output", type=options.PLACE, help="The folder of the shards.")
@options.recipe(default="imagenet")
@options.streams
@click.option("--shard-size", type=click.IntRange(1), default=1024, show_default=True, help="Files of a shard.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["safetensors", "npy"]),
    default="safetensors",
    show_default=True,
    help="How shards are stored.",
)
@click.option(
    "--on-error",
    type=click.Choice(["skip", "raise"]),
    default="skip",
    show_default=True,
    help="What a file that cannot be decoded means: a line in the manifest, or the end.",
)
@click.option("--max-errors", type=click.IntRange(0), metavar="N", help="End when more than N files fail.")
@click.option("--max-pixels", type=click.IntRange(1), metavar="N", help="Larger images fail. Default: 89,478,485.")
@click.option("--restart", is_flag=True, help="Begin again, whatever is in the output folder.")
@click.option("--retry-failed", is_flag=True, help="Do shards with failed files again.")
@click.option("--shard-range", metavar="A:B", help="Make only shards A to B - 1, as one of several machines.")
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Let the workers of a Dask cluster make the shards: its address, or local for processes on this machine.",
)
@click.option("--scan", is_flag=True, help="Only look: formats, sizes, modes, duplicates, broken files.")
@click.option("--preview", type=options.PATH, metavar="FILE", help="Only draw: a contact sheet of prepared images.")
@options.as_json
def images(
    folder: Path | str,
    output: Path | str | None,
    preset: str,
    changes: dict[str, Any],
    streams: int | None,
    form: str,
    max_pixels: int | None,
    restart: bool,
    shard_range: str | None,
    scan: bool,
    preview: Path | None,
    as_json: bool,
    **more: Any,
) -> int:
    """Turn the images of FOLDER into shards of quint8 tensors, resumable, with a line for every file.

    FOLDER and OUT may be URLs (s3://bucket/photos), where fsspec and its package for them are installed.

    Run again, it goes on where it stopped. Exit code 1 when some files could not be decoded (listed).
    """
    from quantkit.images.decode import MAX_PIXELS

    if output is None and not scan and preview is None:
        raise click.UsageError("give -o OUT, or --scan, or --preview FILE")
    recipe, limit = options.make_recipe(preset, changes), max_pixels or MAX_PIXELS
    done: dict[str, Any] = {}
    code = 0
    if scan:
        from quantkit.images.scan import scan_images

        with rates("files") as tell:
            found = scan_images(folder, streams=streams, max_pixels=limit, progress=tell)
        done["scan"] = found.to_dict()
        code = 1 if found.broken else 0
        if not as_json:
            say_lines(describe_scan(found))
    if preview is not None:
        from quantkit.images.preview import contact_sheet

        shown = contact_sheet(folder, preview, preset=recipe, max_pixels=limit)
        done["preview"] = {"path": str(preview), "images": shown}
        if not as_json:
            say_lines([f"{preview}: {counted(len(shown), 'image')} as {recipe.name!r} makes them"])
    if output is not None:
        from quantkit.images.process import process_images

        with rates("files") as tell:
            result = process_images(
                folder,
                output,
                preset=recipe,
                streams=streams,
                format=form,
                resume=not restart,
                shard_range=None if shard_range is None else _range(shard_range),
                max_pixels=limit,
                progress=lambda p: tell(p.done, p.failed, p.bytes),
                **more,
            )
        done |= result.to_dict()
        code = max(code, 1 if result.failed else 0)
        if not as_json:
            with standing(output):
                say_lines(describe(result, str(folder)))
    if as_json:
        written = preview if output is None else output
        with nullcontext() if written is None else standing(written):
            say_json(done)
    return code


def describe(result: ProcessResult, source: str) -> list[str]:
    """Return what was done as lines of text."""
    made = result.shards - result.shards_kept
    shape = " x ".join(map(str, result.shape))
    kept = f", {result.shards_kept} of them there already" if result.shards_kept else ""
    shards = f"{counted(result.shards, 'shard')}{kept}"
    lines = [
        f"{source} -> {result.output} (recipe {result.recipe.name!r}, {shape}, quint8)",
        f"{counted(result.images, 'image')} in {shards}; {result.failed} failed, {result.skipped} skipped",
    ]
    if result.classes:
        lines.append(f"{counted(len(result.classes), 'class')}: {_some([repr(name) for name in result.classes])}")
    if made and result.seconds:
        rate = f"{result.images / result.seconds:,.0f} images/s, " if not result.shards_kept else ""
        disk = "the disk" if result.waited_for_disk > 0.2 else "decoding"
        lines.append(
            f"{result.seconds:.1f} s, {rate}{result.bytes_read / 1e6 / result.seconds:,.1f} MB/s read; "
            f"limited by {disk}"
        )
    if result.partial:
        lines.append(f"cut short and taken as far as they go: {result.partial:,}")
    lines += [f"failed: {path}: {error}" for path, error in list(result.failures.items())[:_LISTED]]
    if result.failed > _LISTED:
        lines.append(f"and {result.failed - _LISTED} more: see manifest.jsonl")
    if not result.complete:
        lines.append("not complete: other shards are missing")
    return lines


def describe_scan(found: ScanResult) -> list[str]:
    """Return what a scan found as lines of text."""
    lines = [f"{counted(found.images, 'image')}, {size(found.bytes)}"]
    lines.append("formats: " + _counts(found.formats))
    lines.append("modes: " + _counts(found.modes))
    sizes = found.sizes
    if sizes:
        areas = sorted(sizes, key=lambda s: s[0] * s[1])
        small, large = areas[0], areas[-1]
        common = [f"{w}x{h} {n:,}" for (w, h), n in sizes.most_common(5)]
        more = f", and {counted(len(sizes) - 5, 'more size')}" if len(sizes) > 5 else ""
        lines.append(f"sizes: {small[0]}x{small[1]} to {large[0]}x{large[1]}; most often {', '.join(common)}{more}")
    if found.classes:
        lines.append("classes: " + _some([f"{name} {count:,}" for name, count in found.classes.items()]))
    if found.turned:
        lines.append(f"turned by EXIF orientation: {found.turned:,}")
    if found.misnamed:
        lines.append(f"of another format than their suffix says: {found.misnamed:,}")
    if found.skipped:
        lines.append("skipped: " + _counts(found.skipped))
    same = counted(len(found.duplicates), "group")
    lines += _list(f"duplicates: {same}", [" = ".join(group) for group in found.duplicates])
    lines += _list(f"broken: {len(found.broken)}", [f"{path}: {error}" for path, error in found.broken.items()])
    return lines


def _list(title: str, items: list[str]) -> list[str]:
    if not items:
        return []
    more = [f"  and {len(items) - _LISTED} more (--json lists all)"] if len(items) > _LISTED else []
    return [title, *(f"  {item}" for item in items[:_LISTED]), *more]


def _counts(counts: dict[str, int]) -> str:
    return _some([f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda e: -e[1])]) or "none"


def _some(items: list[str], most: int = 12) -> str:
    more = f", and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def _range(given: str) -> tuple[int, int]:
    first, colon, end = given.partition(":")
    if not colon or not first.isdecimal() or not end.isdecimal():
        raise InvalidArgument(f"--shard-range: wanted A:B with whole numbers, got {given!r}")
    return int(first), int(end)
