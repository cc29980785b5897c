import json
import os

import numpy as np
import pytest
from pictures import DIGITS, PHOTOS, contents, picture, picture_folder
from PIL import Image
from safetensors.numpy import load_file

import quantkit as qk
from quantkit.errors import FormatError
from quantkit.images import ImageFolder, get_recipe, read_codes, read_values
from quantkit.images import process as process_module


def lines_of(output):
    return [json.loads(line) for line in (output / "manifest.jsonl").read_text().splitlines()]


def test_photographs_as_safetensors(tmp_path):
    out = tmp_path / "out"
    result = qk.process_images(PHOTOS, out)
    assert (result.images, result.failed, result.skipped, result.shards) == (3, 0, 0, 1)
    assert result.complete
    tensors = load_file(out / "shard-000000.safetensors")
    recipe = get_recipe("imagenet")
    names = sorted(p.name for p in PHOTOS.iterdir())
    expected = np.stack([read_codes(PHOTOS / name, recipe) for name in names])
    np.testing.assert_array_equal(tensors["images"], expected)
    assert tensors["label"].dtype == np.int32
    assert tensors["label"].tolist() == [-1, -1, -1]
    assert tensors["row"].dtype == np.int64
    assert tensors["row"].tolist() == [0, 1, 2]
    np.testing.assert_array_equal(tensors["scale"], recipe.qparams().scale)
    np.testing.assert_array_equal(tensors["zero_point"], recipe.qparams().zero_point)
    lines = lines_of(out)
    assert [line["path"] for line in lines] == names
    chelsea = lines[names.index("chelsea.png")]
    assert {k: chelsea[k] for k in ("status", "error", "format", "height", "width", "orientation")} == {
        "status": "ok", "error": None, "format": "PNG", "height": 300, "width": 451, "orientation": 1
    }  # fmt: skip


@pytest.mark.parametrize("preset", ["imagenet", "imagenet-v2", "timm", "inception", "dpn", "clip", "caffe", "yolo"])
def test_dequantized_pixels_are_the_float_route(preset, tmp_path):
    out = tmp_path / "out"
    qk.process_images(PHOTOS, out, preset=preset)
    images = qk.open_images(out)
    for i, name in enumerate(sorted(p.name for p in PHOTOS.iterdir())):
        np.testing.assert_array_equal(images.read(i), read_values(PHOTOS / name, get_recipe(preset)))
        np.testing.assert_allclose(images[i].dequantize(), images.read(i), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("form", ["safetensors", "npy"])
def test_the_bytes_are_the_same_for_any_number_of_streams(form, tmp_path):
    source = picture_folder(tmp_path / "in", 41, broken={7, 8, 22})
    for streams in (1, 2, 7):
        result = qk.process_images(
            source, tmp_path / f"out{streams}", preset="unit", shard_size=9, streams=streams, format=form
        )
        assert (result.images, result.failed, result.shards) == (38, 3, 5)
    first = contents(tmp_path / "out1")
    assert len(first) == 5 * (3 if form == "npy" else 2) + 2
    assert first == contents(tmp_path / "out2") == contents(tmp_path / "out7")


@pytest.mark.parametrize("size", [(8, 8), (5, 7), (1, 1), (16, 3)])
@pytest.mark.parametrize("color", ["RGB", "L"])
def test_images_of_every_size_lie_at_a_multiple_of_64_bytes(size, color, tmp_path):
    for i in range(3):
        picture(tmp_path / "in" / f"{i}.png", i, size)
    qk.process_images(tmp_path / "in", tmp_path / "out", preset=get_recipe("imagenet").replace(
        resize="none", crop=None, color=color, mean=0, std=1))  # fmt: skip
    raw = (tmp_path / "out" / "shard-000000.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    begin, end = header["images"]["data_offsets"]
    assert (8 + length + begin) % 64 == 0
    images = np.frombuffer(raw[8 + length + begin : 8 + length + end], np.uint8).reshape(header["images"]["shape"])
    for i in range(3):
        expected = np.asarray(Image.open(tmp_path / "in" / f"{i}.png").convert(color)).reshape(*size, -1)
        np.testing.assert_array_equal(images[i], expected.transpose(2, 0, 1))


def test_a_failed_file_leaves_no_gap_and_keeps_its_number(tmp_path):
    source = picture_folder(tmp_path / "in", 10, broken={0, 4, 9})
    out = tmp_path / "out"
    result = qk.process_images(source, out, preset="unit", shard_size=4)
    assert list(result.failures) == ["cat/0000.png", "cat/0004.png", "dog/0009.png"]
    lines = lines_of(out)
    assert [line["row"] for line in lines] == list(range(10))
    assert [line["shard"] for line in lines] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert [line["position"] for line in lines] == [None, 0, 1, 2, None, 0, 1, 2, 0, None]
    assert [line["status"] for line in lines] == ["failed" if i in {0, 4, 9} else "ok" for i in range(10)]
    assert lines[0]["error"].startswith("cannot be decoded as PNG")
    images = qk.open_images(out)
    assert images.rows.tolist() == [1, 2, 3, 5, 6, 7, 8]
    for i, row in enumerate(images.rows):
        path = source / images.about(i)["path"]
        assert path.name == f"{row:04d}.png"
        np.testing.assert_array_equal(images.read_codes(i), read_codes(path, get_recipe("unit")))


def test_everything_that_is_no_image_has_its_line(tmp_path):
    source = picture_folder(tmp_path / "in", 2)
    (source / "cat" / "notes.txt").write_text("text")
    (source / ".hidden.png").write_bytes(b"x")
    (source / "zzz").symlink_to(source / "missing")
    os.mkfifo(source / "pipe")
    weird = os.path.join(os.fsencode(source), b"dog", b"\xff.png")
    with open(weird, "wb") as file:
        file.write((source / "cat" / "0000.png").read_bytes())
    out = tmp_path / "out"
    result = qk.process_images(source, out, preset="unit")
    assert (result.images, result.failed, result.skipped) == (3, 0, 4)
    found = {line["path"]: (line["status"], line["error"]) for line in lines_of(out)}
    assert found[".hidden.png"] == ("skipped", "hidden")
    assert found["cat/notes.txt"] == ("skipped", "not an image")
    assert found["pipe"] == ("skipped", "not a regular file")
    assert found["zzz"] == ("skipped", "a broken link")
    assert found[os.fsdecode(b"dog/\xff.png")] == ("ok", None)


def test_lists_of_files_have_no_classes(tmp_path):
    files = [PHOTOS / "coffee.jpg", str(PHOTOS / "chelsea.png")]
    qk.process_images(files, tmp_path / "out")
    images = qk.open_images(tmp_path / "out")
    assert images.classes == ()
    assert images.labels.tolist() == [-1, -1]
    assert images.about(1)["path"] == str(PHOTOS / "chelsea.png")


def test_classes_are_those_of_image_folder(tmp_path):
    source = picture_folder(tmp_path / "in", 6, classes=("b", "a", "c"))
    (source / "aa").mkdir()
    qk.process_images(source, tmp_path / "out", preset="unit", shard_size=2)
    images, folder = qk.open_images(tmp_path / "out"), ImageFolder(source, "unit")
    assert images.classes == folder.classes == ("a", "aa", "b", "c")
    np.testing.assert_array_equal(images.labels, folder.labels)
    np.testing.assert_array_equal(images.sample(3, 1), folder.sample(3, 1))


# ------------------------------------------------------------------------------------------------ sizes


def test_without_a_size_the_first_readable_image_sets_it(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    (source / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    picture(source / "1.png", 1, (4, 6))
    picture(source / "2.png", 2, (6, 4))
    picture(source / "3.png", 3, (4, 6))
    result = qk.process_images(source, tmp_path / "out", preset="raw")
    assert result.shape == (3, 4, 6)
    assert (result.images, result.failed) == (2, 2)
    assert "is 6 x 4 pixels, but the first image set 4 x 6 for all" in result.failures["2.png"]


def test_nothing_is_written_when_no_image_can_be_read(tmp_path):
    source = picture_folder(tmp_path / "in", 3, broken={0, 1, 2})
    with pytest.raises(FormatError, match=r"none of 3 images can be read; the first: .*0000\.png"):
        qk.process_images(source, tmp_path / "out", preset="raw")
    assert not (tmp_path / "out").exists()


def test_a_shard_of_failures_is_empty(tmp_path):
    source = picture_folder(tmp_path / "in", 4, broken={0, 1})
    for form in ("safetensors", "npy"):
        qk.process_images(source, tmp_path / form, preset=get_recipe("unit", resize="squash", size=4), shard_size=2,
                          format=form)  # fmt: skip
        images = qk.open_images(tmp_path / form)
        assert images.shape == (2, 3, 4, 4)
        assert images.rows.tolist() == [2, 3]


def test_large_images_make_smaller_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(process_module, "MAX_SHARD_BYTES", 3 * 20 * 16 * 3)
    result = qk.process_images(picture_folder(tmp_path / "in", 7), tmp_path / "out", preset="unit")
    assert result.shards == 3


def test_progress_counts_files_failures_and_bytes(tmp_path):
    source = picture_folder(tmp_path / "in", 10, broken={2})
    told = []
    qk.process_images(source, tmp_path / "out", preset="unit", shard_size=4, progress=told.append)
    assert told[-1].done == 10
    assert told[-1].failed == 1
    assert told[-1].bytes == sum(p.stat().st_size for p in source.rglob("*.png"))


def test_digits_are_their_pixels(tmp_path):
    qk.process_images(DIGITS / "test", tmp_path / "out", preset=get_recipe("unit", color="L"), shard_size=128)
    images, folder = qk.open_images(tmp_path / "out"), ImageFolder(DIGITS / "test", get_recipe("unit", color="L"))
    assert images.shape == (445, 1, 8, 8)
    np.testing.assert_array_equal(images[:].int_repr(), np.stack([folder.read_codes(i) for i in range(len(folder))]))
