"""JPEG drafts: decoded smaller, with the geometry of the whole image; and files that are cut short."""

import io

import numpy as np
import pytest
from pictures import PHOTOS
from PIL import Image

import quantkit as qk
from quantkit.errors import FormatError, InvalidArgument
from quantkit.images import Recipe, decode_image, get_recipe, read_codes


def jpeg(width, height, orientation=1, mode="RGB"):
    with Image.open(PHOTOS / "astronaut.jpg") as photo:
        image = photo.convert(mode).resize((width, height), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90, exif=exif)
    return file.getvalue()


@pytest.mark.parametrize(("least", "reduced"), [(1, 4), (1.5, 2), (2, 2), (3, 1), (4.1, 1)])
def test_how_far_a_draft_goes(least, reduced):
    data = jpeg(1000, 900)  # resized to 284 x 256 for a size of 256: 3.5 times smaller
    recipe = get_recipe("imagenet", size=220, draft=least)
    side = 220 * least
    found = decode_image(data, least=lambda h, w: (int(side), int(side * w / h)))
    assert found.reduced == reduced
    assert found.size == (900, 1000)
    assert (found.image.height, found.image.width) == (900 // reduced, 1000 // reduced)
    whole = read_codes(data, get_recipe("imagenet", size=220)).astype(int)
    assert np.abs(read_codes(data, recipe) - whole).mean() < (0.01 if reduced == 1 else 1.5)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("width", "height"), [(1001, 903), (803, 1207)])
@pytest.mark.parametrize("color", ["RGB", "L"])
@pytest.mark.parametrize("name", ["bilinear", "bicubic", "lanczos"])
def test_a_draft_is_pillows_resize_of_a_fraction_of_a_pixel(orientation, width, height, color, name):
    # By Pillow alone: decoded smaller, turned, and resized from the box that the whole image covers.
    data = jpeg(width, height, orientation)
    recipe = Recipe(resize="squash", size=(150, 130), interpolation=name, color=color, draft=2)
    with Image.open(io.BytesIO(data)) as file:
        stored = (150, 130) if orientation >= 5 else (130, 150)
        file.draft(None, (2 * stored[0], 2 * stored[1]))
        assert file.decoderconfig[0] == 2
        stored = np.asarray(file.convert(color))
    array = {
        1: stored, 2: stored[:, ::-1], 3: stored[::-1, ::-1], 4: stored[::-1], 5: stored.swapaxes(0, 1),
        6: stored[::-1].swapaxes(0, 1), 7: stored[::-1, ::-1].swapaxes(0, 1), 8: stored[:, ::-1].swapaxes(0, 1),
    }[orientation]  # fmt: skip
    upright = Image.fromarray(np.ascontiguousarray(array))
    w, h = (height, width) if orientation >= 5 else (width, height)
    left = upright.width - w / 2 if orientation in {2, 3, 6, 7} else 0
    top = upright.height - h / 2 if orientation in {3, 4, 7, 8} else 0
    expected = upright.resize((130, 150), Image.Resampling[name.upper()], box=(left, top, left + w / 2, top + h / 2))
    made = read_codes(data, recipe)
    np.testing.assert_array_equal(made.transpose(1, 2, 0).squeeze(), np.asarray(expected))


def test_only_jpegs_are_drafted_and_only_with_a_resize(tmp_path):
    draft = get_recipe("imagenet", draft=1)
    np.testing.assert_array_equal(
        read_codes(PHOTOS / "chelsea.png", draft), read_codes(PHOTOS / "chelsea.png", get_recipe("imagenet"))
    )
    assert draft.hash != get_recipe("imagenet").hash
    for wrong in (0.5, 0, -1, "2", float("inf")):
        with pytest.raises(InvalidArgument, match="recipe: draft must be"):
            get_recipe("imagenet", draft=wrong)
    with pytest.raises(InvalidArgument, match="recipe: draft must be a number from 1 on, with a resize"):
        get_recipe("unit", draft=2)


# --------------------------------------------------------------------------------------------------- cut short


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "TIFF", "PPM"])
def test_what_there_is_of_a_file_that_is_cut_short(form):
    with Image.open(PHOTOS / "astronaut.jpg") as photo:
        image = photo.convert("RGB").crop((100, 100, 300, 260))
    file = io.BytesIO()
    image.save(file, form)
    data = file.getvalue()
    cut = data[: len(data) // 2]
    with pytest.raises(FormatError, match=f"cannot be decoded as {form}"):
        decode_image(cut)
    if form == "TIFF":
        return  # its directory stands at the end
    found = decode_image(cut, tolerant=True)
    assert found.partial
    whole, part = np.asarray(decode_image(data).image), np.asarray(found.image)
    assert part.shape == whole.shape
    if form != "BMP":  # which begins at the bottom
        np.testing.assert_array_equal(part[:40], whole[:40])
    assert (part == whole).mean() > 0.3
    assert not decode_image(data, tolerant=True).partial
    with pytest.raises(FormatError, match=r"is cut short before its first pixel|cannot be decoded"):
        decode_image(data[: 700 if form == "JPEG" else 60], tolerant=True)


def test_tolerant_runs_mark_them(tmp_path):
    data = (PHOTOS / "astronaut.jpg").read_bytes()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes(data)
    (tmp_path / "in" / "b.jpg").write_bytes(data[: len(data) // 2])
    (tmp_path / "in" / "c.jpg").write_bytes(b"\xff\xd8\xff\xe0broken")
    strict = qk.process_images(tmp_path / "in", tmp_path / "strict")
    assert (strict.images, strict.failed, strict.partial) == (1, 2, 0)
    result = qk.process_images(tmp_path / "in", tmp_path / "out", preset=get_recipe("imagenet", tolerant=True))
    assert (result.images, result.failed, result.partial) == (2, 1, 1)
    lines = list(qk.open_images(tmp_path / "out").manifest)
    assert [line.get("partial") for line in lines] == [None, True, None]
    again = qk.process_images(tmp_path / "in", tmp_path / "out", preset=get_recipe("imagenet", tolerant=True))
    assert (again.partial, again.shards_kept) == (1, 1)
