"""Make datasets/photos: three photographs that scikit-image carries, all in the public domain.

    pip install pillow scikit-image
    python datasets/make_photos.py

Two are stored as JPEG (4:2:0 and 4:4:4 chroma), one losslessly. Nothing is random; other versions of Pillow's JPEG
encoder may give other bytes.
"""

from pathlib import Path

import skimage
from PIL import Image

HERE = Path(__file__).resolve().parent / "photos"
SOURCE = Path(skimage.__file__).parent / "data"
PHOTOS = {
    "astronaut.jpg": ("astronaut.png", {"quality": 90, "subsampling": "4:2:0", "optimize": True}),
    "coffee.jpg": ("coffee.png", {"quality": 92, "subsampling": "4:4:4", "optimize": True, "progressive": True}),
    "chelsea.png": ("chelsea.png", {"optimize": True}),
}


def main() -> None:
    HERE.mkdir(parents=True, exist_ok=True)
    for name, (source, options) in PHOTOS.items():
        with Image.open(SOURCE / source) as image:
            image.convert("RGB").save(HERE / name, **options)


if __name__ == "__main__":
    main()
