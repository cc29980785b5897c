import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import quantkit as qk
from quantkit.errors import FormatError, InvalidArgument, InvalidDType, OutputError, ShapeMismatch

PHOTOS = Path(__file__).resolve().parents[2] / "datasets/photos"


def test_read_image_gives_the_pixels_as_codes():
    tensor = qk.read_image(PHOTOS / "chelsea.png")
    with Image.open(PHOTOS / "chelsea.png") as image:
        pixels = np.asarray(image)
    assert isinstance(tensor, qk.QTensor)
    assert tensor.shape == (300, 451, 3)
    assert tensor.scale == np.float32(1 / 255)
    assert tensor.zero_point == 0
    assert np.array_equal(tensor.int_repr(), pixels)
    assert np.array_equal(tensor.dequantize(), pixels.astype(np.float32) * np.float32(1 / 255))
    assert np.array_equal(qk.read_image(PHOTOS / "chelsea.png", color="BGR").int_repr(), pixels[..., ::-1])
    assert qk.read_image(PHOTOS / "chelsea.png", color="L").shape == (300, 451, 1)
    tensor.share_memory_()  # the bytes are its own
    assert np.array_equal(tensor.int_repr(), pixels)


@pytest.mark.parametrize("suffix", [".png", ".PNG", ".bmp", ".tiff", ".ppm"])
def test_file_to_storage_to_file(tmp_path, suffix):
    storage = qk.read_image(PHOTOS / "chelsea.png").storage()
    storage[0:20, :] = 255
    path = tmp_path / f"out{suffix}"
    qk.write_image(storage, path)
    again = qk.read_image(path)
    assert np.array_equal(again.int_repr(), np.asarray(storage))
    assert np.asarray(again)[:20].min() == 255
    assert os.listdir(tmp_path) == [path.name]


Image.init()
NO_AVIF = pytest.mark.skipif("AVIF" not in Image.SAVE, reason="this Pillow was built without AVIF")


@pytest.mark.parametrize("suffix", [".jpg", ".webp", pytest.param(".avif", marks=NO_AVIF)])
def test_lossy_formats(tmp_path, suffix):
    tensor = qk.read_image(PHOTOS / "astronaut.jpg")
    errors = []
    for quality in (95, 20):
        qk.write_image(tensor, tmp_path / f"x{suffix}", quality=quality)
        read = qk.read_image(tmp_path / f"x{suffix}")
        errors.append(np.abs(read.int_repr().astype(int) - tensor.int_repr()).mean())
    assert errors[0] < 3
    assert errors[0] < errors[1]


def test_shapes_and_orders(tmp_path):
    path = tmp_path / "x.png"
    random = np.random.RandomState(0)
    for shape in ((4, 5), (4, 5, 1), (4, 5, 3)):
        pixels = random.randint(0, 256, shape).astype(np.uint8)
        qk.write_image(pixels, path)
        read = qk.read_image(path, color="RGB" if shape[-1] == 3 else "L")
        assert np.array_equal(read.int_repr().reshape(shape), pixels)
    qk.write_image(pixels[::-1, ::2], path)  # any strides
    assert np.array_equal(qk.read_image(path).int_repr(), pixels[::-1, ::2])
    qk.write_image(pixels, path, color="BGR")
    assert np.array_equal(qk.read_image(path, color="BGR").int_repr(), pixels)
    alpha = np.dstack([pixels, np.full((4, 5, 1), 255, np.uint8)])
    qk.write_image(alpha, path, color="BGR")
    with Image.open(path) as image:
        assert np.array_equal(np.asarray(image), alpha[..., [2, 1, 0, 3]])


@pytest.mark.parametrize(
    ("tensor", "name", "options", "error", "match"),
    [
        (np.zeros((3, 4, 5), np.uint8), "x.png", {}, ShapeMismatch, r"got shape \(3, 4, 5\)"),
        (np.zeros((0, 5), np.uint8), "x.png", {}, ShapeMismatch, r"got shape \(0, 5\)"),
        (np.zeros(5, np.uint8), "x.png", {}, ShapeMismatch, r"got shape \(5,\)"),
        (np.zeros((4, 5), np.float32), "x.png", {}, InvalidDType, "pixels of uint8, got float32"),
        (np.zeros((4, 5, 4), np.uint8), "x.jpg", {}, InvalidArgument, "JPEG has no alpha"),
        (np.zeros((4, 5), np.uint8), "x.xyz", {}, InvalidArgument, r"x\.xyz: wanted one of the suffixes \.jpg"),
        (np.zeros((4, 5), np.uint8), "x", {}, InvalidArgument, "wanted one of the suffixes"),
        (np.zeros((4, 5), np.uint8), "x.png", {"color": "L"}, InvalidArgument, "color must be RGB or BGR"),
        (np.zeros((4, 5), np.uint8), "x.jpg", {"quality": 0}, InvalidArgument, "quality must be 1 to 100"),
        (np.zeros((1, 70_000), np.uint8), "x.jpg", {}, OutputError, r"cannot write .*x\.jpg: JPEG"),
        (np.zeros((4, 5), np.uint8), "no/x.png", {}, OutputError, "does not exist"),
    ],
)
def test_what_cannot_be_written(tmp_path, tensor, name, options, error, match):
    with pytest.raises(error, match=match):
        qk.write_image(tensor, tmp_path / name, **options)
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(FormatError, match="cannot be read"):
        qk.read_image(tmp_path / "no.png")
    with pytest.raises(InvalidArgument, match="color must be RGB, BGR or L, got 'rgb'"):
        qk.read_image(PHOTOS / "chelsea.png", color="rgb")
