"""Streams at the ends of a process: fork, exit, Ctrl-C."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import quantkit as qk
from quantkit import ops
from quantkit.errors import StreamForked

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
X = np.linspace(-3, 3, 1000, dtype=np.float32)


def in_child(body):
    """Run `body` in a forked child; its exceptions fail the test."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert status == 0
            return
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    pytest.fail("the child hangs")


def test_pending_work_is_over_in_a_forked_child_and_goes_on_in_the_parent():
    s, gate = qk.Stream(), threading.Event()
    s.submit(gate.wait)
    with qk.stream(s):
        y = ops.copy(X)
    future, event = s.submit(int), s.record_event()

    def body():
        for read in (lambda: np.asarray(y), future.result, s.synchronize):
            with pytest.raises(StreamForked, match="the parent of this process"):
                read()
        assert event.query()
        assert s.query()
        with qk.stream(s):  # a fresh worker
            z = ops.copy(X)
        assert np.array_equal(z, X)
        assert s.submit(sum, [1, 2]).result() == 3

    in_child(body)
    gate.set()
    assert np.array_equal(y, X)
    assert future.result() == 0
    s.synchronize()


def test_results_that_were_done_are_good_in_the_child():
    s = qk.Stream()
    with qk.stream(s):
        y = ops.copy(X)
    s.synchronize()

    def body():
        assert np.array_equal(y, X)

    in_child(body)


def test_a_pool_in_a_forked_child():
    pool, gate = qk.StreamPool(2), threading.Event()
    futures = [pool.submit(gate.wait, 10) for _ in range(6)]
    results = pool.map(lambda i: gate.wait(10) and i, range(6))
    taken = []
    helper = threading.Thread(target=lambda: taken.append(next(results)))
    helper.start()
    time.sleep(0.02)

    def body():
        for future in futures:
            with pytest.raises(StreamForked):
                future.result()
        assert list(pool.map(abs, [-1, -2])) == [1, 2]

    in_child(body)
    gate.set()
    helper.join()
    assert [*taken, *results] == list(range(6))
    pool.close()


def test_forks_while_streams_are_busy():
    streams = [qk.Stream() for _ in range(4)]
    for _ in range(10):
        for s in streams:
            with qk.stream(s):
                for _ in range(20):
                    y = ops.quantize_linear(ops.copy(X), 0.1, 30)

        def body():
            with qk.StreamContext():
                z = ops.quantize_linear(X, 0.1, 30)
            assert np.array_equal(z, ops.quantize_linear(X, 0.1, 30))

        in_child(body)
        assert np.array_equal(y, ops.quantize_linear(X, 0.1, 30))
    for s in streams:
        s.close()


def test_a_callable_may_fork():
    s = qk.Stream()

    def forks():
        pid = os.fork()
        if pid == 0:
            os._exit(0 if np.array_equal(ops.copy(X), X) else 1)
        return os.waitpid(pid, 0)[1]

    assert s.submit(forks).result(30) == 0
    s.synchronize()


def run(code, **options):
    root = str(Path(qk.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": root},
        **options,
    )


def test_exit_does_what_is_queued():
    done = run("""
        import time
        import quantkit as qk
        s = qk.Stream()
        s.submit(time.sleep, 0.1)
        s.submit(print, "written", flush=True)
        qk.StreamPool(2).submit(print, "this too", flush=True)
    """)
    assert (done.returncode, sorted(done.stdout.split("\n")), done.stderr) == (0, ["", "this too", "written"], "")


def test_exit_prints_errors_that_nobody_saw():
    done = run("""
        import numpy as np
        import quantkit as qk
        with qk.StreamContext() as kept:
            y = qk.ops.dynamic_quantize_linear(np.float32([np.nan]))
        kept.stream.submit(lambda: 1 / 0)
    """)
    assert done.returncode == 0
    assert "wanted finite values, got 1" in done.stderr
    assert "dynamic_quantize_linear, queued on stream-1 at <string>:5, in <module>" in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_exit_with_sleeping_threads_and_pending_arrays_everywhere():
    done = run("""
        import threading, numpy as np
        import quantkit as qk
        streams = [qk.Stream() for _ in range(20)]
        kept = []
        for s in streams:
            s.submit(int)
            with qk.stream(s):
                kept.append(qk.ops.copy(np.zeros(100000, np.float32)))
        threading.Thread(target=lambda: kept.append(np.asarray(kept[0])), daemon=True).start()
    """)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "wait",
    ["s.synchronize()", "np.asarray(y)", "f.result()", "e.synchronize()", "next(pool.map(gate.wait, [10]))", ""],
    ids=["synchronize", "array", "future", "event", "pool", "exit"],
)
def test_ctrl_c_ends_every_wait(wait):
    done = run(f"""
        import _thread, os, signal, threading, time, numpy as np
        import quantkit as qk
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
        gate = threading.Event()
        s, pool = qk.Stream(), qk.StreamPool(1)
        s.submit(gate.wait, 10)
        with qk.stream(s):
            y = qk.ops.copy(np.zeros(3))
        f, e = s.submit(int), s.record_event()
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        try:
            {wait or "raise KeyboardInterrupt"}
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - start < 5)
        {"gate.set()" if wait else "pass"}
    """)
    assert done.stdout == "interrupted True\n"
    assert done.returncode == 0
