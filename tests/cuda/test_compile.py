"""The kernels through the compilers of CUDA, where they are installed; no GPU is needed."""

from importlib.util import find_spec

import nvcc_report
import pytest

from quantkit.cuda import calls, module
from quantkit.errors import CudaUnavailable


@pytest.mark.slow
@pytest.mark.skipif(nvcc_report.nvcc() is None, reason="nvcc is not installed")
@pytest.mark.parametrize("target", nvcc_report.TARGETS)
def test_nvcc_needs_no_stack(target):
    found = nvcc_report.report(target)
    assert set(found) == set(calls.ARGUMENTS)
    assert {kernel: row for kernel, row in found.items() if row[1] or row[2]} == {}
    assert max(found[k][0] for k in ("product_rows", "product_windows")) <= 255


@pytest.mark.slow
@pytest.mark.skipif(find_spec("cuda.core") is None, reason="cuda-core is not installed")
def test_nvrtc_compiles_and_the_cache_keeps(tmp_path, monkeypatch):
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path / "kept"))
    image = module.cubin("sm_80")
    (path,) = (tmp_path / "kept").iterdir()
    assert path.name.startswith("kernels-sm_80-")
    assert path.read_bytes() == image
    assert image[:4] == b"\x7fELF"


@pytest.mark.skipif(find_spec("cuda.core") is not None, reason="cuda-core is installed")
def test_without_nvrtc_it_is_said_what_to_install():
    with pytest.raises(CudaUnavailable, match=r"cannot be compiled: .* pip install 'quantkit\[cuda\]'"):
        module.compile_for("sm_80")


def test_the_cache_is_used_and_may_fail(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(module, "compile_for", lambda arch: made.append(arch) or arch.encode())
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path))
    assert [module.cubin("sm_1"), module.cubin("sm_1"), module.cubin("sm_2")] == [b"sm_1", b"sm_1", b"sm_2"]
    assert made == ["sm_1", "sm_2"]
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".cubin", ".cubin"]  # nothing half-written stays
    monkeypatch.setenv("QUANTKIT_CACHE", "/dev/null/nowhere")
    assert module.cubin("sm_1") == b"sm_1"
    assert made == ["sm_1", "sm_2", "sm_1"]
