import json
import os

import numpy as np
import pytest
import safetensors.numpy
import sharing

import quantkit as qk
from quantkit.errors import FormatError, InvalidArgument, InvalidDType, OutputError, StorageError
from quantkit.files import open_tensors, save_tensors

X = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4) - 7


def tensors():
    return {
        "per tensor": qk.quantize(X, 0.5, 10),
        "per channel": qk.quantize(X, [0.25, 0.5, 1.0], [0, 1, 2], dtype=qk.qint8, axis=1),
        "image": qk.quantize(X, 0.5, 10.25),
        "view": qk.quantize(X, 0.5, 10)[:, ::2].T,
        "empty": qk.empty((0, 3)),
        "scalar": qk.full((), 3.0),
        "bias": qk.as_tensor(np.arange(5, dtype=np.int32)),
        "floats": qk.as_tensor(X),
        "plain": qk.Array(qk.ByteStorage.full(3, 9), (3,), "uint8"),
    }


def same(a, b):
    if isinstance(a, qk.QTensor):
        return a.equal(b)
    return type(a) is type(b) and a.dtype == b.dtype and np.array_equal(a, b)


def test_what_is_saved_is_loaded(tmp_path):
    path = tmp_path / "tensors.safetensors"
    wanted = tensors()
    qk.save(wanted, path)
    got = qk.load(path)
    assert got.keys() == wanted.keys()
    assert all(same(wanted[name], got[name]) for name in wanted)


@pytest.mark.parametrize("name", tensors())
def test_one_tensor_comes_back_alone(tmp_path, name):
    path = tmp_path / "one"
    t = tensors()[name]
    qk.save(t, path)
    assert same(t, qk.load(path))


def test_bfloat16(tmp_path):
    bfloat16 = pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 of its own").bfloat16
    a = qk.as_tensor(X.astype(bfloat16))
    qk.save(a, tmp_path / "a")
    assert same(a, qk.load(tmp_path / "a"))


def test_loading_maps_and_does_not_read(tmp_path):
    path = tmp_path / "tensors"
    qk.save(tensors(), path)
    before = sharing.descriptors()[1]
    got = qk.load(path)
    assert sharing.descriptors()[1] == before + 1  # one map for all of them
    t = got["per channel"]
    assert len({v.storage().storage() if isinstance(v, qk.QTensor) else v.storage() for v in got.values()}) == 1
    with pytest.raises(StorageError, match="read-only"):
        t[0] = 1.0
    mine = t.clone()
    mine[0] = 1.0
    assert t.share_memory_().is_shared()
    qk.save(got, path)  # over the file that is mapped: replaced, not changed
    assert same(qk.load(path)["view"], tensors()["view"])
    got = qk.load(path)
    os.truncate(path, 10)
    with pytest.raises(StorageError, match="truncated"):
        got["floats"].tolist()


def test_other_readers_see_ordinary_tensors(tmp_path):
    path = tmp_path / "tensors"
    t = tensors()["per channel"]
    qk.save({"w": t}, path)
    seen = safetensors.numpy.load_file(path)
    assert np.array_equal(seen["w"], t.int_repr())
    assert seen["w.scale"].tolist() == [0.25, 0.5, 1.0]
    assert seen["w.zero_point"].tolist() == [0, 1, 2]


def test_files_of_other_writers(tmp_path):
    path = tmp_path / "tensors"
    safetensors.numpy.save_file({"a": X, "b": np.arange(3, dtype=np.uint8)}, path)
    got = qk.load(path)
    assert np.array_equal(got["a"], X)
    assert isinstance(got["b"], qk.Array)
    assert got["b"].dtype == np.uint8
    save_tensors(path, {"half": np.zeros(3, np.uint16)})
    with pytest.raises(InvalidDType, match="'half' is U16"):
        qk.load(path)


def test_what_cannot_be_saved(tmp_path):
    path = tmp_path / "x"
    t = qk.full(3, 1.0)
    with pytest.raises(InvalidArgument, match=r"'a\.scale'"):
        qk.save({"a": t, "a.scale": t}, path)
    with pytest.raises(InvalidDType, match="'a'"):
        qk.save({"a": np.zeros(3, complex)}, path)
    with pytest.raises(OutputError, match="no/folder"):
        qk.save(t, tmp_path / "no/folder/x")
    assert not path.exists()


@pytest.mark.parametrize(
    "metadata",
    [
        "nonsense",
        "[]",
        json.dumps({"axes": {"b": None}, "alone": False}),
        json.dumps({"axes": ["a"], "alone": False}),
        json.dumps({"axes": {"a": 5}, "alone": False}),
        json.dumps({"axes": {"a": "x"}, "alone": False}),
        json.dumps({"axes": {"a": 0}, "alone": False}),
        json.dumps({"axes": {}, "alone": True}),
        json.dumps({"axes": {"f": None}, "alone": False}),
    ],
)
def test_damaged_descriptions(tmp_path, metadata):
    path = tmp_path / "x"
    one = {"scale": np.float32(1), "zero_point": np.int32(0)}
    arrays = {"a": np.zeros(3, np.uint8), "f": np.zeros(3, np.float32)}
    for name in ("a", "f"):
        arrays.update({f"{name}.{k}": v for k, v in one.items()})
    save_tensors(path, arrays, {"quantkit": metadata})
    if metadata == json.dumps({"axes": {"a": 0}, "alone": False}):
        arrays["a.scale"] = np.ones(2, np.float32)
        save_tensors(path, arrays, {"quantkit": metadata})
    with pytest.raises(FormatError, match=str(path)):
        qk.load(path)


def test_bad_parameters_in_a_file(tmp_path):
    path = tmp_path / "x"
    qk.save(qk.full(3, 1.0), path)
    data = {name: np.array(v) for name, v in open_tensors(path).items()}
    data["tensor.scale"] = np.float32(0)
    save_tensors(path, data, open_tensors(path).metadata)
    with pytest.raises(FormatError, match=r"'tensor'.*> 0"):
        qk.load(path)
