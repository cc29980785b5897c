"""Real models that nobody here made: PP-OCR detection, recognition and classification, read from a published wheel.

Weights in Constant nodes, dynamic shapes, opset 11 and 12.
"""

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from PIL import Image

import quantkit as qk

PHOTOS = Path(__file__).parents[2] / "datasets" / "photos"
found = importlib.util.find_spec("rapidocr_onnxruntime")
MODELS = Path(found.submodule_search_locations[0]) / "models" if found else None

pytestmark = [
    pytest.mark.skipif(MODELS is None, reason="rapidocr-onnxruntime, whose wheel carries the models, is not installed"),
    pytest.mark.slow,
]

CASES = [
    ("ch_PP-OCRv4_det_infer.onnx", (96, 160)),
    ("ch_PP-OCRv4_rec_infer.onnx", (48, 160)),
    ("ch_ppocr_mobile_v2.0_cls_infer.onnx", (48, 192)),
]


def crops(name, height, width, count):
    """Pieces of photographs, of several widths, as these models take them: values from -1 to 1."""
    rng = np.random.default_rng(0)
    photos = [Image.open(path).convert("RGB") for path in sorted(PHOTOS.glob("*.*g"))]
    for i in range(count):
        photo, w = photos[i % len(photos)], width + 32 * (i % 3)
        x, y = rng.integers(0, photo.width - w), rng.integers(0, photo.height - height)
        pixels = np.asarray(photo.crop((x, y, x + w, y + height)), np.float32) / 127.5 - 1
        yield {name: np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])}


@pytest.mark.parametrize(("file", "size"), CASES)
def test_ppocr(file, size, tmp_path):
    source = MODELS / file
    name = ort.InferenceSession(str(source)).get_inputs()[0].name
    before = source.read_bytes()
    result = qk.quantize_model(source, tmp_path / file, calibration=list(crops(name, *size, 12)))
    assert source.read_bytes() == before
    onnx.checker.check_model(str(result.path))
    session = ort.InferenceSession(str(result.path))
    for feed in crops(name, *size, 3):
        assert all(np.isfinite(output).all() for output in session.run(None, feed))
    report = result.report
    weighted = [n for n in report.nodes if n.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")]
    total = sum(n.weight_elements for n in weighted)
    int8 = sum(n.weight_elements for n in weighted if n.decision != "float")
    assert total > 100_000
    assert int8 >= 0.75 * total
    assert report.agreement.samples > 0
    assert all(np.isfinite(output.sqnr_db) for output in report.agreement.outputs)
