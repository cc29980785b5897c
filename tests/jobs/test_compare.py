"""compare_models: sizes, agreement and latency of any two models."""

import numpy as np
import onnx
import pytest
from small_models import linear

from quantkit.errors import CalibrationError, ModelError
from quantkit.jobs.compare import compare_models
from quantkit.models.verification.agreement import Thresholds

WEIGHT = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
ROWS = np.random.default_rng(1).normal(size=(20, 1, 4)).astype(np.float32)


def test_bytes_and_protos_and_paths(tmp_path):
    content = linear(WEIGHT)
    (tmp_path / "m.onnx").write_bytes(content)
    proto = onnx.load_model_from_string(content)
    report = compare_models(tmp_path / "m.onnx", proto, {"x": ROWS}, latency=False)
    assert report.float_bytes == report.int8_bytes == len(content)
    assert (report.source, report.output) == (str(tmp_path / "m.onnx"), "the given model")
    assert report.agreement.outputs[0].sqnr_db == 200.0
    assert report.latency is None
    assert report.nodes == []
    assert compare_models(content, content, {"x": ROWS}, latency=False).shortfalls() == []


def test_external_data_counts(tmp_path):
    proto = onnx.load_model_from_string(linear(np.ones((4, 3000))))
    onnx.save_model(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    report = compare_models(tmp_path / "m.onnx", tmp_path / "m.onnx", {"x": ROWS}, latency=False)
    assert report.float_bytes == (tmp_path / "m.onnx").stat().st_size + 48_000


def test_notes_of_the_data_become_warnings():
    report = compare_models(linear(WEIGHT), linear(WEIGHT), {"x": ROWS.astype(np.float64)}, latency=False)
    assert report.warnings == ["input 'x' came as float64 and was converted to float32"]


def test_latency_and_timings():
    report = compare_models(linear(WEIGHT), linear(WEIGHT), {"x": ROWS})
    assert report.latency.float_ms > 0
    assert list(report.timings) == ["verify", "latency"]


def test_limit_and_thresholds():
    report = compare_models(
        linear(WEIGHT), linear(WEIGHT * 1.001), {"x": ROWS}, limit=5, thresholds=Thresholds(min_sqnr=90), latency=False
    )
    assert report.agreement.samples == 5
    assert len(report.shortfalls()) == 1


def test_faults_are_those_of_the_parts():
    with pytest.raises(CalibrationError, match="dict: no data for input 'x'"):
        compare_models(linear(WEIGHT), linear(WEIGHT), {"y": ROWS})
    with pytest.raises(ModelError, match="the model given as bytes: is no ONNX model"):
        compare_models(linear(WEIGHT), b"text", {"x": ROWS})
