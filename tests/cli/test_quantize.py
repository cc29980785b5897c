"""`quantkit quantize`: what it hands to the quantizer, and what it makes of the result."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from quantkit import cli
from quantkit.errors import OutputError
from quantkit.models.report.report import QuantizationResult, Report
from quantkit.models.verification.agreement import Agreement, OutputAgreement, Thresholds


@pytest.fixture
def quantizer(monkeypatch):
    """Put a quantizer in place that records how it was called."""
    module = ModuleType("quantkit.models.quantizer")
    module.calls = []
    module.sqnr = 35.0
    module.skipped = {}

    def quantize_model(model, output, *, progress, thresholds, **options):
        module.calls.append({"model": model, "output": output, "thresholds": thresholds, **options})
        progress("calibrate", 1, 1)
        agreement = Agreement(3, [OutputAgreement("y", "float32", 9, module.sqnr, 0.99, 0.1, 0.0, 1.0)])
        report = Report(
            str(model), str(output), agreement=agreement, thresholds=thresholds, skipped=dict(module.skipped)
        )
        return QuantizationResult(Path(output), None, report)

    module.quantize_model = quantize_model
    monkeypatch.setitem(sys.modules, "quantkit.models.quantizer", module)
    return module


def test_defaults(quantizer, capsys):
    assert cli.main(["quantize", "m.onnx", "-o", "q.onnx", "--calibration", "data"]) == 0
    assert quantizer.calls == [
        {
            "model": Path("m.onnx"),
            "output": Path("q.onnx"),
            "calibration": Path("data"),
            "validation": None,
            "preset": None,
            "mode": "static",
            "format": "qdq",
            "target": "onnxruntime",
            "include": (),
            "exclude": (),
            "calibration_method": "minmax",
            "percentile": 99.99,
            "limit": None,
            "refine": True,
            "allow_slower": False,
            "avoid_saturation": False,
            "scheduler": None,
            "class_axis": None,
            "threads": 0,
            "thresholds": Thresholds(),
        }
    ]
    out, err = capsys.readouterr()
    assert out.startswith("m.onnx -> q.onnx\n")
    assert err == "calibrate: 1 of 1\n"


def test_every_option(quantizer):
    options = {
        "validation": "v",
        "preset": "imagenet",
        "mode": "dynamic",
        "format": "qoperator",
        "target": "portable",
        "samples": 7,
        "class-axis": 1,
        "threads": 2,
        "min-sqnr": 30,
        "min-slice-sqnr": 4,
        "max-drop": 1,
        "min-argmax": 0.9,
        "calibration-method": "percentile",
        "percentile": 99.5,
        "include": "Conv*",
        "scheduler": "tcp://host:8786",
    }
    arguments = [f"--{name}={value}" for name, value in options.items()] + ["--exclude", "a", "--exclude", "Conv"]
    arguments += ["--no-refine", "--allow-slower", "--avoid-saturation"]
    assert cli.main(["quantize", "m.onnx", "-o", "q.onnx", *arguments]) == 0
    (call,) = quantizer.calls
    assert call == {
        "model": Path("m.onnx"),
        "output": Path("q.onnx"),
        "calibration": None,
        "validation": Path("v"),
        "preset": "imagenet",
        "mode": "dynamic",
        "format": "qoperator",
        "target": "portable",
        "include": ("Conv*",),
        "exclude": ("a", "Conv"),
        "calibration_method": "percentile",
        "percentile": 99.5,
        "limit": 7,
        "refine": False,
        "allow_slower": True,
        "avoid_saturation": True,
        "scheduler": "tcp://host:8786",
        "class_axis": 1,
        "threads": 2,
        "thresholds": Thresholds(30, 4, 1, 0.9),
    }


def test_low_agreement_is_exit_code_1(quantizer, capsys):
    quantizer.sqnr = 12.0
    assert cli.main(["quantize", "m.onnx", "-o", "q.onnx"]) == 1
    assert "falls short: output 'y': SQNR 12.0 dB (at least 20 wanted)" in capsys.readouterr().out
    assert cli.main(["quantize", "m.onnx", "-o", "q.onnx", "--min-sqnr", "10"]) == 0


def test_unreadable_inputs_are_exit_code_1_and_listed(quantizer, capsys):
    quantizer.skipped = {"a.png": "cut short"}
    assert cli.main(["quantize", "m.onnx", "-o", "q.onnx"]) == 1
    assert "skipped: a.png: cut short" in capsys.readouterr().out


def test_json(quantizer, capsys):
    assert cli.main(["quantize", "m.onnx", "-o", "q.onnx", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["agreement"]["outputs"][0]["sqnr_db"] == 35.0


def test_reports(quantizer, tmp_path):
    page = tmp_path / "r.html"
    assert cli.main(["quantize", "m.onnx", "-o", "q.onnx", "--report", str(page)]) == 0
    assert "Verified" in page.read_text()


def test_a_report_that_cannot_be_written_in_the_end(quantizer, tmp_path, monkeypatch, capsys):
    def full(path):
        raise OutputError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr("quantkit.cli.show.atomic_write", full)
    assert cli.main(["quantize", "m.onnx", "-o", "q.onnx", "--report", str(tmp_path / "r.html")]) == 1
    out, err = capsys.readouterr()
    assert "35.0 dB" in out
    assert err.splitlines()[-1].startswith("quantkit: error: the report was not written: cannot write ")


@pytest.mark.parametrize("report", ["q.json", "m.json"])
def test_a_report_never_replaces_a_model(quantizer, capsys, tmp_path, monkeypatch, report):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["quantize", "m.json", "-o", "q.json", "--report", report]) == 2
    assert "is also the model" in capsys.readouterr().err
    assert quantizer.calls == []


def test_a_terminal_gets_tables(quantizer, capsys, monkeypatch):
    monkeypatch.setattr("quantkit.cli.show.on_terminal", lambda: True)
    assert cli.main(["quantize", "m.onnx", "-o", "q.onnx"]) == 0
    out = capsys.readouterr().out
    assert "35.0 dB" in out
    assert "┃" in out
