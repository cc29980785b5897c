"""Small folders of images for tests, and the bytes of an output folder."""

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image

PHOTOS = Path(__file__).parents[1] / "datasets" / "photos"
DIGITS = Path(__file__).parents[1] / "datasets" / "digits"


def picture(path, number, size=(20, 16)):
    """Write a PNG whose pixels depend on `number`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def picture_folder(root, count=10, broken=(), classes=("cat", "dog")):
    """Write `count` PNGs in class folders, in the order of their numbers; those in `broken` cannot be decoded."""
    for i in range(count):
        path = root / classes[i * len(classes) // count] / f"{i:04d}.png"
        picture(path, i)
        if i in broken:
            path.write_bytes(path.read_bytes()[:60])
    return root


def contents(folder):
    """Relative path -> SHA-256 of every file."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
