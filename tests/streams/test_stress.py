"""Random work over eight streams: stress.py through Python, stress.c under ThreadSanitizer.

``QUANTKIT_STRESS=100000 pytest tests/streams/test_stress.py`` does as many operations; the ordinary run does fewer.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import quantkit as qk

HERE = Path(__file__).parent
# An installed quantkit has no C sources.
SOURCES = HERE.parents[1] / "quantkit" / "_kernels" / "csrc"
OPERATIONS = int(os.environ.get("QUANTKIT_STRESS", "3000"))


@pytest.mark.parametrize("seed", [1, 2])
def test_equal_to_the_serial_result_without_hang_or_leak(seed):
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", HERE / "stress.py", str(OPERATIONS), str(seed)],
        capture_output=True,
        text=True,
        timeout=60 + OPERATIONS / 100,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(qk.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.startswith(f"{OPERATIONS} operations equal to the serial result, 0 arrays left")


def compiled(folder, *flags):
    """The program of stress.c, or None where it cannot be built or run with these flags."""
    program = folder / "stress"
    names = ("qk_stream", "qk_task", "qk_task_order", "qk_pool")
    files = [HERE / "stress.c", *(SOURCES / f"{name}.c" for name in names)]
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    command = [compiler, "-std=gnu11", "-O1", "-g", *flags, f"-I{SOURCES}", *files, "-lpthread", "-o", program]
    return program if subprocess.run(command, capture_output=True, check=False).returncode == 0 else None


def test_thread_sanitizer_finds_nothing(tmp_path):
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if (
        compiler is None
        or subprocess.run(
            [compiler, "-fsanitize=thread", probe, "-o", tmp_path / "probe"], capture_output=True, check=False
        ).returncode
        or subprocess.run([tmp_path / "probe"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no compiler here, or one whose ThreadSanitizer does not run on this kernel")
    program = compiled(tmp_path, "-fsanitize=thread")
    assert program is not None
    done = subprocess.run([program], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr[-4000:]
    assert "WARNING: ThreadSanitizer" not in done.stderr
