import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quantkit.errors import FormatError, MachineError
from quantkit.images import decode_image
from quantkit.images.decode import sniff

PHOTOS = Path(__file__).resolve().parents[2] / "datasets/photos"


def encode(image, form, **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def noise(*shape, seed=0, high=256, dtype=np.uint8):
    return np.random.RandomState(seed).randint(0, high, shape).astype(dtype)


def pixels(source, **options):
    return np.asarray(decode_image(source, **options).image)


RGB = Image.fromarray(noise(6, 9, 3))


@pytest.mark.parametrize("name", ["astronaut.jpg", "coffee.jpg", "chelsea.png"])
def test_photographs_decode_as_pillow_does(name):
    with Image.open(PHOTOS / name) as image:
        plain, grey = np.asarray(image), np.asarray(image.convert("L"))
    decoded = decode_image(PHOTOS / name)
    assert np.array_equal(np.asarray(decoded.image), plain)
    assert (decoded.format, decoded.size) == ("PNG" if name.endswith("png") else "JPEG", plain.shape[:2])
    assert (decoded.mode, decoded.orientation) == ("RGB", 1)
    assert np.array_equal(pixels(PHOTOS / name, color="L"), grey)
    assert np.array_equal(pixels(PHOTOS / name, color="BGR"), plain)


def test_every_kind_of_source(tmp_path):
    data = encode(RGB, "PNG")
    (tmp_path / "x.txt").write_bytes(data)  # the name plays no part
    sources = [tmp_path / "x.txt", str(tmp_path / "x.txt"), data, bytearray(data), memoryview(data), io.BytesIO(data)]
    for source in sources:
        assert np.array_equal(pixels(source), np.asarray(RGB))
    behind = io.BytesIO(b"head" + data)
    behind.seek(4)
    assert sniff(data) == "PNG"
    with open(tmp_path / "x.txt", "rb") as file:
        assert np.array_equal(pixels(file), np.asarray(RGB))
        assert not file.closed


LOSSLESS = [("PNG", {}), ("BMP", {}), ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"}), ("PPM", {})]
LOSSLESS += [("WEBP", {"lossless": True})]


@pytest.mark.parametrize(("form", "options"), LOSSLESS)
def test_lossless_formats(form, options):
    data = encode(RGB, form, **options)
    assert sniff(data[:32]) == form
    assert decode_image(data).format == form
    assert np.array_equal(pixels(data), np.asarray(RGB))


@pytest.mark.parametrize("form", ["JPEG", "GIF", "WEBP"])
def test_lossy_formats(form):
    data = encode(RGB, form)
    with Image.open(io.BytesIO(data)) as image:
        assert np.array_equal(pixels(data), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_orientation_is_applied(orientation, form):
    upright = noise(8, 16, 3) // 200 * 200
    turned = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}.get(form, {})
    data = encode(Image.fromarray(np.ascontiguousarray(turned)), form, exif=exif, **options)
    decoded = decode_image(data)
    assert decoded.orientation == orientation
    assert decoded.size == turned.shape[:2]
    difference = np.abs(np.asarray(decoded.image).astype(int) - upright)
    assert difference.max() <= (12 if form == "JPEG" else 0)


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_impossible_orientations_are_none(value):
    exif = Image.Exif()
    exif[0x0112] = value
    assert decode_image(encode(RGB, "PNG", exif=exif)).orientation == 1


def test_transparent_pixels_show_the_background():
    rgba = np.zeros((2, 2, 4), np.uint8)
    rgba[..., 0] = 200  # red lies hidden under the transparent pixels
    rgba[0, :, 3] = 255
    rgba[1, 1, 3] = 128
    data = encode(Image.fromarray(rgba), "PNG")
    assert pixels(data).tolist() == [[[200, 0, 0]] * 2, [[255, 255, 255], [227, 127, 127]]]
    assert pixels(data, background=(0, 10, 0)).tolist()[1] == [[0, 10, 0], [100, 5, 0]]
    assert pixels(data, color="L").tolist() == [[60, 60], [255, 157]]


def test_palettes():
    image = Image.new("P", (2, 2))
    image.putdata([0, 1, 2, 3])
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9])
    solid = [[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [9, 9, 9]]]
    assert pixels(encode(image, "PNG")).tolist() == solid
    assert pixels(encode(image, "GIF")).tolist() == solid
    see_through = [[[255, 0, 0], [7, 7, 7]], [[0, 0, 255], [9, 9, 9]]]
    assert pixels(encode(image, "PNG", transparency=1), background=(7, 7, 7)).tolist() == see_through
    assert pixels(encode(image, "GIF", transparency=1), background=(7, 7, 7)).tolist() == see_through
    half = bytes([255, 0, 255, 128])
    assert pixels(encode(image, "PNG", transparency=half), background=(1, 1, 1)).tolist()[1][1] == [5, 5, 5]


def test_other_modes():
    grey = noise(5, 7)
    assert np.array_equal(pixels(encode(Image.fromarray(grey), "PNG"), color="L"), grey)
    assert np.array_equal(pixels(encode(Image.fromarray(grey), "PNG")), np.dstack([grey] * 3))
    bits = Image.fromarray(grey > 99)
    assert np.array_equal(pixels(encode(bits, "PNG"), color="L"), np.where(grey > 99, 255, 0))
    la = Image.merge("LA", [Image.fromarray(grey), Image.fromarray(np.full_like(grey, 255))])
    assert np.array_equal(pixels(encode(la, "PNG"), color="L"), grey)


def test_rgb_with_one_transparent_colour():
    image = Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8))
    assert pixels(encode(image, "PNG", transparency=(1, 2, 3))).tolist() == [[[255, 255, 255], [4, 5, 6]]]


@pytest.mark.parametrize("form", ["JPEG", "TIFF"])
def test_cmyk(form):
    cmyk = np.zeros((16, 16, 4), np.uint8)
    cmyk[:8, :, 0] = 255  # cyan above, black below
    cmyk[8:, :, 3] = 255
    options = {"quality": 100, "subsampling": 0} if form == "JPEG" else {}
    data = encode(Image.frombytes("CMYK", (16, 16), cmyk.tobytes()), form, **options)
    decoded = decode_image(data)
    assert decoded.mode == "CMYK"
    rgb = np.asarray(decoded.image).astype(int)
    assert np.abs(rgb[:8] - [0, 255, 255]).max() <= 3
    assert rgb[8:].max() <= 3


def png(width, height, depth, color_type, rows):
    """A PNG built by hand, for the kinds that Pillow does not write."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, depth, color_type, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def test_16_bit_grey_keeps_the_high_byte():
    values = np.array([[0, 255, 256, 4095], [4096, 32767, 65280, 65535]], np.uint16)
    expected = values >> 8
    as_png = png(4, 2, 16, 0, [row.astype(">u2").tobytes() for row in values])
    for data in (as_png, encode(Image.fromarray(values), "TIFF"), b"P5 4 2 65535\n" + values.astype(">u2").tobytes()):
        assert np.array_equal(pixels(data, color="L"), expected)
        assert np.array_equal(pixels(data)[..., 2], expected)
        assert np.array_equal(pixels(data, white=65535, color="L"), expected)


def test_16_bit_rgb_keeps_the_high_byte():
    values = noise(3, 4, 3, high=65536, dtype=np.uint16)
    data = png(4, 3, 16, 2, [row.astype(">u2").tobytes() for row in values])
    assert np.array_equal(pixels(data), values >> 8)


def test_dark_16_bit_images_want_to_know_what_white_is():
    values = np.array([[0, 16, 1000, 4095]], np.uint16)
    data = encode(Image.fromarray(values), "TIFF")
    with pytest.raises(FormatError, match="brightest 16-bit value is 4095, so it would become almost black"):
        decode_image(data)
    assert pixels(data, white=4095, color="L").tolist() == [[0, 1, 62, 255]]
    assert pixels(data, white=65535, color="L").tolist() == [[0, 0, 3, 15]]
    with pytest.raises(FormatError, match="brightest value is 4095, above the recipe's white of 1023"):
        decode_image(data, white=1023)
    black = encode(Image.fromarray(np.zeros((2, 2), np.uint16)), "TIFF")
    assert pixels(black).max() == 0


def test_32_bit_and_float_images_want_to_know_what_white_is():
    floats = encode(Image.fromarray(np.array([[0, 0.25, 0.5, 1]], np.float32)), "TIFF")
    with pytest.raises(FormatError, match="nothing tells which value of mode F is white"):
        decode_image(floats)
    assert pixels(floats, white=1, color="L").tolist() == [[0, 64, 128, 255]]
    integers = encode(Image.fromarray(np.array([[0, 99_999, 100_000]], np.int32)), "TIFF")
    with pytest.raises(FormatError, match="nothing tells which value of mode I is white"):
        decode_image(integers)
    assert pixels(integers, white=100_000, color="L").tolist() == [[0, 255, 255]]
    for bad in (-1.0, np.nan, np.inf):
        data = encode(Image.fromarray(np.array([[0, bad]], np.float32)), "TIFF")
        with pytest.raises(FormatError, match="wanted pixel values >= 0"):
            decode_image(data, white=1)


def test_frames():
    frames = [Image.fromarray(noise(4, 5, 3, seed=i)) for i in range(3)]
    data = encode(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    for i in range(3):
        assert np.array_equal(pixels(data, frame=i), np.asarray(frames[i]))
    with pytest.raises(FormatError, match="<bytes>: has no frame 3"):
        decode_image(data, frame=3)
    with pytest.raises(FormatError, match="has no frame 1"):
        decode_image(encode(RGB, "PNG"), frame=1)


def test_the_limit_on_pixels_is_an_error():
    data = encode(RGB, "PNG")
    assert pixels(data, max_pixels=54).shape == (6, 9, 3)
    with pytest.raises(FormatError, match="9 x 6 pixels are more than the limit of 53"):
        decode_image(data, max_pixels=53)
    bomb = png(60_000, 60_000, 8, 2, [])  # 10 GB of zeros would be a few MB
    with pytest.raises(FormatError, match="60000 x 60000 pixels are more than the limit of 89478485"):
        decode_image(bomb)


TRUNCATED = [("JPEG", {}), ("PNG", {}), ("BMP", {}), ("TIFF", {}), ("PPM", {}), ("WEBP", {}), ("GIF", {})]
TRUNCATED += [("JPEG", {"progressive": True}), ("TIFF", {"compression": "tiff_deflate"})]


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize(("form", "options"), TRUNCATED)
def test_files_cut_short_fail_and_name_themselves(tmp_path, form, options):
    with Image.open(PHOTOS / "chelsea.png") as photo:
        data = encode(photo.resize((90, 60)), form, **options)
    whole = pixels(data)
    path = tmp_path / "photo"
    messages = []
    for share in (0.02, 0.1, 0.3, 0.5, 0.7, 0.9):
        path.write_bytes(data[: int(len(data) * share)])
        try:
            # A compressed TIFF ends with tags that pixels can do without; but never is a part of them grey.
            assert np.array_equal(pixels(path), whole)
        except FormatError as e:
            messages.append(str(e))
    assert all(m.startswith(f"{path}: ") and "\n" not in m for m in messages)
    assert len(messages) == 6 or (form == "TIFF" and len(messages) >= 4)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "TIFF", "PPM", "WEBP", "GIF"])
def test_damaged_files_decode_or_fail_and_nothing_else(form):
    with Image.open(PHOTOS / "chelsea.png") as photo:
        data = encode(photo.resize((45, 30)), form)
    random = np.random.RandomState(1)
    failed = 0
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(random.randint(1, 6)):
            damaged[random.randint(0, min(len(data), 400))] = random.randint(0, 256)
        try:
            image = decode_image(bytes(damaged), max_pixels=10_000_000).image
            assert image.mode == "RGB"
        except FormatError:
            failed += 1
    assert failed > 5


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "is empty"),
        (b"\0", "is not an image of a known format"),
        (b"BM is how this text begins, and it goes on", "is not an image"),
        (b"P1", "is not an image"),
        (b"%PDF-1.7 and so on", r"is not an image of a known format \(JPEG, PNG, WEBP, GIF, BMP, TIFF, PPM, AVIF\)"),
        (b"\x1f\x8b\x08" + bytes(40), "is not an image"),
        (b"\x89PNG\r\n\x1a\n", "cannot be decoded as PNG"),
        (b"\xff\xd8\xff\xe0", "cannot be decoded as JPEG"),
        (b"RIFF\x10\0\0\0WEBP", "cannot be decoded as WEBP"),
        (b"II*\0\x08\0\0\0", "cannot be decoded as TIFF"),
        (b"GIF89a", "cannot be decoded as GIF"),
        (b"P6 0 0 255\n", "cannot be decoded as PPM"),
    ],
)
def test_files_that_are_no_images(tmp_path, content, match):
    path = tmp_path / "photo.jpg"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=match) as caught:
        decode_image(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FormatError, match=r"no\.png: cannot be read: No such file or directory"):
        decode_image(tmp_path / "no.png")
    with pytest.raises(FormatError, match="cannot be read: Is a directory"):
        decode_image(tmp_path)
    for name in ("a\0b", "\ud800"):
        with pytest.raises(FormatError, match="cannot be read"):
            decode_image(name)


def test_names_that_are_not_utf8_are_printable(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff\n.png"
    Path(os.fsdecode(path)).write_bytes(b"x")
    with pytest.raises(FormatError) as caught:
        decode_image(os.fsdecode(path))
    assert str(caught.value).isprintable()
    assert "xff" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [(13, "Permission denied", FormatError), (5, "Input/output error", MachineError)],
)
def test_a_stream_that_fails(code, message, kind):
    class Broken(io.RawIOBase):
        name = "s3://bucket/photo.png"

        def tell(self):
            return 0

        def read(self, n=-1):
            raise OSError(code, message)

    with pytest.raises(kind, match=rf"^s3://bucket/photo\.png: cannot be read: {message}"):
        decode_image(Broken())


def test_libtiff_does_not_print(capfd):
    buffer = io.BytesIO()
    pixels = np.random.RandomState(0).randint(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, "TIFF", compression="tiff_deflate")
    content = bytearray(buffer.getvalue())
    content[8:4096] = bytes(4088)  # the compressed pixels
    with pytest.raises(FormatError, match="<bytes>: cannot be decoded as TIFF"):
        decode_image(bytes(content))
    assert capfd.readouterr() == ("", "")
