"""A run that is killed half-way, and the next one."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import quantkit as qk
from quantkit.weights import quantizer

SCRIPT = """
import os, sys, time
import quantkit as qk
def progress(stage, done, total):
    if done == int(sys.argv[3]):
        os.kill(os.getpid(), int(sys.argv[4]))
        time.sleep(60)
qk.quantize_weights(sys.argv[1], sys.argv[2], streams=2, progress=progress)
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "m.npz"
    random = np.random.default_rng(0)
    np.savez(
        path, **{f"t{i}": random.normal(size=(64, 100 + i)).astype("f4") for i in range(12)}, bias=np.ones(9, "f4")
    )
    return path


def reference(source, tmp_path):
    qk.quantize_weights(source, tmp_path / "reference.safetensors")
    return (tmp_path / "reference.safetensors").read_bytes()


def kill(source, out, after, number=signal.SIGKILL):
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(source), str(out), str(after), str(int(number))],
        check=False,
        capture_output=True,
    )
    assert process.returncode == -number
    assert not out.exists()
    assert len(list(out.parent.glob(".quantkit-*"))) == 2


@pytest.mark.parametrize("after", [1, 6, 13])
def test_killed_half_way_and_run_again(source, tmp_path, after):
    out = tmp_path / "q.safetensors"
    wanted = reference(source, tmp_path)
    kill(source, out, after)
    result = qk.quantize_weights(source, out)
    assert out.read_bytes() == wanted
    assert after - 1 <= result.resumed <= 13
    assert [r.name for r in result.tensors] == [f"t{i}" for i in range(12)] + ["bias"]
    assert all(r.max_error > 0 for r in result.tensors[:12])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.npz", "q.safetensors", "reference.safetensors"]


def test_interrupted_by_ctrl_c(source, tmp_path):
    out = tmp_path / "q.safetensors"

    def progress(stage, done, total):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        qk.quantize_weights(source, out, progress=progress)
    assert not out.exists()
    result = qk.quantize_weights(source, out)
    assert result.resumed >= 5
    assert out.read_bytes() == reference(source, tmp_path)


def test_bytes_that_a_power_cut_took_are_made_again(source, tmp_path):
    out = tmp_path / "q.safetensors"
    wanted = reference(source, tmp_path)
    kill(source, out, 12)
    (partial,) = tmp_path.glob(".quantkit-*.partial")
    data = bytearray(partial.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 4096] = bytes(4096)
    partial.write_bytes(data)
    result = qk.quantize_weights(source, out)
    assert 8 <= result.resumed < 13
    assert out.read_bytes() == wanted


@pytest.mark.parametrize("change", ["source", "options", "no resume"])
def test_another_source_or_other_options_begin_again(source, tmp_path, change):
    out = tmp_path / "q.safetensors"
    kill(source, out, 6)
    more = {}
    if change == "source":
        os.utime(source, ns=(0, time.time_ns()))
    elif change == "options":
        more = {"dtype": "quint8"}
    else:
        more = {"resume": False}
    result = qk.quantize_weights(source, out, **more)
    assert result.resumed == 0
    fresh = tmp_path / "fresh.safetensors"
    qk.quantize_weights(source, fresh, **more)
    assert out.read_bytes() == fresh.read_bytes()


def test_nan_found_before_the_kill_is_known_after_it(tmp_path, monkeypatch):
    source, out = tmp_path / "m.npz", tmp_path / "q.safetensors"
    random = np.random.default_rng(0)
    tensors = {f"t{i}": random.normal(size=(64, 64)).astype("f4") for i in range(8)}
    tensors["t6"][0] = np.nan
    np.savez(source, **tensors)
    wanted = reference(source, tmp_path)
    # The first plan meets the NaN; the second is cut off half-way.
    seen = []

    def progress(stage, done, total):
        seen.append(done)
        if seen.count(0) == 2 and done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        qk.quantize_weights(source, out, progress=progress)
    searched = []
    monkeypatch.setattr(quantizer, "_unfit", lambda *a: searched.append(a))
    result = qk.quantize_weights(source, out)
    assert searched == []
    assert result.resumed >= 4
    assert result.nonfinite == ("t6",)
    assert out.read_bytes() == wanted
