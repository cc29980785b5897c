import os
import subprocess
import sys

import pytest


def run(code, timeout):
    path = os.pathsep.join(p for p in sys.path if p)
    command = [sys.executable, "-c", f"import hammer; {code}"]
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_two_processes_of_eight_threads_on_one_storage(method):
    done = run(f"hammer.main(2, {method!r})", 120)
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr


@pytest.mark.slow
def test_fifty_kills_at_random_moments_leave_nothing_behind():
    done = run("hammer.survive(50, 0)", 200)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("descriptors and maps: True"), first
    assert second == "memory: True"
