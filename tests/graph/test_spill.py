"""Tensors in a temporary file: read back, saved and brought in like any others."""

import numpy as np
import onnx
import pytest
from onnx import helper

from quantkit.errors import OutputError
from quantkit.graph import io, load_model, save_model
from quantkit.graph.io import model_bytes
from quantkit.graph.spill import LEAST_BYTES, Spill
from quantkit.graph.tensors import TensorReader, is_external, is_spilled


def values(i, dtype=np.float32):
    return (np.arange(LEAST_BYTES) % 251 + i).astype(dtype).reshape(2, -1)


def test_what_was_stored_comes_back_also_after_the_file_grew():
    reader = TensorReader()
    reader.spill = Spill()
    tensors = [reader.tensor(values(i, dtype), f"t{i}") for i, dtype in enumerate((np.float32, np.int8, np.float16))]
    first = reader.array(tensors[0])
    more = reader.tensor(values(9), "more")
    for i, tensor in enumerate([*tensors, more]):
        assert is_spilled(tensor)
        got = reader.array(tensor)
        np.testing.assert_array_equal(got, values(9 if i == 3 else i, got.dtype))
    np.testing.assert_array_equal(first, values(0))


def test_small_tensors_stay_in_memory():
    reader = TensorReader()
    assert not is_external(reader.tensor(values(0), "no spill"))
    reader.spill = Spill()
    assert not is_external(reader.tensor(np.zeros(7, np.float32), "small"))


def spilled_model():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("MatMul", ["m", "v"], ["y"])]
    info = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["n", 256]) for n in ("x", "y")]
    proto = helper.make_model(helper.make_graph(nodes, "g", info[:1], info[1:], []))
    model = load_model(proto)
    model.tensors.spill = Spill()
    for i, name in enumerate(("w", "v")):
        model.graph.initializers[name] = model.tensors.tensor(values(i).reshape(256, -1)[:, :256], name)
    return model


def test_little_is_brought_into_the_file(tmp_path):
    model = spilled_model()
    save_model(model, tmp_path / "m.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    assert (tmp_path / "m.onnx").read_bytes() == model_bytes(model)
    onnx.checker.check_model(str(tmp_path / "m.onnx"))


def test_much_goes_into_a_data_file(tmp_path, monkeypatch):
    monkeypatch.setattr(io, "MAX_SPILLED_BYTES", 1000)
    save_model(spilled_model(), tmp_path / "m.onnx")
    (data,) = tmp_path.glob("m-*.data")
    assert data.stat().st_size >= 2 * 256 * 256 * 4
    loaded = onnx.load(tmp_path / "m.onnx")
    expected = spilled_model()
    for tensor in loaded.graph.initializer:
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), expected.graph.array(tensor.name))


def test_a_full_disk_is_named(monkeypatch, tmp_path):
    spill = Spill(tmp_path)

    class Full:
        def seek(self, offset):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(spill, "_file", Full())
    with pytest.raises(OutputError, match="No space left on device"):
        spill.store(values(0), "t")
