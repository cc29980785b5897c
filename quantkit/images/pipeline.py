"""One image file through one recipe: decode, fit, values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quantkit.errors import FormatError, ShapeMismatch
from quantkit.images.decode import MAX_PIXELS, decode_image, shown
from quantkit.images.geometry import fit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from quantkit.images.decode import Source
    from quantkit.images.recipe import Recipe


def _pixels(source: Source, recipe: Recipe, max_pixels: int) -> NDArray[np.uint8]:
    decoded = decode_image(
        source, color=recipe.color, background=recipe.background, white=recipe.white, max_pixels=max_pixels
    )
    try:
        return fit(decoded.image, recipe)
    except ShapeMismatch as e:
        raise FormatError(f"{shown(source)}: {e}") from None


def read_codes(source: Source, recipe: Recipe, *, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Return the pixels that a model sees, uint8 of shape (channels, height, width).

    Raises
    ------
    FormatError
        Naming the file, when it cannot be decoded.
    """
    return np.ascontiguousarray(_pixels(source, recipe, max_pixels).transpose(2, 0, 1))


def read_values(source: Source, recipe: Recipe, *, max_pixels: int = MAX_PIXELS) -> NDArray[np.float32]:
    """Return the float input of a model, ``(p / divide - mean) / std``, float32 of shape (channels, height, width).

    Raises
    ------
    FormatError
        Naming the file, when it cannot be decoded.
    """
    pixels, table = _pixels(source, recipe, max_pixels), recipe.table()
    values = np.empty((pixels.shape[2], *pixels.shape[:2]), np.float32)
    for channel, codes in enumerate(np.moveaxis(pixels, 2, 0)):
        np.take(table[channel], codes, out=values[channel], mode="clip")  # "raise" would buffer the output
    return values
