"""What happens where CUDA cannot be used: nothing is loaded, nothing hangs, and errors say what is missing."""

import subprocess
import sys
import textwrap

import pytest

HIDDEN = """
import importlib.abc, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cuda":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
"""
# A stand-in for cuda.bindings.driver with the behaviour of a machine: BODY defines cuInit and others.
STAND_IN = """
import sys, types
driver = types.ModuleType("cuda.bindings.driver")
for name in ("cuda", "cuda.bindings"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["cuda.bindings"].driver = sys.modules["cuda.bindings.driver"] = driver
"""


def run(*parts):
    code = "\n".join(textwrap.dedent(p) for p in parts)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_asks_for_nothing():
    code = """
    import sys
    import numpy as np
    import quantkit as qk
    qk.ops.dequantize_linear(qk.ops.quantize_linear(np.ones(3, np.float32), 0.5), 0.5)
    qk.full(3, 1.0).dequantize()
    with qk.StreamContext():
        qk.ops.copy(np.ones(3))
    print([m for m in sys.modules if m.partition(".")[0] == "cuda" or m.startswith("quantkit.cuda")])
    """
    assert run(code) == "[]"


ASK = """
import quantkit as qk
from quantkit.errors import CudaUnavailable
print(qk.cuda.is_available(), qk.cuda.is_available(), qk.cuda.device_count())
try:
    qk.cuda.device_name()
except CudaUnavailable as error:
    print(error)
"""


def test_without_cuda_core():
    first, second = run(HIDDEN, ASK).splitlines()
    assert first == "False False 0"
    assert second.startswith("CUDA is not usable here: cuda-core is not installed (No module named 'cuda")
    assert second.endswith("pip install 'quantkit[cuda]' (CUDA 13), or 'quantkit[cuda12]'")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "def cuInit(flags): raise RuntimeError('libcuda.so.1 is not there')",
            "no NVIDIA driver: libcuda.so.1 is not there",
        ),
        ("def cuInit(flags): return (100,)", "the NVIDIA driver does not start: CUDA_ERROR_NO_DEVICE"),
        ("def cuInit(flags): return (0,)\ndef cuDeviceGetCount(): return (0, 0)", "the NVIDIA driver sees no GPU"),
        ("def cuInit(flags): raise SystemError('broken')", "no NVIDIA driver: broken"),
    ],
)
def test_drivers_that_do_not_serve(body, reason):
    names = "driver.cuGetErrorName = lambda code: (0, b'CUDA_ERROR_NO_DEVICE')"
    give = "driver.__dict__.update({k: v for k, v in globals().items() if k.startswith('cu') and callable(v)})"
    first, second = run(STAND_IN, body, names, give, ASK).splitlines()
    assert first == "False False 0"
    assert second == f"CUDA is not usable here: {reason}"


def test_a_driver_that_never_answers():
    body = "import time\ndriver.cuInit = lambda flags: time.sleep(3600)"
    patience = "import quantkit.cuda.driver\nquantkit.cuda.driver.PATIENCE = 0.2"
    first, second = run(STAND_IN, body, patience, ASK).splitlines()
    assert first == "False False 0"
    assert "did not answer for 0 s" in second


def test_after_a_fork():
    body = "driver.cuInit = lambda flags: (0,)\ndriver.cuDeviceGetCount = lambda: (0, 1)"
    code = """
    import os
    import quantkit as qk
    assert qk.cuda.is_available()
    child = os.fork()
    if child == 0:
        os._exit(0 if not qk.cuda.is_available() and "spawn or forkserver" in qk.cuda.why_not() else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run(STAND_IN, body, code) == "0"


def test_the_real_thing_answers():
    import quantkit as qk

    assert qk.cuda.is_available() is (qk.cuda.why_not() is None)
    assert (qk.cuda.device_count() > 0) is qk.cuda.is_available()
