"""Weights in safetensors files, one or several with an index, and those that lie."""

import json
import struct

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import FormatError
from quantkit.files import save_tensors
from quantkit.weights.source import open_source


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("f4")


@pytest.fixture
def shards(tmp_path):
    tensors = {f"t{i}": normal(40, 50, seed=i) for i in range(5)}
    where = {name: f"model-{1 + i // 3:05}-of-00002.safetensors" for i, name in enumerate(tensors)}
    for shard in set(where.values()):
        save_tensors(tmp_path / shard, {n: tensors[n] for n in tensors if where[n] == shard}, {"format": "pt"})
    index = tmp_path / "model.safetensors.index.json"
    write_index(index, where)
    return index, tensors, where


def write_index(path, where, **more):
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where, **more}))


def test_shards_become_one_file(shards, tmp_path):
    index, tensors, _ = shards
    out = tmp_path / "q.safetensors"
    result = qk.quantize_weights(index, out)
    assert [r.name for r in result.tensors] == list(tensors)
    one, other = tmp_path / "one.safetensors", tmp_path / "q1.safetensors"
    save_tensors(one, tensors, {"format": "pt"})
    qk.quantize_weights(one, other)
    assert out.read_bytes() == other.read_bytes()


def test_an_index_that_names_what_is_missing(shards, tmp_path):
    index, _, where = shards
    first, second = sorted(set(where.values()))
    write_index(index, where | {"lost": first})
    with pytest.raises(FormatError, match=rf"index\.json: tensor 'lost' should be in {first}, which does not have it"):
        open_source(index)
    write_index(index, where | {"t0": second})
    with pytest.raises(FormatError, match=f"tensor 't0' should be in {second}"):
        open_source(index)
    write_index(index, where | {"t0": "gone.safetensors"})
    with pytest.raises(FormatError, match=r"names the file gone\.safetensors, which is missing"):
        open_source(index)
    with pytest.raises(FormatError, match=r"gone\.safetensors"):
        qk.quantize_weights(index, tmp_path / "q.safetensors")
    assert not (tmp_path / "q.safetensors").exists()


def test_tensors_that_the_index_does_not_name_are_left_out_and_counted(shards):
    index, _, where = shards
    write_index(index, {n: s for n, s in where.items() if n != "t4"})
    source = open_source(index)
    assert [t.name for t in source.tensors] == ["t0", "t1", "t2", "t3"]
    assert source.notes == ["model-00002-of-00002.safetensors: left out 1 tensors that the index does not place there"]


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "", ".", "..", "a\0b"])
def test_shards_outside_the_folder(shards, shard):
    index, _, where = shards
    write_index(index, where | {"t0": shard})
    with pytest.raises(FormatError, match="must be the name of a file in the same folder"):
        open_source(index)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "wanted an index"),
        ("{}", "wanted an index"),
        ('{"weight_map": []}', "wanted an index"),
        ('{"weight_map": {"a": 1}}', "wanted an index"),
        ('{"weight_map": {"a": "x", "a": "y"}}', "a key stands there twice"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_files_that_are_no_index(tmp_path, text, message):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        open_source(path)


def raw(path, header, data=b"", length=None):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "size", "length", "message"),
    [
        ({"a": entry([32, 32], 0, 4096)}, 4000, None, "cut short"),
        ({"a": entry([32, 32], 0, 4096), "b": entry([32, 32], 2048, 6144)}, 6144, None, "overlap"),
        ({"a": entry([32, 32], 0, 4096), "b": entry([32, 32], 0, 4096)}, 4096, None, "overlap"),
        ({"a": entry([32, 32], 0, 4096)}, 4096, 2**40, "header length of 1099511627776"),
        ({"a": entry([32, 32], 0, 4096)}, 4096, 2**63 + 1, "header length"),
        ({"a": entry([2**40, 2**40], 0, 4096)}, 4096, None, "larger than any memory"),
        ({"a": entry([-32, -32], 0, 4096)}, 4096, None, "whole numbers >= 0"),
        ({"a": entry([32, 32], 0, 4096, "F4")}, 4096, None, "dtype 'F4' is not one of"),
    ],
)
def test_hostile_headers(tmp_path, header, size, length, message):
    path = raw(tmp_path / "m.safetensors", header, bytes(size), length)
    with pytest.raises(FormatError, match=message):
        qk.quantize_weights(path, tmp_path / "q.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_files_of_nothing(tmp_path):
    out = tmp_path / "q.safetensors"
    result = qk.quantize_weights(raw(tmp_path / "m.safetensors", {}), out)
    assert result.tensors == ()
    assert dict(qk.open_weights(out)) == {}
    assert "no tensors" in result.summary()
    empty = raw(tmp_path / "e.safetensors", {"a": entry([0, 2**40], 0, 0), "b": entry([5, 0, 3], 0, 0)})
    result = qk.quantize_weights(empty, out)
    assert {(r.name, r.reason) for r in result.tensors} == {("a", "has no elements"), ("b", "has no elements")}
    assert qk.open_weights(out)["a"].shape == (0, 2**40)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("m.safetensors", b"", "is empty"),
        ("m.npz", b"\x93NUMPY\1\0", r"is no \.npz file"),
        ("m.pth", b"hello", r"is no \.pth file"),
        ("m.onnx", b"hello", "is no ONNX model"),
        ("m.txt", b"hello", r"wanted \.safetensors, .* got none of them by name and bytes"),
        ("m.safetensors", b"hello", "too short for one"),
    ],
)
def test_files_that_are_something_else(tmp_path, name, data, message):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(FormatError, match=message):
        open_source(path)


def test_a_name_may_have_any_suffix(tmp_path):
    path = tmp_path / "weights"
    save_tensors(path, {"a": normal(4, 4)})
    assert open_source(path).tensors[0].name == "a"
    with pytest.raises(FormatError, match="none that can be mapped"):
        open_source(tmp_path)
