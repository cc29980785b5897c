"""Image folders: find, decode, fit and quantize, by one recipe."""

from quantkit.images.decode import Decoded, decode_image
from quantkit.images.folder import ImageFolder
from quantkit.images.pipeline import read_codes, read_values
from quantkit.images.presets import PRESETS, get_recipe, recipe_names
from quantkit.images.recipe import Recipe
from quantkit.images.walk import Found, PathTable, walk

__all__ = [
    "PRESETS",
    "Decoded",
    "Found",
    "ImageFolder",
    "PathTable",
    "Recipe",
    "decode_image",
    "get_recipe",
    "read_codes",
    "read_values",
    "recipe_names",
    "walk",
]
