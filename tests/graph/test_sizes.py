"""How many bytes a model takes."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_models import linear

from quantkit.errors import ModelError
from quantkit.graph import read_proto
from quantkit.graph.sizes import external_files, model_size


def test_models_in_memory():
    content = linear(np.ones((4, 3)))
    proto = onnx.load_model_from_string(content)
    assert model_size(content) == model_size(memoryview(content)) == model_size(proto) == len(content)


def external(name, offset, length):
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[length // 4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.data"), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def test_shared_bytes_count_once_and_unused_ones_never(tmp_path):
    tensors = [external("a", 0, 400), external("b", 0, 400), external("c", 400, 80)]
    graph = helper.make_graph([], "g", [], [], tensors)
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    (tmp_path / "w.data").write_bytes(bytes(10_000))
    assert external_files(*read_proto(path)) == {tmp_path / "w.data": 480}
    assert model_size(path) == path.stat().st_size + 480
    (tmp_path / "w.data").write_bytes(bytes(300))
    with pytest.raises(ModelError, match="truncated"):
        model_size(path)
