import json
import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest

from quantkit.errors import FormatError, InvalidArgument
from quantkit.images import PRESETS, Recipe, get_recipe, recipe_names

ROOT = Path(__file__).resolve().parents[2]
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_the_presets():
    assert list(recipe_names()) == [
        *("imagenet", "imagenet-v2", "timm", "inception", "dpn", "clip", "caffe", "yolo", "unit", "raw"),
    ]
    assert all(PRESETS[name].name == name for name in PRESETS)
    geometry = {n: (r.resize, r.size, r.crop, r.interpolation, r.output_size) for n, r in PRESETS.items()}
    assert geometry == {
        "imagenet": ("shortest", 256, (224, 224), "bilinear", (224, 224)),
        "imagenet-v2": ("shortest", 232, (224, 224), "bilinear", (224, 224)),
        "timm": ("shortest", 256, (224, 224), "bicubic", (224, 224)),
        "inception": ("shortest", 341, (299, 299), "bicubic", (299, 299)),
        "dpn": ("shortest", 256, (224, 224), "bicubic", (224, 224)),
        "clip": ("shortest", 224, (224, 224), "bicubic", (224, 224)),
        "caffe": ("shortest", 256, (224, 224), "bilinear", (224, 224)),
        "yolo": ("letterbox", (640, 640), None, "opencv-linear", (640, 640)),
        "unit": ("none", None, None, "bilinear", None),
        "raw": ("none", None, None, "bilinear", None),
    }
    values = {n: (r.color, r.divide, r.mean, r.std) for n, r in PRESETS.items() if n not in {"dpn", "clip"}}
    assert values == {
        "imagenet": ("RGB", 255.0, *IMAGENET),
        "imagenet-v2": ("RGB", 255.0, *IMAGENET),
        "timm": ("RGB", 255.0, *IMAGENET),
        "inception": ("RGB", 255.0, (0.5,) * 3, (0.5,) * 3),
        "caffe": ("BGR", 1.0, (103.939, 116.779, 123.68), (1.0,) * 3),
        "yolo": ("RGB", 255.0, (0.0,) * 3, (1.0,) * 3),
        "unit": ("RGB", 255.0, (0.0,) * 3, (1.0,) * 3),
        "raw": ("RGB", 1.0, (0.0,) * 3, (1.0,) * 3),
    }
    assert PRESETS["yolo"].pad == (114, 114, 114)


# The numbers of docs/images.md.
QPARAMS = {
    "imagenet": ([0.01712475, 0.01750700, 0.01742919], [123.675, 116.28, 103.53]),
    "clip": ([0.01459843, 0.01500777, 0.01422007], [122.770935, 116.74601, 104.093735]),
    "caffe": ([1, 1, 1], [103.939, 116.779, 123.68]),
    "dpn": ([0.0167, 0.0167, 0.0167], [124, 117, 104]),
    "inception": (1 / 127.5, 127.5),
    "yolo": (1 / 255, 0),
    "raw": (1, 0),
}


@pytest.mark.parametrize("name", QPARAMS)
def test_mean_and_std_fold_into_scale_and_zero_point(name):
    scale, zero_point = QPARAMS[name]
    q = PRESETS[name].qparams()
    assert np.allclose(q.scale, scale, rtol=1e-6, atol=0)
    assert np.allclose(q.zero_point, zero_point, rtol=1e-6, atol=0)
    assert q.axis == (0 if isinstance(scale, list) else None)
    assert q.has_float_zero_point == (name not in {"dpn", "yolo", "raw"})
    assert PRESETS[name].qparams(axis=2).axis == (2 if isinstance(scale, list) else None)


@pytest.mark.parametrize("name", PRESETS)
def test_the_table_is_the_float_route_and_the_qparams_agree_with_it(name):
    r = PRESETS[name]
    table = r.table()
    assert table.shape == (3, 256)
    assert table.dtype == np.float32
    for c in range(3):
        for p in (0, 1, 127, 254, 255):
            x = (np.float32(p) / np.float32(r.divide) - np.float32(r.mean[c])) / np.float32(r.std[c])
            assert table[c, p] == x
    q = r.qparams()
    scale, zero_point = (np.broadcast_to(np.asarray(v, np.float64), 3)[:, None] for v in (q.scale, q.zero_point))
    assert np.allclose((np.arange(256) - zero_point) * scale, table, atol=2e-6 * np.abs(table).max())


def test_integer_zero_points_come_with_their_error():
    q, error = PRESETS["imagenet"].integer_qparams()
    assert q.zero_point.tolist() == [124, 116, 104]
    assert q.zero_point.dtype == np.int32
    assert error == pytest.approx(0.0082, abs=1e-4)
    assert PRESETS["dpn"].integer_qparams()[1] == 0
    assert PRESETS["yolo"].integer_qparams()[0].zero_point == 0
    with pytest.raises(InvalidArgument, match="mean must be zero points"):
        Recipe(mean=-1).integer_qparams()


@pytest.mark.parametrize("name", PRESETS)
def test_json_and_pickle_round_trips(name):
    r = PRESETS[name]
    assert Recipe.from_json(r.to_json()) == r
    assert Recipe.from_json(json.loads(r.to_json())).hash == r.hash
    assert pickle.loads(pickle.dumps(r)) == r
    assert Recipe.from_json(r.to_json()).name == name
    hash(r)


def test_the_hash_is_frozen_and_tells_recipes_apart():
    # A change of this value makes every stored result look stale: only with a new version of the format.
    assert PRESETS["imagenet"].hash == "8ac877ed0421eae2c5126bd2cfe436597d374dfba1b3db36e343ed24c9a293f4"
    assert len({r.hash for r in PRESETS.values()}) == len(PRESETS)
    assert PRESETS["imagenet"].replace(name="x").hash == PRESETS["imagenet"].hash
    assert PRESETS["imagenet"].replace(name="x") == PRESETS["imagenet"]
    changes = {
        **{"resize": "none", "size": 255, "crop": 223, "crop_rounding": "floor", "interpolation": "box"},
        **{"upscale": False, "color": "BGR", "divide": 1, "mean": 0, "std": 1, "pad": 1, "background": 0, "white": 9},
        **{"frames": "all", "draft": 2, "tolerant": True},
    }
    assert {"version", "name", *changes} == set(PRESETS["imagenet"].to_dict())
    hashes = {PRESETS["imagenet"].replace(**{k: v}).hash for k, v in changes.items()}
    assert len(hashes | {PRESETS["imagenet"].hash}) == len(changes) + 1


def test_equal_ways_to_write_a_recipe_are_equal():
    a = Recipe(resize="squash", size=8, mean=0.5, std=[0.5], pad=3, background=(1, 1, 1), divide=255)
    b = Recipe(resize="squash", size=[8, 8], mean=np.full(3, 0.5), std=(0.5,) * 3, pad=(3.0,) * 3, background=1)
    assert a == b
    assert a.hash == b.hash
    assert hash(a) == hash(b)


def test_the_recipe_inside_digits_onnx():
    model = onnx.load(ROOT / "datasets/digits/digits.onnx")
    text = {p.key: p.value for p in model.metadata_props}["quantkit.recipe"]
    assert Recipe.from_json(text) == Recipe(resize="squash", size=8, color="L")


def test_replace():
    r = PRESETS["imagenet"]
    assert r.replace(size=300).size == 300
    assert r.replace(resize="none").size is None
    assert r.replace(resize="squash", size=(5, 7), crop=None).output_size == (5, 7)
    assert PRESETS["yolo"].replace(color="L").mean == (0.0,)
    assert PRESETS["yolo"].replace(color="L").pad == (114,)
    assert Recipe(color="L", mean=0.5).replace(color="RGB").mean == (0.5, 0.5, 0.5)
    with pytest.raises(InvalidArgument, match="mean must be a finite number, got"):
        r.replace(color="L")
    with pytest.raises(InvalidArgument, match="no field 'sise'; there are name, resize, size, crop"):
        r.replace(sise=3)


@pytest.mark.parametrize(
    ("recipe", "size", "fields"),
    [
        (PRESETS["imagenet"], (224, 224), ("shortest", 256, (224, 224))),
        (PRESETS["imagenet"], (299, 299), ("shortest", 341, (299, 299))),
        (PRESETS["imagenet"], (112, 224), ("shortest", 256, (112, 224))),
        (PRESETS["clip"], (336, 336), ("shortest", 336, (336, 336))),
        (PRESETS["yolo"], (320, 416), ("letterbox", (320, 416), None)),
        (PRESETS["raw"], (7, 9), ("squash", (7, 9), None)),
        (Recipe(resize="shortest", size=10), (7, 9), ("shortest", 9, (7, 9))),
        (Recipe(crop=5), (7, 9), ("squash", (7, 9), None)),
        (Recipe(resize="squash", size=10, crop=8), (7, 9), ("squash", (7, 9), None)),
    ],
)
def test_with_output_size(recipe, size, fields):
    fitted = recipe.with_output_size(*size)
    assert (fitted.resize, fitted.size, fitted.crop) == fields
    assert fitted.output_size == size
    assert fitted.mean == recipe.mean


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"name": 3}, "name must be text"),
        ({"resize": "fit"}, "resize must be one of shortest, squash, letterbox, none, got 'fit'"),
        ({"resize": ["none"]}, "resize must be one of"),
        ({"interpolation": "cubic"}, "interpolation must be one of nearest, box"),
        ({"color": "rgb"}, "color must be one of RGB, BGR, L"),
        ({"size": 3}, 'size must be none, because resize is "none"'),
        ({"resize": "squash"}, "size must be a number of pixels or"),
        ({"resize": "squash", "size": 0}, "size must be"),
        ({"resize": "squash", "size": True}, "size must be"),
        ({"resize": "squash", "size": (3, 4, 5)}, "size must be"),
        ({"resize": "squash", "size": 65536}, "1 to 65535"),
        ({"resize": "squash", "size": "33"}, "size must be"),
        ({"resize": "shortest", "size": (3, 4)}, "size must be one number"),
        ({"crop": -1}, "crop must be"),
        ({"mean": (1, 2)}, "mean must be 3 finite numbers"),
        ({"mean": float("nan")}, "mean must be 3 finite"),
        ({"mean": "0"}, "mean must be"),
        ({"mean": [None]}, "mean must be"),
        ({"std": 0}, "std must be a number > 0"),
        ({"std": (1, 1, -1)}, "std must be a number > 0"),
        ({"std": 1e-60}, "std must be a number > 0"),
        ({"std": 1e60}, "std must be 3 finite"),
        ({"divide": 0}, "divide must be a number > 0"),
        ({"divide": (1, 2)}, "divide must be a finite number"),
        ({"white": -1}, "white must be a number > 0"),
        ({"pad": 256}, "pad must be pixel codes"),
        ({"pad": 1.5}, "pad must be pixel codes"),
        ({"background": (1, 2)}, "background must be 3"),
        ({"upscale": 1}, "upscale must be true or false"),
    ],
)
def test_fields_that_cannot_be(fields, match):
    with pytest.raises(InvalidArgument, match=match):
        Recipe(**fields)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "wanted JSON"),
        ("[1]", "wanted a JSON object"),
        (b"\xff", "wanted JSON"),
        ('{"version": 2}', "version must be 1, got 2"),
        ('{"resize": "none", "widht": 3}', "no field 'widht'; there are"),
        ('{"mean": [1, "2", 3]}', "mean must be 3 finite numbers"),
    ],
)
def test_json_that_is_no_recipe(text, match):
    with pytest.raises(InvalidArgument, match=match):
        Recipe.from_json(text)


def test_get_recipe(tmp_path):
    assert get_recipe("clip") is PRESETS["clip"]
    assert get_recipe(PRESETS["clip"], crop=100).crop == (100, 100)
    assert get_recipe("imagenet", interpolation="bicubic") == PRESETS["timm"]
    (tmp_path / "mine.json").write_text(PRESETS["yolo"].to_json())
    assert get_recipe(tmp_path / "mine.json") == PRESETS["yolo"]
    with pytest.raises(InvalidArgument, match="no preset 'imagnet'; there are imagenet, imagenet-v2, timm"):
        get_recipe("imagnet")
    with pytest.raises(InvalidArgument, match="no preset None"):
        get_recipe(None)
    with pytest.raises(FormatError, match=r"none\.json: cannot be read: No such file"):
        get_recipe(str(tmp_path / "none.json"))
    with pytest.raises(InvalidArgument, match="no field 'foo'"):
        get_recipe("clip", foo=1)
