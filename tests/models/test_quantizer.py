"""Every corpus model in every mode, beside the float model in onnxruntime; and the known pains of quantizers."""

import collections
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from corpus import MODELS, Builder, bfloat16, gru, rnn, vector
from onnx import helper, numpy_helper

import quantkit
from quantkit.errors import CalibrationError, InvalidArgument, ModelError, OutputError
from quantkit.graph import load_model
from quantkit.jobs.inspect import inspect_model
from quantkit.models.calibration.calibrate import Wanted, calibrate
from quantkit.models.passes.channel_groups import channel_views, find_groups
from quantkit.models.passes.prepare import prepare
from quantkit.models.planning.plan import observed_tensors
from quantkit.models.refinement.refine import Refiner

BUILT = {name: make() for name, make in MODELS.items()}


def session(model, optimized=None):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return ort.InferenceSession(model if isinstance(model, bytes) else model.SerializeToString(), options)


def sqnr(expected, got):
    noise = np.sum((expected.astype(np.float64) - got) ** 2)
    return 10 * np.log10(np.sum(expected.astype(np.float64) ** 2) / max(noise, 1e-30))


def compare(built, quantized, seed=99):
    """Return the SQNR of each output over fresh samples."""
    before, after = session(built.proto), session(quantized)
    runs = [(before.run(None, f), after.run(None, f)) for f in built.feeds(4, seed)]
    return [
        sqnr(np.concatenate([a[i].ravel() for a, _ in runs]), np.concatenate([b[i].ravel() for _, b in runs]))
        for i in range(len(runs[0][0]))
    ]


def quantize(built, **options):
    options.setdefault("calibration", built.feeds(16))
    return quantkit.quantize_model(built.proto, measure=False, **options)


def weights_in_int8(model):
    return [i.name for i in model.graph.initializer if i.data_type == onnx.TensorProto.INT8 and len(i.dims) > 1]


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("mode", ["static", "dynamic", "weight_only", "qoperator", "portable"])
def test_agrees_with_the_float_model(name, mode, tmp_path):
    built = BUILT[name]
    options = {"format": "qoperator"} if mode == "qoperator" else {"mode": mode if mode != "portable" else "dynamic"}
    if mode == "portable":
        options["target"] = "portable"
    before = built.proto.SerializeToString()
    result = quantize(built, output=tmp_path / "q.onnx", **options)
    assert built.proto.SerializeToString() == before
    onnx.checker.check_model(str(tmp_path / "q.onnx"), full_check=True)
    # ConvInteger sees one scale for all channels, and without calibration nothing evens them out.
    least = 8 if (name, mode) == ("gated_units", "portable") else built.least_db
    assert min(compare(built, result.model)) >= least
    assert result.report.int8_weight_share == 1.0
    assert weights_in_int8(result.model) or name in ("bodies_that_compute", "scan")
    domains = {node.domain for node in result.model.graph.node} - {node.domain for node in built.proto.graph.node}
    assert domains <= ({"", "com.microsoft"} if name == "lstm" and mode != "portable" else {""})


@pytest.mark.parametrize("name", [name for name, built in BUILT.items() if built.int8_ops])
def test_onnxruntime_runs_the_int8_operators(name, tmp_path):
    built = BUILT[name]
    result = quantize(built)
    session(result.model, tmp_path / "optimized.onnx")
    ops = collections.Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)
    assert {op: ops[op] for op in built.int8_ops if not ops[op]} == {}
    assert not ops["Conv"]
    assert not ops["Gemm"]


def test_the_same_bytes_each_time(tmp_path):
    built = BUILT["resnet"]
    for name in ("a", "b"):
        quantize(built, output=tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert quantize(built).model == onnx.load(tmp_path / "a")


def test_gemm_factors_are_in_the_numbers():
    """Alpha scales the product, beta the bias: wrong by several units in tools that mix them up."""
    built = BUILT["gemm_factors"]
    result = quantize(built)
    assert min(compare(built, result.model)) > 35
    assert all(a.name not in ("alpha", "beta") for n in result.model.graph.node for a in n.attribute)


def test_a_dead_channel_keeps_its_bias():
    built = BUILT["dead_channel"]
    (got,) = session(quantize(built).model).run(None, built.feeds(1)[0])
    step = max(q.scale for q in quantize(built).report.ranges)
    np.testing.assert_allclose(got[:, 2], 0.33, atol=step / 2 + 1e-6)


def test_a_bias_beyond_int32_survives():
    built = BUILT["tiny_weights_large_bias"]
    (got,) = session(quantize(built).model).run(None, built.feeds(1)[0])
    np.testing.assert_allclose(got[:, 1], 700, rtol=1e-2)


def test_scores_beside_boxes_survive():
    built = BUILT["detector_head"]
    result = quantize(built)
    feed = built.feeds(1, 5)[0]
    (a,), (b,) = session(built.proto).run(None, feed), session(result.model).run(None, feed)
    assert sqnr(a[:, 4:], b[:, 4:]) > 30


def test_a_tied_weight_is_stored_once():
    for mode in ("static", "dynamic", "weight_only"):
        assert len(weights_in_int8(quantize(BUILT["tied_weights"], mode=mode).model)) == 1


def stored(name, **options):
    """Return shape and scale axis of each weight that is stored in int8, as `inspect` sees them."""
    model = quantize(BUILT[name], mode="weight_only", **options).model
    shapes = {i.name: tuple(i.dims) for i in model.graph.initializer}
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        file.write(model.SerializeToString())
        file.flush()
        found = inspect_model(file.name)
    assert found.form == ["weight_only"]
    assert found.int8_weight_share == 1.0
    return [(shapes[item.tensor], item.axis) for item in found.quantized if item.kind == "weight"]


def test_per_channel_axes():
    assert stored("stacked_matrices") == [((3, 8, 6), 2)]
    assert stored("constant_left_operand") == [((6, 8), 0)]
    assert stored("decoder")[1:] == [((8, 6, 2, 2), 1), ((6, 2, 3, 3), 1)]


@pytest.mark.parametrize("name", ["decoder", "gru", "rnn", "resnet", "stacked_matrices", "bodies_that_compute"])
def test_onnxruntime_folds_weights_that_are_computed_with_in_float(name, tmp_path):
    """Nothing is left of int8 at run time, so nothing is slower; and the file still holds it."""
    built = {"gru": gru, "rnn": rnn}[name]() if name in ("gru", "rnn") else BUILT[name]
    model = quantize(built, mode="weight_only").model
    session(model, tmp_path / "optimized.onnx")
    left = collections.Counter(node.op_type for node in nodes_of(onnx.load(tmp_path / "optimized.onnx").graph))
    before = collections.Counter(node.op_type for node in nodes_of(built.proto.graph))
    assert left["Cast"] <= before["Cast"]
    assert left["DequantizeLinear"] == 0
    assert sum(node.op_type == "Cast" for node in nodes_of(model.graph)) > before["Cast"]


def nodes_of(graph):
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes_of(attribute.g)


def test_nodes_that_compute_in_float_store_int8():
    built = BUILT["decoder"]
    records = {r.op_type: r for r in quantize(built).report.nodes}
    assert (records["ConvTranspose"].decision, records["ConvTranspose"].reason) == (
        "weight_only",
        "onnxruntime has no int8 ConvTranspose",
    )


def test_a_clamp_is_dropped_only_where_the_range_proves_it():
    kept = quantize(BUILT["clip_not_at_zero"]).model
    assert [n.op_type for n in kept.graph.node if n.op_type == "Clip"] == ["Clip"]
    dropped = quantize(BUILT["resnet"]).model
    assert not [n for n in dropped.graph.node if n.op_type == "Relu"]


@pytest.mark.parametrize("pattern", ["Conv", "Conv_3", "Conv_*"])
def test_exclude_leaves_float(pattern):
    built = BUILT["resnet"]
    names = [n.name for n in built.proto.graph.node if n.op_type == "Conv"]
    wanted = [n for n in names if pattern in ("Conv", "Conv_*") or n == pattern] or names[:1]
    exclude = [pattern if pattern in ("Conv", "Conv_*") else wanted[0]]
    records = {r.name: r for r in quantize(built, exclude=exclude).report.nodes}
    assert all(records[n].decision == "float" for n in wanted)
    assert all(records[n].decision == "static" for n in names if n not in wanted)
    assert "excluded" in records[wanted[0]].reason


def test_exclude_names_the_node_of_the_float_model_also_in_dynamic_mode():
    built = BUILT["gemm_factors"]
    name = built.proto.graph.node[0].name
    records = {r.name: r.decision for r in quantize(built, mode="dynamic", exclude=[name]).report.nodes}
    assert records[name] == "float"
    assert sorted(records.values()) == ["dynamic", "float", "float"]


def test_exclude_that_matches_nothing_is_an_error():
    with pytest.raises(InvalidArgument, match=r"'Convv' matches no node"):
        quantize(BUILT["resnet"], exclude=["Convv"])


def test_infinite_activations_are_left_out_with_a_warning():
    b = Builder(0)
    built = BUILT["resnet"]
    y = b.op("MatMul", b.op("Log", "x"), b.weight(4, 4, scale=0.5))
    built = type(built)(b.model(y, [vector("x", "n", 4)]), (3, 4))
    feeds = [{"x": np.abs(f["x"]) + 0.1} for f in built.feeds(8)]
    for feed in feeds:
        feed["x"][1, 1] = 0
    result = quantize(built, calibration=feeds)
    assert any("'log_1'" in w and "4 NaN or infinite" in w for w in result.report.warnings)
    (row,) = [r for r in result.report.ranges if r.tensor == "log_1"]
    assert row.nonfinite == 4  # four of the eight samples calibrate
    assert np.isfinite(row.scale)


def test_batches_of_any_shape():
    built = BUILT["resnet"]
    rng = np.random.default_rng(0)
    shapes = [(1, 3, 16, 16), (2, 3, 20, 12), (1, 3, 9, 31)] * 4
    feeds = [{"x": rng.normal(size=s).astype(np.float32)} for s in shapes]
    result = quantize(built, calibration=lambda: iter(feeds))
    assert min(compare(built, result.model)) > 25


def test_a_nan_weight_leaves_its_node_float():
    b = Builder(0)
    bad = np.ones((3, 3, 1, 1), np.float32)
    bad[0, 0] = np.nan
    w = b.const(bad)
    y = b.op("Concat", b.op("Conv", "x", w), b.conv("x", 3, 4), axis=1)
    built = type(BUILT["resnet"])(b.model(y))
    records = {r.op_type + r.decision: r.reason for r in quantize(built).report.nodes}
    assert "NaN" in records["Convfloat"]
    assert "Convstatic" in records


def test_nothing_to_quantize_is_one_sentence():
    b = Builder(0)
    proto = b.model(b.op("Relu", "x"))
    with pytest.raises(ModelError, match="nothing to quantize"):
        quantkit.quantize_model(proto, mode="weight_only")


@pytest.mark.parametrize(("name", "mode"), [("resnet", "static"), ("decoder", "weight_only")])
def test_an_int8_model_is_refused(name, mode):
    with pytest.raises(ModelError, match="quantized already"):
        quantize(type(BUILT[name])(quantize(BUILT[name], mode=mode).model))


def test_bad_options():
    with pytest.raises(InvalidArgument, match="mode must be one of"):
        quantize(BUILT["resnet"], mode="int8")
    with pytest.raises(CalibrationError, match="needs samples"):
        quantkit.quantize_model(BUILT["resnet"].proto)
    with pytest.raises(CalibrationError, match="'y'"):
        quantize(BUILT["resnet"], calibration=[{"y": np.zeros((1, 3, 8, 8), np.float32)}])


@pytest.mark.parametrize("data", [b"", b"not a model", BUILT["resnet"].proto.SerializeToString()[:-100]])
def test_bad_models(tmp_path, data):
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(ModelError, match=r"m\.onnx"):
        quantkit.quantize_model(tmp_path / "m.onnx", tmp_path / "q.onnx", mode="weight_only")
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(OutputError, match="nowhere"):
        quantize(BUILT["resnet"], output=tmp_path / "nowhere" / "q.onnx")


def test_a_failed_check_leaves_the_old_file(tmp_path, monkeypatch):
    from quantkit.models import quantizer

    (tmp_path / "q.onnx").write_bytes(b"old")

    def fail(*args, **kwargs):
        raise ModelError("the result does not load")

    monkeypatch.setattr(quantizer, "verify", fail)
    built = BUILT["resnet"]
    with pytest.raises(ModelError, match="does not load"):
        quantkit.quantize_model(built.proto, tmp_path / "q.onnx", calibration=built.feeds(4))
    assert [p.name for p in tmp_path.iterdir()] == ["q.onnx"]
    assert (tmp_path / "q.onnx").read_bytes() == b"old"


def test_bfloat16_is_compared_with_float32():
    feeds = BUILT["resnet"].feeds(16)
    result = quantkit.quantize_model(bfloat16(), calibration=feeds)
    assert result.report.int8_weight_share == 1.0
    assert result.report.agreement.outputs[0].sqnr_db > 25
    assert any("half precision" in warning for warning in result.report.warnings)


def test_half_precision_keeps_its_interface():
    result = quantize(BUILT["float16"])
    types = [v.type.tensor_type.elem_type for v in [*result.model.graph.input, *result.model.graph.output]]
    assert types == [onnx.TensorProto.FLOAT16] * 2


def test_bodies_compute_in_int8():
    records = {r.name: r for r in quantize(BUILT["bodies_that_compute"]).report.nodes}
    assert records["loop_conv"].decision == "static"
    assert sorted(records[f"if_conv_{i}"].decision for i in range(2)) == ["static", "weight_only"]
    assert [r.reason for r in records.values() if r.decision == "weight_only"] == [
        "its branch was never taken in calibration"
    ]


@pytest.mark.parametrize("mode", ["static", "dynamic", "weight_only"])
def test_portable_models_have_standard_operators_alone(mode):
    built = BUILT["lstm"] if mode != "static" else BUILT["transformer"]
    result = quantize(built, mode=mode, target="portable")
    assert {o.domain for o in result.model.opset_import} == {""}


@pytest.mark.parametrize(("make", "op_type"), [(gru, "GRU"), (rnn, "RNN")])
def test_recurrent_layers_without_an_int8_operator(make, op_type):
    built = make()
    for mode, decision in (("static", "weight_only"), ("dynamic", "weight_only"), ("weight_only", "weight_only")):
        result = quantize(built, mode=mode)
        records = {r.op_type: r for r in result.report.nodes}
        assert records[op_type].decision == decision
        assert min(compare(built, result.model)) > 25
        if mode != "weight_only":
            assert f"no runtime has an int8 {op_type}" in records[op_type].reason


def test_equal_ranges_beat_what_the_exporter_left():
    built = BUILT["gated_units"]
    plain, equal = (compare(built, candidate(built, equalized=equalized).to_proto())[0] for equalized in (False, True))
    assert equal > plain + 3


def candidate(built, **options):
    """Return one of the ways to quantize a corpus model."""
    model = prepare(load_model(built.proto))
    views = channel_views(model.graph, find_groups(model.graph, set()))
    wanted = {model.graph: Wanted((*observed_tensors(model.graph), *views), views)}
    seen = calibrate(model, wanted, built.feeds(12))
    return Refiner(model, seen, {}, "qdq", "onnxruntime").make(**options).model


@pytest.mark.parametrize("name", ["resnet", "bodies_that_compute"])
@pytest.mark.parametrize("mode", ["static", "dynamic", "weight_only"])
def test_external_data(tmp_path, name, mode):
    built = BUILT[name]
    path = tmp_path / "float.onnx"
    copy = onnx.ModelProto()
    copy.CopyFrom(built.proto)
    onnx.save_model(copy, path, save_as_external_data=True, location="w.data", size_threshold=0)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    result = quantkit.quantize_model(path, tmp_path / "q.onnx", calibration=built.feeds(16), mode=mode)
    assert {n: (tmp_path / n).read_bytes() for n in before} == before
    assert len(list(tmp_path.glob("q-*.data"))) <= 1
    assert result.report.agreement.outputs[0].sqnr_db > 25


def test_inputs_that_list_the_weights():
    """Old exporters list each initializer as an input."""
    built = BUILT["resnet"]
    proto = onnx.ModelProto()
    proto.CopyFrom(built.proto)
    for tensor in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    proto.ir_version = 3
    proto.opset_import[0].version = 10
    result = quantize(type(built)(proto))
    assert [i.name for i in result.model.graph.input] == ["x"]
    assert min(compare(built, result.model)) > 25


def test_the_report_counts(tmp_path):
    built = BUILT["resnet"]
    result = quantkit.quantize_model(built.proto, tmp_path / "q.onnx", calibration=built.feeds(16), seed=3)
    report = result.report
    weights = sum(
        int(np.prod(numpy_helper.to_array(i).shape)) for i in built.proto.graph.initializer if i.name.startswith("w_")
    )
    assert sum(r.weight_elements for r in report.nodes) == weights
    assert report.int8_mac_share == 1.0
    assert report.calibration_samples == 8
    assert report.agreement.samples == 8
    assert report.agreement.outputs[0].sqnr_db > 25
    assert report.int8_bytes == (tmp_path / "q.onnx").stat().st_size
    assert result.path == tmp_path / "q.onnx"
    assert report.latency is not None
    assert {p.key: p.value for p in result.model.metadata_props}["quantkit.mode"] == "static"
    assert result.model.producer_name == "quantkit"
