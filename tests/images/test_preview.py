import numpy as np
import pytest
from pictures import DIGITS, PHOTOS, picture_folder
from PIL import Image

from quantkit.errors import FormatError, InvalidArgument
from quantkit.images.preview import contact_sheet


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def test_a_small_image_is_shown_pixel_by_pixel(tmp_path):
    path = tmp_path / "sheet.png"
    shown = contact_sheet([DIGITS / "test" / "3" / "1438.png"], path, preset="unit")
    assert shown == [str(DIGITS / "test" / "3" / "1438.png")]
    sheet, digit = pixels(path), pixels(shown[0])
    # A cell of 160 pixels behind a gap of 6: each pixel of the digit is a square of 20.
    np.testing.assert_array_equal(sheet[6:166, 6:166], digit.repeat(20, 0).repeat(20, 1))


def test_colours_are_those_of_the_photograph_for_bgr_too(tmp_path):
    for preset in ("imagenet", "caffe"):
        contact_sheet([PHOTOS / "coffee.jpg"], tmp_path / f"{preset}.png", preset=preset)
    assert (tmp_path / "imagenet.png").read_bytes() == (tmp_path / "caffe.png").read_bytes()


def test_broken_images_are_shown_as_such_and_classes_evenly(tmp_path):
    source = picture_folder(tmp_path / "in", 10, broken={0})
    shown = contact_sheet(source, tmp_path / "sheet.png", preset="unit", count=6)
    assert len(shown) == 6
    assert sum("/cat/" in name for name in shown) == 3
    contact_sheet([source / "cat" / "0000.png"], tmp_path / "broken.png", preset="unit")
    assert pixels(tmp_path / "broken.png")[6, 6].tolist() == [176, 32, 32]


def test_bad_arguments(tmp_path):
    with pytest.raises(InvalidArgument, match="at least 1 image, got 0"):
        contact_sheet(PHOTOS, tmp_path / "a.png", count=0)
    with pytest.raises(InvalidArgument, match="wanted one of the suffixes"):
        contact_sheet(PHOTOS, tmp_path / "a.txt")
    with pytest.raises(FormatError, match="cannot be listed"):
        contact_sheet(tmp_path / "missing", tmp_path / "a.png")
