"""An image folder, or the shards made of one, as a model's input."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quantkit.errors import CalibrationError, FormatError, ModelError, QuantkitError
from quantkit.files.shortage import raise_shortage
from quantkit.graph.io import ModelSource, load_structure
from quantkit.models.data.array_files import Labels
from quantkit.models.data.image_input import ImageInput, sized_recipe
from quantkit.models.inputs import Feed, InputSpec
from quantkit.models.runtime import describe_model

if TYPE_CHECKING:
    from quantkit.images import ImageFolder, ImageShards, Recipe

RECIPE_KEY = "quantkit.recipe"  # where a model's metadata_props keep how its images are prepared


class NoReadableImage(CalibrationError):
    """None of the images that were asked for can be read."""


def opened_images(source: Any) -> ImageFolder | ImageShards | None:
    """Return `source` if it is images that were opened already, else None."""
    if "quantkit.images" not in sys.modules:  # then it cannot be; Pillow is not loaded for nothing
        return None
    from quantkit.images import ImageFolder, ImageShards

    return source if isinstance(source, ImageFolder | ImageShards) else None


def holds_shards(path: Path) -> bool:
    """Whether a folder holds the shards that `process_images` makes."""
    if not (path / "index.json").is_file():  # before Pillow is loaded for nothing
        return False
    from quantkit.images import is_output

    return is_output(path)


def recipe_of(model: ModelSource) -> Recipe | None:
    """Return the recipe in a model's metadata, or None where there is none.

    Raises
    ------
    ModelError
        When it is no ONNX model, or its recipe cannot be read.
    """
    text = next((item.value for item in load_structure(model).metadata_props if item.key == RECIPE_KEY), None)
    if text is None:
        return None
    from quantkit.images import Recipe

    try:
        return Recipe.from_json(text)
    except QuantkitError as error:
        raise ModelError(f"{describe_model(model)}: {RECIPE_KEY} in its metadata cannot be read: {error}") from None


def open_source(path: Path | str, recipe: Recipe | None) -> ImageFolder | ImageShards:
    """Open a folder of images, or of shards; a path or a URL.

    Raises
    ------
    CalibrationError
        When there is no recipe, or shards were made by another one.
    FormatError
        When there is no image.
    """
    from quantkit.images import PRESETS, ImageFolder, is_output, open_images

    if is_output(path):
        return checked(open_images(path), str(path), recipe)
    # Without a recipe the folder is listed all the same: that it holds no image is the better answer.
    folder = ImageFolder(path, "raw" if recipe is None else recipe)
    if recipe is None:
        raise CalibrationError(
            f"{path}: how the model wants its images is not known: its metadata has no {RECIPE_KEY}; "
            f"name a preset (--preset or preset=): {', '.join(PRESETS)}, or a recipe's .json file"
        )
    return folder


def checked(images: ImageFolder | ImageShards, where: str, recipe: Recipe | None) -> ImageFolder | ImageShards:
    """Return images that have a recipe of their own, once it is known to be the one that the model wants.

    Raises
    ------
    CalibrationError
        When it is another one, or there is no image.
    """
    if recipe is not None and recipe.hash != images.recipe.hash:
        raise CalibrationError(
            f"{where}: its {_kind(images)} made by the recipe {images.recipe.name!r} ({images.recipe.hash[:12]}), "
            f"but the model wants {recipe.name!r} ({recipe.hash[:12]}); make them anew with that one"
        )
    if not len(images):
        raise CalibrationError(f"{where}: its shards hold no image")
    return images


def _kind(images: ImageFolder | ImageShards) -> str:
    from quantkit.images import ImageShards

    return "shards were" if isinstance(images, ImageShards) else "images are"


def source_notes(images: ImageFolder | ImageShards, where: str) -> list[str]:
    """Return what the user should hear about files that take no part."""
    from quantkit.images import ImageShards

    if isinstance(images, ImageShards):
        failed = images.failed
        return [f"{where}: {failed} files could not be decoded when its shards were made"] if failed else []
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(images.skipped.items()))
    return [f"{where}: entries left out: {why}"] if why else []


class ImageStore:
    """The images of a folder, prepared by a recipe, or of its shards, batched to the model's batch size.

    A model that leaves its batch size free gets one image at a time. Images that cannot be read are left out and
    listed in `skipped`; the next readable ones fill their batch. What does not fill a last batch is left out, unless
    it would be the only one: then it is filled with its own images again, without labels.

    Raises
    ------
    CalibrationError
        When the model has several inputs, there is no image, no recipe or another one than that of the shards, or no
        image can be read.
    """

    def __init__(
        self,
        source: Path | str | ImageFolder | ImageShards,
        inputs: Mapping[str, InputSpec],
        recipe: Recipe | str | None,
    ) -> None:
        from quantkit.images import get_recipe

        opened = opened_images(source)
        path: Any = source if opened is None else getattr(source, "path", "the given images")
        self.where = str(path)
        self.notes: list[str] = []
        self.skipped: dict[str, str] = {}
        if len(inputs) != 1:
            raise CalibrationError(
                f"{path}: a folder of images feeds one input, but the model has {len(inputs)} "
                f"({', '.join(map(repr, inputs))}); give an .npz file with one key for each"
            )
        spec = next(iter(inputs.values()))
        wanted = None if recipe is None else get_recipe(recipe)
        sized = None if wanted is None else sized_recipe(spec, wanted)
        if sized is not None and sized != wanted:
            height, width = sized.output_size or (0, 0)
            self.notes.append(f"the recipe {sized.name!r} was set to the model's {height} x {width} pixels")
        try:
            self._images = open_source(path, sized) if opened is None else checked(opened, self.where, sized)
        except FormatError as error:
            raise CalibrationError(str(error)) from None
        self.recipe = self._images.recipe
        self.notes += source_notes(self._images, str(path))
        self._input = ImageInput(spec, self.recipe)
        self.batch = self._input.batch or 1
        self.count = len(self._images)
        self.has_labels = bool(self._images.classes)
        self.class_count = len(self._images.classes) or None

    def pick(self, count: int, seed: int) -> NDArray[np.int64]:
        """Return `count` sorted image numbers, even over the classes, chosen by `seed`."""
        return np.asarray(self._images.sample(count, seed=seed), dtype=np.int64)

    def feeds(self, indices: Sequence[int]) -> Iterator[tuple[Feed, Labels]]:
        """Yield the images of the given numbers in batches, with their labels."""
        size = self.batch
        images: list[NDArray[Any]] = []
        labels: list[int] = []
        yielded = False
        for i in indices:
            image = self._read(int(i))
            if image is None:
                continue
            images.append(image)
            labels.append(int(self._images.labels[i]) if self.has_labels else -1)
            if len(images) == size:
                yield self._batch(images, labels)
                yielded, images, labels = True, [], []
        if images and not yielded:
            missing = size - len(images)
            filled = [images[i % len(images)] for i in range(size)]
            yield self._batch(filled, labels + [-1] * missing)
        elif not yielded:
            first = next(iter(self.skipped.items()), ("", "there are none"))
            raise NoReadableImage(f"{self.where}: none of {len(indices)} images could be read; {first[0]}: {first[1]}")

    def _read(self, i: int) -> NDArray[Any] | None:
        path = str(self._images.paths[i])
        if path in self.skipped:
            return None
        try:
            codes = self._images.read_codes(i)
        except (QuantkitError, OSError) as error:
            raise_shortage(path, error)
            self.skipped[path] = str(error).removeprefix(f"{path}: ")
            return None
        return self._input.prepare(codes, path)

    def _batch(self, images: list[NDArray[Any]], labels: list[int]) -> tuple[Feed, Labels]:
        truth = np.asarray(labels, dtype=np.int32) if self.has_labels else None
        return self._input.feed(images, self.where), truth
