"""Every preset that Pillow resizes for, against torchvision's own transforms, where torchvision is installed."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from quantkit.images import PRESETS, get_recipe, read_codes, read_values

pytest.importorskip("torchvision", reason="torchvision is not installed", exc_type=ImportError)

from torchvision import transforms

PHOTOS = sorted((Path(__file__).parents[2] / "datasets" / "photos").iterdir())
PILLOW = [name for name, recipe in PRESETS.items() if recipe.resize == "shortest" and recipe.color == "RGB"]


def steps(recipe):
    mode = transforms.InterpolationMode(recipe.interpolation)
    return transforms.Compose([transforms.Resize(recipe.size, mode), transforms.CenterCrop(recipe.crop)])


def rotated_jpeg(size, seed):
    """Noise of (height, width) in a JPEG that lies on its side."""
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    noise = np.random.RandomState(seed).randint(0, 256, (*size, 3), np.uint8)
    Image.fromarray(noise).save(buffer, "JPEG", quality=90, exif=exif)
    return buffer.getvalue()


def test_the_presets_that_are_compared():
    assert PILLOW == ["imagenet", "imagenet-v2", "timm", "inception", "dpn", "clip"]


@pytest.mark.parametrize("name", PILLOW)
def test_no_pixel_and_no_value_differs(name):
    recipe = get_recipe(name)
    files = [path.read_bytes() for path in PHOTOS]
    files += [rotated_jpeg(size, i) for i, size in enumerate([(375, 500), (240, 240), (90, 400), (700, 301)])]
    for content in files:
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
        wanted = steps(recipe)(image)
        np.testing.assert_array_equal(read_codes(content, recipe), np.asarray(wanted).transpose(2, 0, 1))
        values = transforms.Normalize(recipe.mean, recipe.std)(transforms.ToTensor()(wanted)).numpy()
        np.testing.assert_array_equal(read_values(content, recipe), values)
