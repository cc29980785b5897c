import csv
import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from pictures import DIGITS, PHOTOS, picture_folder
from small_models import model

import quantkit as qk
from quantkit.errors import FormatError, InvalidArgument, ModelError, OutputError
from quantkit.images import get_recipe, read_codes, read_values
from quantkit.models.data.image_data import recipe_of

MODEL = DIGITS / "digits.onnx"
UNIT = get_recipe("unit", resize="squash", size=4)


def means(shape=("N", 3, 4, 4), dtype=np.float32, outputs=("scores",)):
    """A model whose class scores are the mean of each channel."""
    nodes = [helper.make_node("Cast", ["x"], ["f"], to=onnx.TensorProto.FLOAT)]
    nodes += [helper.make_node("ReduceMean", ["f"], [name], axes=[2, 3], keepdims=0) for name in outputs]
    return model(nodes, [("x", dtype, shape)], [(name, np.float32, [shape[0], shape[1]]) for name in outputs])


def reference(paths):
    session = onnxruntime.InferenceSession(str(MODEL))
    recipe = recipe_of(MODEL)
    values = np.stack([read_values(path, recipe) for path in paths])
    return session.run(None, {session.get_inputs()[0].name: values})[0]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits") / "out"
    qk.process_images(DIGITS / "test", folder, preset=recipe_of(MODEL), shard_size=100)
    return folder


def test_csv_has_the_best_classes_of_every_image(tmp_path):
    out = tmp_path / "p.csv"
    result = qk.predict_images(MODEL, DIGITS / "test", out, top=3)
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    paths = sorted(str(p.relative_to(DIGITS / "test")) for p in (DIGITS / "test").rglob("*.png"))
    assert [row["path"] for row in rows] == paths
    scores = reference([DIGITS / "test" / path for path in paths])
    best = np.argsort(-scores, axis=1)[:, :3]
    for row, chosen, of_image in zip(rows, best, scores, strict=True):
        assert row["label"] == row["path"].split("/")[0]
        assert row["error"] == ""
        assert [row[f"class_{k}"] for k in (1, 2, 3)] == [str(i) for i in chosen]
        np.testing.assert_allclose(
            [float(row[f"score_{k}"]) for k in (1, 2, 3)], of_image[chosen], rtol=1e-4, atol=1e-5
        )
    labels = np.array([int(row["label"]) for row in rows])
    assert result.labelled == result.images == 445
    assert result.correct == (best[:, 0] == labels).sum()


def test_shards_give_what_their_folder_gives(shards, tmp_path):
    for form in ("csv", "jsonl", "npz"):
        a, b = tmp_path / f"a.{form}", tmp_path / f"b.{form}"
        qk.predict_images(MODEL, DIGITS / "test", a, batch=7, streams=3)
        qk.predict_images(MODEL, shards, b, batch=7, streams=1)
        if form == "npz":
            with np.load(a) as x, np.load(b) as y:
                assert sorted(x) == sorted(y) == ["classes", "errors", "label", "logits", "path"]
                for name in x:
                    np.testing.assert_array_equal(x[name], y[name])
        else:
            assert a.read_bytes() == b.read_bytes()


def test_npz_has_every_output_whole(tmp_path):
    source = picture_folder(tmp_path / "in", 9, broken={2})
    result = qk.predict_images(means(outputs=("first", "label")), source, tmp_path / "p.npz", preset=UNIT, batch=4)
    assert (result.images, result.failed) == (8, 1)
    good = [p for i, p in enumerate(sorted(source.rglob("*.png"))) if i != 2]
    expected = np.stack([read_values(p, UNIT).mean(axis=(1, 2)) for p in good])
    with np.load(tmp_path / "p.npz") as found:
        np.testing.assert_allclose(found["first"], expected, rtol=1e-5)
        np.testing.assert_allclose(found["output.label"], expected, rtol=1e-5)
        assert found["path"].tolist() == [str(p.relative_to(source)) for p in good]
        assert found["label"].tolist() == [0] * 4 + [1] * 4
        assert found["classes"].tolist() == ["cat", "dog"]
        assert found["errors"][0].startswith("cat/0002.png: cannot be decoded as PNG")


@pytest.mark.parametrize("first", [(4, 3, 4, 4), (1, 3, 4, 4), ("N", 3, 4, 4), (4, 4, 4, 3), (3, 4, 4)])
def test_batches_and_layouts(first, tmp_path):
    source = picture_folder(tmp_path / "in", 10, broken={0, 6})
    axes = [1, 2] if len(first) == 3 or first[-1] == 3 else [2, 3]
    node = helper.make_node("ReduceMean", ["x"], ["y"], axes=axes, keepdims=0)
    shape = [3] if len(first) == 3 else [first[0], 3]
    result = qk.predict_images(
        model([node], [("x", np.float32, first)], [("y", np.float32, shape)]), source, preset=UNIT
    )
    assert result.failed == 2
    assert [row["error"] is None for row in result.rows] == [i not in {0, 6} for i in range(10)]
    for row in result.rows:
        if row["error"] is None:
            expected = read_values(source / row["path"], UNIT).mean(axis=(1, 2))
            scores = {item["index"]: item["score"] for item in row["top"]}
            np.testing.assert_allclose([scores[i] for i in range(3)], expected, rtol=1e-5)


def test_uint8_inputs_take_the_pixels(tmp_path):
    result = qk.predict_images(means(dtype=np.uint8), PHOTOS, preset=get_recipe("raw", resize="squash", size=4))
    for row in result.rows:
        codes = read_codes(PHOTOS / row["path"], get_recipe("raw", resize="squash", size=4))
        assert row["top"][0]["score"] == pytest.approx(codes.mean(axis=(1, 2)).max())


def test_names_of_classes(tmp_path):
    source = picture_folder(tmp_path / "in", 3, classes=("x", "y", "z"))
    rows = qk.predict_images(means(), source, preset=UNIT, class_names=["red", "green", "blue"], top=9).rows
    assert {item["class"] for item in rows[0]["top"]} == {"red", "green", "blue"}
    assert {item["class"] for item in qk.predict_images(means(), source, preset=UNIT).rows[0]["top"]} == set("xyz")
    with pytest.raises(InvalidArgument, match="the model has 3 classes, but 2 names were given"):
        qk.predict_images(means(), source, preset=UNIT, class_names=["a", "b"])
    # Two folders are not the three classes of the model: numbers, and no accuracy.
    other = picture_folder(tmp_path / "two", 4)
    result = qk.predict_images(means(), other, preset=UNIT)
    assert {item["class"] for item in result.rows[0]["top"]} == {"0", "1", "2"}
    assert result.rows[0]["label"] == "cat"
    assert (result.correct, result.labelled) == (0, 0)


def test_only_failures_still_make_their_rows(tmp_path):
    source = picture_folder(tmp_path / "in", 3, broken={0, 1, 2})
    result = qk.predict_images(means(), source, tmp_path / "p.csv", preset=UNIT, top=1)
    assert (result.images, result.failed) == (0, 3)
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "path,label,error,class_1,score_1"
    assert [line.split(",")[0] for line in lines[1:]] == ["cat/0000.png", "cat/0001.png", "dog/0002.png"]
    qk.predict_images(means(), source, tmp_path / "p.jsonl", preset=UNIT)
    assert [json.loads(line)["top"] for line in (tmp_path / "p.jsonl").read_text().splitlines()] == [[], [], []]
    qk.predict_images(means(), source, tmp_path / "p.npz", preset=UNIT)
    with np.load(tmp_path / "p.npz") as found:
        assert found["path"].shape == (0,)
        assert found["scores"].shape == (0,)


def test_what_cannot_be(tmp_path, shards):
    with pytest.raises(InvalidArgument, match=r"p\.txt: wanted a name that ends in \.csv, \.jsonl, \.npz"):
        qk.predict_images(MODEL, PHOTOS, tmp_path / "p.txt")
    with pytest.raises(OutputError, match="does not exist"):
        qk.predict_images(MODEL, PHOTOS, tmp_path / "missing" / "p.csv")
    with pytest.raises(InvalidArgument, match="top must be a whole number >= 1, got 0"):
        qk.predict_images(MODEL, PHOTOS, top=0)
    with pytest.raises(InvalidArgument, match=r"how it wants its images is not known.*imagenet"):
        qk.predict_images(means(), PHOTOS)
    with pytest.raises(InvalidArgument, match=r"made by the recipe 'digits' .* but the model wants 'unit'"):
        qk.predict_images(means(), shards, preset=UNIT)
    with pytest.raises(InvalidArgument, match="batch: the model takes 2 at once, got 3"):
        qk.predict_images(means((2, 3, 4, 4)), PHOTOS, preset=UNIT, batch=3)
    two = model(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        [("a", np.float32, [1]), ("b", np.float32, [1])],
        [("y", np.float32, [1])],
    )
    with pytest.raises(ModelError, match="images feed one input, but the model has 2 \\('a', 'b'\\)"):
        qk.predict_images(two, PHOTOS, preset=UNIT)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="holds no image"):
        qk.predict_images(MODEL, tmp_path / "empty")
    same = model(
        [helper.make_node("Identity", ["x"], ["y"])],
        [("x", np.float32, ["N", 3, 4, 4])],
        [("y", np.float32, ["N", 3, 4, 4])],
    )
    with pytest.raises(InvalidArgument, match=r"output 'y' is float32 of shape .* write an \.npz file"):
        qk.predict_images(same, PHOTOS, tmp_path / "p.csv", preset=UNIT)
    qk.predict_images(same, PHOTOS, tmp_path / "p.npz", preset=UNIT)
    with np.load(tmp_path / "p.npz") as found:
        assert found["y"].shape == (3, 3, 4, 4)
    total = model(
        [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)],
        [("x", np.float32, ["N", 3, 4, 4])],
        [("y", np.float32, [])],
    )
    with pytest.raises(ModelError, match="wanted one row for each"):
        qk.predict_images(total, PHOTOS, preset=UNIT)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "p.npz"]


def test_names_that_are_not_utf_8(tmp_path):
    source = picture_folder(tmp_path / "in", 1)
    data = (source / "cat" / "0000.png").read_bytes()
    with open(bytes(source) + b"/\xff.png", "wb") as file:
        file.write(data)
    for form in ("csv", "jsonl", "npz"):
        qk.predict_images(means(), source, tmp_path / f"p.{form}", preset=UNIT, top=1)
    assert b"\n\xff.png,,," in (tmp_path / "p.csv").read_bytes()
    assert json.loads((tmp_path / "p.jsonl").read_text().splitlines()[1])["path"] == "\udcff.png"
    with np.load(tmp_path / "p.npz") as found:
        assert found["path"].tolist() == ["cat/0000.png", "\udcff.png"]
