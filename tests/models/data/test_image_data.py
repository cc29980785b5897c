"""Image folders as a model's input: layouts, batches, labels, files that cannot be read."""

import numpy as np
import pytest
from onnx import helper
from PIL import Image
from small_models import linear, model

from quantkit.errors import CalibrationError, InvalidArgument, ModelError
from quantkit.images import Recipe, process_images
from quantkit.models.data.feeds import InputSpec, open_data
from quantkit.models.data.image_data import RECIPE_KEY, recipe_of

NCHW = InputSpec("image", np.dtype("float32"), ("N", 3, 4, 6))
PLAIN = Recipe(name="plain", resize="squash", size=(4, 6), divide=1)


def paint(path, value, size=(6, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, 0, 255 - value)).save(path)


@pytest.fixture
def folder(tmp_path):
    """Two classes of three images each, whose red channel numbers them."""
    for i in range(6):
        paint(tmp_path / "images" / "ab"[i // 3] / f"{i}.png", i)
    return tmp_path / "images"


def reds(source):
    return [[int(v) for v in feed["image"][:, 0, 0, 0]] for feed in source]


def test_images_come_one_at_a_time_where_the_batch_is_free(folder):
    source = open_data(folder, [NCHW], recipe=PLAIN)
    assert len(source) == 6
    assert reds(source) == [[0], [1], [2], [3], [4], [5]]
    feed = next(iter(source))["image"]
    assert (feed.shape, feed.dtype, feed.flags.c_contiguous) == ((1, 3, 4, 6), np.float32, True)
    assert feed[0, :, 0, 0].tolist() == [0.0, 0.0, 255.0]


def test_labels_are_the_folders(folder):
    source = open_data(folder, [NCHW], recipe=PLAIN)
    assert source.has_labels
    assert source.class_count == 2
    assert [labels.tolist() for _, labels in source.labelled()] == [[0], [0], [0], [1], [1], [1]]


def test_a_fixed_batch_is_filled_and_the_rest_left_out(folder):
    spec = InputSpec("image", np.dtype("float32"), (4, 3, 4, 6))
    source = open_data(folder, [spec], recipe=PLAIN)
    assert reds(source) == [[0, 1, 2, 3]]
    assert [labels.tolist() for _, labels in source.labelled()] == [[0, 0, 0, 1]]


def test_a_batch_larger_than_the_folder_repeats_without_labels(folder):
    spec = InputSpec("image", np.dtype("float32"), (8, 3, 4, 6))
    source = open_data(folder, [spec], recipe=PLAIN)
    assert reds(source) == [[0, 1, 2, 3, 4, 5, 0, 1]]
    ((_, labels),) = source.labelled()
    assert labels.tolist() == [0, 0, 0, 1, 1, 1, -1, -1]


def test_channels_last(folder):
    spec = InputSpec("image", np.dtype("float32"), (1, 4, 6, 3))
    feed = next(iter(open_data(folder, [spec], recipe=PLAIN)))["image"]
    assert feed.shape == (1, 4, 6, 3)
    assert feed[0, 0, 0].tolist() == [0.0, 0.0, 255.0]


def test_a_model_without_a_batch_axis(folder):
    spec = InputSpec("image", np.dtype("float32"), (3, 4, 6))
    assert next(iter(open_data(folder, [spec], recipe=PLAIN)))["image"].shape == (3, 4, 6)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_floats(folder, dtype):
    spec = InputSpec("image", np.dtype(dtype), (1, 3, 4, 6))
    assert next(iter(open_data(folder, [spec], recipe=PLAIN)))["image"].dtype == np.dtype(dtype)


def test_uint8_inputs_take_plain_pixels_only(folder):
    spec = InputSpec("image", np.dtype("uint8"), (1, 3, 4, 6))
    feed = next(iter(open_data(folder, [spec], recipe=PLAIN)))["image"]
    assert (feed.dtype, feed[0, 2, 0, 0]) == (np.uint8, 255)
    with pytest.raises(
        CalibrationError, match=r"gives real numbers from 0 to 1; use one that leaves pixels as they are"
    ):
        list(open_data(folder, [spec], recipe=PLAIN.replace(divide=255)))


def test_a_recipe_of_another_size_is_set_to_the_model_s(folder):
    source = open_data(folder, [NCHW], recipe="imagenet")
    assert next(iter(source))["image"].shape == (1, 3, 4, 6)
    assert source.notes == ["the recipe 'imagenet' was set to the model's 4 x 6 pixels"]


def test_the_wrong_number_of_channels(folder):
    spec = InputSpec("image", np.dtype("float32"), ("N", 1, 4, 6))
    with pytest.raises(CalibrationError) as caught:
        list(open_data(folder, [spec], recipe=PLAIN))
    assert "prepared by the recipe 'plain': input 'image' wants float32[N, 1, 4, 6], got float32[1, 3, 4, 6]: " in str(
        caught.value
    )


def test_an_input_that_is_no_image(folder):
    spec = InputSpec("x", np.dtype("float32"), ("N", 10))
    with pytest.raises(CalibrationError, match=r"input 'x' wants float32\[N, 10\], got float32\[1, 3, 4, 6\]: 4 dim"):
        list(open_data(folder, [spec], recipe=PLAIN))


def test_different_sizes_do_not_make_a_batch(folder):
    paint(folder / "a" / "1.png", 9, (8, 8))
    spec = InputSpec("image", np.dtype("float32"), (2, 3, "H", "W"))
    with pytest.raises(
        CalibrationError, match=r"wants 2 images at once, .* gives different sizes: \[3, 4, 6\], \[3, 8"
    ):
        list(open_data(folder, [spec], recipe="raw"))


def test_files_that_cannot_be_read_are_skipped_and_listed(folder):
    (folder / "a" / "0.png").write_bytes(b"no image at all")
    whole = (folder / "b" / "3.png").read_bytes()
    (folder / "b" / "3.png").write_bytes(whole[: len(whole) // 2])
    spec = InputSpec("image", np.dtype("float32"), (2, 3, 4, 6))
    source = open_data(folder, [spec], recipe=PLAIN)
    assert reds(source) == reds(source) == [[1, 2], [4, 5]]
    assert [labels.tolist() for _, labels in source.labelled()] == [[0, 0], [1, 1]]
    assert sorted(source.skipped) == [str(folder / "a" / "0.png"), str(folder / "b" / "3.png")]
    assert all(reason and not reason.startswith(str(folder)) for reason in source.skipped.values())


def test_no_file_that_can_be_read(folder):
    for path in folder.rglob("*.png"):
        path.write_bytes(b"no image at all")
    with pytest.raises(CalibrationError, match=r"none of 6 images could be read; .*0\.png: "):
        list(open_data(folder, [NCHW], recipe=PLAIN))


def test_a_folder_without_images(tmp_path):
    (tmp_path / "readme.txt").write_text("text")
    for recipe in (None, PLAIN):
        with pytest.raises(CalibrationError, match="holds no image"):
            open_data(tmp_path, [NCHW], recipe=recipe)


def test_other_files_are_noted(folder):
    (folder / "readme.txt").write_text("text")
    (note,) = open_data(folder, [NCHW], recipe=PLAIN).notes
    assert note.startswith(f"{folder}: entries left out: 1 ")


def test_without_a_recipe_the_presets_are_named(folder):
    with pytest.raises(CalibrationError, match=rf"no {RECIPE_KEY}; name a preset \(--preset or preset=\): imagenet, "):
        open_data(folder, [NCHW])


def test_an_unknown_preset(folder):
    with pytest.raises(InvalidArgument, match="no preset 'nonsense'"):
        open_data(folder, [NCHW], recipe="nonsense")


def test_a_model_of_two_inputs(folder):
    with pytest.raises(CalibrationError, match=r"feeds one input, but the model has 2 \('image', 'x'\); give an \.npz"):
        open_data(folder, [NCHW, InputSpec("x", np.dtype("float32"), (1,))], recipe=PLAIN)


def test_the_split_is_even_over_the_classes(tmp_path):
    for i in range(32):
        paint(tmp_path / ("a" if i < 16 else "b") / f"{i:02}.png", i)
    calibration, held_out = open_data(tmp_path, [NCHW], recipe=PLAIN).split()
    labels = [int(labels[0]) for _, labels in held_out.labelled()]
    assert labels == [0, 0, 0, 0, 1, 1, 1, 1]
    assert sorted(red for batch in reds(calibration) + reds(held_out) for red in batch) == list(range(32))


def with_recipe(text):
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    import onnx

    proto = onnx.load_model_from_string(model(nodes, [("x", np.float32, [1])], [("y", np.float32, [1])]))
    helper.set_model_props(proto, {RECIPE_KEY: text})
    return proto.SerializeToString()


def test_recipe_in_the_metadata():
    assert recipe_of(with_recipe(PLAIN.to_json())) == PLAIN
    assert recipe_of(linear(np.ones((4, 3)))) is None
    with pytest.raises(ModelError, match=r"the given model: quantkit\.recipe in its metadata cannot be read: "):
        recipe_of(with_recipe("{"))


@pytest.mark.parametrize("form", ["safetensors", "npy"])
def test_shards_feed_what_their_folder_feeds(folder, tmp_path, form):
    (folder / "b" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    process_images(folder, tmp_path / "shards", preset=PLAIN, shard_size=4, format=form)
    a, b = (open_data(where, [NCHW], recipe=PLAIN) for where in (folder, tmp_path / "shards"))
    assert (len(a), len(b)) == (7, 6)
    assert b.class_count == 2
    assert b.notes == [f"{tmp_path / 'shards'}: 1 files could not be decoded when its shards were made"]
    for (x, label), (y, same) in zip(a.labelled(), b.labelled(), strict=True):
        np.testing.assert_array_equal(x["image"], y["image"])
        assert label.tolist() == same.tolist()
    # Their own recipe is enough.
    assert reds(open_data(tmp_path / "shards", [NCHW])) == reds(b)
    assert [len(part) for part in b.split(at_least=2)] == [4, 2]


def test_shards_of_another_recipe_are_refused(folder, tmp_path):
    process_images(folder, tmp_path / "shards", preset=PLAIN)
    with pytest.raises(
        CalibrationError, match=r"its shards were made by the recipe 'plain' \(\w{12}\), but the model wants 'unit'"
    ):
        open_data(tmp_path / "shards", [NCHW], recipe="unit")


def test_shards_that_are_not_complete(folder, tmp_path):
    process_images(folder, tmp_path / "shards", preset=PLAIN, shard_size=4, shard_range=(0, 1))
    with pytest.raises(CalibrationError, match="is not complete yet"):
        open_data(tmp_path / "shards", [NCHW], recipe=PLAIN)
