"""quantkit weights."""

import json

import numpy as np
import pytest

import quantkit as qk
from quantkit import cli


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "m.npz"
    np.savez(path, w=np.random.default_rng(0).normal(size=(64, 64)).astype("f4"), b=np.ones(64, "f4"))
    return path


def test_one_file(source, tmp_path, capsys):
    out = tmp_path / "q.safetensors"
    assert cli.main(["weights", str(source), "-o", str(out)]) == 0
    text = capsys.readouterr()
    lines = text.out.splitlines()
    assert lines[0] == f"{out}: 1 quantized, 1 float; 16,640 -> 4,672 bytes, 28%"
    assert lines[1] == "  1 float: has fewer than two dimensions"
    assert lines[2].startswith("  lowest SQNR 4")
    assert lines[2].endswith("dB: w, max error 0.0153")
    assert text.err == "quantize: 2 tensors\nquantize: 2 of 2\n"
    assert qk.open_weights(out)["w"].axis == 0


def test_options_reach_the_quantizer(source, tmp_path, capsys):
    out = tmp_path / "q.safetensors"
    options = ["--dtype", "quint8", "--granularity", "block", "--block", "32", "--streams", "1", "--symmetric"]
    options += ["--drop", "b", "--min-elements", "10", "--no-resume", "--json"]
    assert cli.main(["weights", str(source), "-o", str(out), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1
    assert found["shortfalls"] == []
    assert [(t["name"], t["block"]) for t in found["tensors"]] == [("w", 32)]
    assert set(qk.open_weights(out)["w"].zero_point) == {128}


def test_shortfalls_are_listed_and_give_1(tmp_path, capsys):
    w = np.random.default_rng(0).normal(size=(64, 64)).astype("f4")
    bad = w.copy()
    bad[0, 0] = np.nan
    np.savez(tmp_path / "m.npz", w=w, bad=bad)
    arguments = ["weights", str(tmp_path / "m.npz"), "-o", str(tmp_path / "q.safetensors")]
    assert cli.main(arguments) == 1
    assert "falls short: bad: left float: holds 1 values that are NaN or infinite\n" in capsys.readouterr().err
    assert cli.main([*arguments, "--min-sqnr", "99", "--exclude", "bad", "--exclude", "z*"]) == 1
    error = capsys.readouterr().err
    assert "falls short: w: SQNR 4" in error
    assert "note: exclude pattern 'z*' matches no tensor\n" in error


def test_batches(source, tmp_path, capsys):
    (tmp_path / "broken.npz").write_bytes(b"x")
    out = tmp_path / "out"
    assert cli.main(["weights", str(tmp_path), "-o", str(out)]) == 1
    text = capsys.readouterr()
    assert text.out.startswith(f"{out / 'm.safetensors'}: 1 quantized")
    assert "falls short: " in text.err
    assert "broken.npz: is no .npz file" in text.err
    assert cli.main(["weights", str(source), str(source), "-o", str(out)]) == 0
    other = tmp_path / "other.npz"
    other.write_bytes(b"y")
    assert cli.main(["weights", str(tmp_path / "broken.npz"), str(other), "-o", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert error.count("quantkit: error: ") == 2
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone.npz", "-o", "q"], "gone.npz: cannot be read: No such file or directory"),
        (["gone*.npz", "-o", "q"], "gone*.npz: matches no weight files"),
        (["m.npz"], "missing option '-o' / '--output'"),
        (["-o", "q"], "missing argument 'FILE...'"),
        (["m.npz", "-o", "no/q"], "cannot write no/q: "),
        (["m.npz", "-o", "."], "cannot write .: it is a folder"),
        (["m.npz", "-o", "q", "--block", "48"], "invalid value for '--block'"),
        (["m.npz", "-o", "q", "--streams", "0"], "invalid value for '--streams'"),
        (["m.npz", "-o", "q", "--axis", "7"], "axis 7 does not fit tensor 'w'"),
    ],
)
def test_wrong_usage_is_one_line_and_2(source, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["weights", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"quantkit: error: {message}")
    assert error.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["m.npz"]
