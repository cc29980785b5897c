"""A contact sheet: what a model will see of a source."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw

from quantkit.errors import FormatError, InvalidArgument
from quantkit.images.decode import MAX_PIXELS, shown
from quantkit.images.folder import ImageFolder
from quantkit.images.image_file import write_image
from quantkit.images.pipeline import read_pixels
from quantkit.images.source_files import open_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CELL, _GAP, _CAPTION = 160, 6, 14  # pixels
_PAPER, _INK, _BROKEN = (255, 255, 255), (40, 40, 40), (176, 32, 32)


def contact_sheet(
    source: Any,
    path: str | os.PathLike[str],
    *,
    preset: Any = "imagenet",
    count: int = 48,
    seed: int = 0,
    max_pixels: int = MAX_PIXELS,
) -> list[str]:
    """Write a picture of some images as a recipe makes them, each with its name; broken ones with the reason.

    Parameters
    ----------
    source : path-like, or iterable of path-like
    path : path-like
        The picture; its suffix tells the format.
    preset : str, path-like or Recipe, default "imagenet"
    count : int, default 48
        Images, chosen evenly over the classes.
    seed : int, default 0
    max_pixels : int

    Returns
    -------
    list of str
        The paths shown, in order.

    Raises
    ------
    FormatError, InvalidArgument, OutputError
        When there is no image; for a count below 1; when the picture cannot be written.
    """
    if count < 1:
        raise InvalidArgument(f"a contact sheet shows at least 1 image, got {count}")
    folder = ImageFolder(source, preset)
    chosen = folder.sample(count, seed)
    columns = max(1, math.ceil(math.sqrt(len(chosen) * 1.5)))
    lines = math.ceil(len(chosen) / columns)
    step = _CELL + _GAP
    sheet = Image.new("RGB", (columns * step + _GAP, lines * (step + _CAPTION) + _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    names = []
    for k, i in enumerate(chosen.tolist()):
        left, top = _GAP + k % columns * step, _GAP + k // columns * (step + _CAPTION)
        name = folder.paths[i]
        names.append(name)
        try:
            pixels, _ = read_pixels(open_file(name), folder.recipe, max_pixels=max_pixels)
            picture = _thumbnail(pixels, folder.recipe.color)
            sheet.paste(picture, (left + (_CELL - picture.width) // 2, top + (_CELL - picture.height) // 2))
        except FormatError as e:
            draw.rectangle((left, top, left + _CELL - 1, top + _CELL - 1), outline=_BROKEN)
            reason = str(e).removeprefix(f"{shown(name)}: ")
            for line in range(6):
                _text(draw, (left + 4, top + 4 + 12 * line), reason[line * 24 : line * 24 + 24], _BROKEN)
        label = int(folder.labels[i])
        title = os.path.basename(name) if label < 0 else f"{folder.classes[label]}: {os.path.basename(name)}"
        _text(draw, (left, top + _CELL), title if len(title) <= 26 else f"{title[:12]}..{title[-12:]}", _INK)
    write_image(np.asarray(sheet), path)
    return names


def _thumbnail(pixels: NDArray[np.uint8], color: str) -> Image.Image:
    """Return the pixels at the size of a cell: small ones enlarged without smoothing, so that each can be seen."""
    if color == "BGR":
        pixels = pixels[..., ::-1]
    picture = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)).convert("RGB")
    ratio = _CELL / max(picture.size)
    size = max(1, round(picture.width * ratio)), max(1, round(picture.height * ratio))
    return picture.resize(size, Image.Resampling.NEAREST if ratio > 1 else Image.Resampling.BOX)


def _text(draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, color: tuple[int, int, int]) -> None:
    # The font that every Pillow has knows Latin-1 only.
    draw.text(place, text.encode("latin-1", "replace").decode("latin-1"), fill=color)
