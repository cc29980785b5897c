"""The public face: every name is there, lazily, and typed for users."""

import ast
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import quantkit as qk

SOURCE = Path(__file__).parents[1] / "quantkit" / "__init__.py"


def lazy_names():
    """Name -> module of the imports that only type checkers see."""
    block = next(node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module for node in imports for alias in node.names}


def test_checkers_and_the_interpreter_see_the_same_names():
    assert lazy_names() == qk._LAZY
    assert set(qk._LAZY) <= set(qk.__all__)


@pytest.mark.parametrize("name", qk.__all__)
def test_every_name_is_there_and_documented(name):
    value = getattr(qk, name)
    assert value.__doc__


def test_star_import():
    names = {}
    exec("from quantkit import *", names)
    assert set(qk.__all__) <= set(names)


def test_a_misspelt_name():
    with pytest.raises(AttributeError, match="module 'quantkit' has no attribute 'quantise'"):
        _ = qk.quantise
    assert "quantize_model" in dir(qk)
    assert isinstance(qk.__version__, str)


def test_the_page_of_names_is_what_the_docstrings_say():
    scope = runpy.run_path(str(SOURCE.parents[1] / "docs" / "make_api.py"))
    assert scope["PAGE"].read_text() == scope["page"](), "run python docs/make_api.py"
    listed = {name for names in scope["GROUPS"].values() for name in names}
    assert listed == set(qk.__all__)


USER = """
import numpy as np
import quantkit as qk

result = qk.quantize_model("m.onnx", "o.onnx", calibration="images")
reveal_type(result)
reveal_type(result.report.summary())
reveal_type(qk.open_weights("w.safetensors"))
reveal_type(qk.ops.quantize_linear(np.zeros(3, np.float32), 0.5))
reveal_type(qk.quantize(np.zeros(3, np.float32)))
qk.no_such_name
"""


def test_types_of_a_users_script(tmp_path):
    script = tmp_path / "user.py"
    script.write_text(USER)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(script)],
        cwd=SOURCE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.split(": ", 2)[-1] for line in done.stdout.splitlines()]
    revealed = [line for line in lines if line.startswith("Revealed type")]
    assert "QuantizationResult" in revealed[0]
    assert '"str"' in revealed[1].replace("builtins.", "")
    assert "quantkit.weights" in revealed[2]
    assert "ndarray" in revealed[3]
    assert "QTensor" in revealed[4]
    assert sum('has no attribute "no_such_name"' in line for line in lines) == 1
