"""`quantkit doctor`, also with libraries missing."""

import json
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest

from quantkit import cli, cpu, cuda


def test_text(capsys):
    assert cli.main(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = dict(line.split("  ", 1) for line in out.splitlines() if line)
    assert lines["numpy"].strip() == np.__version__
    assert lines["onnxruntime"].strip() == onnxruntime.__version__
    assert lines["kernels"].strip().startswith(f"{cpu.active_isa()} in use")
    assert lines["quantize a model, compare two"].strip() == "ready"


def test_json(capsys):
    assert cli.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1
    assert found["python"] == sys.version.split()[0]
    assert found["cpu"]["instruction_sets"] == list(cpu.isas())
    assert found["cpu"]["in_use"] == cpu.active_isa()
    assert found["cpu"]["usable_cpus"] >= 1
    assert found["cpu"]["model"]
    assert found["libraries"]["numpy"] == np.__version__
    assert found["jobs"]["calibrate with images"] == {"missing": []}


@pytest.mark.parametrize(
    ("missing", "job", "install"),
    [
        ("onnxruntime", "quantize a model, compare two", "onnxruntime"),
        ("PIL", "calibrate with images", "pillow"),
        ("onnx", "inspect a model", "onnx"),
        ("safetensors", None, None),
        ("ml_dtypes", None, None),
    ],
)
def test_a_missing_library_is_named_where_it_is_needed(missing, job, install):
    code = (
        "import sys, importlib.abc\n"
        "class Block(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == {missing!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "from quantkit.cli import main\n"
        "sys.exit(main(['doctor', '--json']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    found = json.loads(done.stdout)
    assert done.stderr == ""
    assert done.returncode == (1 if job else 0)
    if job:
        assert found["jobs"][job]["missing"] == [install]
        assert found["jobs"]["tensors and verbs"]["missing"] == []
    else:
        assert [j for j in found["jobs"].values() if j["missing"]] == []


def test_gpus_or_why_there_are_none(capsys):
    cli.main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)["cuda"]
    assert (found["missing"] is None) is bool(found["gpus"]) is cuda.is_available()
    cli.main(["doctor"])
    lines = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if line)
    assert (found["missing"] or found["gpus"][0]) in lines["gpu"]


def test_a_forced_instruction_set_is_said(capsys, monkeypatch):
    monkeypatch.setenv("QUANTKIT_ISA", "scalar")
    cli.main(["doctor"])
    assert "forced by QUANTKIT_ISA=scalar" in capsys.readouterr().out
