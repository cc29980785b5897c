"""Animated and multi-page files: which of their frames are images of their own."""

import json

import numpy as np
import pytest
from PIL import Image

import quantkit as qk
from quantkit.errors import InvalidArgument
from quantkit.images import ImageFolder, Recipe, get_recipe, read_codes
from quantkit.images.frames import chosen


def pages(count, size=(6, 5)):
    return [Image.fromarray(np.full((*size, 3), 10 * i + 5, np.uint8)) for i in range(count)]


def write(path, count):
    path.parent.mkdir(parents=True, exist_ok=True)
    first, *others = pages(count)
    first.save(path, save_all=True, append_images=others)


def folder(tmp_path):
    root = tmp_path / "in"
    write(root / "a" / "0.tif", 7)
    write(root / "a" / "1.png", 1)
    write(root / "b" / "2.gif", 5)
    (root / "b" / "3.tif").write_bytes(b"II*\0broken")
    write(root / "b" / "4.png", 3)
    return root


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ("first", [0]),
        ("all", [0, 1, 2, 3, 4, 5, 6]),
        (1, [0]),
        (3, [0, 2, 4]),
        (7, [0, 1, 2, 3, 4, 5, 6]),
        (100, [0, 1, 2, 3, 4, 5, 6]),
        ("every:3", [0, 3, 6]),
        ("every:9", [0]),
    ],
)
def test_which_of_seven_frames(frames, expected):
    assert list(chosen(7, frames)) == expected


@pytest.mark.parametrize("streams", [1, 3])
def test_each_frame_is_a_row(tmp_path, streams):
    source, out = folder(tmp_path), tmp_path / f"out{streams}"
    recipe = get_recipe("unit", frames="all")
    result = qk.process_images(source, out, preset=recipe, shard_size=4, streams=streams)
    assert (result.images, result.failed, result.shards) == (16, 1, 5)
    assert result.bytes_read == sum(path.stat().st_size for path in source.rglob("*.*"))
    lines = [json.loads(line) for line in (out / "manifest.jsonl").read_text().splitlines()]
    assert [(line["path"], line["frame"]) for line in lines] == [
        *[("a/0.tif", i) for i in range(7)], ("a/1.png", 0), *[("b/2.gif", i) for i in range(5)], ("b/3.tif", 0),
        *[("b/4.png", i) for i in range(3)],
    ]  # fmt: skip
    assert [line["row"] for line in lines] == list(range(17))
    images = qk.open_images(out)
    for i in range(len(images)):
        about = images.about(i)
        expected = np.full((3, 6, 5), 10 * about["frame"] + 5, np.uint8)
        np.testing.assert_array_equal(images.read_codes(i), expected)
    again = qk.process_images(source, out, preset=recipe, shard_size=4)
    assert again.shards_kept == 5


def test_a_file_that_grows_a_page_is_noticed(tmp_path):
    source, out = folder(tmp_path), tmp_path / "out"
    recipe = get_recipe("unit", frames="every:2")
    assert qk.process_images(source, out, preset=recipe, shard_size=4).images == 4 + 1 + 3 + 2
    write(source / "b" / "4.png", 5)
    result = qk.process_images(source, out, preset=recipe, shard_size=4)
    assert (result.images, result.shards, result.shards_kept) == (11, 3, 2)


def test_folders_and_the_recipes_hash(tmp_path):
    images = ImageFolder(folder(tmp_path), get_recipe("unit", frames=2))
    assert len(images) == 2 + 1 + 2 + 1 + 2
    assert images.classes == ("a", "b")
    assert [int(images.read_codes(i)[0, 0, 0]) for i in (0, 1, 2, 3, 4)] == [5, 35, 5, 5, 25]
    assert get_recipe("unit", frames="all").hash != get_recipe("unit").hash
    assert get_recipe("unit", frames="every:1") == get_recipe("unit", frames="all")
    assert get_recipe("unit", frames="3") == get_recipe("unit", frames=3)
    assert Recipe.from_json(get_recipe("unit", frames="every:4").to_json()).frames == "every:4"


@pytest.mark.parametrize("wrong", [0, -1, "every", "every:0", "none", 1.5, None, True])
def test_wrong_frames(wrong):
    with pytest.raises(InvalidArgument, match="recipe: frames must be first, all, a number of frames"):
        Recipe(frames=wrong)


def test_a_page_beyond_the_limit_of_pixels_fails_alone(tmp_path):
    small, large = pages(1)[0], pages(1, size=(60, 50))[0]
    small.save(tmp_path / "x.tif", save_all=True, append_images=[large, small])
    result = qk.process_images(
        [tmp_path / "x.tif"], tmp_path / "out", preset=get_recipe("unit", frames="all"), max_pixels=100
    )
    assert (result.images, result.failed) == (2, 1)
    assert result.failures[f"{tmp_path / 'x.tif'} (frame 1)"] == "50 x 60 pixels are more than the limit of 100"
    second = qk.open_images(tmp_path / "out").read_codes(1)
    np.testing.assert_array_equal(second, read_codes(tmp_path / "x.tif", get_recipe("unit")))
