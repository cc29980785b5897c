"""Run a classifier, or any model with one image input, over a folder of images or over its shards."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantkit.cpu import num_threads
from quantkit.errors import FormatError, InvalidArgument, ModelError
from quantkit.files import check_output
from quantkit.images import ImageShards, is_output, open_images, read_codes
from quantkit.images.blocks import kept_blocks
from quantkit.images.decode import MAX_PIXELS, shown
from quantkit.images.index import check_index
from quantkit.images.listing import Listing
from quantkit.images.pipeline import check_streams
from quantkit.images.presets import PRESETS, get_recipe
from quantkit.jobs.predictions import FORMATS, Row, open_writer
from quantkit.models.data.image_data import RECIPE_KEY, recipe_of
from quantkit.models.data.image_input import ImageInput, sized_recipe
from quantkit.models.runtime import Session, describe_model, open_session
from quantkit.parallel import ordered_map

if TYPE_CHECKING:
    from quantkit.graph.io import ModelSource
    from quantkit.images import Recipe
    from quantkit.images.listing import Entry

_BATCH = 16  # where the model leaves it open
_LISTED = 20


@dataclass(slots=True)
class PredictResult:
    """What `predict_images` did.

    Attributes
    ----------
    model : str
    output : str or None
    images, failed : int
        Images that the model saw, and files that could not be decoded.
    correct, labelled : int
        Images whose first class is that of their folder, and images that have one; 0 where the folders are not the
        classes of the model.
    seconds : float
    waited : float
        Share of the time in which the model waited for images.
    recipe : Recipe
    failures : dict of str to str
        Path -> error of the first files that failed.
    rows : list of dict
        The predictions, where no output was given.
    """

    model: str
    output: str | None
    recipe: Recipe
    images: int = 0
    failed: int = 0
    correct: int = 0
    labelled: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    failures: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in {"recipe", "rows"}}
        accuracy = self.correct / self.labelled if self.labelled else None
        return {"schema": 1, **plain, "accuracy": accuracy, "recipe": self.recipe.to_dict()}


class _Item(NamedTuple):
    path: str
    label: int
    image: NDArray[Any] | None
    error: str | None
    bytes: int


def predict_images(
    model: ModelSource,
    images: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    preset: Any = None,
    streams: int | None = None,
    batch: int | None = None,
    top: int = 5,
    class_names: Sequence[str] | None = None,
    threads: int = 0,
    max_pixels: int = MAX_PIXELS,
    progress: Callable[[int, int, int], None] | None = None,
) -> PredictResult:
    """Run a model over images; while it works on one batch, the next ones are decoded.

    Parameters
    ----------
    model : path, bytes or ModelProto
        With one input, an image.
    images : path-like, iterable of path-like, or ImageShards
        A folder of images, or of the shards that `process_images` made, or a list of files.
    output : path-like, optional
        ``.csv`` or ``.jsonl``: the best classes of each image, for models whose first output is one score a class.
        ``.npz``: every output as it is. Without: the rows come in the result.
    preset : str, path-like or Recipe, optional
        By default the recipe in the model's metadata, or that of the shards.
    streams : int, optional
        Threads that decode; one for each usable CPU by default.
    batch : int, optional
        Images at once, where the model leaves that open; 16 by default.
    top : int, default 5
        Classes of each image.
    class_names : sequence of str, optional
        By default the folders, where there are as many as the model has scores; else numbers.
    threads : int, default 0
        Threads of onnxruntime; 0: it decides.
    max_pixels : int
        Larger images fail.
    progress : callable, optional
        Told images done, failed ones and bytes read.

    Returns
    -------
    PredictResult

    Raises
    ------
    ModelError, InvalidArgument
        When the model has another input than one image; when its outputs do not fit the output file.
    CalibrationError
        When an image does not fit the input.
    FormatError, OutputError
        When the images cannot be listed; when the output cannot be written.
    """
    started = time.perf_counter()
    _check(output, batch, top, streams)
    session = open_session(model, threads=threads)
    if len(session.inputs) != 1:
        names = ", ".join(repr(spec.name) for spec in session.inputs)
        raise ModelError(f"{session.title}: images feed one input, but the model has {len(session.inputs)} ({names})")
    spec = session.inputs[0]
    shards, recipe = _open(images, model, preset)
    recipe = sized_recipe(spec, recipe)
    if shards is not None and recipe.hash != shards.recipe.hash:
        raise InvalidArgument(
            f"{shards.path}: its shards were made by the recipe {shards.recipe.name!r} ({shards.recipe.hash[:12]}), "
            f"but the model wants {recipe.name!r} ({recipe.hash[:12]}); make them anew with that one"
        )
    fit = ImageInput(spec, recipe)
    size = fit.batch or batch or _BATCH
    if batch is not None and batch != size:
        raise InvalidArgument(f"batch: the model takes {size} at once, got {batch}")
    if recipe.output_size is None and fit.batch is None:
        size = 1  # images of any size, one at a time
    workers = streams or num_threads()
    result = PredictResult(describe_model(model), None if output is None else os.fspath(output), recipe)
    items, classes = _items(images, shards, fit, workers, size, max_pixels)
    with ExitStack() as stack:
        stack.enter_context(kept_blocks(workers))
        stack.enter_context(closing(items))
        writer = stack.enter_context(open_writer(result.output, session.outputs, classes, class_names, top))
        count = 0
        for group in _groups(items, size, result):
            good = [item for item in group if item.image is not None]
            outputs = _run(session, fit, [item.image for item in good if item.image is not None])
            writer.write([Row(i.path, i.label, i.error) for i in group], outputs)
            result.images += len(good)
            result.failed += len(group) - len(good)
            for item in group:
                count += item.bytes
                if item.error is not None and len(result.failures) < _LISTED:
                    result.failures[item.path] = item.error
            if progress is not None:
                progress(result.images + result.failed, result.failed, count)
        result.correct, result.labelled, result.rows = writer.correct, writer.labelled, writer.rows
    result.seconds = time.perf_counter() - started
    result.waited /= result.seconds or 1.0
    return result


def _check(output: str | os.PathLike[str] | None, batch: int | None, top: int, streams: int | None) -> None:
    check_streams(streams)
    for name, value in (("batch", batch), ("top", top)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InvalidArgument(f"{name} must be a whole number >= 1, got {value!r}")
    if output is not None:
        if Path(output).suffix.lower() not in FORMATS:
            raise InvalidArgument(f"{os.fspath(output)}: wanted a name that ends in {', '.join(FORMATS)}")
        check_output(output)


def _open(images: Any, model: ModelSource, preset: Any) -> tuple[ImageShards | None, Recipe]:
    shards = images if isinstance(images, ImageShards) else None
    if isinstance(images, (str, os.PathLike)) and is_output(images):
        shards = open_images(images)
    recipe = recipe_of(model) if preset is None else get_recipe(preset)
    if recipe is None and shards is not None:
        recipe = shards.recipe
    if recipe is None:
        raise InvalidArgument(
            f"{describe_model(model)}: how it wants its images is not known: its metadata has no {RECIPE_KEY}; name a "
            f"preset (--preset or preset=): {', '.join(PRESETS)}, or a recipe's .json file"
        )
    return shards, recipe


def _items(
    images: Any, shards: ImageShards | None, fit: ImageInput, workers: int, size: int, max_pixels: int
) -> tuple[Any, tuple[str, ...]]:
    """Return the images, prepared ahead by threads, in order; and the classes."""
    if shards is not None:
        source = shards

        def from_shard(i: int) -> _Item:
            codes = source.read_codes(i)
            return _Item(source.paths[i], int(source.labels[i]), fit.prepare(codes, f"image {i}"), None, codes.nbytes)

        return (
            ordered_map(from_shard, range(len(source)), workers=workers, in_flight=2 * size + workers),
            source.classes,
        )
    listing = Listing(images, fit.recipe.frames)

    def from_file(entry: Entry) -> _Item:
        path, relative = listing.files.full(entry.path), os.fsdecode(entry.path)
        if entry.frame:
            relative = f"{relative} (frame {entry.frame})"
        count = 0 if entry.frame else listing.files.stamp(entry.path, entry.stamp)[0] or 0
        try:
            source = listing.files.open(entry.path)
            codes = read_codes(source, fit.recipe, max_pixels=max_pixels, frame=entry.frame or 0)
        except FormatError as e:
            return _Item(relative, entry.label, None, str(e).removeprefix(f"{shown(path)}: "), 0)
        return _Item(relative, entry.label, fit.prepare(codes, path), None, count)

    def entries() -> Iterator[Entry]:
        found = False
        for entry in listing:
            if entry.skipped is None:
                found = True
                yield entry
        if not found:
            if listing.root:
                check_index(listing.root)
            raise FormatError(f"{shown(listing.root) if listing.root else 'the list of files'}: holds no image")

    return ordered_map(from_file, entries(), workers=workers, in_flight=2 * size + workers), listing.classes


def _groups(items: Iterator[_Item], size: int, result: PredictResult) -> Iterator[list[_Item]]:
    """Yield items until `size` of them are images; `result` counts the time of waiting for them."""
    group: list[_Item] = []
    good = 0
    while True:
        began = time.perf_counter()
        item = next(items, None)
        result.waited += time.perf_counter() - began
        if item is None:
            break
        group.append(item)
        good += item.image is not None
        if good == size or len(group) >= 64 * size:
            yield group
            group, good = [], 0
    if group:
        yield group


def _run(session: Session, fit: ImageInput, images: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return every output for the images, one row each; a batch that the model fixes is filled up."""
    if not images:
        return []
    count = len(images)
    if fit.batch is not None:
        images = images + [images[-1]] * (fit.batch - count)
    outputs = [np.asarray(value) for value in session.run(fit.feed(images, session.title))]
    if not fit.batched or (fit.batch == 1 and any(o.ndim == 0 or len(o) != 1 for o in outputs)):
        return [o[None] if o.ndim == 0 or len(o) != 1 else o for o in outputs]
    for name, value in zip(session.outputs, outputs, strict=True):
        if value.ndim == 0 or len(value) != len(images):
            raise ModelError(
                f"{session.title}: output {name!r} has shape {list(value.shape)} for {len(images)} images; wanted one "
                "row for each"
            )
    return [value[:count] for value in outputs]
