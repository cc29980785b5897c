import shutil

import pytest
from pictures import PHOTOS, picture, picture_folder
from PIL import Image

from quantkit.errors import FormatError
from quantkit.images.scan import scan_images


def test_a_scan_counts_what_is_there(tmp_path):
    source = picture_folder(tmp_path / "in", 6, broken={1})
    shutil.copy(source / "cat" / "0000.png", source / "dog" / "same.png")
    shutil.copy(PHOTOS / "coffee.jpg", source / "dog" / "really-a-jpeg.png")
    Image.new("L", (3, 2)).save(source / "dog" / "grey.bmp")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (5, 9)).save(source / "turned.jpg", exif=exif)
    (source / "notes.txt").write_text("text")
    (source / "empty").mkdir()
    told = []
    found = scan_images(source, streams=2, progress=lambda *args: told.append(args))
    assert found.images == 10
    assert found.bytes == sum(p.stat().st_size for p in source.rglob("*") if p.is_file() and p.suffix != ".txt")
    assert found.formats == {"PNG": 6, "JPEG": 2, "BMP": 1}
    assert found.modes == {"RGB": 8, "L": 1}
    assert found.sizes == {(16, 20): 6, (600, 400): 1, (3, 2): 1, (5, 9): 1}
    assert found.turned == 1
    assert found.misnamed == 1
    assert found.classes == {"cat": 3, "dog": 6, "empty": 0}
    assert list(found.broken) == ["cat/0001.png"]
    assert found.broken["cat/0001.png"].startswith("cannot be decoded as PNG")
    assert found.skipped == {"not an image": 1}
    assert found.duplicates == [["cat/0000.png", "dog/same.png"]]
    assert told[-1] == (10, 1, found.bytes)
    plain = found.to_dict()
    assert plain["sizes"] == {"16x20": 6, "600x400": 1, "3x2": 1, "5x9": 1}
    assert plain["schema"] == 1


def test_files_of_one_size_are_no_duplicates(tmp_path):
    for i in range(2):
        Image.new("L", (2, 2), i).save(tmp_path / f"{i}.bmp")
    assert (tmp_path / "0.bmp").stat().st_size == (tmp_path / "1.bmp").stat().st_size
    assert scan_images(tmp_path).duplicates == []


def test_a_limit_of_pixels(tmp_path):
    picture(tmp_path / "a.png", 0, (20, 16))
    assert list(scan_images(tmp_path, max_pixels=319).broken) == ["a.png"]
    assert scan_images(tmp_path, max_pixels=320).broken == {}


def test_a_missing_folder(tmp_path):
    with pytest.raises(FormatError, match="missing: cannot be listed"):
        scan_images(tmp_path / "missing")
