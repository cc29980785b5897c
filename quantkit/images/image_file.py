"""One image file to a tensor, and back."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from quantkit.errors import InvalidArgument, InvalidDType, OutputError, ShapeMismatch
from quantkit.files import atomic_write
from quantkit.images.decode import MAX_PIXELS, decode_image
from quantkit.qparams import QParams
from quantkit.tensor import QTensor, empty
from quantkit.text import told

if TYPE_CHECKING:
    from quantkit.images.decode import Source

SUFFIX_FORMATS = {
    **dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif"), "JPEG"),
    **dict.fromkeys((".ppm", ".pgm", ".pnm"), "PPM"),
    **dict.fromkeys((".tif", ".tiff"), "TIFF"),
    **{".png": "PNG", ".webp": "WEBP", ".gif": "GIF", ".bmp": "BMP", ".avif": "AVIF"},
}
_NO_ALPHA = {"JPEG", "PPM", "GIF", "BMP"}


def read_image(
    source: Source,
    *,
    color: str = "RGB",
    background: tuple[int, int, int] = (255, 255, 255),
    white: float | None = None,
    max_pixels: int = MAX_PIXELS,
    frame: int = 0,
) -> QTensor:
    """Read an image file as a quint8 tensor of the values 0 to 1; its codes are the pixels.

    Parameters
    ----------
    source : path-like, bytes or binary file
        Decoded by the policy of docs/images.md, as are `background`, `white`, `max_pixels` and `frame`.
    color : {"RGB", "BGR", "L"}

    Returns
    -------
    QTensor
        Shape (height, width, channels), scale 1/255, zero point 0. ``.storage()`` is the storage of the pixels.

    Raises
    ------
    FormatError
        Naming the file, when it cannot be decoded.
    InvalidArgument
        For another `color`.
    """
    if color not in {"RGB", "BGR", "L"}:
        raise InvalidArgument(f"color must be RGB, BGR or L, got {color!r}")
    if not (isinstance(source, str | os.PathLike | bytes | bytearray | memoryview) or hasattr(source, "read")):
        raise InvalidDType(f"read_image: wanted a path, bytes or a binary file, got {told(source)}")
    image = decode_image(
        source, color=color, background=background, white=white, max_pixels=max_pixels, frame=frame
    ).image
    tensor = QTensor(empty(image.height, image.width, 1 if color == "L" else 3).storage(), QParams(1 / 255, 0))
    pixels = np.asarray(image).reshape(tensor.shape)
    np.asarray(tensor)[...] = pixels[..., ::-1] if color == "BGR" else pixels
    return tensor


def write_image(tensor: Any, path: str | os.PathLike[str], *, color: str = "RGB", quality: int = 95) -> None:
    """Write pixels to an image file, atomically; the suffix of its name tells the format.

    Parameters
    ----------
    tensor : QTensor, QUInt8Storage, Array or ndarray of uint8
        Shape (height, width) or (height, width, channels) with 1 (grey), 3 or 4 (with alpha) channels. The codes are
        the pixels, whatever scale and zero point make of them.
    path : path-like
        ``.png .bmp .tif .ppm`` keep every pixel, ``.jpg .webp .avif .gif`` do not.
    color : {"RGB", "BGR"}
        The order of the channels in `tensor`.
    quality : int, default 95
        1 to 100, for JPEG, WEBP and AVIF.

    Raises
    ------
    InvalidArgument
        For an unknown suffix, alpha in a format without, or another `color` or `quality`.
    InvalidDType, ShapeMismatch
        When `tensor` holds no 8-bit pixels, or has no shape of an image.
    OutputError
        Naming the path, when it cannot be written.
    """
    shown = os.fspath(path)
    form = SUFFIX_FORMATS.get(os.path.splitext(shown)[1].lower())
    if form is None:
        raise InvalidArgument(f"{shown}: wanted one of the suffixes {' '.join(SUFFIX_FORMATS)}")
    if color not in {"RGB", "BGR"}:
        raise InvalidArgument(f"color must be RGB or BGR, got {color!r}")
    if not 1 <= quality <= 100:
        raise InvalidArgument(f"quality must be 1 to 100, got {quality}")
    pixels = np.asarray(tensor)
    if pixels.dtype != np.uint8:
        raise InvalidDType(f"{shown}: an image has pixels of uint8, got {pixels.dtype}")
    shape = pixels.shape
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.ndim != 3 or pixels.shape[2] not in {1, 3, 4} or 0 in shape:
        raise ShapeMismatch(f"{shown}: wanted (height, width) or (height, width, 1, 3 or 4), got shape {shape}")
    if pixels.shape[2] == 4 and form in _NO_ALPHA:
        raise InvalidArgument(f"{shown}: {form} has no alpha, got shape {shape}")
    if color == "BGR" and pixels.shape[2] > 1:
        pixels = np.concatenate([pixels[..., 2::-1], pixels[..., 3:]], axis=2)
    pixels = np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    buffer = io.BytesIO()  # encoders write to descriptors of their own accord, and then no error names the path
    try:
        Image.fromarray(pixels).save(buffer, form, quality=quality)
    except Exception as e:  # a side longer than the format holds, or a format that this Pillow lacks
        raise OutputError(f"cannot write {shown}: {form}: {e}") from e
    with atomic_write(shown) as file:
        file.write(buffer.getbuffer())
