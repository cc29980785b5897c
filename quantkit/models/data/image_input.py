"""What a model's image input wants: the size of the recipe, the layout, the values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quantkit.errors import CalibrationError
from quantkit.models.inputs import Feed, InputSpec, check_shape, is_float

if TYPE_CHECKING:
    from quantkit.images import Recipe


def sized_recipe(spec: InputSpec, recipe: Recipe) -> Recipe:
    """Return the recipe for the height and width that the input fixes."""
    if spec.rank not in (3, 4):
        return recipe
    channels, height, width = (spec.fixed(axis) for axis in range(spec.rank - 3, spec.rank))
    if channels != recipe.channels and width == recipe.channels:
        channels, height, width = width, channels, height  # channels last
    if height is None or width is None or recipe.output_size == (height, width):
        return recipe
    return recipe.with_output_size(height, width)


class ImageInput:
    """Turns pixels into what one input of a model wants.

    Parameters
    ----------
    spec : InputSpec
    recipe : Recipe
        The one that made the pixels.

    Attributes
    ----------
    batch : int or None
        Images that the model wants at once, where it says so; 1 for an input without a batch axis.
    """

    def __init__(self, spec: InputSpec, recipe: Recipe) -> None:
        self.spec, self.recipe = spec, recipe
        self.batched = spec.rank in (None, 4)
        self.batch = spec.fixed(0) if spec.rank == 4 else None if spec.rank is None else 1
        self._table = recipe.table()
        whole = np.rint(self._table)
        fits = bool(np.array_equal(whole, self._table) and whole.min() >= 0 and whole.max() <= 255)
        self._codes = whole.astype(np.uint8) if fits else None
        self._plain = fits and bool((whole == np.arange(256)).all())

    def prepare(self, codes: NDArray[np.uint8], path: str) -> NDArray[Any]:
        """Return one image as the input wants it, without the batch axis, in the input's dtype.

        Parameters
        ----------
        codes : ndarray of uint8, shape (channels, height, width)
        path : str
            What errors call the image.

        Raises
        ------
        CalibrationError
            Saying what the input wants and what came.
        """
        spec, shape = self.spec, codes.shape
        layouts = [codes, codes.transpose(1, 2, 0)]
        if spec.rank == 2 and shape[0] == 1:
            layouts = [codes[0]]
        for k, candidate in enumerate(layouts):
            full = ((spec.fixed(0) or 1), *candidate.shape) if spec.rank == 4 else candidate.shape
            if spec.rank in (None, len(full)) and all(
                spec.shape is None or spec.fixed(axis) in (None, length) for axis, length in enumerate(full)
            ):
                values = self._values(codes, path)
                return values.reshape(candidate.shape) if not k else values.transpose(1, 2, 0)
        where = f"{path}, prepared by the recipe {self.recipe.name!r}"
        kind = spec.dtype if spec.dtype == np.uint8 else np.dtype(np.float32)
        check_shape(spec, kind, ((spec.fixed(0) or 1) if spec.rank == 4 else 1, *shape), where)
        raise CalibrationError(f"{where}: input {spec.name!r} wants {spec}, which is no image")

    def _values(self, codes: NDArray[np.uint8], path: str) -> NDArray[Any]:
        from quantkit.images import look_up

        wanted = self.spec.dtype
        if is_float(wanted):
            return look_up(codes, self._table).astype(wanted, copy=False)
        if wanted == np.uint8 and self._codes is not None:
            return codes if self._plain else look_up(codes, self._codes)
        values = look_up(codes, self._table)
        raise CalibrationError(
            f"{path}: input {self.spec.name!r} wants {self.spec}, but the recipe {self.recipe.name!r} gives real "
            f"numbers from {float(values.min()):.3g} to {float(values.max()):.3g}; use one that leaves pixels as they "
            "are"
        )

    def feed(self, images: list[NDArray[Any]], where: str) -> Feed:
        """Return prepared images as one feed of the model.

        Raises
        ------
        CalibrationError
            When their sizes differ.
        """
        try:
            array = np.stack(images) if self.batched else images[0]
        except ValueError:
            shapes = ", ".join(str(list(shape)) for shape in dict.fromkeys(image.shape for image in images))
            raise CalibrationError(
                f"{where}: input {self.spec.name!r} wants {len(images)} images at once, but the recipe "
                f"{self.recipe.name!r} gives different sizes: {shapes}"
            ) from None
        return {self.spec.name: np.ascontiguousarray(array)}
