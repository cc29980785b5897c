"""Files of quantized weights, mapped; and the floats back out of them."""

import copy
import json
import pickle
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import quantkit as qk
from quantkit.errors import FormatError, InvalidArgument, MissingDependency, OutputError
from quantkit.files import open_tensors, save_tensors
from quantkit.weights import export, passes
from quantkit.weights.stored import KEY

DATA = Path(__file__).parent / "data"


def normal(*shape, seed=0, dtype="f4"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@pytest.fixture
def quantized(tmp_path):
    tensors = {
        "f32": normal(40, 64),
        "f16": normal(40, 64, seed=1, dtype="f2"),
        "bf16": normal(40, 64, seed=2, dtype=ml_dtypes.bfloat16),
        "f64": normal(40, 64, seed=3, dtype="f8"),
        "conv": normal(24, 8, 3, 3, seed=4),
        "bias": normal(40, seed=5, dtype=ml_dtypes.bfloat16),
        "half_bias": normal(40, seed=6, dtype="f2"),
        "ids": np.arange(6),
    }
    source, path = tmp_path / "m.safetensors", tmp_path / "q.safetensors"
    save_tensors(source, tensors, {"format": "pt"})
    qk.quantize_weights(source, path)
    return path, tensors


def test_nothing_is_read_and_nothing_can_be_written(quantized):
    path, _ = quantized
    weights = qk.open_weights(path)
    tensor = weights["f32"]
    assert not tensor.int_repr().flags.owndata
    assert tensor.data_ptr() % 64 == 0
    with pytest.raises(qk.errors.StorageError, match="read-only"):
        tensor[0, 0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        weights["half_bias"][0] = 1
    del weights
    assert tensor.sum() == pytest.approx(float(tensor.dequantize().sum()), rel=1e-3)
    assert (tensor @ np.ones((64, 1), "f4")).shape == (40, 1)


def test_mapping(quantized):
    path, tensors = quantized
    weights = qk.open_weights(path)
    assert len(weights) == len(tensors)
    assert set(weights) == set(tensors)
    assert "f32" in weights
    assert "f32.scale" not in weights
    with pytest.raises(KeyError):
        weights["f32.scale"]
    with pytest.raises(KeyError):
        weights.dequantize("nothing")
    assert weights.get("nothing") is None
    assert weights.dtype("bf16") == "BF16"
    assert weights.dtype("ids") == "I64"
    assert weights.shape("conv") == (24, 8, 3, 3)
    assert weights["bias"].dtype == ml_dtypes.bfloat16
    assert np.array_equal(weights["bias"], tensors["bias"])
    assert np.array_equal(weights.dequantize("bias"), tensors["bias"].astype("f4"))
    assert np.array_equal(weights["ids"], tensors["ids"])
    assert repr(weights) == f"Weights({str(path)!r}, 8 tensors, 5 quantized)"
    for other in (pickle.loads(pickle.dumps(weights)), copy.copy(weights)):
        assert other["f32"].equal(weights["f32"])


def test_bfloat16_without_ml_dtypes(quantized, monkeypatch):
    path, tensors = quantized
    weights = qk.open_weights(path)
    monkeypatch.setattr("quantkit.storage.dtypes._TYPES", {})
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(MissingDependency, match="pip install ml_dtypes"):
        weights["bias"]
    assert np.array_equal(weights.dequantize("bias"), tensors["bias"].astype("f4"))


def test_tied_tensors_are_single_and_have_both_names(tmp_path):
    out = tmp_path / "q.safetensors"
    result = qk.quantize_weights(DATA / "state_dict.pth", out, min_elements=10)
    rows = {r.name: r for r in result.tensors}
    assert (rows["head.weight"].decision, rows["head.weight"].reason) == ("tied", "to embedding.weight")
    assert rows["head.weight"].bytes_after == 0
    file, weights = open_tensors(out), qk.open_weights(out)
    assert "head.weight" not in file
    assert weights.ties == {"head.weight": "embedding.weight"}
    assert weights["head.weight"].data_ptr() == weights["embedding.weight"].data_ptr()
    assert weights["head.weight"].equal(weights["embedding.weight"])
    # A tensor that is dropped leaves its place to the one tied to it.
    result = qk.quantize_weights(DATA / "state_dict.pth", out, min_elements=10, drop="embedding.*")
    assert qk.open_weights(out).ties == {}
    assert {r.name: r.decision for r in result.tensors}["head.weight"] == "quantized"
    qk.quantize_weights(DATA / "state_dict.pth", out, min_elements=10, drop="head.*")
    assert "head.weight" not in qk.open_weights(out)


@pytest.mark.parametrize("dtype", [None, "F32", "F16", "BF16", "F64"])
@pytest.mark.parametrize("granularity", ["channel", "tensor", "block"])
def test_floats_back(quantized, tmp_path, monkeypatch, dtype, granularity):
    _, tensors = quantized
    path, back = tmp_path / "q.safetensors", tmp_path / "back.safetensors"
    qk.quantize_weights(tmp_path / "m.safetensors", path, granularity=granularity)
    weights = qk.open_weights(path)
    monkeypatch.setattr(passes, "PIECE", 100)
    monkeypatch.setattr(export, "_PIECE", 7)
    assert qk.dequantize_weights(path, back, dtype=dtype, streams=2) == str(back)
    found = safetensors.numpy.load_file(back)
    with safetensors.safe_open(back, "np") as file:
        assert file.metadata() == {"format": "pt"}
    kinds = {"F32": "f4", "F16": "f2", "BF16": ml_dtypes.bfloat16, "F64": "f8"}
    assert found.keys() == tensors.keys()
    for name, x in tensors.items():
        wanted = x.dtype if dtype is None or name == "ids" else np.dtype(kinds[dtype])
        assert np.array_equal(found[name], weights.dequantize(name).astype(wanted)), name
        assert found[name].dtype == wanted


def test_tied_tensors_are_written_for_each_name(tmp_path):
    path, back = tmp_path / "q.safetensors", tmp_path / "back.safetensors"
    qk.quantize_weights(DATA / "state_dict.pth", path)
    qk.dequantize_weights(path, back)
    found = safetensors.numpy.load_file(back)
    assert np.array_equal(found["head.weight"], found["embedding.weight"])
    assert set(found) == set(qk.open_weights(path))


def test_export_that_cannot_be(quantized, tmp_path):
    path, _ = quantized
    with pytest.raises(InvalidArgument, match="dtype must be one of F32, BF16, F16, F64, got 'I8'"):
        qk.dequantize_weights(path, tmp_path / "b", dtype="I8")
    with pytest.raises(InvalidArgument, match="is the source"):
        qk.dequantize_weights(path, path)
    with pytest.raises(InvalidArgument, match="streams"):
        qk.dequantize_weights(path, tmp_path / "b", streams=0)
    with pytest.raises(OutputError):
        qk.dequantize_weights(path, tmp_path / "no" / "b")
    with pytest.raises(FormatError, match="holds no quantized weights"):
        qk.dequantize_weights(tmp_path / "m.safetensors", tmp_path / "b")
    np.savez(tmp_path / "large.npz", w=np.full((40, 40), 1e6, "f4"))
    qk.quantize_weights(tmp_path / "large.npz", tmp_path / "large.safetensors")
    with pytest.raises(InvalidArgument, match="tensor 'w' reaches beyond F16"):
        qk.dequantize_weights(tmp_path / "large.safetensors", tmp_path / "b", dtype="F16")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "large.npz",
        "large.safetensors",
        "m.safetensors",
        "q.safetensors",
    ]


def test_bfloat16_is_rounded_to_nearest_even():
    random = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    values = np.concatenate([random, np.float32([0.0, -0.0, np.inf, -np.inf, 1.00390625, 1.01171875])])
    finite = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        wanted = finite.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert np.array_equal(export.from_float("x", finite, "BF16"), wanted)
    assert (
        export.from_float("x", np.float32([np.nan, np.inf]), "BF16").view(ml_dtypes.bfloat16).astype("f4").tolist()[1]
        == np.inf
    )
    assert np.isnan(export.from_float("x", np.float32([np.nan]), "BF16").view(ml_dtypes.bfloat16).astype("f4")[0])


def change(path, edit):
    file = open_tensors(path)
    found = json.loads(file.metadata[KEY])
    edit(found)
    save_tensors(path, {n: np.array(a) for n, a in file.items()}, {KEY: json.dumps(found)})


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d.update(version=2), "version 2 of quantized weights; this quantkit reads 1"),
        (lambda d: d.pop("tensors"), "is damaged"),
        (lambda d: d.update(tensors=[]), "is damaged"),
        (lambda d: d["tensors"].update(f32=3), "'f32': its description is damaged"),
        (lambda d: d["tensors"]["f32"].pop("axis"), "its description is damaged"),
        (lambda d: d["tensors"]["f32"].update(dtype="qint4"), "its description is damaged"),
        (lambda d: d["tensors"]["f32"].update(dtype="quint8"), "wanted codes and zero points of U8"),
        (lambda d: d["tensors"]["f32"].update(source_dtype="I8"), "is no floating-point type"),
        (lambda d: d["tensors"]["f32"].update(scale="gone"), "the file has no 'gone'"),
        (lambda d: d["tensors"]["f32"].update(scale=["f32"]), "the file has no"),
        (lambda d: d["tensors"]["f32"].update(scale="ids"), "scales of F32"),
        (lambda d: d["tensors"]["f32"].update(axis=1), "axis 1 and block None do not fit"),
        (lambda d: d["tensors"]["f32"].update(axis=None), "axis None and block None do not fit"),
        (lambda d: d["tensors"]["f32"].update(axis=True), "do not fit"),
        (lambda d: d["tensors"]["f32"].update(axis=9), "do not fit"),
        (lambda d: d["tensors"]["f32"].update(block=32), "do not fit"),
        (lambda d: d["tensors"]["f32"].update(block=0), "do not fit"),
        (lambda d: d["tensors"].update(gone=d["tensors"]["f32"]), "the file has no 'gone'"),
        (lambda d: d.update(ties={"a": "b", "b": "a"}), "'a' is tied to 'b', which is no tensor"),
        (lambda d: d.update(ties={"a": "a"}), "'a' is tied to 'a'"),
        (lambda d: d.update(ties={"a": ["f32"]}), "is tied to"),
        (lambda d: d.update(ties={"f32": "conv"}), "'f32' is tied to 'conv'"),
    ],
)
def test_descriptions_that_lie(quantized, edit, message):
    path, _ = quantized
    weights = open_tensors(path)
    save_tensors(path, {n: np.array(a) for n, a in weights.items()}, weights.metadata)
    change(path, edit)
    with pytest.raises(FormatError, match=message):
        qk.open_weights(path)


def test_scales_that_lie_are_found_when_used(quantized):
    path, _ = quantized
    file = open_tensors(path)
    tensors = {n: np.array(a) for n, a in file.items()}
    tensors["f32.scale"][3] = np.nan
    save_tensors(path, tensors, file.metadata)
    with pytest.raises(qk.errors.InvalidQParams, match="channel 3"):
        qk.open_weights(path)["f32"]


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000])
def test_metadata_that_is_no_description(tmp_path, text):
    path = tmp_path / "x.safetensors"
    save_tensors(path, {"a": np.ones(3)}, {KEY: text})
    with pytest.raises(FormatError, match="is damaged"):
        qk.open_weights(path)
