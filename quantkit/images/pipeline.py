"""One image file through one recipe: decode, fit, values."""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from quantkit.errors import FormatError, InvalidArgument, ShapeMismatch
from quantkit.images.decode import MAX_PIXELS, Policy, decode_frames, shown
from quantkit.images.geometry import fit, least_size, whole_of

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from numpy.typing import NDArray

    from quantkit.images.decode import Decoded, Source
    from quantkit.images.recipe import Recipe

_T = TypeVar("_T", bound=np.generic)
MAX_STREAMS = 256


def check_streams(streams: int | None) -> None:
    """Check a number of threads; None stands for one for each usable CPU.

    Raises
    ------
    InvalidArgument
        When it is none from 1 to 256.
    """
    if streams is None:
        return
    if isinstance(streams, bool) or not isinstance(streams, int) or not 1 <= streams <= MAX_STREAMS:
        raise InvalidArgument(f"streams must be a whole number from 1 to {MAX_STREAMS}, got {streams!r}")


def read_pixels(
    source: Source, recipe: Recipe, *, max_pixels: int = MAX_PIXELS, frame: int = 0
) -> tuple[NDArray[np.uint8], Decoded]:
    """Return the pixels that a model sees, uint8 of shape (height, width, channels), and what the file said.

    Raises
    ------
    FormatError
        Naming the file, when it cannot be decoded.
    """
    with contextlib.closing(read_frames(source, recipe, (frame,), max_pixels=max_pixels)) as read:
        found = next(read)
    if isinstance(found, FormatError):
        raise found
    return found


def read_frames(
    source: Source,
    recipe: Recipe,
    frames: Sequence[int],
    *,
    max_pixels: int = MAX_PIXELS,
    rows: Sequence[NDArray[np.uint8]] = (),
) -> Generator[tuple[NDArray[np.uint8], Decoded] | FormatError]:
    """Yield what `read_pixels` returns for some frames of one file, in rising order, or the error of each.

    Where a frame has one of `rows`, its pixels may be a view of that, as `fit` says.

    Raises
    ------
    FormatError
        Naming the file, when it cannot be opened as an image.
    """
    least = None if recipe.draft is None else functools.partial(least_size, recipe)
    policy = Policy(recipe.color, recipe.background, recipe.white, max_pixels, recipe.tolerant, least)
    with contextlib.closing(decode_frames(source, frames, policy)) as every:
        for decoded, row in zip(every, itertools.chain(rows, itertools.repeat(None)), strict=False):
            if isinstance(decoded, FormatError):
                yield decoded
                continue
            try:
                pixels = fit(decoded.image, recipe, whole_of(decoded), row)
            except ShapeMismatch as e:
                yield FormatError(f"{shown(source)}: {e}")
            else:
                yield pixels, decoded


def read_codes(source: Source, recipe: Recipe, *, max_pixels: int = MAX_PIXELS, frame: int = 0) -> NDArray[np.uint8]:
    """Return the pixels that a model sees, uint8 of shape (channels, height, width).

    Raises
    ------
    FormatError
        Naming the file, when it cannot be decoded.
    """
    pixels, _ = read_pixels(source, recipe, max_pixels=max_pixels, frame=frame)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def read_values(source: Source, recipe: Recipe, *, max_pixels: int = MAX_PIXELS, frame: int = 0) -> NDArray[np.float32]:
    """Return the float input of a model, ``(p / divide - mean) / std``, float32 of shape (channels, height, width).

    Raises
    ------
    FormatError
        Naming the file, when it cannot be decoded.
    """
    pixels, _ = read_pixels(source, recipe, max_pixels=max_pixels, frame=frame)
    return look_up(pixels.transpose(2, 0, 1), recipe.table())


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
