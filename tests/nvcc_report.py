"""Registers and spills of every kernel on four architectures: ``python tests/nvcc_report.py``."""

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from quantkit.cuda import module

TARGETS = ("sm_75", "sm_80", "sm_90", "sm_100")


def nvcc():
    return shutil.which("nvcc") or next((str(p) for p in sorted(Path("/usr/local").glob("cuda*/bin/nvcc"))), None)


@functools.cache
def report(target):
    """Kernel -> (registers, bytes of stack, bytes spilled); remembered in a temporary file."""
    flags = ["-std=c++17", "-fmad=false", "-Xptxas", "-v", "-cubin", f"-arch={target}"]
    name = hashlib.sha256("\0".join([module.source(), nvcc(), *flags]).encode()).hexdigest()[:24]
    kept = Path(tempfile.gettempdir()) / f"quantkit-nvcc-{os.getuid()}-{name}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "kernels.cu"
        text.write_text(module.source())
        done = subprocess.run(
            [nvcc(), *flags, "-o", os.devnull, text], capture_output=True, text=True, check=False, timeout=280
        )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    found, kernel = {}, ""
    for line in done.stderr.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = match[1]
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            found[kernel] = [0, int(match[1]), int(match[2]) + int(match[3])]
        elif match := re.search(r"Used (\d+) registers", line):
            found[kernel][0] = int(match[1])
    kept.write_text(json.dumps(found))
    return found


if __name__ == "__main__":
    reports = [report(target) for target in TARGETS]
    print(f"{'registers (bytes spilled)':28}" + "".join(f"{target:>12}" for target in TARGETS))
    for kernel in sorted(reports[0]):
        print(f"{kernel:28}" + "".join(f"{r[kernel][0]:>7} ({r[kernel][2]:>2})" for r in reports))
