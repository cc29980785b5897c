"""Weight files to 8 bits: the codes, the rules, the file, the errors."""

import errno
import json
import os

import ml_dtypes
import numpy as np
import oracle
import pytest
import safetensors

import quantkit as qk
from quantkit import files
from quantkit.errors import FormatError, InvalidArgument, InvalidDType, OutputError
from quantkit.files import save_tensors
from quantkit.weights import passes, read_safetensors, source
from quantkit.weights.stored import KEY


def normal(*shape, seed=0, dtype="f4", scale=0.02):
    return np.random.default_rng(seed).normal(0, scale, shape).astype(dtype)


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.safetensors"
    tensors = {
        "conv.weight": normal(32, 8, 3, 3),
        "linear.weight": normal(40, 96, seed=1),
        "linear.bias": normal(40, seed=2),
        "half": normal(48, 64, seed=3, dtype="f2"),
        "brain": normal(48, 64, seed=4, dtype=ml_dtypes.bfloat16),
        "double": normal(48, 64, seed=5, dtype="f8"),
        "small": normal(8, 8, seed=6),
        "thin": normal(1024, 1, seed=7, dtype="f2"),
        "ids": np.arange(5000).reshape(50, 100),
        "eight": normal(40, 40, seed=8, dtype=ml_dtypes.float8_e4m3fn),
        "empty": np.empty((0, 2048), "f4"),
        "zeros": np.zeros((32, 64), "f4"),
    }
    save_tensors(path, tensors, {"format": "pt"})
    return path, tensors


def load(path):
    """All tensors as the safetensors library reads them; its NumPy door has no float8."""
    with safetensors.safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys() if name != "eight"}  # noqa: SIM118 - no mapping


def expected(x, dtype, symmetric, axis=None):
    """Scale, zero point and codes by the formula."""
    x = np.asarray(x, np.float64 if x.dtype == np.float64 else np.float32)
    others = None if axis is None else tuple(d for d in range(x.ndim) if d != axis)
    low, high = np.minimum(x.min(others), 0), np.maximum(x.max(others), 0)
    q = qk.choose_qparams(low, high, dtype, symmetric=symmetric, axis=axis)
    codes = oracle.quantize_linear(x, q.scale, q.zero_point, axis, "u1" if dtype == "quint8" else "i1")
    return q, codes


@pytest.mark.parametrize("dtype", ["qint8", "quint8"])
@pytest.mark.parametrize("granularity", ["tensor", "channel"])
@pytest.mark.parametrize("symmetric", [None, True, False])
def test_codes_scales_and_zero_points_are_those_of_the_formula(model, tmp_path, dtype, granularity, symmetric):
    path, tensors = model
    out = tmp_path / "q.safetensors"
    result = qk.quantize_weights(path, out, dtype=dtype, granularity=granularity, symmetric=symmetric)
    stored, weights = load(out), qk.open_weights(out)
    even = dtype == "qint8" if symmetric is None else symmetric
    quantized = {r.name for r in result.tensors if r.decision == "quantized"}
    thin = {"thin"} if granularity == "tensor" else set()  # 1024 scales would outweigh its codes
    assert quantized == {"conv.weight", "linear.weight", "half", "brain", "double", "zeros"} | thin
    for name in quantized:
        q, codes = expected(tensors[name], dtype, even, None if granularity == "tensor" else 0)
        assert np.array_equal(stored[name], codes), name
        assert stored[f"{name}.scale"].dtype == np.float32
        assert np.array_equal(stored[f"{name}.scale"], np.asarray(q.scale, np.float32))
        assert stored[f"{name}.zero_point"].dtype == codes.dtype
        assert np.array_equal(stored[f"{name}.zero_point"], q.zero_point)
        got = weights[name]
        assert got.dtype.name == dtype
        assert np.array_equal(got.int_repr(), codes)
        assert got.qparams == q
        assert got.storage().readonly


def test_rows_say_what_was_done_and_lost(model, tmp_path):
    path, tensors = model
    out = tmp_path / "q.safetensors"
    result = qk.quantize_weights(path, out)
    rows = {r.name: r for r in result.tensors}
    assert {n: (r.decision, r.reason) for n, r in rows.items()} == {
        "conv.weight": ("quantized", ""),
        "linear.weight": ("quantized", ""),
        "half": ("quantized", ""),
        "brain": ("quantized", ""),
        "double": ("quantized", ""),
        "zeros": ("quantized", ""),
        "linear.bias": ("float", "has fewer than two dimensions"),
        "small": ("float", "has fewer than 1024 elements"),
        "thin": ("float", "1024 scales would make it larger"),
        "empty": ("float", "has no elements"),
        "ids": ("copied", "I64 is no floating-point tensor"),
        "eight": ("copied", "F8_E4M3 is 8 bits already"),
    }
    weights = qk.open_weights(out)
    for name, row in rows.items():
        x = np.asarray(tensors[name])
        assert row.shape == x.shape
        assert row.bytes_before == x.nbytes
        if row.decision != "quantized":
            assert row.bytes_after == x.nbytes
            assert row.sqnr_db is None
            assert row.max_error is None
            assert weights._file[name].tobytes() == x.tobytes()
            continue
        assert row.bytes_after == x.size + 5 * len(x)
        assert row.axis == 0
        real = weights.dequantize(name).astype("f8")
        error = real - x.astype("f8")
        assert row.max_error == pytest.approx(np.abs(error).max(), rel=1e-6, abs=1e-12)
        if name == "zeros":
            assert row.sqnr_db is None
            continue
        sqnr = 10 * np.log10((x.astype("f8") ** 2).sum() / (error**2).sum())
        assert row.sqnr_db == pytest.approx(sqnr, abs=1e-3)
        assert row.sqnr_db > 35
    assert result.bytes_before == sum(np.asarray(x).nbytes for x in tensors.values())
    assert result.shortfalls() == []
    assert len(result.shortfalls(1000)) == 5
    assert weights.metadata["format"] == "pt"
    json.dumps(result.to_json(), allow_nan=False)
    assert "6 quantized" in result.summary()


@pytest.mark.parametrize("block", [32, 64, 128])
@pytest.mark.parametrize("dtype", ["qint8", "quint8"])
def test_blocks(tmp_path, block, dtype):
    tensors = {"m": normal(6, 384), "conv": normal(16, 32, 2, 2, seed=1), "odd": normal(24, 50, seed=2)}
    path, out = tmp_path / "m.npz", tmp_path / "q.safetensors"
    np.savez(path, **tensors)
    result = qk.quantize_weights(path, out, granularity="block", block=block, dtype=dtype)
    stored, weights = load(out), qk.open_weights(out)
    for name in ("m", "conv"):
        x = tensors[name]
        q, codes = expected(x.reshape(-1, block), dtype, dtype == "qint8", 0)
        assert np.array_equal(stored[name], codes.reshape(x.shape))
        assert stored[f"{name}.scale"].shape == (len(x), x.size // len(x) // block)
        assert np.array_equal(stored[f"{name}.scale"].ravel(), q.scale)
        assert np.array_equal(stored[f"{name}.zero_point"].ravel(), q.zero_point)
        assert weights[name].shape == (x.size // block, block)
        assert weights[name].qparams == q
        assert weights.shape(name) == x.shape
        assert weights.quantized[name].block == block
        real = weights.dequantize(name)
        assert real.shape == x.shape
        assert np.array_equal(real, oracle.dequantize_linear(codes, q.scale, q.zero_point, 0).reshape(x.shape))
    odd = result.tensors[2]
    assert (odd.name, odd.axis, odd.block) == ("odd", 0, None)
    assert odd.reason == f"per channel: rows of 50 make no blocks of {block}"
    assert result.tensors[0].block == block


@pytest.mark.parametrize("piece", [1, 7, 64, 1000, 1 << 19])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_the_size_of_pieces_does_not_matter(tmp_path, monkeypatch, piece, axis):
    x = normal(7, 11, 5)
    path, out = tmp_path / "m.npz", tmp_path / "q.safetensors"
    np.savez(path, x=x)
    monkeypatch.setattr(passes, "PIECE", piece)
    result = qk.quantize_weights(path, out, axis=axis, min_elements=0)
    q, codes = expected(x, "qint8", True, axis % 3)
    stored = load(out)
    assert np.array_equal(stored["x"], codes)
    assert np.array_equal(stored["x.scale"], q.scale)
    assert result.tensors[0].axis == axis % 3
    error = np.abs(oracle.dequantize_linear(codes, q.scale, 0, axis % 3) - x).max()
    assert result.tensors[0].max_error == pytest.approx(error, rel=1e-6)


def test_the_same_bytes_for_any_number_of_streams(model, tmp_path):
    path, _ = model
    made = {}
    for streams in (1, 2, 8, None):
        out = tmp_path / f"{streams}.safetensors"
        result = qk.quantize_weights(path, out, streams=streams)
        made[streams] = (out.read_bytes(), result.tensors)
    assert len({data for data, _ in made.values()}) == 1
    assert len({rows for _, rows in made.values()}) == 1
    assert sorted(os.listdir(tmp_path)) == [
        "1.safetensors",
        "2.safetensors",
        "8.safetensors",
        "None.safetensors",
        path.name,
    ]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_tensors_with_nan_or_infinity_stay_float_and_are_reported(tmp_path, bad):
    tensors = {f"t{i}": normal(40, 40 + i, seed=i) for i in range(6)}
    clean, path, out = tmp_path / "clean.npz", tmp_path / "m.npz", tmp_path / "q.safetensors"
    np.savez(clean, **tensors)
    qk.quantize_weights(clean, tmp_path / "clean.safetensors")
    tensors["t1"][3, 4] = bad
    tensors["t4"][0, :2] = bad
    np.savez(path, **tensors)
    result = qk.quantize_weights(path, out)
    assert result.nonfinite == ("t1", "t4")
    assert result.shortfalls() == [
        "t1: left float: holds 1 values that are NaN or infinite",
        "t4: left float: holds 2 values that are NaN or infinite",
    ]
    stored, before = load(out), load(tmp_path / "clean.safetensors")
    for name, x in tensors.items():
        if name in result.nonfinite:
            assert stored[name].tobytes() == x.tobytes()
            assert f"{name}.scale" not in stored
        else:
            assert np.array_equal(stored[name], before[name])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["clean.npz", "clean.safetensors", "m.npz", "q.safetensors"]


def test_values_beyond_float32_stay_float(tmp_path):
    np.savez(
        tmp_path / "m.npz",
        huge=np.full((40, 40), 1e300),
        large=np.full((40, 40), 3e38),
        tiny=normal(40, 40, scale=1e-30),
    )
    result = qk.quantize_weights(tmp_path / "m.npz", tmp_path / "q.safetensors")
    huge, large, tiny = result.tensors
    assert (huge.decision, huge.reason) == ("float", "reaches 1e+300, beyond float32")
    assert large.decision == tiny.decision == "quantized"
    assert tiny.sqnr_db > 35
    assert large.max_error < 3e38 / 127


def test_include_exclude_and_drop(model, tmp_path):
    path, _ = model
    out = tmp_path / "q.safetensors"
    result = qk.quantize_weights(path, out, include=["*.weight", "half"], exclude="conv.*", drop=["i?s", "small"])
    rows = {r.name: (r.decision, r.reason) for r in result.tensors}
    assert rows["linear.weight"] == rows["half"] == ("quantized", "")
    assert rows["conv.weight"] == ("float", "excluded by its name")
    assert rows["brain"] == ("float", "not included by its name")
    assert not {"ids", "small"} & rows.keys()
    assert "ids" not in qk.open_weights(out)
    assert result.notes == ()
    again = qk.quantize_weights(path, out, exclude=["nothing*"])
    assert again.notes == ("exclude pattern 'nothing*' matches no tensor",)


def test_names_that_are_taken(tmp_path):
    tensors = {"x": normal(40, 40), "x.scale": normal(3), "x.scale_": normal(4), "x.zero_point": normal(40, 50, seed=1)}
    save_tensors(tmp_path / "m.safetensors", tensors)
    qk.quantize_weights(tmp_path / "m.safetensors", tmp_path / "q.safetensors")
    weights = qk.open_weights(tmp_path / "q.safetensors")
    assert set(weights) == set(tensors)
    assert weights.quantized["x"].scale == "x.scale__"
    assert weights.quantized["x"].zero_point == "x.zero_point_"
    assert np.array_equal(weights["x.scale"], tensors["x.scale"])
    assert np.array_equal(weights["x"].scale, expected(tensors["x"], "qint8", True, 0)[0].scale)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"dtype": "int4"}, InvalidDType, "int4"),
        ({"granularity": "row"}, InvalidArgument, "granularity must be one of tensor, channel, block, got 'row'"),
        ({"block": 48}, InvalidArgument, "block must be one of 32, 64, 128, got 48"),
        ({"axis": 1.5}, InvalidArgument, "axis must be an integer"),
        ({"axis": 5}, InvalidArgument, "axis 5 does not fit tensor"),
        ({"streams": 0}, InvalidArgument, "streams must be an integer >= 1, got 0"),
        ({"min_elements": -1}, InvalidArgument, "min_elements"),
        ({"exclude": [3]}, InvalidArgument, "exclude must be patterns"),
    ],
)
def test_wrong_options(model, tmp_path, wrong, error, message):
    path, _ = model
    with pytest.raises(error, match=message):
        qk.quantize_weights(path, tmp_path / "q.safetensors", **wrong)
    assert os.listdir(tmp_path) == [path.name]


def test_outputs_that_cannot_be(model, tmp_path):
    path, _ = model
    before = path.read_bytes()
    with pytest.raises(InvalidArgument, match="is a file of the source"):
        qk.quantize_weights(path, path)
    link = tmp_path / "link.safetensors"
    link.symlink_to(path)
    with pytest.raises(InvalidArgument, match="is a file of the source"):
        qk.quantize_weights(path, link)
    with pytest.raises(OutputError, match="does not exist"):
        qk.quantize_weights(path, tmp_path / "no" / "q.safetensors")
    with pytest.raises(OutputError, match="it is a folder"):
        qk.quantize_weights(path, tmp_path)
    with pytest.raises(FormatError, match=r"gone\.npz: cannot be read: No such file"):
        qk.quantize_weights(tmp_path / "gone.npz", tmp_path / "q.safetensors")
    qk.quantize_weights(path, tmp_path / "q.safetensors")
    with pytest.raises(FormatError, match="holds quantized weights already"):
        qk.quantize_weights(tmp_path / "q.safetensors", tmp_path / "r.safetensors")
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["link.safetensors", "model.safetensors", "q.safetensors"]


@pytest.mark.parametrize("call", ["pwrite", "ftruncate", "fsync", "replace"])
def test_a_failing_disk_is_one_error_and_leaves_the_old_file(model, tmp_path, monkeypatch, call):
    path, _ = model
    out = tmp_path / "q.safetensors"
    out.write_bytes(b"old")

    def fails(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(OutputError, match=r"cannot write .*q\.safetensors: No space left on device"):
        qk.quantize_weights(path, out)
    monkeypatch.undo()
    assert out.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "q.safetensors"]


def test_a_disk_that_is_too_small_is_known_before(model, tmp_path, monkeypatch):
    path, _ = model
    usage = {"total": 1000, "free": 100}
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), usage)())
    with pytest.raises(OutputError, match=r"it will have \d+ bytes, and .* has 100 free"):
        qk.quantize_weights(path, tmp_path / "q.safetensors")
    assert os.listdir(tmp_path) == [path.name]
    usage |= {"total": 0, "free": 0}  # a file system that does not tell
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), usage)())
    qk.quantize_weights(path, tmp_path / "q.safetensors")


@pytest.mark.parametrize("where", ["codes", "scale", "header"])
def test_what_was_written_is_read_back(model, tmp_path, monkeypatch, where):
    path, _ = model
    real = files.ResumableFile.write_at
    sizes = {"codes": 40 * 96, "scale": 40 * 4, "header": None}

    def flips(self, offset, data):
        raw = bytearray(bytes(memoryview(data).cast("B")) if memoryview(data).nbytes else b"")
        if len(raw) == sizes[where] or (where == "header" and offset == 0):
            raw[len(raw) // 2] ^= 1
        real(self, offset, raw)

    monkeypatch.setattr(files.ResumableFile, "write_at", flips)
    with pytest.raises(OutputError, match="the written file is damaged"):
        qk.quantize_weights(path, tmp_path / "q.safetensors")
    assert os.listdir(tmp_path) == [path.name]


def test_a_tensor_that_files_cannot_hold_is_named_and_can_be_dropped(tmp_path):
    path, out = tmp_path / "m.npz", tmp_path / "q.safetensors"
    np.savez(path, w=normal(40, 40), z=np.ones(3, "c8"), names=np.array(["a"]))
    with pytest.raises(
        FormatError, match="tensor 'z' holds complex64, which a file of tensors cannot; leave it out with drop='z'"
    ):
        qk.quantize_weights(path, out)
    assert [r.name for r in qk.quantize_weights(path, out, drop=["z", "names"]).tensors] == ["w"]


def test_progress_counts_tensors(model, tmp_path):
    path, tensors = model
    calls = []
    qk.quantize_weights(path, tmp_path / "q.safetensors", progress=lambda *a: calls.append(a))
    assert calls == [("quantize", i, len(tensors)) for i in range(len(tensors) + 1)]


def test_the_description_is_in_the_file(model, tmp_path):
    path, _ = model
    out = tmp_path / "q.safetensors"
    qk.quantize_weights(path, out, granularity="block", block=32)
    with safetensors.safe_open(out, "np") as file:
        found = json.loads(file.metadata()[KEY])
    assert found["version"] == 1
    assert found["ties"] == {}
    assert found["tensors"]["linear.weight"] == {
        "dtype": "qint8",
        "source_dtype": "F32",
        "axis": 0,
        "block": 32,
        "scale": "linear.weight.scale",
        "zero_point": "linear.weight.zero_point",
    }


def test_a_source_that_changes_meanwhile(model, tmp_path):
    path, _ = model

    def progress(stage, done, total):
        if done == 3:
            os.utime(path, ns=(0, 0))

    with pytest.raises(FormatError, match=r"model\.safetensors: was changed while it was read"):
        qk.quantize_weights(path, tmp_path / "q.safetensors", progress=progress)
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("granularity", ["channel", "tensor", "block"])
def test_each_tensor_is_read_no_more_often_than_needed(model, tmp_path, monkeypatch, granularity):
    path, _ = model
    opened = []
    real = source.open_array

    def counting(load):
        begin = real(load)
        return lambda: opened.append(1) or begin()

    monkeypatch.setattr(read_safetensors, "open_array", counting)
    monkeypatch.setattr(passes, "PIECE", 2000)  # a channel fits, a tensor does not
    result = qk.quantize_weights(path, tmp_path / "q.safetensors", granularity=granularity)
    twice = sum(r.decision == "quantized" and r.bytes_after > 2000 for r in result.tensors)
    assert len(opened) == len(result.tensors) + (twice if granularity == "tensor" else 0)
