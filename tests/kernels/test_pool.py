"""The pool of threads: forks, busy callers, the numbers it accepts, and idleness."""

import os
import resource
import subprocess
import sys
import threading
import time

import numpy as np
import oracle
import pytest

from quantkit import _kernels, cpu, ops
from quantkit._kernels import threads
from quantkit.errors import InvalidArgument

A = np.arange(200 * 300, dtype=np.uint8).reshape(200, 300)
B = np.arange(300 * 150, dtype=np.int8).reshape(300, 150)
EXPECTED = oracle.matmul_integer(A, B)


@pytest.fixture
def four_threads():
    before = _kernels.num_threads()
    _kernels.set_num_threads(4)
    yield
    _kernels.set_num_threads(before)


def test_many_callers_at_once(four_threads):
    wrong = []

    def work():
        for _ in range(50):
            if not np.array_equal(ops.matmul_integer(A, B), EXPECTED):
                wrong.append(1)

    callers = [threading.Thread(target=work) for _ in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_fresh_pool(four_threads):
    assert np.array_equal(ops.matmul_integer(A, B), EXPECTED)
    for _ in range(5):
        pid = os.fork()
        if pid == 0:
            good = all(np.array_equal(ops.matmul_integer(A, B), EXPECTED) for _ in range(5))
            os._exit(0 if good else 1)
        assert os.waitpid(pid, 0)[1] == 0
    assert np.array_equal(ops.matmul_integer(A, B), EXPECTED)


def test_idle_threads_sleep(four_threads):
    for _ in range(20):
        ops.matmul_integer(A, B)
    time.sleep(0.01)
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(0.3)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.1


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "257", "٣"])
def test_nonsense_in_the_environment(text):
    result = subprocess.run(
        [sys.executable, "-c", "from quantkit import ops"],
        env={**os.environ, "QUANTKIT_NUM_THREADS": text},
        capture_output=True,
        text=True,
        check=False,
    )
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("quantkit.errors.InvalidArgument: QUANTKIT_NUM_THREADS: wanted a whole number from 1 to 256")


def test_environment_sets_the_number():
    code = "import quantkit as qk; print(qk.cpu.num_threads())"
    for text, expected in [("3", 3), ("", min(cpu.usable_cpus(), 256)), (" 2 ", 2)]:
        environment = {**os.environ, "QUANTKIT_NUM_THREADS": text}
        result = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert int(result.stdout) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "max 100000\n"}, float("inf")),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, float("inf")),
        ({"cpu.max": "garbage"}, float("inf")),
        ({}, float("inf")),
    ],
)
def test_control_groups(tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert threads.cgroup_cpus(tmp_path) == expected


def test_a_number_out_of_range_is_refused(monkeypatch):
    monkeypatch.setenv("QUANTKIT_NUM_THREADS", "1000")
    with pytest.raises(InvalidArgument):
        threads.from_environment()
