"""The recipes by name, and the one door for whatever a user may name a recipe by."""

from __future__ import annotations

import os
from typing import Any

from quantkit.errors import InvalidArgument
from quantkit.images.configs import load_recipe
from quantkit.images.recipe import Recipe

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet

PRESETS: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        # torchvision, weights V1 and V2
        Recipe(name="imagenet", resize="shortest", size=256, crop=224, mean=_MEAN, std=_STD),
        Recipe(name="imagenet-v2", resize="shortest", size=232, crop=224, mean=_MEAN, std=_STD),
        # timm's defaults: crop_pct 0.875, bicubic
        Recipe(name="timm", resize="shortest", size=256, crop=224, interpolation="bicubic", mean=_MEAN, std=_STD),
        Recipe(name="inception", resize="shortest", size=341, crop=299, interpolation="bicubic", mean=0.5, std=0.5),
        Recipe(
            name="dpn",
            resize="shortest",
            size=256,
            crop=224,
            interpolation="bicubic",
            mean=(124 / 255, 117 / 255, 104 / 255),
            std=1 / (0.0167 * 255),
        ),
        Recipe(
            name="clip",
            resize="shortest",
            size=224,
            crop=224,
            interpolation="bicubic",
            mean=(0.48145466, 0.4578275, 0.40821073),
            std=(0.26862954, 0.26130258, 0.27577711),
        ),
        # Caffe's models, and keras' mode "caffe": no division
        Recipe(
            name="caffe",
            resize="shortest",
            size=256,
            crop=224,
            color="BGR",
            divide=1,
            mean=(103.939, 116.779, 123.68),
        ),
        Recipe(name="yolo", resize="letterbox", size=640, interpolation="opencv-linear", pad=114),
        # Values 0..1, and the plain codes 0..255; the geometry is the caller's
        Recipe(name="unit"),
        Recipe(name="raw", divide=1),
    )
}


def recipe_names() -> tuple[str, ...]:
    """Return the names that `get_recipe` knows."""
    return tuple(PRESETS)


def get_recipe(source: str | os.PathLike[str] | Recipe, **changes: Any) -> Recipe:
    """Return a recipe by name or from a file, with some fields changed.

    Parameters
    ----------
    source : str, path-like or Recipe
        The name of a preset; or a JSON file (a recipe, a Hugging Face ``preprocessor_config.json`` or a timm
        ``config.json``), or a folder that holds one of the latter two.
    **changes
        Fields of `Recipe`.

    Raises
    ------
    InvalidArgument
        For an unknown name (listing the presets) or field.
    FormatError
        When the file cannot be read or holds no recipe.
    """
    if isinstance(source, Recipe):
        recipe = source
    elif isinstance(source, str) and source in PRESETS:
        recipe = PRESETS[source]
    elif isinstance(source, (str, os.PathLike)) and (os.path.exists(source) or os.fspath(source).endswith(".json")):
        recipe = load_recipe(source)
    else:
        raise InvalidArgument(f"no preset {source!r}; there are {', '.join(PRESETS)}, or give a .json file")
    return recipe.replace(**changes) if changes else recipe
