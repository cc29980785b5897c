"""``gpu``: the machine's GPU where there is one, and everywhere the stand-in that runs kernels on the CPU."""

import tempfile

import fake_cuda
import on_cpu
import pytest

import quantkit as qk


@pytest.fixture(params=["stand-in", "gpu"])
def gpu(request, monkeypatch):
    """The stand-in, or None for a real GPU."""
    if request.param == "gpu":
        if not qk.cuda.is_available():
            pytest.skip(f"no GPU: {qk.cuda.why_not()}")
        yield None
        return
    if on_cpu.missing():
        pytest.skip(on_cpu.missing())
    with tempfile.TemporaryDirectory(prefix="qk") as folder:  # a short name: that of a file in it is an IPC handle
        monkeypatch.setenv("QUANTKIT_TEST_IPC", folder)
        made = fake_cuda.install(monkeypatch)
        yield made
        fake_cuda.remove()
    assert not made.contexts
