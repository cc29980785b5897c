"""What one core of this machine can do at most, measured in the run that is compared with it (AVX-512 VNNI only)."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np


@functools.cache
def _library() -> ctypes.CDLL | None:
    cpu = Path("/proc/cpuinfo")
    if not cpu.exists() or "avx512_vnni" not in cpu.read_text():
        return None
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "peak.so")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", Path(__file__).with_name("peak.c"), "-o", made], check=True)
        library = ctypes.CDLL(str(made))
    library.peak_multiply_add.argtypes = [ctypes.c_long]
    library.peak_read.argtypes = [ctypes.c_void_p, ctypes.c_long]
    return library


def _fastest(call, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def multiply_adds() -> float:
    """Operations, two a multiply-add, a second; NaN where this CPU has no AVX-512 VNNI."""
    library, steps = _library(), 100_000
    if library is None:
        return float("nan")
    return 2 * 64 * 12 * steps / _fastest(lambda: library.peak_multiply_add(steps), 60)


def read_bandwidth(nbytes: int) -> float:
    """Bytes a second at which `nbytes` are read again and again, on pages as large as the system gives."""
    library, huge = _library(), 2 << 20
    if library is None:
        return float("nan")
    nbytes = max(nbytes // 512, 1) * 512
    room = np.ones(nbytes + huge, np.uint8)  # NumPy asks for huge pages for large arrays
    start = -room.ctypes.data % huge
    address, count = room.ctypes.data + start, max(1, int(2e-3 * 60e9 / nbytes))

    def call():
        for _ in range(count):
            library.peak_read(address, nbytes)

    return nbytes * count / _fastest(call, 15)
