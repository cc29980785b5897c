"""Several weight files at once."""

import json
import shutil

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import FormatError, InvalidArgument, OutputError
from quantkit.files import save_tensors
from quantkit.weights import WeightsBatch
from quantkit.weights.batch import find_batch


def normal(seed=0):
    return np.random.default_rng(seed).normal(size=(40, 50)).astype("f4")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    np.savez(folder / "b.npz", w=normal(1))
    save_tensors(folder / "a.safetensors", {"w": normal(2)})
    where = {"x": "big-00001-of-00002.safetensors", "y": "big-00002-of-00002.safetensors"}
    for i, (name, shard) in enumerate(where.items()):
        save_tensors(folder / shard, {name: normal(i)})
    (folder / "big.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (folder / "config.json").write_text("{}")
    (folder / "notes.txt").write_text("x")
    return folder


def test_a_folder(folder, tmp_path):
    out = tmp_path / "out"
    batch = qk.quantize_weights(folder, out)
    assert isinstance(batch, WeightsBatch)
    assert batch.failed == {}
    assert sorted(p.name for p in out.iterdir()) == ["a.safetensors", "b.safetensors", "big.safetensors"]
    assert set(qk.open_weights(out / "big.safetensors")) == {"x", "y"}
    for name in ("a.safetensors", "b.npz", "big.safetensors.index.json"):
        one = tmp_path / "one.safetensors"
        qk.quantize_weights(folder / name, one)
        assert (out / (name.partition(".")[0] + ".safetensors")).read_bytes() == one.read_bytes()
    assert batch.shortfalls() == []
    assert len(json.loads(json.dumps(batch.to_json()))["results"]) == 3


def test_what_counts_as_a_batch(folder):
    assert find_batch(folder / "b.npz") is None
    assert find_batch(folder / "gone.npz") is None
    names = ["a.safetensors", "b.npz", "big.safetensors.index.json"]
    assert find_batch(folder) == [str(folder / n) for n in names]
    assert find_batch(f"{folder}/b*") == [str(folder / n) for n in names[1:]]
    assert find_batch([folder / "b.npz"]) == [str(folder / "b.npz")]
    assert find_batch(f"{folder.parent}/**/*.npz") == [str(folder / "b.npz")]
    strange = folder / "[1].npz"
    shutil.copy(folder / "b.npz", strange)
    assert find_batch(strange) is None
    with pytest.raises(FormatError, match="matches no weight files"):
        find_batch(f"{folder}/*.pth")
    with pytest.raises(InvalidArgument, match="got none"):
        find_batch([])
    (folder / "sub").mkdir()
    with pytest.raises(FormatError, match=r"the folder has no \.safetensors"):
        find_batch(folder / "sub")


def test_one_that_fails_does_not_stop_the_others(folder, tmp_path):
    out = tmp_path / "out"
    (folder / "b.npz").write_bytes(b"PK\3\4 broken")
    stages = []
    batch = qk.quantize_weights(folder, out, progress=lambda *a: stages.append(a[0]))
    assert [p.name for p in sorted(out.iterdir())] == ["a.safetensors", "big.safetensors"]
    assert list(batch.failed) == [str(folder / "b.npz")]
    assert batch.shortfalls() == [str(batch.failed[str(folder / "b.npz")])]
    assert "b.npz" in batch.shortfalls()[0]
    assert set(stages) == {"a.safetensors", "big.safetensors.index.json"}


def test_all_fail(folder, tmp_path):
    out = tmp_path / "out"
    for name in ("x.npz", "y.npz"):
        (folder / name).write_bytes(b"broken")
    batch = qk.quantize_weights(f"{folder}/[xy].npz", out)
    assert batch.results == ()
    assert len(batch.failed) == 2
    assert not out.exists()
    with pytest.raises(FormatError, match=r"x\.npz"):
        qk.quantize_weights([folder / "x.npz"], out)


def test_results_of_one_name_are_refused_before_anything_is_written(folder, tmp_path):
    np.savez(folder / "a.npz", w=normal())
    with pytest.raises(InvalidArgument, match=r"a\.npz and .*a\.safetensors would both become a\.safetensors"):
        qk.quantize_weights(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made(folder):
    with pytest.raises(OutputError, match="cannot make the folder"):
        qk.quantize_weights(folder, folder / "notes.txt" / "out")
    with pytest.raises(OutputError, match="cannot make the folder"):
        qk.quantize_weights(folder, folder / "notes.txt")
    with pytest.raises(InvalidArgument, match="is a file of the source"):
        qk.quantize_weights([folder / "a.safetensors"], folder)
