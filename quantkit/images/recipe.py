"""`Recipe`: every step from an image file to a model's input, in one frozen value.

A recipe says which pixels the model sees (decoding, geometry, colour) and what value each pixel code stands for::

    x = (p / divide - mean) / std          in float32, in this order, per channel

Codes are uint8, so a channel has only 256 values: `Recipe.table` holds them, and the pixels themselves are a quantized
tensor with the parameters of `Recipe.qparams`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit.errors import InvalidArgument
from quantkit.images.frames import check_frames
from quantkit.qparams import QParams

if TYPE_CHECKING:
    from numpy.typing import NDArray

VERSION = 1
RESIZES = ("shortest", "squash", "letterbox", "none")
CROP_ROUNDINGS = ("half-even", "floor")
INTERPOLATIONS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos", "opencv-linear")
COLORS = ("RGB", "BGR", "L")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How an image file becomes a model's input.

    Parameters
    ----------
    name : str, default "custom"
        A label; it takes no part in comparisons and in `hash`.
    resize : {"shortest", "squash", "letterbox", "none"}
        "shortest": the shorter side becomes `size`, the longer one ``int(size * long / short)``. "squash": to `size`,
        whatever the proportions. "letterbox": the largest that fits into `size` at its own proportions, the rest
        filled with `pad`. "none": as it comes.
    size : int or (height, width), optional
        An int for "shortest", a pair for "squash" and "letterbox" (an int is a square), None for "none".
    crop : int or (height, width), optional
        Centre crop after the resize; an image that is smaller is first padded with `pad`, evenly.
    crop_rounding : {"half-even", "floor"}
        How the crop's corner ``(image - crop) / 2`` becomes whole: as torchvision does, or as transformers does.
    interpolation : str
        Pillow's "nearest", "box", "bilinear", "hamming", "bicubic", "lanczos", which all smooth while they shrink, or
        "opencv-linear", which does not: OpenCV's INTER_LINEAR, equal to the last bit.
    upscale : bool, default True
        Whether "letterbox" may enlarge.
    color : {"RGB", "BGR", "L"}
        Channels and their order; "L" is grey.
    divide : float
        What pixel codes are divided by: 255, or 1.
    mean, std : float or sequence of float
        For each channel, in the order of `color`, in units of ``p / divide``. One value stands for all channels.
    pad : int or sequence of int
        Pixel code of the filling, for each channel.
    background : int or (r, g, b), default white
        What lies behind transparent pixels.
    white : float, optional
        The value that becomes the brightest code in images deeper than 8 bits. None: 65535 for 16-bit grey, and an
        error for 32-bit integers and floats, whose range nothing tells.
    frames : "first", "all", int or "every:k"
        Which frames or pages of a file are images. A number n: n of them spread evenly over the file.
    draft : float, optional
        Decode JPEG files 2, 4 or 8 times smaller, as long as both sides stay at least this many times what the resize
        makes of them: faster, and other pixels. 1 or more; None decodes them whole.
    tolerant : bool, default False
        Take what there is of a file that is cut short; the rest is black. False: it fails.

    Raises
    ------
    InvalidArgument
        Naming the field, what was wanted and what came.
    """

    name: str = dataclasses.field(default="custom", compare=False)
    resize: str = "none"
    size: Any = None
    crop: Any = None
    crop_rounding: str = "half-even"
    interpolation: str = "bilinear"
    upscale: bool = True
    color: str = "RGB"
    divide: float = 255.0
    mean: Any = 0.0
    std: Any = 1.0
    pad: Any = 0
    background: Any = 255
    white: float | None = None
    frames: Any = "first"
    draft: float | None = None
    tolerant: bool = False

    def __post_init__(self) -> None:
        def put(field: str, value: Any) -> None:
            object.__setattr__(self, field, value)

        if not isinstance(self.name, str):
            raise _bad("name", "text", self.name)
        for field, choices in (
            ("resize", RESIZES),
            ("crop_rounding", CROP_ROUNDINGS),
            ("interpolation", INTERPOLATIONS),
            ("color", COLORS),
        ):
            if getattr(self, field) not in choices:
                raise _bad(field, f"one of {', '.join(choices)}", getattr(self, field))
        for field in ("upscale", "tolerant"):
            if not isinstance(getattr(self, field), bool):
                raise _bad(field, "true or false", getattr(self, field))
        put("frames", check_frames(self.frames))
        if self.resize == "none":
            if self.size is not None:
                raise _bad("size", 'none, because resize is "none"', self.size)
        elif self.resize == "shortest":
            side = _pair("size", self.size)
            if side[0] != side[1]:
                raise _bad("size", 'one number, because resize is "shortest"', self.size)
            put("size", side[0])
        else:
            put("size", _pair("size", self.size))
        put("crop", None if self.crop is None else _pair("crop", self.crop))
        for field in ("mean", "std"):
            put(field, _floats(field, getattr(self, field), self.channels))
        put("pad", _codes("pad", self.pad, self.channels))
        put("background", _codes("background", self.background, 3))
        put("divide", _floats("divide", self.divide, 1)[0])
        if self.white is not None:
            put("white", _floats("white", self.white, 1)[0])
        if self.draft is not None:
            put("draft", _floats("draft", self.draft, 1)[0])
            if self.draft < 1 or self.resize == "none":
                raise _bad("draft", "a number from 1 on, with a resize", self.draft)
        for field in ("divide", "white", "std"):
            values = getattr(self, field)
            if values is not None and not np.all(np.float32(values) > 0):
                raise _bad(field, "a number > 0", values)

    # ---------------------------------------------------------------------------------------------- shape

    @property
    def channels(self) -> int:
        """1 for grey, else 3."""
        return 1 if self.color == "L" else 3

    @property
    def output_size(self) -> tuple[int, int] | None:
        """(height, width) of every output, or None where it depends on the image."""
        size: tuple[int, int] | None = self.crop
        if size is None and self.resize in {"squash", "letterbox"}:
            size = self.size
        return size

    def with_output_size(self, height: int, width: int) -> Recipe:
        """Return this recipe for a model with inputs of another size.

        A "shortest" resize with a crop keeps the share of the image that the crop sees; "none" becomes "squash".
        """
        target = _pair("output size", (height, width))
        if self.output_size == target:
            return self
        if self.resize in {"none", "squash"} or self.crop is None:
            if self.resize == "shortest":
                return self.replace(size=max(target), crop=target)
            return self.replace(resize="squash" if self.resize == "none" else self.resize, size=target, crop=None)
        if self.resize == "shortest":
            # The crop must fit, also one that is not square.
            share = self.size / max(self.crop)
            return self.replace(size=max(*target, math.floor(max(target) * share)), crop=target)
        return self.replace(size=target, crop=None)

    # ---------------------------------------------------------------------------------------------- values

    def table(self) -> NDArray[np.float32]:
        """Return what each pixel code stands for: float32 of shape (channels, 256)."""
        codes = np.arange(256, dtype=np.float32)
        mean, std = (np.array(v, np.float32)[:, None] for v in (self.mean, self.std))
        values: NDArray[np.float32] = (codes / np.float32(self.divide) - mean) / std
        return values

    def qparams(self, axis: int = 0) -> QParams:
        """Return scale and zero point of the pixels: ``scale = 1 / (divide * std)``, ``zero_point = divide * mean``.

        Parameters
        ----------
        axis : int, default 0
            The channel axis of the tensor: 0 for CHW, 1 for NCHW, 2 for HWC.

        Returns
        -------
        QParams
            Per tensor where all channels agree, else per channel. The zero point is an integer where every channel's
            is a whole code, else float32.
        """
        divide, mean, std = self.divide, np.array(self.mean), np.array(self.std)
        scale, zero_point = (1 / (divide * std)).astype(np.float32), (divide * mean).astype(np.float32)
        whole = np.rint(zero_point)
        if np.array_equal(whole, zero_point) and whole.min() >= 0 and whole.max() <= 255:
            zero_point = whole.astype(np.int32)
        if len(set(zip(scale.tolist(), zero_point.tolist(), strict=True))) == 1:
            return QParams(scale[0], zero_point[0])
        return QParams(scale, zero_point, axis)

    def integer_qparams(self, axis: int = 0) -> tuple[QParams, float]:
        """Return `qparams` with the zero point rounded to a code, and the largest error that brings, in real units.

        Raises
        ------
        InvalidArgument
            When a zero point lies outside of the codes 0 to 255.
        """
        exact = self.qparams(axis)
        zero_point = np.asarray(exact.zero_point, np.float64)
        rounded = np.rint(zero_point)
        if rounded.min() < 0 or rounded.max() > 255:
            raise _bad("mean", "zero points divide * mean in 0..255 for an integer zero point", self.mean)
        error = np.abs(rounded - zero_point) * np.asarray(exact.scale, np.float64)
        return QParams(exact.scale, rounded.astype(np.int32), exact.axis), float(error.max())

    # ---------------------------------------------------------------------------------------------- text

    def replace(self, **changes: Any) -> Recipe:
        """Return a copy with some fields changed. A `resize` of "none" drops `size` unless that is given too.

        Raises
        ------
        InvalidArgument
            For an unknown field (listing those there are) or a value it cannot take.
        """
        _check_fields(changes)
        if changes.get("resize") == "none":
            changes = {"size": None, **changes}
        if "color" in changes and changes["color"] == "L":
            # Values that all channels share carry over; others must be said anew.
            for field in ("mean", "std", "pad"):
                values = changes.setdefault(field, getattr(self, field))
                if isinstance(values, tuple) and len(set(values)) == 1:
                    changes[field] = values[0]
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, and the version of their meaning, as JSON types."""
        return {"version": VERSION, **{f: _plain(getattr(self, f)) for f in FIELDS}}

    def to_json(self) -> str:
        """Return the recipe as one line of JSON, which `from_json` takes."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str | bytes | Mapping[str, Any]) -> Recipe:
        """Return the recipe that `to_json` wrote; fields left out have their defaults.

        Raises
        ------
        InvalidArgument
            When the text is not JSON, or holds an unknown field, version or value.
        """
        if not isinstance(text, Mapping):
            try:
                text = json.loads(text)
            except (ValueError, RecursionError) as e:
                raise InvalidArgument(f"recipe: wanted JSON, got {_short(text)}: {e}") from None
            if not isinstance(text, dict):
                raise InvalidArgument(f"recipe: wanted a JSON object, got {_short(text)}")
        fields = dict(text)
        version = fields.pop("version", VERSION)
        if version != VERSION:
            raise _bad("version", f"{VERSION}", version)
        _check_fields(fields)
        return cls(**fields)

    @property
    def hash(self) -> str:
        """SHA-256 in hex of all that changes the output: every field but the name.

        Fields at their defaults take no part, so that a field added later leaves the hashes of older recipes alone.
        """
        plain = Recipe(color=self.color).to_dict()
        fields = {f: v for f, v in self.to_dict().items() if v != plain[f] or f in {"version", "color"}}
        fields.pop("name", None)
        return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


FIELDS = tuple(f.name for f in dataclasses.fields(Recipe))


def _check_fields(fields: Mapping[str, Any]) -> None:
    for field in fields:
        if field not in FIELDS:
            raise InvalidArgument(f"recipe: no field {field!r}; there are {', '.join(FIELDS)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _bad(field: str, wanted: str, got: Any) -> InvalidArgument:
    return InvalidArgument(f"recipe: {field} must be {wanted}, got {_short(got)}")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes))


def _pair(field: str, value: Any) -> tuple[int, int]:
    values = list(value) if _is_sequence(value) else [value] * 2
    whole = all(isinstance(v, numbers.Integral) and not isinstance(v, bool) for v in values)
    if len(values) != 2 or not whole or not all(1 <= v <= 65535 for v in values):
        raise _bad(field, "a number of pixels or (height, width), each 1 to 65535", value)
    return int(values[0]), int(values[1])


def _floats(field: str, value: Any, channels: int) -> tuple[float, ...]:
    values = list(value) if _is_sequence(value) else [value] * channels
    values = values * channels if len(values) == 1 else values
    real = all(isinstance(v, numbers.Real) and not isinstance(v, bool) for v in values)
    with np.errstate(over="ignore"):
        if len(values) != channels or not real or not np.isfinite(np.array(values, np.float32)).all():
            raise _bad(field, f"{channels} finite numbers" if channels > 1 else "a finite number", value)
    return tuple(float(v) for v in values)


def _codes(field: str, value: Any, channels: int) -> tuple[int, ...]:
    values = _floats(field, value, channels)
    if not all(v.is_integer() and 0 <= v <= 255 for v in values):
        raise _bad(field, "pixel codes, whole numbers 0 to 255", value)
    return tuple(int(v) for v in values)
