"""Weights in ONNX models."""

import importlib.util
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import safetensors
from onnx import TensorProto, helper, numpy_helper

import quantkit as qk
from quantkit.errors import FormatError, ModelError
from quantkit.weights.source import open_source


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("f4")


def model(tensors, nodes, path, constants=(), **save):
    nodes = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)) for name, array in constants
    ] + nodes
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [t if isinstance(t, TensorProto) else numpy_helper.from_array(t[1], t[0]) for t in tensors],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path, **save)
    return path


def test_initializers_constants_and_their_output_channels(tmp_path):
    tensors = {"w": normal(3, 8, 3, 3), "fc": normal(64, 40, seed=1), "both": normal(40, 40, seed=2), "b": normal(40)}
    constant = normal(30, 50, seed=3)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("MatMul", ["x", "fc"], ["m"]),
        helper.make_node("Gemm", ["x", "constant", "b"], ["gemm"], transB=1),
        helper.make_node("MatMul", ["x", "both"], ["one"]),
        helper.make_node("Gemm", ["x", "both"], ["two"], transB=1),
        helper.make_node("Sum", ["c", "m", "gemm", "one", "two"], ["y"]),
    ]
    path = model(list(tensors.items()), nodes, tmp_path / "m.onnx", [("constant", constant)])
    source = open_source(path)
    assert {t.name: t.axis for t in source.tensors} == {"w": 0, "fc": 1, "both": None, "b": None, "constant": 0}
    out = tmp_path / "q.safetensors"
    result = qk.quantize_weights(path, out, min_elements=100)
    assert {r.name: r.axis for r in result.tensors} == {"w": 0, "fc": 1, "both": 0, "b": None, "constant": 0}
    weights = qk.open_weights(out)
    for name, x in (tensors | {"constant": constant}).items():
        if x.ndim > 1:
            axis = 1 if name == "fc" else 0
            assert weights[name].equal(qk.quantize(x, dtype=qk.qint8, axis=axis, symmetric=True)), name


def test_blocks_do_not_cross_channels(tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "fc"], ["y"])]
    path = model([("fc", normal(64, 128))], nodes, tmp_path / "m.onnx")
    result = qk.quantize_weights(path, tmp_path / "q.safetensors", granularity="block")
    row = result.tensors[0]
    assert (row.axis, row.block) == (1, None)
    assert row.reason == "per channel: blocks of 64 along axis 0 would cross its channels"


@pytest.mark.parametrize("raw", [True, False])
def test_every_dtype(tmp_path, raw):
    kinds = {
        "f": (TensorProto.FLOAT, "F32"),
        "h": (TensorProto.FLOAT16, "F16"),
        "bf": (TensorProto.BFLOAT16, "BF16"),
        "d": (TensorProto.DOUBLE, "F64"),
        "i": (TensorProto.INT64, "I64"),
        "u": (TensorProto.UINT8, "U8"),
        "t": (TensorProto.BOOL, "BOOL"),
    }
    values = np.arange(12) % 2
    tensors = []
    for name, (kind, _) in kinds.items():
        dtype = ml_dtypes.bfloat16 if kind == TensorProto.BFLOAT16 else helper.tensor_dtype_to_np_dtype(kind)
        data = values.astype(dtype)
        tensors.append(helper.make_tensor(name, kind, (3, 4), data.tobytes() if raw else values, raw=raw))
    source = open_source(model(tensors, [helper.make_node("Relu", ["x"], ["y"])], tmp_path / "m.onnx"))
    assert {t.name: t.dtype for t in source.tensors} == {n: label for n, (_, label) in kinds.items()}
    for t in source.tensors:
        bits = t.open()(0, 12)
        real = bits.view(ml_dtypes.bfloat16) if t.dtype == "BF16" else bits
        assert np.array_equal(real.astype("i8"), values), t.name


def test_external_data_is_mapped_and_is_part_of_the_source(tmp_path):
    x = normal(64, 64)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = model(
        [("w", x)], nodes, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0
    )
    source = open_source(path)
    assert [Path(f).name for f in source.files] == ["m.onnx", "m.data"]
    assert np.array_equal(source.tensors[0].open()(0, x.size), x.ravel())
    (tmp_path / "m.data").write_bytes(b"short")
    with pytest.raises(ModelError, match="is truncated"):
        open_source(path)
    (tmp_path / "m.data").unlink()
    with pytest.raises(ModelError, match="is missing"):
        open_source(path)


def test_branches_with_constants_of_one_name(tmp_path):
    def branch(seed):
        return helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["o"])],
            f"b{seed}",
            [],
            [helper.make_tensor_value_info("o", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(normal(40, 50, seed=seed), "w")],
        )

    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch(1), else_branch=branch(2))
    path = model([("flag", np.array(True))], [node], tmp_path / "m.onnx")
    out = tmp_path / "q.safetensors"
    qk.quantize_weights(path, out)
    weights = qk.open_weights(out)
    assert set(weights) == {"flag", "w", "w#2"}
    for name, seed in (("w", 2), ("w#2", 1)):  # attributes are sorted: else, then
        assert weights[name].equal(qk.quantize(normal(40, 50, seed=seed), dtype=qk.qint8, axis=1, symmetric=True))


def test_text_is_refused_by_name_and_can_be_dropped(tmp_path):
    text = helper.make_tensor("words", TensorProto.STRING, (1,), [b"a"])
    path = model([text, ("w", normal(40, 40))], [helper.make_node("MatMul", ["x", "w"], ["y"])], tmp_path / "m.onnx")
    with pytest.raises(FormatError, match="tensor 'words' holds "):
        qk.quantize_weights(path, tmp_path / "q.safetensors")
    assert len(qk.quantize_weights(path, tmp_path / "q.safetensors", drop="words").tensors) == 1


def real_models():
    found = importlib.util.find_spec("rapidocr_onnxruntime")
    return sorted(Path(found.origin).parent.glob("models/*.onnx")) if found and found.origin else []


@pytest.mark.skipif(not real_models(), reason="rapidocr-onnxruntime, whose wheel carries real models, is not installed")
def test_real_models(tmp_path):
    for path in real_models():
        out = tmp_path / f"{path.stem}.safetensors"
        result = qk.quantize_weights(path, out)
        assert result.counts()["quantized"] >= 27
        assert result.bytes_after < 0.4 * result.bytes_before
        assert result.shortfalls(30) == []
        proto = onnx.load(path)
        weights = qk.open_weights(out)
        plain = [numpy_helper.to_array(t) for t in proto.graph.initializer]
        names = [t.name for t in proto.graph.initializer]
        for node in proto.graph.node:
            if node.op_type == "Constant":
                names.append(node.output[0])
                plain.append(numpy_helper.to_array(node.attribute[0].t))
        assert set(weights) == set(names)
        rows = {r.name: r for r in result.tensors}
        for name, x in zip(names, plain, strict=True):
            real = weights.dequantize(name)
            assert real.shape == x.shape
            if rows[name].decision == "quantized":
                assert np.abs(real - x).max() == pytest.approx(rows[name].max_error, rel=1e-5)
            else:
                assert np.array_equal(real, x)
        with safetensors.safe_open(out, "np") as file:
            assert len(file.keys()) == len(names) + 2 * result.counts()["quantized"]
