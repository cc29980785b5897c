"""An image folder, or the shards made of one, as a model's input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quantkit.errors import CalibrationError, FormatError, ModelError, QuantkitError
from quantkit.models.array_files import Labels
from quantkit.models.inputs import Feed, InputSpec, check_shape, is_float
from quantkit.models.output_classes import load_structure
from quantkit.models.runtime import ModelSource, describe_model

if TYPE_CHECKING:
    from quantkit.images import ImageFolder, ImageShards, Recipe

RECIPE_KEY = "quantkit.recipe"  # where a model's metadata_props keep how its images are prepared


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

    def __init__(self, path: Path, inputs: Mapping[str, InputSpec], recipe: Recipe | str | None) -> None:
        from quantkit.images import get_recipe

        self.where = str(path)
        self.notes: list[str] = []
        self.skipped: dict[str, str] = {}
        if len(inputs) != 1:
            raise CalibrationError(
                f"{path}: a folder of images feeds one input, but the model has {len(inputs)} "
                f"({', '.join(map(repr, inputs))}); give an .npz file with one key for each"
            )
        self._name, self._spec = next(iter(inputs.items()))
        try:
            self._images = self._open(path, None if recipe is None else self._sized(get_recipe(recipe)))
        except FormatError as error:
            raise CalibrationError(str(error)) from None
        self.recipe = self._images.recipe
        self.count = len(self._images)
        self.has_labels = bool(self._images.classes)
        self.class_count = len(self._images.classes) or None

    def _open(self, path: Path, recipe: Recipe | None) -> ImageFolder | ImageShards:
        from quantkit.images import PRESETS, ImageFolder, is_output, open_images

        if is_output(path):
            shards = open_images(path)
            if recipe is not None and recipe.hash != shards.recipe.hash:
                raise CalibrationError(
                    f"{path}: its shards were made by the recipe {shards.recipe.name!r} ({shards.recipe.hash[:12]}), "
                    f"but the model wants {recipe.name!r} ({recipe.hash[:12]}); make them anew with that one"
                )
            if not len(shards):
                raise CalibrationError(f"{path}: its shards hold no image")
            if shards.failed:
                self.notes.append(f"{path}: {shards.failed} files could not be decoded when its shards were made")
            return shards
        # Without a recipe the folder is listed all the same: that it holds no image is the better answer.
        folder = ImageFolder(path, "raw" if recipe is None else recipe)
        if recipe is None:
            raise CalibrationError(
                f"{path}: how the model wants its images is not known: its metadata has no {RECIPE_KEY}; "
                f"name a preset (--preset or preset=): {', '.join(PRESETS)}, or a recipe's .json file"
            )
        if folder.skipped:
            why = ", ".join(f"{count} {reason}" for reason, count in sorted(folder.skipped.items()))
            self.notes.append(f"{path}: entries left out: {why}")
        return folder

    def _sized(self, recipe: Recipe) -> Recipe:
        """Return the recipe for the height and width that the model fixes."""
        spec = self._spec
        if spec.rank not in (3, 4):
            return recipe
        channels, height, width = (spec.fixed(axis) for axis in range(spec.rank - 3, spec.rank))
        if channels != recipe.channels and width == recipe.channels:
            channels, height, width = width, channels, height  # channels last
        if height is None or width is None or recipe.output_size == (height, width):
            return recipe
        self.notes.append(f"the recipe {recipe.name!r} was set to the model's {height} x {width} pixels")
        return recipe.with_output_size(height, width)

    def pick(self, count: int, seed: int) -> NDArray[np.int64]:
        """Return `count` sorted image numbers, even over the classes, chosen by `seed`."""
        return np.asarray(self._images.sample(count, seed=seed), dtype=np.int64)

    def feeds(self, indices: Sequence[int]) -> Iterator[tuple[Feed, Labels]]:
        """Yield the images of the given numbers in batches, with their labels."""
        size = (self._spec.fixed(0) or 1) if self._spec.rank == 4 else 1
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
            raise CalibrationError(f"{self.where}: none of {len(indices)} images could be read; {first[0]}: {first[1]}")

    def _read(self, i: int) -> NDArray[Any] | None:
        path = str(self._images.paths[i])
        if path in self.skipped:
            return None
        try:
            image = np.asarray(self._images.read(i))
        except (QuantkitError, OSError) as error:
            self.skipped[path] = str(error).removeprefix(f"{path}: ")
            return None
        return self._fit(image, path)

    def _fit(self, image: NDArray[Any], path: str) -> NDArray[Any]:
        """Lay the image out as the input wants it, without the batch axis, in the input's dtype."""
        spec, shape = self._spec, image.shape
        layouts = [image, image.transpose(1, 2, 0)]
        if spec.rank == 2 and shape[0] == 1:
            layouts = [image[0]]
        batched = spec.rank == 4
        for candidate in layouts:
            full = ((spec.fixed(0) or 1), *candidate.shape) if batched else candidate.shape
            if spec.rank in (None, len(full)) and all(
                spec.shape is None or spec.fixed(axis) in (None, length) for axis, length in enumerate(full)
            ):
                return self._cast(candidate, path)
        where = f"{path}, prepared by the recipe {self.recipe.name!r}"
        check_shape(spec, image.dtype, ((spec.fixed(0) or 1) if batched else 1, *shape), where)
        raise CalibrationError(f"{where}: input {spec.name!r} wants {spec}, which is no image")

    def _cast(self, image: NDArray[Any], path: str) -> NDArray[Any]:
        wanted = self._spec.dtype
        if is_float(wanted):
            floats: NDArray[Any] = image.astype(wanted)
            return floats
        pixels = np.rint(image)
        if wanted == np.uint8 and np.array_equal(pixels, image) and image.min() >= 0 and image.max() <= 255:
            codes: NDArray[Any] = pixels.astype(np.uint8)
            return codes
        raise CalibrationError(
            f"{path}: input {self._name!r} wants {self._spec}, but the recipe {self.recipe.name!r} gives real numbers"
            f" from {float(image.min()):.3g} to {float(image.max()):.3g}; use one that leaves pixels as they are"
        )

    def _batch(self, images: list[NDArray[Any]], labels: list[int]) -> tuple[Feed, Labels]:
        try:
            array = np.stack(images) if self._spec.rank in (None, 4) else images[0]
        except ValueError:
            shapes = ", ".join(str(list(shape)) for shape in dict.fromkeys(image.shape for image in images))
            raise CalibrationError(
                f"{self.where}: input {self._name!r} wants {len(images)} images at once, but the recipe "
                f"{self.recipe.name!r} gives different sizes: {shapes}"
            ) from None
        truth = np.asarray(labels, dtype=np.int32) if self.has_labels else None
        return {self._name: np.ascontiguousarray(array)}, truth
