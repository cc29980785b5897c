"""The resize of our own against that of the installed Pillow: not one pixel may differ."""

import numpy as np
import pytest
from pictures import PHOTOS
from PIL import Image

from quantkit.images import Recipe, geometry
from quantkit.images.geometry import fit
from quantkit.images.resample import FILTERS, resample


def by_pillow(pixels, size, name):
    return np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling[name.upper()]))


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_random_sizes(isa, name):
    rng = np.random.default_rng(7)
    fast = 0
    for case in range(120):
        most = (6, 40, 200)[case % 3]
        height, width = (int(n) for n in rng.integers(1, most, 2))
        size = tuple(int(n) for n in rng.integers(1, (6, 60, 150)[case // 3 % 3], 2))
        pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
        if case % 4 == 0:
            pixels = np.where(pixels < 128, 0, 255).astype(np.uint8)
        top, left = (int(rng.integers(0, n)) for n in size)
        region = (top, left, int(rng.integers(1, size[0] - top + 1)), int(rng.integers(1, size[1] - left + 1)))
        made = resample(pixels, size, name, region)
        if made is None:
            assert height - size[0] > max(0, 2 * (width - size[1]))
            continue
        fast += 1
        whole = by_pillow(pixels, size, name)
        kept = whole[top : top + region[2], left : left + region[3]]
        np.testing.assert_array_equal(made.transpose(1, 2, 0), kept, err_msg=f"{pixels.shape} to {size}")
    assert fast > 60


@pytest.mark.parametrize("name", sorted(FILTERS))
@pytest.mark.parametrize("photo", sorted(p.name for p in PHOTOS.iterdir()))
@pytest.mark.parametrize("crop", [None, 224, (300, 100), 400])
@pytest.mark.parametrize("color", ["RGB", "BGR"])
def test_recipes_give_the_same_with_and_without(name, photo, crop, color, monkeypatch):
    recipes = [
        Recipe(resize="shortest", size=256, crop=crop, interpolation=name, color=color, pad=7),
        Recipe(resize="squash", size=(131, 257), crop=crop, interpolation=name, color=color, pad=7),
        Recipe(resize="letterbox", size=(200, 320), crop=crop, interpolation=name, color=color, pad=7),
    ]
    with Image.open(PHOTOS / photo) as file:
        image = file.convert("RGB")
    found = [fit(image, recipe) for recipe in recipes]
    monkeypatch.setattr(geometry, "FILTERS", frozenset())
    for ours, recipe in zip(found, recipes, strict=True):
        np.testing.assert_array_equal(ours, fit(image, recipe))
