"""Both models side by side in onnxruntime."""

import numpy as np
import pytest
from onnx import helper
from small_models import linear, linear_int8, model

from quantkit.errors import CalibrationError, InvalidArgument, ModelError
from quantkit.models.data.feeds import InputSpec, open_data
from quantkit.models.runtime import open_session
from quantkit.models.verification.agreement import Accuracy
from quantkit.models.verification.verify import measure_latency, verify

WEIGHT = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
ROWS = np.random.default_rng(1).normal(size=(20, 1, 4)).astype(np.float32)
FEEDS = [{"x": row} for row in ROWS]


def test_sqnr_is_that_of_numpy():
    quantized = np.rint(WEIGHT / np.float32(0.02)) * np.float32(0.02)
    got = verify(linear(WEIGHT), linear(quantized), FEEDS)
    a, b = ROWS[:, 0] @ WEIGHT, ROWS[:, 0] @ quantized
    (output,) = got.outputs
    assert got.samples == 20
    assert output.sqnr_db == pytest.approx(10 * np.log10((a**2).sum() / ((a - b) ** 2).sum()), abs=1e-3)
    assert output.worst_slice.axis == 1
    assert output.decisions is None
    assert got.accuracy is None


def test_models_may_be_paths(tmp_path):
    (tmp_path / "a.onnx").write_bytes(linear(WEIGHT))
    got = verify(tmp_path / "a.onnx", str(tmp_path / "a.onnx"), FEEDS)
    assert got.outputs[0].sqnr_db == 200.0


def test_a_softmax_decides():
    got = verify(linear(WEIGHT, softmax=True), linear(WEIGHT[:, ::-1], softmax=True), FEEDS)
    a, b = (ROWS[:, 0] @ w for w in (WEIGHT, WEIGHT[:, ::-1]))
    decisions = got.outputs[0].decisions
    assert (decisions.count, decisions.kept) == (20, int((a.argmax(1) == b.argmax(1)).sum()))


def test_class_axis_can_be_given():
    assert verify(linear(WEIGHT), linear(WEIGHT), FEEDS, class_axis=-1).outputs[0].decisions.kept == 20


def test_accuracy_with_labels():
    truth = (ROWS[:, 0] @ WEIGHT).argmax(1)
    worse = WEIGHT[:, [1, 0, 2]]
    got = verify(linear(WEIGHT), linear(worse), FEEDS, labels=truth)
    right = int(((ROWS[:, 0] @ worse).argmax(1) == truth).sum())
    assert 0 < right < 20
    assert got.accuracy == Accuracy(20, 20, right)
    assert got.outputs[0].decisions.kept == right


def test_labels_of_a_source_and_unknown_ones():
    truth = (ROWS[:, 0] @ WEIGHT).argmax(1).astype(np.int32)
    truth[:5] = -1
    source = open_data({"x": ROWS, "labels": truth}, [InputSpec("x", np.dtype("float32"), ("N", 4))])
    assert verify(linear(WEIGHT), linear(WEIGHT), source).accuracy == Accuracy(15, 15, 15)


def test_labels_of_batches():
    truth = (ROWS[:, 0] @ WEIGHT).argmax(1)
    batches = [{"x": ROWS[i : i + 10, 0]} for i in (0, 10)]
    got = verify(linear(WEIGHT), linear(WEIGHT), batches, labels=[truth[:10], truth[10:]])
    assert got.accuracy == Accuracy(20, 20, 20)


def test_labels_beyond_the_classes_are_said():
    got = verify(linear(WEIGHT), linear(WEIGHT), FEEDS, labels=[7] * 20)
    assert got.accuracy is None
    assert got.warnings == ["accuracy was not measured: there are labels beyond the model's 3 classes"]


def test_labels_that_the_float_model_does_not_find_are_said():
    truth = ((ROWS[:, 0] @ WEIGHT).argmax(1) + 1) % 3
    got = verify(linear(WEIGHT), linear(WEIGHT), FEEDS, labels=truth)
    assert got.accuracy == Accuracy(20, 0, 0)
    assert got.warnings == [
        "the float model finds only 0 of 20 classes: "
        "are the class folders or labels in the order of the model's classes?"
    ]


def test_class_folders_must_be_as_many_as_classes(monkeypatch):
    source = open_data({"x": ROWS, "labels": np.zeros(20, int)}, [InputSpec("x", np.dtype("float32"), ("N", 4))])
    monkeypatch.setattr(type(source), "class_count", 2)
    got = verify(linear(WEIGHT), linear(WEIGHT), source)
    assert got.accuracy is None
    assert got.warnings == ["accuracy was not measured: there are 2 class folders, but the model has 3 classes"]
    assert got.outputs[0].decisions.kept == 20


def test_outputs_without_a_row_of_scores_a_sample_are_said():
    nodes = [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)]
    total = model(nodes, [("x", np.float32, ["N", 4])], [("y", np.float32, [])])
    got = verify(total, total, FEEDS, labels=[0] * 20)
    assert got.accuracy is None
    assert got.warnings == ["accuracy was not measured: no output has one row of class scores for each sample"]


@pytest.mark.parametrize(("labels", "word"), [([0] * 19, "fewer"), ([0] * 21, "more")])
def test_labels_and_feeds_of_different_number(labels, word):
    with pytest.raises(CalibrationError, match=f"there are {word} labels than feeds"):
        verify(linear(WEIGHT), linear(WEIGHT), FEEDS, labels=labels)


def test_no_feeds():
    with pytest.raises(CalibrationError, match="no sample to compare"):
        verify(linear(WEIGHT), linear(WEIGHT), [])


def test_outputs_with_other_names_are_matched_by_order_and_said():
    got = verify(linear(WEIGHT), linear(WEIGHT, output="z"), FEEDS)
    assert got.outputs[0].sqnr_db == 200.0
    assert got.warnings == ["the outputs have other names in the int8 model and were matched by their order"]


def two_outputs(order):
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("ArgMax", ["x"], ["b"], axis=1)]
    outputs = {"a": ("a", np.float32, ["N", 4]), "b": ("b", np.int64, ["N", 1])}
    return model(nodes, [("x", np.float32, ["N", 4])], [outputs[name] for name in order])


def test_outputs_in_another_order_are_matched_by_name():
    got = verify(two_outputs("ab"), two_outputs("ba"), FEEDS)
    assert [(o.name, o.sqnr_db, o.equal) for o in got.outputs] == [("a", 200.0, None), ("b", None, 1.0)]


def test_a_missing_output_is_named():
    with pytest.raises(ModelError, match="the int8 model lacks the output 'b' of the float model"):
        verify(two_outputs("ab"), two_outputs("a"), FEEDS)


def test_an_input_that_the_float_model_does_not_have():
    other = model([helper.make_node("Neg", ["z"], ["y"])], [("z", np.float32, ["N", 4])], [("y", np.float32, ["N", 4])])
    with pytest.raises(ModelError, match="the int8 model has inputs that the float model does not have: 'z'"):
        verify(linear(WEIGHT), other, FEEDS)


def test_nan_in_both_models_is_a_warning():
    nodes = [helper.make_node("Log", ["x"], ["y"])]
    log = model(nodes, [("x", np.float32, ["N", 4])], [("y", np.float32, ["N", 4])])
    got = verify(log, log, [{"x": np.array([[1, 2, -1, 3]], np.float32)}])
    assert got.warnings == ["output 'y': 1 elements are NaN or infinite in both models"]
    assert got.shortfalls() == []


def test_a_sequence_output_is_laid_out_in_a_row():
    nodes = [helper.make_node("SequenceConstruct", ["x", "x"], ["s"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 4])],
        [helper.make_tensor_sequence_value_info("s", 1, None)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    got = verify(made, made, FEEDS)
    assert (got.outputs[0].elements, got.outputs[0].sqnr_db) == (20 * 8, 200.0)


def test_a_model_that_does_not_load_is_named():
    with pytest.raises(ModelError, match="the int8 model does not load in onnxruntime: "):
        verify(linear(WEIGHT), b"no model", FEEDS)


def test_a_model_that_does_not_run_is_named():
    with pytest.raises(
        ModelError, match=r"the float model does not run in onnxruntime: .*Got: 5 Expected: 4"
    ) as caught:
        verify(linear(WEIGHT), linear(WEIGHT), [{"x": np.zeros((1, 5), np.float32)}])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("axis", [2, -3])
def test_a_class_axis_that_is_not_there(axis):
    with pytest.raises(InvalidArgument, match=f"class_axis .*output 'y' has 2 axes, got axis {axis}"):
        verify(linear(WEIGHT), linear(WEIGHT), FEEDS, class_axis=axis)


@pytest.mark.parametrize("threads", [-1, 257, 100_000])
def test_a_number_of_threads_that_cannot_be(threads):
    with pytest.raises(InvalidArgument, match=rf"threads \(--threads\): wanted 0 to 256, got {threads}"):
        verify(linear(WEIGHT), linear(WEIGHT), FEEDS, threads=threads)


def test_threads_are_bounded_by_the_cpus(monkeypatch):
    monkeypatch.setattr("quantkit.models.runtime.usable_cpus", lambda: 1)
    given = []
    open_session(linear(WEIGHT), threads=200, configure=lambda options: given.append(options.intra_op_num_threads))
    assert given == [4]


def test_progress_is_told_of_every_feed():
    calls = []
    verify(linear(WEIGHT), linear(WEIGHT), FEEDS, progress=lambda *told: calls.append(told))
    assert calls == [("verify", i, 20) for i in range(1, 21)]


def test_latency_runs_both_models():
    got = measure_latency(linear(WEIGHT), linear_int8(WEIGHT, 0.02), FEEDS[0], budget=0.05)
    assert 1 <= got.runs <= 200
    assert got.float_ms > 0
    assert got.int8_ms > 0
    assert got.threads == 1


def test_a_session_knows_its_inputs():
    (spec,) = open_session(linear(WEIGHT)).inputs
    assert spec == InputSpec("x", np.dtype("float32"), ("N", 4))


def test_a_missing_file():
    with pytest.raises(ModelError, match=r"nowhere\.onnx: cannot be read: No such file"):
        open_session("nowhere.onnx")
