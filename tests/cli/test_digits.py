"""The first command of the README, on the model and the images that come with the sources."""

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

DIGITS = Path(__file__).parents[2] / "datasets" / "digits"


def quantkit(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "quantkit", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    output = folder / "digits.int8.onnx"
    run = quantkit(
        "quantize",
        DIGITS / "digits.onnx",
        "-o",
        output,
        "--calibration",
        DIGITS / "train",
        "--validation",
        DIGITS / "test",
        "--report",
        folder / "report.json",
    )
    return run, output, json.loads((folder / "report.json").read_text())


def test_it_is_verified_on_every_test_image(done):
    run, output, report = done
    assert run.returncode == 0, run.stderr
    images = len(list((DIGITS / "test").rglob("*.png")))
    assert report["agreement"]["samples"] == report["agreement"]["accuracy"]["count"] == images
    assert report["calibration_samples"] == len(list((DIGITS / "train").rglob("*.png")))
    assert report["output"] == str(output)
    assert report["shortfalls"] == []


def test_it_keeps_the_accuracy_at_about_a_quarter_of_the_size(done):
    _, output, report = done
    accuracy = report["agreement"]["accuracy"]
    assert accuracy["float"] > 0.98
    assert accuracy["drop_points"] <= 0.5
    assert report["size"]["int8_bytes"] == output.stat().st_size
    assert report["size"]["ratio"] <= 0.35


def test_it_prints_what_a_newcomer_asks_first(done):
    run, _, report = done
    lines = run.stdout.splitlines()
    assert lines[0] == "digits.onnx -> digits.int8.onnx (static, qdq, onnxruntime)"
    table = {line.split("  ")[0]: line for line in lines[3:6]}
    assert f"{100 * report['agreement']['accuracy']['int8']:.2f} %" in table["accuracy"]
    assert "x the size" in table["file size"]
    assert "x as " in table["time a run, one thread"]


def test_the_recipe_travels_with_the_model(done):
    _, output, _ = done
    recipes = [
        {item.key: item.value for item in onnx.load(path).metadata_props}["quantkit.recipe"]
        for path in (DIGITS / "digits.onnx", output)
    ]
    assert [json.loads(recipe)["size"] for recipe in recipes] == [[8, 8], [8, 8]]


def test_compare_says_the_same(done):
    _, output, report = done
    run = quantkit("compare", DIGITS / "digits.onnx", output, "--data", DIGITS / "test", "--json")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["agreement"] == report["agreement"]


def test_inspect_sees_int8(done):
    _, output, _ = done
    run = quantkit("inspect", output, "--json")
    found = json.loads(run.stdout)
    assert found["form"] == ["qdq"]
    assert found["int8_weight_share"] > 0.99


def test_a_quarter_of_the_images_is_held_out_by_default(tmp_path):
    run = quantkit(
        "quantize", DIGITS / "digits.onnx", "-o", tmp_path / "q.onnx", "--calibration", DIGITS / "test", "--json"
    )
    found = json.loads(run.stdout)
    images = len(list((DIGITS / "test").rglob("*.png")))
    assert found["agreement"]["samples"] == round(images / 4)
    assert found["calibration_samples"] == images - round(images / 4)


@pytest.mark.parametrize("mode", ["dynamic", "weight_only"])
def test_the_other_modes_need_no_data(tmp_path, mode):
    run = quantkit("quantize", DIGITS / "digits.onnx", "-o", tmp_path / "q.onnx", "--mode", mode)
    assert run.returncode == 0, run.stderr
    assert "not verified: no data was given to run both models on" in run.stdout
    assert (tmp_path / "q.onnx").stat().st_size < 0.35 * (DIGITS / "digits.onnx").stat().st_size
