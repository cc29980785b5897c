"""Large models, in small: weights are never all in memory at once."""

import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import quantkit
from quantkit.graph import io
from quantkit.models import quantizer, runtime

SIDE, COUNT = 768, 24


def write_model(folder):
    """Write a model of COUNT products with external data, as much of it as a test can afford."""
    rng = np.random.default_rng(0)
    nodes, tensors, x = [], [], "x"
    with open(folder / "w.data", "wb") as file:
        for i in range(COUNT):
            tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[SIDE, SIDE])
            tensor.data_location = TensorProto.EXTERNAL
            raw = (rng.normal(size=(SIDE, SIDE)) * SIDE**-0.5).astype(np.float32).tobytes()
            for key, value in (("location", "w.data"), ("offset", file.tell()), ("length", len(raw))):
                tensor.external_data.add(key=key, value=str(value))
            file.write(raw)
            tensors.append(tensor)
            nodes.append(helper.make_node("MatMul", [x, f"w{i}"], [f"m{i}"], name=f"product{i}"))
            x = f"m{i}"
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", SIDE]) for n in ("x", x)]
    graph = helper.make_graph(nodes, "large", info[:1], info[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "large.onnx").write_bytes(model.SerializeToString())
    return folder / "large.onnx"


@pytest.mark.parametrize("mode", ["weight_only", "dynamic", "static"])
def test_memory_does_not_hold_all_weights(tmp_path, monkeypatch, mode):
    monkeypatch.setattr(quantizer, "_MAX_COUNTED_BYTES", 1 << 20)
    monkeypatch.setattr(runtime, "_LARGE_BYTES", 1 << 20)
    monkeypatch.setattr(io, "MAX_SPILLED_BYTES", 1 << 20)
    path = write_model(tmp_path)
    feeds = [{"x": np.random.default_rng(i).normal(size=(1, SIDE)).astype(np.float32)} for i in range(4)]
    tracemalloc.start()
    try:
        result = quantkit.quantize_model(
            path,
            tmp_path / "q.onnx",
            mode=mode,
            calibration=feeds if mode == "static" else None,
            measure=False,
            refine=False,
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    codes = COUNT * SIDE * SIDE
    assert result.report.int8_weight_share == 1.0
    assert result.report.size_ratio == pytest.approx(0.25, abs=0.01)
    # The codes alone are as large as six float weights of 24; three are what correcting a bias takes in float64.
    assert peak < (5.2 if mode == "static" else 2.5) * 4 * SIDE * SIDE
    assert peak < codes
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".data", ".data", ".onnx", ".onnx"]
    stored = onnx.load(tmp_path / "q.onnx")
    weights = [t for t in stored.graph.initializer if t.data_type == TensorProto.INT8 and len(t.dims) == 2]
    assert len(weights) == COUNT
