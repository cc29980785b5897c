"""Recipes from the configuration files that models travel with: transformers' and timm's."""

from __future__ import annotations

import json
import math
import os
from typing import Any, NoReturn

from quantkit.errors import FormatError, InvalidArgument
from quantkit.images.recipe import Recipe

FILES = ("preprocessor_config.json", "config.json")
# PIL.Image.Resampling, by number
_RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
# Steps that would change what the model sees, and that a recipe has no field for.
_UNKNOWN_STEPS = (
    "do_pad",
    "do_thumbnail",
    "do_align_long_axis",
    "do_color_quantize",
    "do_image_splitting",
    "rescale_offset",
    "include_top",
)
# Image processors with rules of their own for what `size` and `crop_pct` mean.
_OWN_RULES = ("Levit", "PoolFormer", "Perceiver", "EfficientFormer")


def load_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe from a JSON file of ours, of transformers or of timm, or from the folder of such a model.

    Raises
    ------
    FormatError
        Naming the file, and the key that is at fault.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        found = [f for name in FILES if os.path.isfile(f := os.path.join(path, name))]
        if not found:
            raise FormatError(f"{path}: holds no {' and no '.join(FILES)}")
        path = found[0]
    try:
        with open(path, "rb") as file:
            config = json.loads(file.read())
    except OSError as e:
        raise FormatError(f"{path}: cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise FormatError(f"{path}: is not JSON: {e}") from None
    if not isinstance(config, dict):
        raise FormatError(f"{path}: wanted a JSON object")
    try:
        if "quantkit.recipe" in config:
            return Recipe.from_json(config["quantkit.recipe"])
        if "resize" in config or "divide" in config:
            return Recipe.from_json(config)
        if any(key in config for key in ("image_processor_type", "feature_extractor_type", "do_resize", "image_mean")):
            return from_transformers(config)
        if "pretrained_cfg" in config or "input_size" in config:
            return from_timm(config)
    except InvalidArgument as e:
        raise FormatError(f"{path}: {e}") from None
    raise FormatError(f"{path}: wanted a recipe, or transformers' or timm's preprocessing; none of their keys is there")


def from_transformers(config: dict[str, Any]) -> Recipe:
    """Return the recipe of a Hugging Face ``preprocessor_config.json``.

    Raises
    ------
    InvalidArgument
        For a step that a recipe cannot hold, such as padding to the largest image of a batch.
    """
    for step in _UNKNOWN_STEPS:
        if config.get(step):
            _cannot(step, config[step])
    kind = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "transformers")
    if kind.startswith(_OWN_RULES):
        _cannot("image_processor_type", kind)
    fields: dict[str, Any] = {"name": kind, "crop_rounding": "floor"}
    crop = config.get("crop_size")
    if _flag(config, "do_resize", True):
        fields |= _transformers_size(config)
        number = config.get("resample")  # every processor has another default, so it must be said
        if type(number) is not int or not 0 <= number < len(_RESAMPLE):
            _cannot("resample", number)
        fields["interpolation"] = _RESAMPLE[number]
    if _flag(config, "do_center_crop", crop is not None) and "crop" not in fields:
        fields["crop"] = _height_width("crop_size", crop)
    fields["divide"] = 1.0
    if _flag(config, "do_rescale", True):
        factor = config.get("rescale_factor", 1 / 255)
        if not isinstance(factor, (int, float)) or not factor > 0:
            _cannot("rescale_factor", factor)
        fields["divide"] = _nearly_whole(1 / factor)
    if _flag(config, "do_normalize", config.get("image_mean") is not None):
        if config.get("image_mean") is None or config.get("image_std") is None:
            _cannot("do_normalize", "normalization without image_mean and image_std")
        fields |= {"mean": config["image_mean"], "std": config["image_std"]}
    if config.get("do_flip_channel_order"):
        fields["color"] = "BGR"
    elif _length(fields.get("mean")) == 1 or config.get("do_grayscale"):
        fields["color"] = "L"
    return Recipe(**fields)


def _transformers_size(config: dict[str, Any]) -> dict[str, Any]:
    size = config.get("size")
    crop_pct = config.get("crop_pct")
    if isinstance(size, int):
        # Old files: one number is the shorter side where a crop follows, else a square.
        keep = _flag(config, "do_center_crop", config.get("crop_size") is not None) or crop_pct is not None
        size = {"shortest_edge": size} if keep else {"height": size, "width": size}
    if not isinstance(size, dict):
        _cannot("size", size)
    if size.get("height") is not None:
        return {"resize": "squash", "size": _height_width("size", size)}
    short = size.get("shortest_edge")
    if not isinstance(short, int) or size.get("longest_edge") is not None:
        _cannot("size", size)
    if crop_pct is not None:  # ConvNeXT: a crop below 384, the whole image squashed from there on
        if short >= 384:
            return {"resize": "squash", "size": short}
        return {"resize": "shortest", "size": int(short / _share(crop_pct)), "crop": short}
    return {"resize": "shortest", "size": short}


def from_timm(config: dict[str, Any]) -> Recipe:
    """Return the evaluation recipe of a timm ``config.json``.

    Raises
    ------
    InvalidArgument
        For a value that a recipe cannot hold.
    """
    cfg = config.get("pretrained_cfg", config)
    if not isinstance(cfg, dict):
        _cannot("pretrained_cfg", cfg)
    size = cfg.get("input_size", [3, 224, 224])
    if _length(size) != 3 or not all(type(n) is int for n in size) or size[0] not in {1, 3}:
        _cannot("input_size", size)
    crop_pct, mode = _share(cfg.get("crop_pct") or 0.875), cfg.get("crop_mode") or "center"
    crop = (size[1], size[2])
    scaled = tuple(math.floor(n / crop_pct) for n in crop)
    fields: dict[str, Any] = {
        "name": str(config.get("architecture", cfg.get("architecture", "timm"))),
        "crop": crop,
        "interpolation": cfg.get("interpolation", "bicubic"),
        "mean": cfg.get("mean", (0.485, 0.456, 0.406)),
        "std": cfg.get("std", (0.229, 0.224, 0.225)),
        "color": "L" if size[0] == 1 else "RGB",
    }
    if mode == "center":
        if crop[0] != crop[1]:
            _cannot("crop_mode", f"center with an input of {crop[0]}x{crop[1]}, which is not square")
        fields |= {"resize": "shortest", "size": scaled[0]}
    elif mode == "squash":
        fields |= {"resize": "squash", "size": scaled}
    elif mode == "border" and scaled == crop:
        pad = [round(255 * v) for v in fields["mean"]]
        fields |= {"resize": "letterbox", "size": crop, "crop": None, "pad": pad}
    else:
        _cannot("crop_mode", mode if scaled == crop else f"{mode} with crop_pct {crop_pct}")
    return Recipe(**fields)


def _cannot(key: str, value: Any) -> NoReturn:
    raise InvalidArgument(f"{key}: no recipe for {value!r:.80}")


def _flag(config: dict[str, Any], key: str, default: bool) -> bool:
    value = config.get(key)  # newer files say null for "the default"
    return default if value is None else bool(value)


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, (list, tuple)) else None


def _share(value: Any) -> float:
    if not isinstance(value, (int, float)) or not 0 < value <= 1:
        _cannot("crop_pct", value)
    return float(value)


def _height_width(key: str, value: Any) -> tuple[Any, Any]:
    if isinstance(value, dict) and set(value) >= {"height", "width"}:
        return value["height"], value["width"]
    if type(value) is int:
        return value, value
    return _cannot(key, value)


def _nearly_whole(value: float) -> float:
    """255.00000000000003, which comes of a rescale_factor written in decimals, is meant to be 255."""
    return float(round(value)) if math.isclose(value, round(value), rel_tol=1e-6) else value
