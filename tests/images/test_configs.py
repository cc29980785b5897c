import json

import pytest

from quantkit.errors import FormatError
from quantkit.images import PRESETS, Recipe, get_recipe

VIT = {
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "ViTImageProcessor",
    "image_std": [0.5, 0.5, 0.5],
    "resample": 2,
    "rescale_factor": 0.00392156862745098,
    "size": {"height": 224, "width": 224},
}
CLIP = {
    "crop_size": 224,
    "do_center_crop": True,
    "do_normalize": True,
    "do_resize": True,
    "feature_extractor_type": "CLIPFeatureExtractor",
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
    "size": 224,
}
CONVNEXT = {
    "crop_pct": 0.875,
    "do_normalize": True,
    "do_resize": True,
    "feature_extractor_type": "ConvNextFeatureExtractor",
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "resample": 3,
    "size": 224,
}
MOBILEVIT = {
    "crop_size": {"height": 256, "width": 256},
    "do_center_crop": True,
    "do_flip_channel_order": True,
    "do_resize": True,
    "image_processor_type": "MobileViTImageProcessor",
    "resample": 2,
    "size": {"shortest_edge": 288},
}
NULLS = {
    **VIT,
    "crop_size": None,
    "do_center_crop": None,
    "do_pad": None,
    "do_convert_rgb": None,
    "size": {"height": 384, "width": 384, "shortest_edge": None, "longest_edge": None},
}
TIMM = {
    "architecture": "resnet50",
    "num_classes": 1000,
    "pretrained_cfg": {
        "input_size": [3, 224, 224],
        "fixed_input_size": False,
        "interpolation": "bicubic",
        "crop_pct": 0.95,
        "crop_mode": "center",
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
    },
}
HALF = {"mean": 0.5, "std": 0.5}
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def timm(**changes):
    return {**TIMM, "pretrained_cfg": {**TIMM["pretrained_cfg"], **changes}}


EXPECTED = {
    "vit": (VIT, Recipe(resize="squash", size=224, crop_rounding="floor", **HALF)),
    "clip": (CLIP, PRESETS["clip"].replace(crop_rounding="floor")),
    "convnext": (
        CONVNEXT,
        Recipe(resize="shortest", size=256, crop=224, interpolation="bicubic", crop_rounding="floor", **IMAGENET),
    ),
    "convnext 384": (
        {**CONVNEXT, "size": {"shortest_edge": 384}},
        Recipe(resize="squash", size=384, interpolation="bicubic", crop_rounding="floor", **IMAGENET),
    ),
    "mobilevit": (MOBILEVIT, Recipe(resize="shortest", size=288, crop=256, color="BGR", crop_rounding="floor")),
    "nulls": (NULLS, Recipe(resize="squash", size=384, crop_rounding="floor", **HALF)),
    "no rescale": (
        {**VIT, "do_rescale": False},
        Recipe(resize="squash", size=224, divide=1, crop_rounding="floor", **HALF),
    ),
    "no resize": ({**VIT, "do_resize": False}, Recipe(crop_rounding="floor", **HALF)),
    "timm": (TIMM, Recipe(resize="shortest", size=235, crop=224, interpolation="bicubic", **IMAGENET)),
    "timm default crop": (timm(crop_pct=None, crop_mode=None), PRESETS["timm"]),
    "timm squash": (
        timm(crop_mode="squash", crop_pct=1.0, input_size=[3, 128, 256]),
        Recipe(resize="squash", size=(128, 256), crop=(128, 256), interpolation="bicubic", **IMAGENET),
    ),
    "timm border": (
        timm(crop_mode="border", crop_pct=1.0),
        Recipe(resize="letterbox", size=224, interpolation="bicubic", pad=(124, 116, 104), **IMAGENET),
    ),
    "timm grey": (
        timm(input_size=[1, 28, 28], mean=[0.5], std=[0.5], crop_pct=1.0),
        Recipe(resize="shortest", size=28, crop=28, interpolation="bicubic", color="L", **HALF),
    ),
}


@pytest.mark.parametrize("case", EXPECTED)
def test_recipes_of_other_libraries(tmp_path, case):
    config, recipe = EXPECTED[case]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert get_recipe(path) == recipe


def test_a_model_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TIMM))
    assert get_recipe(tmp_path).name == "resnet50"
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(VIT))
    assert get_recipe(tmp_path).name == "ViTImageProcessor"


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({**VIT, "do_pad": True}, "do_pad: no recipe for True"),
        ({**VIT, "include_top": True}, "include_top: no recipe"),
        ({**VIT, "resample": 9}, "resample: no recipe for 9"),
        ({**VIT, "resample": None}, "resample: no recipe for None"),
        ({**VIT, "image_processor_type": "LevitImageProcessor"}, "image_processor_type: no recipe for 'LevitImage"),
        ({**VIT, "size": {"shortest_edge": 800, "longest_edge": 1333}}, "size: no recipe for .*1333"),
        ({k: v for k, v in VIT.items() if k != "size"}, "size: no recipe for None"),
        ({**VIT, "image_std": None}, "do_normalize: no recipe"),
        ({**VIT, "image_std": [0.5, 0.5]}, "std must be 3 finite numbers"),
        ({**VIT, "rescale_factor": 0}, "rescale_factor: no recipe"),
        ({**CLIP, "crop_size": "x"}, "crop_size: no recipe for 'x'"),
        ({**CONVNEXT, "crop_pct": 2}, "crop_pct: no recipe for 2"),
        (timm(crop_mode="border"), "crop_mode: no recipe for 'border with crop_pct 0.95'"),
        (timm(crop_mode="random"), "crop_mode: no recipe"),
        (timm(input_size=[3, 224]), "input_size: no recipe"),
        (timm(input_size=[3, 128, 256]), "which is not square"),
        (timm(interpolation="random"), "interpolation must be one of"),
        ({"pretrained_cfg": 3}, "pretrained_cfg: no recipe"),
        ({"hidden_size": 768}, "none of their keys is there"),
        ([], "wanted a JSON object"),
        ({"resize": "none", "x": 1}, "no field 'x'"),
    ],
)
def test_configs_that_no_recipe_can_hold(tmp_path, config, match):
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(FormatError, match=match) as caught:
        get_recipe(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_files_that_are_no_config(tmp_path):
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(FormatError, match="is not JSON"):
        get_recipe(tmp_path / "x.json")
    with pytest.raises(FormatError, match=r"holds no preprocessor_config\.json and no config\.json"):
        get_recipe(tmp_path)
