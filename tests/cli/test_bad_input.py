"""Bad input through the real command: one clear line, exit code 2, nothing written."""

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from small_models import linear, linear_int8, model, qdq

WEIGHT = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


@pytest.fixture
def room(tmp_path):
    """A folder with a good model, good data, and most things that can be wrong."""
    (tmp_path / "good.onnx").write_bytes(linear(WEIGHT))
    (tmp_path / "int8.onnx").write_bytes(linear_int8(WEIGHT, 0.02))
    (tmp_path / "cut.onnx").write_bytes(linear(WEIGHT)[:80])
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "text.onnx").write_text("this is a text, not a model\n")
    (tmp_path / "zeros.onnx").write_bytes(bytes(1000))
    (tmp_path / "scale0.onnx").write_bytes(qdq(x_scale=0.0))
    (tmp_path / "nan.onnx").write_bytes(qdq(w_scale=(0.1, np.nan, 0.1)))
    proto = onnx.load_model_from_string(linear(WEIGHT))
    proto.opset_import[0].version = 99
    onnx.save_model(proto, tmp_path / "future.onnx")
    nodes = [onnx.helper.make_node("Add", ["x", "b"], ["a"]), onnx.helper.make_node("Relu", ["a"], ["b"])]
    ends = [("x", np.float32, [1])], [("b", np.float32, [1])]
    (tmp_path / "cycle.onnx").write_bytes(model(nodes, *ends))
    proto = onnx.load_model_from_string(linear(WEIGHT))
    onnx.save_model(proto, tmp_path / "parted.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    (tmp_path / "w.data").unlink()
    rows = np.random.default_rng(1).normal(size=(20, 1, 4)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=rows)
    np.savez(tmp_path / "name.npz", z=rows)
    np.savez(tmp_path / "shape.npz", x=rows[:, :, :3])
    np.savez(tmp_path / "dtype.npz", x=(rows * 100).astype(np.uint8))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "data.npz").read_bytes()[:200])
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("text")
    (tmp_path / "a file").write_text("")
    os.mkfifo(tmp_path / "pipe.onnx")
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "q.onnx").write_text("the result of an earlier run")
    return tmp_path


def listing(room):
    return sorted((str(path.relative_to(room)), path.stat().st_size) for path in room.rglob("*"))


def fails(room, arguments):
    """Run the command, and return its line on stderr without progress, after checking all that always holds."""
    before = listing(room)
    done = subprocess.run(
        [sys.executable, "-m", "quantkit", *arguments],
        cwd=room,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("quantkit:")]
    assert (done.returncode, done.stdout, len(lines)) == (2, "", 1), done.stderr
    assert "Traceback" not in done.stderr
    assert listing(room) == before
    assert lines[0].startswith("quantkit: error: ")
    assert "unexpected" not in lines[0]
    return lines[0].removeprefix("quantkit: error: ")


QUANTIZE = {
    "no such model": (["nowhere.onnx"], "nowhere.onnx"),
    "a folder as the model": (["empty"], "empty"),
    "a device as the model": (["/dev/zero"], "/dev/zero: is not a regular file, it is a device"),
    "a pipe as the model": (["pipe.onnx"], "pipe.onnx: is not a regular file, it is a pipe"),
    "a device as the data": (["good.onnx", "--calibration", "/dev/zero"], "/dev/zero: is not a regular file"),
    "a pipe as the data": (["good.onnx", "--calibration", "pipe.npz"], "pipe.npz: is not a regular file"),
    "too many threads": (["good.onnx", "--threads", "100000"], "100000 is not in the range 0<=x<=256"),
    "a percentile that nothing uses": (
        ["good.onnx", "--calibration", "data.npz", "--percentile", "60"],
        "--percentile goes with --calibration-method percentile, got minmax",
    ),
    "a percentile without ranges": (
        ["good.onnx", "--mode", "dynamic", "--percentile", "60"],
        "--percentile goes with --calibration-method percentile",
    ),
    "qoperator without ranges": (
        ["good.onnx", "--mode", "dynamic", "--format", "qoperator"],
        "format qoperator is a form of static int8: it does not go with mode dynamic",
    ),
    "a class axis that is not there": (["good.onnx", "--class-axis", "7"], "output 'y' has 2 axes, got axis 7"),
    "an opset of the future": (["future.onnx"], "future.onnx: is of opset 99; the installed onnx "),
    "a cycle": (
        ["cycle.onnx", "--mode", "dynamic"],
        "cycle.onnx does not load in onnxruntime: This is an invalid model. Error: the graph is not acyclic",
    ),
    "an unknown preset beside arrays": (["good.onnx", "--preset", "magic"], "no preset 'magic'"),
    "text": (["text.onnx"], "text.onnx"),
    "an empty file": (["empty.onnx"], "empty.onnx"),
    "zeros": (["zeros.onnx"], "zeros.onnx"),
    "a truncated model": (["cut.onnx"], "cut.onnx"),
    "external data missing": (["parted.onnx"], "w.data"),
    "already quantized": (["int8.onnx"], "already"),
    "no calibration": (["good.onnx", "--calibration"], None),
    "no such data": (["good.onnx", "--calibration", "nowhere.npz"], "nowhere.npz: no such file or folder"),
    "an empty folder": (["good.onnx", "--calibration", "empty"], "empty: the folder is empty"),
    "a folder without images": (["good.onnx", "--calibration", "texts"], "texts: holds no image"),
    "an input of another name": (
        ["good.onnx", "--calibration", "name.npz"],
        "name.npz: no data for input 'x' (float32[N, 4]); got 'z'",
    ),
    "another shape": (
        ["good.onnx", "--calibration", "shape.npz"],
        "shape.npz: input 'x' wants float32[N, 4], got float32[1, 3]: dimension 1 is 3 instead of 4",
    ),
    "another dtype": (
        ["good.onnx", "--calibration", "dtype.npz"],
        "dtype.npz: input 'x' wants float32[N, 4], got uint8[20, 1, 4]: integers are not converted",
    ),
    "truncated data": (["good.onnx", "--calibration", "cut.npz"], "cut.npz: cannot be read as NumPy data"),
    "data that is a text": (["good.onnx", "--calibration", "texts/a.txt"], "a.txt: is neither a folder nor an .npz"),
    "validation data at fault": (
        ["good.onnx", "--calibration", "data.npz", "--validation", "name.npz"],
        "name.npz: no data for input 'x'",
    ),
    "an unknown preset": (["good.onnx", "--calibration", "texts", "--preset", "magic"], "no preset 'magic'"),
    "exclude matches nothing": (
        ["good.onnx", "--calibration", "data.npz", "--exclude", "nonsense"],
        "'nonsense' matches no",
    ),
    "everything is excluded": (
        ["good.onnx", "--calibration", "data.npz", "--exclude", "MatMul"],
        "nothing to quantize",
    ),
    "output is the input": (["good.onnx", "--calibration", "data.npz", "-o", "good.onnx"], "good.onnx"),
    "output in a missing folder": (
        ["good.onnx", "--calibration", "data.npz", "-o", "no/where.onnx"],
        "cannot write no/where.onnx",
    ),
    "output below a file": (
        ["good.onnx", "--calibration", "data.npz", "-o", "a file/q.onnx"],
        "a file/q.onnx",
    ),
    "output is a folder": (
        ["good.onnx", "--calibration", "data.npz", "-o", "empty"],
        "cannot write empty: it is a folder",
    ),
    "output where nobody can write": (
        ["good.onnx", "--calibration", "data.npz", "-o", "/proc/q.onnx"],
        "cannot write /proc/q.onnx",
    ),
    "report in a missing folder": (
        ["good.onnx", "--calibration", "data.npz", "--report", "no/r.html"],
        "cannot write no/r.html",
    ),
}


@pytest.mark.parametrize("case", QUANTIZE)
def test_quantize(room, case):
    arguments, message = QUANTIZE[case]
    if message is None:
        arguments, message = ["good.onnx"], "calibration"
    elif "--calibration" not in arguments:
        arguments = [*arguments, "--calibration", "data.npz"]
    if "-o" not in arguments:
        arguments = [*arguments, "-o", "q.onnx"]
    assert message in fails(room, ["quantize", *arguments])


@pytest.mark.skipif(os.geteuid() == 0, reason="permission bits do not bind root")
def test_a_read_only_folder(room):
    (room / "empty").chmod(0o500)
    try:
        line = fails(room, ["quantize", "good.onnx", "--calibration", "data.npz", "-o", "empty/q.onnx"])
    finally:
        (room / "empty").chmod(0o700)
    assert "cannot write empty/q.onnx" in line


COMPARE = {
    "a device": (["good.onnx", "/dev/zero", "--data", "data.npz"], "/dev/zero: is not a regular file, it is a device"),
    "a pipe": (["pipe.onnx", "good.onnx", "--data", "data.npz"], "pipe.onnx: is not a regular file, it is a pipe"),
    "too many threads": (["good.onnx", "good.onnx", "--data", "data.npz", "--threads=999"], "999 is not in the range"),
    "no such model": (["nowhere.onnx", "good.onnx", "--data", "data.npz"], "nowhere.onnx"),
    "text": (["good.onnx", "text.onnx", "--data", "data.npz"], "text.onnx"),
    "truncated": (["cut.onnx", "good.onnx", "--data", "data.npz"], "cut.onnx"),
    "external data missing": (["good.onnx", "parted.onnx", "--data", "data.npz"], "w.data"),
    "an empty folder": (["good.onnx", "good.onnx", "--data", "empty"], "empty: the folder is empty"),
    "a folder without images": (["good.onnx", "good.onnx", "--data", "texts"], "texts: holds no image"),
    "another name": (["good.onnx", "good.onnx", "--data", "name.npz"], "no data for input 'x'"),
    "an unknown preset": (["good.onnx", "good.onnx", "--data", "texts", "--preset", "magic"], "no preset 'magic'"),
    "a scale of zero runs, and gives NaN": (["good.onnx", "good.onnx", "--data", "dtype.npz"], "integers are not"),
}


@pytest.mark.parametrize("case", COMPARE)
def test_compare(room, case):
    arguments, message = COMPARE[case]
    assert message in fails(room, ["compare", *arguments])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.onnx", "nowhere.onnx: "),
        ("/dev/zero", "/dev/zero: is not a regular file, it is a device"),
        ("pipe.onnx", "pipe.onnx: is not a regular file, it is a pipe"),
        ("empty", "empty: "),
        ("text.onnx", "text.onnx: "),
        ("empty.onnx", "empty.onnx: "),
        ("zeros.onnx", "zeros.onnx: "),
        ("cut.onnx", "cut.onnx: "),
        ("parted.onnx", "w.data"),
        ("scale0.onnx", "scale0.onnx: scale 'xs' of QuantizeLinear 'q' must be finite and > 0, got 0.0"),
        ("nan.onnx", "scale 'ws' of DequantizeLinear 'dw' must be finite and > 0, got nan at channel 1"),
    ],
)
def test_inspect(room, name, message):
    assert message in fails(room, ["inspect", name])


def test_no_arguments_at_all():
    done = subprocess.run([sys.executable, "-m", "quantkit"], capture_output=True, text=True, timeout=120, check=False)
    text = done.stdout + done.stderr
    assert "quantkit: error" not in text
    assert len(text.splitlines()) > 10
    assert "Commands:" in text.split("\n\n")[-1]


def test_a_negative_dimension(room):
    tensor = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [2, 2], [0.0] * 4)
    tensor.dims[0] = -2
    graph = onnx.helper.make_graph([], "g", [], [], [tensor])
    onnx.save(onnx.helper.make_model(graph), room / "negative.onnx")
    assert "negative.onnx: tensor 'w' has a negative size" in fails(room, ["weights", "negative.onnx", "-o", "o.st"])


def test_an_axis_that_no_tensor_has(room):
    np.savez(room / "w.npz", w=np.zeros((64, 64), np.float32))
    line = fails(room, ["weights", "w.npz", "-o", "o.safetensors", "--axis", "99999999999999999999"])
    assert "does not fit tensor 'w'" in line
    assert "exclude" not in line


@pytest.mark.parametrize(
    ("entries", "message"),
    [({"location": "."}, "is a folder, wanted a file"), ({"location": "a file", "offset": "-4"}, "negative offset")],
)
def test_external_data_at_fault(room, entries, message):
    tensor = onnx.TensorProto(name="w", dims=[1], data_type=1, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    graph = onnx.helper.make_graph([], "g", [], [], [tensor])
    (room / "odd.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    assert message in fails(room, ["inspect", "odd.onnx"])


@pytest.mark.parametrize("name", ["o.npz", "o.onnx", "o.pth"])
def test_weights_under_the_name_of_another_format(room, name):
    np.savez(room / "w.npz", w=np.zeros((64, 64), np.float32))
    assert f"the output {name} will be a safetensors file" in fails(room, ["weights", "w.npz", "-o", name])
