"""One image file through one recipe: decode, fit, values."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from quantkit.errors import FormatError, ShapeMismatch
from quantkit.images.decode import MAX_PIXELS, decode_image, shown
from quantkit.images.geometry import fit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from quantkit.images.decode import Decoded, Source
    from quantkit.images.recipe import Recipe

_T = TypeVar("_T", bound=np.generic)


def read_pixels(source: Source, recipe: Recipe, *, max_pixels: int = MAX_PIXELS) -> tuple[NDArray[np.uint8], Decoded]:
    """Return the pixels that a model sees, uint8 of shape (height, width, channels), and what the file said.

    Raises
    ------
    FormatError
        Naming the file, when it cannot be decoded.
    """
    decoded = decode_image(
        source, color=recipe.color, background=recipe.background, white=recipe.white, max_pixels=max_pixels
    )
    try:
        return fit(decoded.image, recipe), decoded
    except ShapeMismatch as e:
        raise FormatError(f"{shown(source)}: {e}") from None


def read_codes(source: Source, recipe: Recipe, *, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Return the pixels that a model sees, uint8 of shape (channels, height, width).

    Raises
    ------
    FormatError
        Naming the file, when it cannot be decoded.
    """
    return np.ascontiguousarray(read_pixels(source, recipe, max_pixels=max_pixels)[0].transpose(2, 0, 1))


def read_values(source: Source, recipe: Recipe, *, max_pixels: int = MAX_PIXELS) -> NDArray[np.float32]:
    """Return the float input of a model, ``(p / divide - mean) / std``, float32 of shape (channels, height, width).

    Raises
    ------
    FormatError
        Naming the file, when it cannot be decoded.
    """
    pixels, table = read_pixels(source, recipe, max_pixels=max_pixels)[0], recipe.table()
    return look_up(pixels.transpose(2, 0, 1), table)


def look_up(codes: NDArray[np.uint8], table: NDArray[_T]) -> NDArray[_T]:
    """Return the value of each code, of the shape of `codes`, (..., channels, height, width), and the dtype of `table`.

    Parameters
    ----------
    codes : ndarray of uint8
    table : ndarray, shape (channels, 256)
        As `Recipe.table` gives it.
    """
    values = np.empty(codes.shape, table.dtype)
    for channel, of_channel in enumerate(table):
        # "raise" would buffer the output
        np.take(of_channel, codes[..., channel, :, :], out=values[..., channel, :, :], mode="clip")
    return values
