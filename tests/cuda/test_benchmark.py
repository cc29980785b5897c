"""benchmarks/cuda.py runs from end to end, on the stand-in and in small sizes."""

import os
import subprocess
import sys
from pathlib import Path

import on_cpu
import pytest

import quantkit as qk

ROOT = Path(__file__).parents[2]
CODE = """
import runpy, sys
import fake_cuda
fake_cuda.in_this_process()
sys.argv = ["cuda.py", "--no-tests", "--small", "--seconds", "0.01"]
runpy.run_path({path!r}, run_name="__main__")
"""


@pytest.mark.skipif(on_cpu.missing() is not None, reason=str(on_cpu.missing()))
def test_every_row():
    code = f"import sys; sys.path[:0] = {sys.path!r}\n" + CODE.format(path=str(ROOT / "benchmarks" / "cuda.py"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Stand-in 0")
    rows = [
        line.split("  ")[0] for line in lines[1:-1] if line.startswith(("copy", "quant", "deq", "look", "int8", "conv"))
    ]
    assert len(rows) == 10
    assert all("quantkit" in line and "(A/A" in line for line in lines[1:-1])


@pytest.mark.skipif(qk.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_why(tmp_path, monkeypatch):
    """The reason is that of any other program: a script named cuda.py must not stand for the package `cuda`."""
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "__init__.py").touch()
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)  # as a user starts it
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    said = [
        subprocess.run([sys.executable, *code], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path)
        for code in ([ROOT / "benchmarks" / "cuda.py"], ["-c", "import quantkit as qk; print(qk.cuda.why_not())"])
    ]
    assert said[0].returncode == 1
    assert said[0].stderr == f"no GPU can be used here: {said[1].stdout}"
