"""From the bytes of an image file to upright 8-bit RGB or grey pixels; Pillow decodes, the policy is here.

Every way in which a file can be wrong is one `FormatError` that names it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import logging
import os
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import ExifTags, Image

from quantkit.errors import FormatError
from quantkit.files.shortage import raise_shortage

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from numpy.typing import NDArray

    Source = str | bytes | os.PathLike[str] | IO[bytes]

MAX_PIXELS = 89_478_485  # 256 MiB of RGB: where Pillow begins to warn of decompression bombs
SNIFF = 32  # bytes that `sniff` wants to see
_WHOLE = 1 << 24  # bytes; smaller files are read at once
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")

# What Pillow logs of a broken file, it raises as well; a program that has set up logging sees it all the same.
logging.getLogger("PIL").addHandler(logging.NullHandler())

_T = Image.Transpose
# EXIF orientation -> what turns the stored pixels upright
_UPRIGHT = {
    2: _T.FLIP_LEFT_RIGHT,
    3: _T.ROTATE_180,
    4: _T.FLIP_TOP_BOTTOM,
    5: _T.TRANSPOSE,
    6: _T.ROTATE_270,
    7: _T.TRANSVERSE,
    8: _T.ROTATE_90,
}
_DARK = 4096  # a 16-bit image without any value from here on would become almost black


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded image, and what its file said.

    Attributes
    ----------
    image : PIL.Image.Image
        Upright, mode "RGB" or "L".
    format : str
        One of `FORMATS`.
    size : (height, width)
        As stored, before the orientation is applied.
    mode : str
        Pillow's mode of the stored pixels, such as "CMYK" or "I;16".
    orientation : int
        EXIF orientation, 1 to 8; it has been applied.
    partial : bool
        Whether the file was cut short, and what is missing is black.
    reduced : int
        How many times smaller than the file says `image` was decoded: 1, or 2, 4, 8 in a draft.
    """

    image: Image.Image
    format: str
    size: tuple[int, int]
    mode: str
    orientation: int
    partial: bool = False
    reduced: int = 1


class Policy(NamedTuple):
    """What `decode_image` is told, see there."""

    color: str = "RGB"
    background: tuple[int, int, int] = (255, 255, 255)
    white: float | None = None
    max_pixels: int = MAX_PIXELS
    tolerant: bool = False
    least: Callable[[int, int], tuple[int, int] | None] | None = None


def sniff(prefix: bytes) -> str | None:
    """Return the format that the first `SNIFF` bytes of a file announce, or None. Names of files play no part."""
    if prefix.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if prefix.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if prefix.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if prefix[:4] == b"RIFF" and prefix[8:12] == b"WEBP":
        return "WEBP"
    if prefix.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
        return "TIFF"
    # "BM" alone begins many a text; the size of the second header tells.
    if prefix.startswith(b"BM") and int.from_bytes(prefix[14:18], "little") in {12, 40, 52, 56, 64, 108, 124}:
        return "BMP"
    if prefix[:1] == b"P" and prefix[1:2] in b"123456" and prefix[2:3] in b" \t\r\n" and len(prefix) > 2:
        return "PPM"
    if prefix[4:8] == b"ftyp" and prefix[8:12] in {b"avif", b"avis"}:
        return "AVIF"
    return None


def shown(source: Any) -> str:
    """Return the name of a source as error messages print it; bytes that are not UTF-8 as escapes."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return "<bytes>"
    if hasattr(source, "read"):
        source = getattr(source, "name", None)
        if not isinstance(source, (str, bytes)):
            return "<stream>"
    try:
        name = os.fsencode(source).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a lone surrogate, which no file system has
        return repr(source)
    return name if name.isprintable() else repr(name)


def decode_image(
    source: Source,
    *,
    color: str = "RGB",
    background: tuple[int, int, int] = (255, 255, 255),
    white: float | None = None,
    max_pixels: int = MAX_PIXELS,
    tolerant: bool = False,
    least: Callable[[int, int], tuple[int, int] | None] | None = None,
    frame: int = 0,
) -> Decoded:
    """Decode an image file by the policy of docs/images.md.

    Parameters
    ----------
    source : path-like, bytes or binary file
        Bytes are the content of a file, not its name.
    color : {"RGB", "BGR", "L"}
        "BGR" gives RGB pixels; who fills a tensor swaps them.
    background : (r, g, b), default white
        What lies behind transparent pixels.
    white : float, optional
        The value that becomes the brightest code in images deeper than 8 bits, see `Recipe`.
    max_pixels : int
        More than that is an error.
    tolerant : bool, default False
        Take what there is of a file that is cut short; the rest is black.
    least : callable, optional
        Given the upright (height, width) of a JPEG, the size that its draft must reach on both sides: it is decoded
        2, 4 or 8 times smaller as far as that allows.
    frame : int, default 0
        Which page or frame.

    Raises
    ------
    FormatError
        Naming the file: not readable, empty, of no known format, too large, cut short or broken, deeper than 8 bits
        with values that no rule covers.
    """
    policy = Policy(color, background, white, max_pixels, tolerant, least)
    with contextlib.closing(decode_frames(source, (frame,), policy)) as decoded:
        found = next(decoded)
    if isinstance(found, FormatError):
        raise found
    return found


def decode_frames(source: Source, frames: Iterable[int], policy: Policy) -> Generator[Decoded | FormatError]:
    """Yield some frames of one file, in rising order, or the error of each: the file is opened once.

    Raises
    ------
    FormatError
        When the file cannot be opened as an image.
    """
    name = shown(source)
    with _as_image(source, name, policy.max_pixels) as (image, form):
        for frame in frames:
            found: Decoded | FormatError
            try:
                found = _decode(name, image, form, frame, policy)
            except FormatError as e:
                found = e
            except Exception as e:  # Pillow raises nearly every class there is for broken files
                raise_shortage(name, e)
                found = _broken(name, form, e)
            yield found


def count_frames(source: Source) -> int:
    """Return how many frames or pages a file has; the previews that a JPEG may carry do not count.

    Raises
    ------
    FormatError
        When it cannot be opened as an image.
    """
    with _as_image(source, shown(source), None) as (image, form):
        return 1 if form == "JPEG" else max(1, int(getattr(image, "n_frames", 1)))


def _broken(name: str, form: str, error: Exception) -> FormatError:
    return FormatError(f"{name}: cannot be decoded as {form}: {str(error) or type(error).__name__}")


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[IO[bytes]]:
    if isinstance(source, (bytes, bytearray, memoryview)):
        yield io.BytesIO(source)
    elif isinstance(source, (str, os.PathLike)):
        with open(source, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            # Pillow takes a header in dozens of reads, between which threads would wait for each other.
            yield io.BytesIO(file.read(size + 1)) if 0 < size < _WHOLE else io.BufferedReader(file)
    else:
        yield source


@contextlib.contextmanager
def _as_image(source: Source, name: str, max_pixels: int | None) -> Iterator[tuple[Any, str]]:
    """Open a source as Pillow's image and the name of its format; errors become `FormatError`."""
    form = None
    try:
        with _opened(source) as file:
            start = file.tell()
            prefix = file.read(SNIFF)
            file.seek(start)
            if not prefix:
                raise FormatError(f"{name}: is empty")
            form = sniff(prefix)
            if form is None:
                raise FormatError(f"{name}: is not an image of a known format ({', '.join(FORMATS)})")
            # The plugin itself and not Image.open: that would try others, and its limit on pixels is the process's.
            with _plugin(name, form)(file, "") as image:
                if max_pixels is not None:
                    _check_pixels(name, image, max_pixels)
                yield image, form
    except FormatError:
        raise
    except Exception as e:
        raise_shortage(name, e)
        if form is not None:
            raise _broken(name, form, e) from e
        if isinstance(e, (OSError, ValueError)):  # ValueError: a name with a NUL byte or a lone surrogate
            raise FormatError(f"{name}: cannot be read: {e.strerror if isinstance(e, OSError) else e}") from e
        raise


def _check_pixels(name: str, image: Image.Image, max_pixels: int) -> None:
    if image.height * image.width > max_pixels:
        raise FormatError(f"{name}: {image.width} x {image.height} pixels are more than the limit of {max_pixels}")


def _decode(name: str, image: Any, form: str, frame: int, policy: Policy) -> Decoded:
    if frame or image.tell():
        try:
            image.seek(frame)
        except EOFError:
            raise FormatError(f"{name}: has no frame {frame}") from None
        _check_pixels(name, image, policy.max_pixels)  # pages may differ
    height, width = image.height, image.width
    if form == "TIFF":  # as stored: Pillow has swapped them already where the image lies on its side
        height, width = (image.tag_v2.get(tag, n) for tag, n in ((257, height), (256, width)))
    mode, orientation = image.mode, _orientation(name, image)
    reduced = _draft(image, orientation, policy.least) if policy.least is not None and form == "JPEG" else 1
    partial = _load(name, image, policy.tolerant)
    # TIFF turns itself while it loads, and then says 1.
    turn = _UPRIGHT.get(_orientation(name, image))
    # A JPEG's pixels without their file, and no copy of them; elsewhere the next frame may be drawn over these.
    pixels = image._new(image.im) if form == "JPEG" else _to_8_bit(name, image, form, policy.white)
    pixels = _to_color(pixels, "L" if policy.color == "L" else "RGB", policy.background)
    pixels = pixels if turn is None else pixels.transpose(turn)
    return Decoded(pixels, form, (height, width), mode, orientation, partial, reduced)


def _draft(image: Any, orientation: int, least: Callable[[int, int], tuple[int, int] | None]) -> int:
    """Have a JPEG decoded at a fraction of its size, not below `least`; return which fraction."""
    height, width = image.height, image.width
    wanted = least(width, height) if orientation >= 5 else least(height, width)
    if wanted is None or image.draft(None, wanted if orientation >= 5 else wanted[::-1]) is None:
        return 1
    return int(image.decoderconfig[0])


def _load(name: str, image: Any, tolerant: bool) -> bool:
    """Decode; return whether the file was cut short, which only `tolerant` allows."""
    try:
        image.load()
    except OSError as e:
        # Pillow's own switch for this is one for the process. It has decoded what it got into the image.
        if not (tolerant and "truncated" in str(e)):
            raise
        image.tile = []
        if not np.asarray(image).any():
            raise FormatError(f"{name}: is cut short before its first pixel") from None
        return True
    return False


def _plugin(name: str, form: str) -> Callable[[IO[bytes], str], Any]:
    if form not in Image.OPEN:
        Image.init()
    if form not in Image.OPEN:
        raise FormatError(f"{name}: the installed Pillow does not read {form}")
    if form == "TIFF":
        _quiet_libtiff()
    return Image.OPEN[form][0]


@functools.cache
def _quiet_libtiff() -> None:
    """Stop libtiff from printing its errors to stderr, as Pillow does with its warnings: each one is raised as well."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # a Pillow without it, or one that hides it
        library = ctypes.CDLL(vars(Image)["core"].__file__)
        library.TIFFSetErrorHandler(None)
        library.TIFFSetErrorHandlerExt(None)


def _orientation(name: str, image: Image.Image) -> int:
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception as e:  # a broken EXIF block says nothing about the pixels
        raise_shortage(name, e)
        return 1
    return value if value in _UPRIGHT else 1


def _to_8_bit(name: str, image: Image.Image, form: str, white: float | None) -> Image.Image:
    """Bring 16-bit, 32-bit and float grey to mode "L"; other modes have 8 bits already."""
    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image)
    low, high = values.min(), values.max()
    if not (np.isfinite(low) and np.isfinite(high) and low >= 0):
        raise FormatError(f"{name}: wanted pixel values >= 0, got {low} to {high}")
    # PNG and PPM end at 16 bits; some versions of Pillow widen them.
    is_16_bit = image.mode.startswith("I;16") or form in {"PNG", "PPM"}
    if white is None:
        if not is_16_bit:
            raise FormatError(
                f"{name}: nothing tells which value of mode {image.mode} is white; the recipe's white does"
            )
        if 0 < high < _DARK:
            raise FormatError(
                f"{name}: its brightest 16-bit value is {high}, so it would become almost black; say which value is "
                "white with the recipe's white (1023 for 10 bits, 4095 for 12; 65535 takes it as it is)"
            )
        white = 65535
    if high > white:
        raise FormatError(f"{name}: its brightest value is {high}, above the recipe's white of {white:g}")
    return Image.fromarray(_scale(values, white))


def _scale(values: NDArray[Any], white: float) -> NDArray[np.uint8]:
    """Map 0..white to 0..255: whole numbers to ``256 * v // (white + 1)`` (the high byte), floats to the nearest."""
    if values.dtype.kind in "iu" and float(white).is_integer():
        codes = values.astype(np.int64) * 256 // (int(white) + 1)
    else:
        codes = np.rint(values.astype(np.float64) * (255 / white))
    return codes.astype(np.uint8)


def _to_color(image: Image.Image, mode: str, background: tuple[int, int, int]) -> Image.Image:
    if image.has_transparency_data:
        # Convert alone would show the colours that lie hidden under transparent pixels.
        over = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", over.size, (*background, 255)), over)
    return image if image.mode == mode and type(image) is Image.Image else image.convert(mode)
