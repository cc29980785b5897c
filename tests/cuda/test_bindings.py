"""quantkit on the real cuda-bindings, over a libcuda.so.1 that only looks at its arguments."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from quantkit.cuda import module

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("cuda.core") is None, reason="cuda-core is not installed"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler"),
]

CODE = """
import numpy as np
import quantkit as qk
from quantkit.cuda import driver

assert qk.cuda.is_available(), qk.cuda.why_not()
print(qk.cuda.device_count(), qk.cuda.device_name(), qk.cuda.memory_info(), driver.device(0).arch)
x = qk.from_numpy(np.arange(3_000_000, dtype=np.float32)).to("cuda:0")
assert np.array_equal(np.asarray(x.cpu()), np.arange(3_000_000, dtype=np.float32))
assert (x[2:5].tolist(), driver.device_of(x.data_ptr())) == ([2.0, 3.0, 4.0], 0)
assert qk.ByteStorage.full(5, 9, device="cuda:0").tolist() == [9] * 5
s, begin, end = qk.Stream("cuda:0"), qk.Event(enable_timing=True), qk.Event(enable_timing=True)
begin.record(s)
end.record(s)
s.wait_event(begin)
assert (begin.elapsed_time(end), end.query(), s.query()) == (1.5, True, False)
qk.ops.quantize_linear(x, 0.5)
a = qk.full((4, 64), 1, dtype=np.uint8, device="cuda:0")
qk.ops.matmul_integer(a, qk.full((64, 3), 1, dtype=np.int8, device="cuda:0"))
with driver.device(0):
    shared = driver.allocate_shareable(10)
    driver.close_memory(driver.open_memory(driver.export_memory(shared)))
    driver.free_shareable(shared)
s.close()
for name, *arguments in (("cuMemAlloc", 1 << 41), ("cuCtxPushCurrent", 5)):
    try:
        driver.call(name, *arguments)
    except (qk.errors.OutOfMemory, qk.errors.CudaError) as error:
        print(error)
"""


def test_every_call_arrives(tmp_path, monkeypatch):
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path))
    module.cubin("sm_90")  # by the real NVRTC, before there is a driver
    source = Path(__file__).with_name("libcuda.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", tmp_path / "libcuda.so.1", source, "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1 Stub (1000, 2000) sm_90",
        "the GPU has no memory left for this (cuMemAlloc: CUDA_ERROR_SOMETHING)",
        "the CUDA driver refused a call: cuCtxPushCurrent: CUDA_ERROR_SOMETHING",
    ]
    assert [line.split()[1] for line in done.stderr.splitlines() if line.startswith("function")] == [
        "quantize_float32", "copy", "row_sums", "product_rows",
    ]  # fmt: skip
    assert "launch 0xcc grid 1 1 1 block 128 1 1 shared 53248 stream 0x1" in done.stderr
    assert "attribute 8 = 53248" in done.stderr
