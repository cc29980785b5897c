"""The files of datasets/ are the ones that its README and manifest speak of."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image

DATASETS = Path(__file__).resolve().parents[2] / "datasets"
MANIFEST = json.loads((DATASETS / "manifest.json").read_text())


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def test_manifest_covers_all_data():
    covered = {DATASETS / name for name in MANIFEST}
    data = [p for p in DATASETS.rglob("*") if p.suffix in {".png", ".jpg", ".onnx"}]
    assert len(data) == sum(entry["files"] for entry in MANIFEST.values())
    assert all(covered & {p, *p.parents} for p in data)


@pytest.mark.parametrize("name", MANIFEST)
def test_files_match_the_manifest(name):
    path, entry = DATASETS / name, MANIFEST[name]
    files = [path] if path.is_file() else sorted(path.glob("*/*"))
    assert (len(files), sum(p.stat().st_size for p in files)) == (entry["files"], entry["bytes"])
    if path.is_file():
        assert sha256(path.read_bytes()) == entry["sha256"]
    else:
        lines = [f"{sha256(p.read_bytes())}  {p.relative_to(path).as_posix()}\n" for p in files]
        assert sha256("".join(lines).encode()) == entry["sha256"]


def test_everything_is_small():
    assert sum(p.stat().st_size for p in DATASETS.rglob("*") if p.is_file()) < 4_000_000
    assert (DATASETS / "digits/digits.onnx").stat().st_size <= 1_800_000


def test_readme_names_every_part():
    readme = (DATASETS / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in MANIFEST)


@pytest.mark.parametrize(
    ("part", "counts"),
    [
        ("train", [134, 137, 133, 138, 136, 137, 136, 135, 131, 135]),
        ("test", [44, 45, 44, 45, 45, 45, 45, 44, 43, 45]),
    ],
)
def test_digits_by_class(part, counts):
    folders = sorted((DATASETS / "digits" / part).iterdir())
    assert [f.name for f in folders] == list("0123456789")
    assert [len(list(f.glob("*.png"))) for f in folders] == counts


def read_digits(part):
    files = sorted((DATASETS / "digits" / part).glob("*/*.png"))
    images = [Image.open(f) for f in files]
    assert {(i.size, i.mode) for i in images} == {((8, 8), "L")}
    pixels = np.stack([np.asarray(i) for i in images])[:, None]
    return pixels, np.array([int(f.parent.name) for f in files])


def test_digits_have_17_grey_levels():
    pixels, _ = read_digits("train")
    assert np.unique(pixels).tolist() == np.rint(np.arange(17) * 255 / 16).astype(int).tolist()


def test_the_model_has_its_stated_accuracy():
    model = onnx.load(DATASETS / "digits/digits.onnx")
    onnx.checker.check_model(model, full_check=True)
    stated = {p.key: p.value for p in model.metadata_props}
    assert "BatchNormalization" in {n.op_type for n in model.graph.node}
    assert [(v.name, v.type.tensor_type.shape.dim[0].dim_param) for v in model.graph.input] == [("image", "N")]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    readme = (DATASETS / "digits/README.md").read_text()
    for part in ("train", "test"):
        pixels, labels = read_digits(part)
        (logits,) = session.run(["logits"], {"image": pixels.astype(np.float32) / np.float32(255)})
        accuracy = float((logits.argmax(1) == labels).mean())
        assert abs(accuracy - float(stated[f"{part}_accuracy"])) < 1.5 / len(labels)
        assert re.search(rf"{part} accuracy .*\| {stated[f'{part}_accuracy']} \|", readme)
    assert float(stated["test_accuracy"]) >= 0.985


@pytest.mark.parametrize(
    ("name", "form", "size"),
    [("astronaut.jpg", "JPEG", (512, 512)), ("coffee.jpg", "JPEG", (600, 400)), ("chelsea.png", "PNG", (451, 300))],
)
def test_photos(name, form, size):
    with Image.open(DATASETS / "photos" / name) as image:
        assert (image.format, image.size, image.mode) == (form, size, "RGB")
