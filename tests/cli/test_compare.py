"""`quantkit compare`: two models, one data set, an exit code."""

import json

import numpy as np
import pytest
from small_models import linear

from quantkit import cli

WEIGHT = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
ROWS = np.random.default_rng(1).normal(size=(20, 1, 4)).astype(np.float32)


@pytest.fixture
def files(tmp_path):
    (tmp_path / "float.onnx").write_bytes(linear(WEIGHT))
    (tmp_path / "good.onnx").write_bytes(linear(np.rint(WEIGHT * 64) / 64))
    (tmp_path / "bad.onnx").write_bytes(linear(WEIGHT[:, ::-1]))
    labels = (ROWS[:, 0] @ WEIGHT).argmax(1)
    np.savez(tmp_path / "data.npz", x=ROWS)
    np.savez(tmp_path / "labelled.npz", x=ROWS, labels=labels)
    return tmp_path


def compare(files, other, data="data.npz", *more):
    return cli.main(["compare", str(files / "float.onnx"), str(files / other), "--data", str(files / data), *more])


def test_models_that_agree(files, capsys):
    assert compare(files, "good.onnx") == 0
    out, err = capsys.readouterr()
    assert out.startswith("float.onnx -> good.onnx\n")
    assert "agreement with the float model on 20 samples" in out
    assert "time a run, one thread" in out
    assert "falls short" not in out
    assert err == "verify: 20 samples\nverify: 20 of 20\n"


def test_models_that_do_not_agree(files, capsys):
    assert compare(files, "bad.onnx") == 1
    assert "falls short: output 'y': SQNR " in capsys.readouterr().out


def test_thresholds_are_options(files):
    assert compare(files, "bad.onnx", "data.npz", "--min-sqnr", "-50", "--min-slice-sqnr", "-50") == 0
    assert compare(files, "good.onnx", "data.npz", "--min-sqnr", "90") == 1


def test_accuracy_is_shown_where_labels_are_known(files, capsys):
    assert compare(files, "good.onnx", "labelled.npz") == 0
    assert "accuracy                100.00 %  100.00 %  no change, 20 samples" in capsys.readouterr().out
    assert compare(files, "bad.onnx", "labelled.npz") == 1
    assert "falls short: accuracy fell by " in capsys.readouterr().out


def test_json_is_the_only_thing_on_stdout(files, capsys):
    assert compare(files, "good.onnx", "labelled.npz", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1
    assert found["agreement"]["accuracy"]["count"] == 20
    assert found["size"]["float_bytes"] == (files / "float.onnx").stat().st_size
    assert found["shortfalls"] == []
    assert found["source"].endswith("float.onnx")


def test_reports_are_written_by_their_ending(files):
    assert compare(files, "good.onnx", "data.npz", "--report", str(files / "r.html")) == 0
    assert (files / "r.html").read_text().startswith("<!doctype html>")
    assert compare(files, "good.onnx", "data.npz", "--report", str(files / "r.json")) == 0
    assert json.loads((files / "r.json").read_text())["schema"] == 1


def test_fewer_samples(files, capsys):
    assert compare(files, "good.onnx", "data.npz", "--samples", "5") == 0
    assert "on 5 samples" in capsys.readouterr().out


def test_class_axis(files, capsys):
    assert compare(files, "good.onnx", "data.npz", "--class-axis", "1") == 0
    assert "of 20 (95 %: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("report", "line"),
    [
        ("r.txt", "--report: wanted a name that ends in .html or .json, got "),
        ("nowhere/r.html", "cannot write "),
        ("float.json", None),
    ],
)
def test_a_report_that_cannot_be_written_stops_before_any_work(files, capsys, report, line):
    code = compare(files, "good.onnx", "data.npz", "--report", str(files / report))
    err = capsys.readouterr().err
    if line is None:
        assert code == 0
    else:
        assert code == 2
        assert err.startswith(f"quantkit: error: {line}")
        assert err.count("\n") == 1


def test_a_report_never_replaces_a_model(files, capsys):
    (files / "m.json").write_bytes(linear(WEIGHT))
    arguments = [str(files / "m.json"), str(files / "good.onnx"), "--data", str(files / "data.npz")]
    assert cli.main(["compare", *arguments, "--report", str(files / "m.json")]) == 2
    assert "is also the model" in capsys.readouterr().err
