"""Image folders: find, decode, fit and quantize, by one recipe."""

from quantkit.images.decode import Decoded, decode_image
from quantkit.images.folder import ImageFolder
from quantkit.images.index import is_output
from quantkit.images.opened import ImageShards, open_images
from quantkit.images.path_table import PathTable
from quantkit.images.pipeline import look_up, read_codes, read_values
from quantkit.images.presets import PRESETS, get_recipe, recipe_names
from quantkit.images.process import ProcessResult, process_images
from quantkit.images.recipe import Recipe
from quantkit.images.scan import ScanResult, scan_images
from quantkit.images.tree import Found
from quantkit.images.walk import walk

__all__ = [
    "PRESETS",
    "Decoded",
    "Found",
    "ImageFolder",
    "ImageShards",
    "PathTable",
    "ProcessResult",
    "Recipe",
    "ScanResult",
    "decode_image",
    "get_recipe",
    "is_output",
    "look_up",
    "open_images",
    "process_images",
    "read_codes",
    "read_values",
    "recipe_names",
    "scan_images",
    "walk",
]
