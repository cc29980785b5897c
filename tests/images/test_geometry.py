import hashlib
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quantkit.errors import FormatError, ShapeMismatch
from quantkit.images import PRESETS, Recipe, read_codes, read_values
from quantkit.images.geometry import fit
from quantkit.images.linear import resize_opencv_linear

HERE = Path(__file__).resolve().parent
PHOTOS = sorted((HERE.parents[1] / "datasets/photos").glob("*.*g"))
GOLDEN = json.loads((HERE / "opencv_golden.json").read_text())


def image(height, width, channels=3, seed=0):
    pixels = np.random.RandomState(seed).randint(0, 256, (height, width, channels)).astype(np.uint8)
    return Image.fromarray(pixels if channels == 3 else pixels[..., 0])


def noise(height, width, channels):
    return np.random.RandomState(height * 10_007 + width).randint(0, 256, (height, width, channels)).astype(np.uint8)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: "x".join(map(str, g["case"])))
def test_opencv_linear_is_opencv_to_the_last_bit(golden):
    h, w, c, height, width = golden["case"]
    resized = resize_opencv_linear(noise(h, w, c), height, width)
    assert resized.shape == (height, width, c)
    assert resized.dtype == np.uint8
    assert hashlib.sha256(resized.tobytes()).hexdigest() == golden["sha256"]


def test_opencv_linear_by_hand():
    row = np.array([[[0], [100]]], np.uint8)
    # Positions -0.25, 0.25, 0.75, 1.25 on the row.
    assert resize_opencv_linear(row, 1, 4)[..., 0].tolist() == [[0, 25, 75, 100]]
    square = np.array([[[1], [2]], [[3], [5]]], np.uint8)
    assert resize_opencv_linear(square, 1, 1).tolist() == [[[3]]]


@pytest.mark.skipif(
    importlib.util.find_spec("cv2") is None, reason="opencv is no test requirement: golden pixels serve"
)
def test_opencv_linear_against_the_installed_opencv():
    import cv2

    random = np.random.RandomState(3)
    for _ in range(60):
        h, w, height, width = random.randint(1, 200, 4)
        pixels = random.randint(0, 256, (h, w, 3)).astype(np.uint8)
        expected = cv2.resize(pixels, (int(width), int(height)), interpolation=cv2.INTER_LINEAR)
        assert np.array_equal(resize_opencv_linear(pixels, int(height), int(width)), expected.reshape(height, width, 3))


@pytest.mark.parametrize("photo", PHOTOS, ids=lambda p: p.name)
@pytest.mark.parametrize("name", ["imagenet", "imagenet-v2", "timm", "inception", "dpn", "clip", "caffe"])
def test_presets_with_a_crop_are_pillows_resize_and_a_centre_crop(photo, name):
    r = PRESETS[name]
    with Image.open(photo) as opened:
        w, h = opened.size
        new = (r.size, r.size * h // w) if w <= h else (r.size * w // h, r.size)
        resample = Image.Resampling.BILINEAR if r.interpolation == "bilinear" else Image.Resampling.BICUBIC
        resized = opened.convert("RGB").resize(new, resample)
    side = r.crop[0]
    left, top = round((new[0] - side) / 2), round((new[1] - side) / 2)
    expected = np.asarray(resized.crop((left, top, left + side, top + side)))
    if name == "caffe":
        expected = expected[..., ::-1]
    codes = read_codes(photo, r)
    assert codes.flags.c_contiguous
    assert np.array_equal(codes, expected.transpose(2, 0, 1))


@pytest.mark.parametrize("name", PRESETS)
def test_values_are_the_float_route_bit_for_bit(name):
    r = PRESETS[name]
    codes = read_codes(PHOTOS[0], r)
    mean, std = (np.array(v, np.float32)[:, None, None] for v in (r.mean, r.std))
    route = (codes.astype(np.float32) / np.float32(r.divide) - mean) / std
    values = read_values(PHOTOS[0], r)
    assert values.dtype == np.float32
    assert values.flags.c_contiguous
    assert np.array_equal(values, route)


@pytest.mark.parametrize("photo", PHOTOS, ids=lambda p: p.name)
def test_yolo_letterbox(photo):
    with Image.open(photo) as opened:
        pixels = np.asarray(opened)
    h, w = pixels.shape[:2]
    ratio = min(640 / h, 640 / w)
    nh, nw = round(h * ratio), round(w * ratio)
    top, left = round((640 - nh) / 2 - 0.1), round((640 - nw) / 2 - 0.1)
    expected = np.full((640, 640, 3), 114, np.uint8)
    expected[top : top + nh, left : left + nw] = resize_opencv_linear(pixels, nh, nw)
    assert np.array_equal(read_codes(photo, PRESETS["yolo"]), expected.transpose(2, 0, 1))


def test_letterbox_without_upscaling():
    r = Recipe(resize="letterbox", size=(9, 12), pad=(1, 2, 3), upscale=False)
    small = image(4, 5)
    out = fit(small, r)
    assert out.shape == (9, 12, 3)
    assert np.array_equal(out[2:6, 3:8], np.asarray(small))
    out[2:6, 3:8] = (1, 2, 3)
    assert (out == (1, 2, 3)).all()
    assert fit(image(18, 5), r).shape == (9, 12, 3)


def test_letterbox_of_a_thin_line_keeps_one_pixel():
    assert fit(image(1, 3000), Recipe(resize="letterbox", size=8, pad=7)).shape == (8, 8, 3)
    assert (fit(image(1, 3000), Recipe(resize="letterbox", size=8, pad=7)) == 7).sum() == 8 * 7 * 3


@pytest.mark.parametrize(("rounding", "corner"), [("half-even", (2, 2)), ("floor", (1, 2))])
def test_the_crops_corner(rounding, corner):
    source = image(8, 9)  # (8 - 5) / 2 = 1.5 and (9 - 5) / 2 = 2
    out = fit(source, Recipe(crop=5, crop_rounding=rounding))
    top, left = corner
    assert np.array_equal(out, np.asarray(source)[top : top + 5, left : left + 5])


def test_a_crop_larger_than_the_image_pads():
    source = image(3, 4)
    out = fit(source, Recipe(crop=(6, 4), pad=(1, 2, 3)))
    assert np.array_equal(out[1:4], np.asarray(source))
    assert (out[[0, 4, 5]] == (1, 2, 3)).all()


def test_padding_is_in_the_order_of_the_colours():
    out = fit(image(2, 2), Recipe(crop=(2, 4), color="BGR", pad=(1, 2, 3)))
    assert out[0, 0].tolist() == [1, 2, 3]
    assert np.array_equal(out[:, 1:3], np.asarray(image(2, 2))[..., ::-1])


def test_grey():
    source = image(5, 6, 1)
    assert fit(source, Recipe(color="L")).shape == (5, 6, 1)
    assert fit(source, Recipe(color="L", resize="squash", size=(3, 2))).shape == (3, 2, 1)
    linear = Recipe(color="L", resize="squash", size=(7, 4), interpolation="opencv-linear")
    assert np.array_equal(fit(source, linear), resize_opencv_linear(np.asarray(source)[..., None], 7, 4))


@pytest.mark.parametrize("interpolation", ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"])
def test_squash_with_every_filter_of_pillow(interpolation):
    source = image(30, 40)
    out = fit(source, Recipe(resize="squash", size=(11, 13), interpolation=interpolation))
    assert np.array_equal(out, np.asarray(source.resize((13, 11), Image.Resampling[interpolation.upper()])))


def test_a_thin_strip_does_not_become_endless(tmp_path):
    with pytest.raises(ShapeMismatch, match="3000 x 1 pixels would be resized to 768000 x 256, which is too much"):
        fit(image(1, 3000), PRESETS["imagenet"])
    image(1, 3000).save(tmp_path / "strip.png")
    with pytest.raises(FormatError, match=r"strip\.png: 3000 x 1 pixels would be resized"):
        read_codes(tmp_path / "strip.png", PRESETS["imagenet"])
