"""Loading refuses what is no model; saving is atomic and names data by its content."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import linear

from quantkit.errors import ModelError, OutputError
from quantkit.graph import io as graph_io
from quantkit.graph import load_model, read_proto, save_model
from quantkit.graph.io import load_structure


def make_model(values=None):
    values = np.arange(600, dtype=np.float32).reshape(20, 30) if values is None else values
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 20])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 30])],
        [numpy_helper.from_array(values, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def external(tmp_path, location="w.data"):
    path = tmp_path / "m.onnx"
    onnx.save_model(make_model(), path, save_as_external_data=True, location="w.data", size_threshold=0)
    if location != "w.data":
        proto = onnx.load(path, load_external_data=False)
        for entry in proto.graph.initializer[0].external_data:
            if entry.key == "location":
                entry.value = location
        path.write_bytes(proto.SerializeToString())
    return path


def test_path_bytes_and_proto_give_the_same(tmp_path):
    proto = make_model()
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    found = [load_model(source).to_proto() for source in (path, str(path), proto.SerializeToString(), proto)]
    assert all(p == proto for p in found)


def test_the_callers_proto_is_a_stranger():
    proto = make_model()
    model = load_model(proto)
    model.graph.nodes[0].name = "changed"
    model.graph.outputs[0].name = "z"
    assert proto == make_model()


@pytest.mark.parametrize("data", [b"", b"\x00\x01garbage", b"{}", make_model().SerializeToString()[:-50]])
def test_not_a_model(tmp_path, data):
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(ModelError, match=r"m\.onnx"):
        read_proto(tmp_path / "m.onnx")


def test_a_missing_file(tmp_path):
    with pytest.raises(ModelError, match=r"none\.onnx: cannot be read: No such file"):
        read_proto(tmp_path / "none.onnx")


@pytest.mark.parametrize("content", [b"", b"text, not a model", linear(np.ones((4, 3)))[:60]])
def test_structure_of_what_is_no_model(tmp_path, content):
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.onnx: (is no ONNX model|is empty)"):
        load_structure(tmp_path / "m.onnx")


def test_structure_of_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(ModelError, match=r"m\.onnx: cannot be read: No such file"):
        load_structure(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="is not a regular file, it is a folder"):
        load_structure(tmp_path)


def test_external_data_is_mapped(tmp_path):
    model = load_model(external(tmp_path))
    np.testing.assert_array_equal(model.graph.array("w"), np.arange(600, dtype=np.float32).reshape(20, 30))
    assert not model.graph.array("w").flags.writeable


def test_missing_external_data_is_named(tmp_path):
    path = external(tmp_path)
    (tmp_path / "w.data").unlink()
    with pytest.raises(ModelError, match=r"'w\.data' of tensor 'w' is missing"):
        load_model(path)


def test_truncated_external_data(tmp_path):
    path = external(tmp_path)
    (tmp_path / "w.data").write_bytes(b"12345")
    with pytest.raises(ModelError, match="truncated"):
        load_model(path)


@pytest.mark.parametrize("location", ["../w.data", "/etc/hostname", "a/../../w.data", ""])
def test_external_data_outside_the_folder(tmp_path, location):
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "w.data").write_bytes(bytes(2400))
    with pytest.raises(ModelError, match="inside the model's folder"):
        load_model(external(folder, location))


def test_a_link_that_leads_outside(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    path = external(folder)
    (folder / "w.data").rename(tmp_path / "elsewhere")
    (folder / "w.data").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="outside the model's folder"):
        load_model(path)


def test_external_data_needs_a_path(tmp_path):
    with pytest.raises(ModelError, match="given by its path"):
        load_model(external(tmp_path).read_bytes())


def test_saved_data_is_named_by_content_and_written_once(tmp_path):
    model = load_model(external(tmp_path))
    out = tmp_path / "out"
    out.mkdir()
    save_model(model, out / "a.onnx")
    first = sorted(p.name for p in out.iterdir())
    save_model(model, out / "a.onnx")
    assert sorted(p.name for p in out.iterdir()) == first
    assert [n for n in first if n.startswith("a-") and n.endswith(".data")]
    loaded = onnx.load(out / "a.onnx")
    np.testing.assert_array_equal(numpy_helper.to_array(loaded.graph.initializer[0]), model.graph.array("w"))
    onnx.checker.check_model(str(out / "a.onnx"))


def test_beyond_the_limit_data_goes_outside(tmp_path, monkeypatch):
    monkeypatch.setattr(graph_io, "MAX_INLINE_BYTES", 1000)
    save_model(load_model(make_model()), tmp_path / "m.onnx")
    assert len(list(tmp_path.glob("m-*.data"))) == 1
    assert numpy_helper.to_array(onnx.load(tmp_path / "m.onnx").graph.initializer[0])[1, 1] == 31


@pytest.mark.parametrize("limit", [1000, 2**40])
def test_a_failed_check_leaves_nothing(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(graph_io, "MAX_INLINE_BYTES", limit)

    def check(path):
        onnx.load(path)
        raise ModelError("no")

    with pytest.raises(ModelError, match="no"):
        save_model(load_model(make_model()), tmp_path / "m.onnx", check=check)
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_target(tmp_path):
    with pytest.raises(OutputError):
        save_model(load_model(make_model()), tmp_path / "nowhere" / "m.onnx")
