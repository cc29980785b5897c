"""The list of kernels, the choice of instruction set, and what the environment may say about it."""

import os
import subprocess
import sys

import pytest

import quantkit as qk
from quantkit import _kernels
from quantkit.errors import UnsupportedISA


def run(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, check=False
    )


def test_every_slot_has_a_portable_kernel():
    rows = _kernels.kernels()
    assert len(set(rows)) == len(rows)
    portable = {slot for _, slot, isa in rows if isa == "scalar"}
    assert portable == {slot for _, slot, _ in rows}


def test_isas_are_ordered_and_the_best_is_used_by_default():
    isas = qk.cpu.isas()
    assert isas[0] == "scalar"
    result = run("import quantkit as qk; print(qk.cpu.active_isa())", QUANTKIT_ISA="")
    assert result.stdout.strip() == isas[-1]


@pytest.mark.parametrize("name", _kernels.isas())
def test_environment_forces_one(name):
    result = run("import quantkit as qk; print(qk.cpu.active_isa())", QUANTKIT_ISA=name)
    assert (result.returncode, result.stdout.strip()) == (0, name)


def test_an_unknown_one_is_a_clear_error():
    result = run("from quantkit import ops", QUANTKIT_ISA="avx1024")
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("quantkit.errors.UnsupportedISA: QUANTKIT_ISA: instruction set 'avx1024' is unknown")
    assert "scalar" in last


def test_one_that_is_not_on_this_cpu_is_a_clear_error():
    missing = [name for name in ("avx2", "avxvnni", "avx512", "neon") if name not in qk.cpu.isas()]
    assert missing  # no CPU has both avx and neon
    before = qk.cpu.active_isa()
    with pytest.raises(UnsupportedISA, match="is not on this CPU; choose one of scalar"):
        _kernels.use_isa(missing[0])
    assert qk.cpu.active_isa() == before


@pytest.mark.parametrize("name", [None, 3, "", "\ud800"])
def test_nonsense_is_a_clear_error(name):
    with pytest.raises(UnsupportedISA):
        _kernels.use_isa(name)


def test_importing_needs_numpy_alone():
    blocked = ["onnx", "onnxruntime", "PIL", "click", "rich", "safetensors"]
    code = f"""
import sys
for name in {blocked!r}:
    sys.modules[name] = None
import numpy as np
import quantkit as qk
q = qk.ops.quantize_linear(np.float32([0, 1, 2]), 0.5, 3)
assert q.tolist() == [3, 5, 7], q
assert qk.ops.dequantize_linear(q, 0.5, 3).tolist() == [0, 1, 2]
print("ok")
"""
    result = run(code)
    assert result.stdout == "ok\n", result.stderr
