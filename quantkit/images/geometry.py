"""Resize, crop and letterbox on 8-bit pixels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image

from quantkit import _kernels
from quantkit.errors import ShapeMismatch
from quantkit.images.linear import resize_opencv_linear
from quantkit.images.resample import FILTERS, resample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from quantkit.images.decode import Decoded
    from quantkit.images.recipe import Recipe

MAX_RESIZED = 89_478_485  # pixels; a thin strip blown up by "shortest" would have no end

_R = Image.Resampling
_PILLOW = {
    "nearest": _R.NEAREST,
    "box": _R.BOX,
    "bilinear": _R.BILINEAR,
    "hamming": _R.HAMMING,
    "bicubic": _R.BICUBIC,
    "lanczos": _R.LANCZOS,
}


class Whole(NamedTuple):
    """What an image stands for that was decoded at a fraction of its size.

    Attributes
    ----------
    size : (height, width)
        At full size.
    box : (left, top, right, bottom)
        The part of the smaller image that the full one covers; it ends within the last pixels where a side is no
        multiple of the fraction.
    """

    size: tuple[int, int]
    box: tuple[float, float, float, float]


def whole_of(decoded: Decoded) -> Whole | None:
    """Return what a draft stands for; None for an image that was decoded as it is."""
    if decoded.reduced == 1:
        return None
    (height, width), image, turned = decoded.size, decoded.image, decoded.orientation
    if turned >= 5:
        height, width = width, height
    right, bottom = width / decoded.reduced, height / decoded.reduced
    left = image.width - right if turned in {2, 3, 6, 7} else 0.0
    top = image.height - bottom if turned in {3, 4, 7, 8} else 0.0
    return Whole((height, width), (left, top, left + right, top + bottom))


def least_size(recipe: Recipe, height: int, width: int) -> tuple[int, int] | None:
    """Return the size below which a draft of an image must not be decoded, by the recipe; None: only as it is."""
    if recipe.draft is None:
        return None
    inner = _resized(height, width, recipe)[1]
    return math.ceil(inner[0] * recipe.draft), math.ceil(inner[1] * recipe.draft)


def fit(
    image: Image.Image, recipe: Recipe, whole: Whole | None = None, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """Apply the geometry and the colour order of a recipe.

    Parameters
    ----------
    image : PIL.Image.Image
        Mode "L" where the recipe is grey, else "RGB".
    recipe : Recipe
    whole : Whole, optional
        What the image stands for, where it is a draft.
    out : ndarray of uint8, shape (channels, height, width), optional
        C-contiguous. The result is a view of it where the last step can write there, which saves a copy.

    Returns
    -------
    ndarray of uint8, shape (height, width, channels)

    Raises
    ------
    ShapeMismatch
        When the resized image would be too large for the memory.
    """
    whole = whole or Whole((image.height, image.width), (0.0, 0.0, image.width, image.height))
    height, width = whole.size
    size, inner = _resized(height, width, recipe)
    if inner[0] * inner[1] > MAX_RESIZED:
        raise ShapeMismatch(f"{width} x {height} pixels would be resized to {inner[1]} x {inner[0]}, which is too much")
    crop = recipe.crop
    fits = crop is not None and size == inner and crop[0] <= inner[0] and crop[1] <= inner[1]
    # Where the crop lies within the resized image, nothing else of it is made.
    region = (*_corner(inner, crop, recipe.crop_rounding), *crop) if fits else (0, 0, *inner)
    pixels = _resize(
        image, whole.box, inner, region, recipe.interpolation, out if fits and recipe.color == "RGB" else None
    )
    if recipe.color == "BGR":
        pixels = pixels[..., ::-1]
    if fits:
        return pixels
    # "letterbox" pads to its size; a crop that is larger than the image pads as well.
    pixels = _pad(pixels, size, recipe.pad)
    if crop is not None:
        pixels = _pad(pixels, tuple(max(a, b) for a, b in zip(pixels.shape, crop, strict=False)), recipe.pad)
        pixels = _center_crop(pixels, crop, recipe.crop_rounding)
    return pixels


def _resize(
    image: Image.Image,
    box: tuple[float, float, float, float],
    size: tuple[int, int],
    region: tuple[int, int, int, int],
    interpolation: str,
    out: NDArray[np.uint8] | None,
) -> NDArray[np.uint8]:
    """Return a region (top, left, height, width) of an image resized to `size`; channels last."""
    top, left, height, width = region
    if size != (image.height, image.width):
        if interpolation == "opencv-linear":
            return resize_opencv_linear(_pixels(image), *size)[top : top + height, left : left + width]
        if interpolation in FILTERS and image.mode == "RGB":
            planes = resample(_pixels(image), size, interpolation, region, box, out)
            if planes is not None:
                return planes.transpose(1, 2, 0)
        image = image.resize(size[::-1], _PILLOW[interpolation], box=box)
    return _channels_last(image)[top : top + height, left : left + width]


def _resized(height: int, width: int, recipe: Recipe) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the size after the resize step, and that of the image within it (they differ for "letterbox")."""
    size = recipe.size
    if recipe.resize == "shortest":
        short, long = sorted((height, width))
        longer = int(size * long / short)
        size = (size, longer) if height <= width else (longer, size)
        return size, size
    if recipe.resize == "squash":
        return size, size
    if recipe.resize == "letterbox":
        ratio = min(size[0] / height, size[1] / width)
        if not recipe.upscale:
            ratio = min(ratio, 1.0)
        return size, (max(1, round(height * ratio)), max(1, round(width * ratio)))
    return (height, width), (height, width)


def _pixels(image: Image.Image) -> NDArray[np.uint8]:
    """Return pixels for a resize: those of RGB where they lie, 4 bytes each, if Pillow shows them, else a copy."""
    if image.mode == "RGB":
        try:
            return np.asarray(_kernels.ArrowPixels(image.__arrow_c_array__()[1], image.height, image.width))
        except (AttributeError, ValueError):
            pass  # a Pillow before 11.3, or an image in several blocks of memory
    return _channels_last(image)


def _channels_last(image: Image.Image) -> NDArray[np.uint8]:
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _pad(pixels: NDArray[np.uint8], size: tuple[int, ...], value: tuple[int, ...]) -> NDArray[np.uint8]:
    """Put the image in the middle of `size`; an odd rest goes to the bottom and the right."""
    height, width, channels = pixels.shape
    if (height, width) == tuple(size):
        return pixels
    padded = np.empty((channels, *size), np.uint8).transpose(1, 2, 0)  # as the resize leaves it, and a shard wants it
    padded[:] = value
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    padded[top : top + height, left : left + width] = pixels
    return padded


def _corner(before: tuple[int, ...], size: tuple[int, int], rounding: str) -> tuple[int, int]:
    half = round if rounding == "half-even" else math.floor
    return half((before[0] - size[0]) / 2), half((before[1] - size[1]) / 2)


def _center_crop(pixels: NDArray[np.uint8], size: tuple[int, int], rounding: str) -> NDArray[np.uint8]:
    top, left = _corner(pixels.shape, size, rounding)
    return pixels[top : top + size[0], left : left + size[1]]
