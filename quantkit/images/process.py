"""`process_images`: a folder of images to quint8 shards, at decode speed and resumable."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit.cpu import num_threads
from quantkit.errors import FormatError, InvalidArgument
from quantkit.files.urls import is_url, plain_path
from quantkit.images.decode import MAX_PIXELS, shown
from quantkit.images.filling import ProcessProgress, Run
from quantkit.images.index import Index
from quantkit.images.listing import Listing
from quantkit.images.output import begin, locked, sweep
from quantkit.images.pipeline import check_streams, read_pixels
from quantkit.images.presets import get_recipe
from quantkit.images.shard_work import ShardMaker
from quantkit.images.shards import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from quantkit.images.recipe import Recipe

MAX_SHARD_BYTES = 1 << 28


@dataclass(slots=True)
class ProcessResult:
    """What `process_images` did.

    Attributes
    ----------
    output : str
    complete : bool
        Whether every shard is there; False after a `shard_range`, while others are missing.
    images, failed, skipped : int
        Files of the source by outcome: pixels in a shard, cannot be decoded, not an image. Of the shards in range.
    partial : int
        How many of the images were cut short, which a tolerant recipe takes.
    shards, shards_kept : int
        Shards in range, and how many of them were there already.
    shape : (channels, height, width)
    classes : tuple of str
    recipe : Recipe
    bytes_read : int
        By this run.
    seconds : float
    waited_for_disk : float
        Share of the time in which no image was taken because the last shard was still being written.
    failures : dict of str to str
        Path -> error of the first files that failed; the manifest has all.
    """

    output: str
    complete: bool
    images: int
    failed: int
    skipped: int
    partial: int
    shards: int
    shards_kept: int
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    recipe: Recipe
    bytes_read: int
    seconds: float
    waited_for_disk: float
    failures: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "recipe"}
        return {"schema": 1, **plain, "recipe": self.recipe.to_dict(), "recipe_hash": self.recipe.hash}


def process_images(
    source: Any,
    output: str | os.PathLike[str],
    *,
    preset: Any = "imagenet",
    streams: int | None = None,
    shard_size: int = 1024,
    on_error: str = "skip",
    resume: bool = True,
    scheduler: Any = None,
    retry_failed: bool = False,
    max_errors: int | None = None,
    format: str = "safetensors",
    shard_range: tuple[int, int] | None = None,
    max_pixels: int = MAX_PIXELS,
    progress: Callable[[ProcessProgress], None] | None = None,
) -> ProcessResult:
    """Turn image files into shards of quint8 tensors.

    Parameters
    ----------
    source : path-like, URL, or iterable of such
        A folder, whose sub-folders are classes, or a list of files. URLs are those of fsspec: ``s3://bucket/photos``.
    output : path-like or URL
        The folder of the shards; made where it is missing.
    preset : str, path-like or Recipe, default "imagenet"
        As `quantkit.images.get_recipe` takes it. Where a recipe leaves the size to the image, the first image that
        can be read sets it, and images of another size fail.
    streams : int, optional
        Threads that decode; one for each usable CPU by default, and with a scheduler one for each task. The bytes
        written are the same for any number.
    shard_size : int, default 1024
        Image files of a shard; fewer where it would exceed 256 MiB.
    on_error : {"skip", "raise"}
        Whether a file that cannot be decoded gets its line in the manifest, or ends the run.
    resume : bool, default True
        Keep the shards that are there and whose files have the path, size and modification time that they had.
        False begins again.
    scheduler : str or distributed.Client, optional
        Have the workers of a Dask cluster make the shards: the address of its scheduler (``tcp://host:8786``), or
        "local" for processes on this machine. They need quantkit, and must reach source and output by these names.
    retry_failed : bool, default False
        Do shards with failures again.
    max_errors : int, optional
        With ``on_error="skip"``: raise when more files than that fail in this run.
    format : {"safetensors", "npy"}
    shard_range : (first, end), optional
        Make only these shards; the run that finds all of them there completes the output.
    max_pixels : int
        Larger images fail.
    progress : callable, optional
        Told a `ProcessProgress` now and then.

    Returns
    -------
    ProcessResult

    Raises
    ------
    FormatError
        When the source cannot be listed or holds no image; with ``on_error="raise"`` naming the file; beyond
        `max_errors`.
    InvalidArgument
        For an argument that the call cannot take; when `output` holds shards of another recipe or source.
    OutputError
        When the output cannot be written. Shards that were finished stay, and the next run goes on behind them.
    ClusterError, MissingDependency
        When the cluster cannot be reached or loses its workers; without the library that a URL or a scheduler needs.
    """
    started = time.perf_counter()
    recipe = get_recipe(preset)
    _check(streams, shard_size, on_error, format, max_errors, shard_range, max_pixels)
    root = plain_path(output)
    listing = Listing(source, recipe.frames)
    if listing.root and _inside(root, listing.root):
        raise InvalidArgument(f"the output {root} lies within the source {listing.root}")
    with locked(root, shared=shard_range is not None):
        shape = _fixed_shape(recipe)
        index = begin(
            root,
            lambda: shape or _first_shape(listing, recipe, max_pixels),
            lambda shape: Index(
                complete=False,
                source=listing.name,
                form=format,
                shard_size=min(shard_size, max(1, MAX_SHARD_BYTES // int(np.prod(shape)))),
                recipe=recipe,
                shape=shape,
            ),
            resume=resume,
        )
        keep = None if not resume else "whole" if retry_failed else "all"
        run = Run(
            listing,
            ShardMaker(listing.files, index, root, max_pixels, keep),
            stop_at=0 if on_error == "raise" else max_errors,
            shard_range=shard_range,
            progress=progress,
        )
        if scheduler is None:
            run.run(streams or num_threads())
        else:
            run.spread(scheduler, streams or 1)
            if shard_range is None:
                sweep(root)  # behind workers that died
        complete = run.complete()
    seconds = time.perf_counter() - started
    return ProcessResult(
        output=root,
        complete=complete is not None,
        images=run.images,
        failed=run.failed,
        skipped=run.skipped,
        partial=run.partial,
        shards=run.made + run.kept,
        shards_kept=run.kept,
        shape=index.shape,
        classes=complete.classes if complete else listing.classes,
        recipe=recipe,
        bytes_read=run.bytes,
        seconds=seconds,
        waited_for_disk=run.waited / seconds if seconds else 0.0,
        failures=run.failures,
    )


def _check(
    streams: int | None,
    shard_size: int,
    on_error: str,
    form: str,
    max_errors: int | None,
    shard_range: tuple[int, int] | None,
    max_pixels: int,
) -> None:
    check_streams(streams)
    for name, value, least in (
        ("shard_size", shard_size, 1),
        ("max_errors", max_errors, 0),
        ("max_pixels", max_pixels, 1),
    ):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise InvalidArgument(f"{name} must be a whole number >= {least}, got {value!r}")
    if on_error not in {"skip", "raise"}:
        raise InvalidArgument(f"on_error must be 'skip' or 'raise', got {on_error!r}")
    if form not in FORMATS:
        raise InvalidArgument(f"format must be one of {', '.join(FORMATS)}, got {form!r}")
    if shard_range is not None and not 0 <= shard_range[0] < shard_range[1]:
        raise InvalidArgument(f"shard_range must be (first, end) with 0 <= first < end, got {shard_range}")


def _inside(path: str, folder: str) -> bool:
    if is_url(path) or is_url(folder):
        return is_url(path) and f"{path.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")
    inner, outer = os.path.realpath(path), os.path.realpath(folder)
    return os.path.commonpath([inner, outer]) == outer


def _fixed_shape(recipe: Recipe) -> tuple[int, int, int] | None:
    size = recipe.output_size
    return None if size is None else (recipe.channels, *size)


def _first_shape(listing: Listing, recipe: Recipe, max_pixels: int) -> tuple[int, int, int]:
    """Return the shape of the first image that can be read."""
    first, count = "there is none", 0
    for entry in listing:
        if entry.skipped is not None:
            continue
        try:
            source = listing.files.open(entry.path)
            pixels, _ = read_pixels(source, recipe, max_pixels=max_pixels, frame=entry.frame or 0)
        except FormatError as e:
            first = first if count else str(e)
            count += 1
            continue
        height, width, channels = pixels.shape
        return channels, height, width
    where = shown(listing.root) if listing.root else "the list of files"
    raise FormatError(f"{where}: none of {count} images can be read; the first: {first}")
