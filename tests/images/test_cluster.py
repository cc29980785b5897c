"""Shards made by the workers of a Dask cluster: the bytes of one run, whatever happens to a worker."""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from pictures import contents, picture_folder

import quantkit as qk

SLOW = """
import time
from quantkit.images import shard_work
if not hasattr(shard_work, "quick"):  # a worker loads this twice
    shard_work.quick = shard_work.read_frames
    def slow(*args, **kwargs):
        time.sleep(0.02)
        return shard_work.quick(*args, **kwargs)
    shard_work.read_frames = slow
"""


def command(*arguments):
    return [sys.executable, "-m", "quantkit", "images", *map(str, arguments)]


@contextmanager
def processes(*commands):
    """Run commands side by side; end those that are left, by their handles."""
    started = [subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for c in commands]
    try:
        yield started
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@contextmanager
def cluster(tmp_path, workers):
    """A scheduler and its workers, processes of their own; gives its address and the workers."""
    file, preload = tmp_path / "scheduler.json", tmp_path / "slow.py"
    preload.write_text(SLOW)
    dask = [sys.executable, "-W", "ignore", "-m"]
    scheduler = [*dask, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    worker = [*dask, "distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", "--preload", str(preload)]
    options = ["--no-dashboard", "--scheduler-file", str(file)]
    place = ["--local-directory", str(tmp_path / "dask")]
    with processes([*scheduler, *options], *[[*worker, *options, *place] for _ in range(workers)]) as started:
        end = time.monotonic() + 60
        while not file.exists() or not file.read_text().endswith("}"):
            assert started[0].poll() is None, started[0].communicate()
            assert time.monotonic() < end
            time.sleep(0.05)
        yield json.loads(file.read_text())["address"], started[1:]


def test_a_worker_killed_half_way_costs_only_its_shards(tmp_path):
    source, out = picture_folder(tmp_path / "in", 240, broken={7, 100}), tmp_path / "out"
    qk.process_images(source, tmp_path / "whole", preset="unit", shard_size=8)
    with (
        cluster(tmp_path, workers=3) as (address, workers),
        processes(
            command(source, "-o", out, "--preset", "unit", "--shard-size", 8, "--scheduler", address, "--json")
        ) as (run,),
    ):
        end = time.monotonic() + 90
        while len(list(out.glob("shard-*"))) < 10:
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < end
            time.sleep(0.005)
        workers[1].kill()
        assert len(list(out.glob("shard-*"))) < 30
        said, errors = run.communicate(timeout=120)
    assert run.returncode == 1, errors  # two files cannot be decoded
    found = json.loads(said)
    assert (found["images"], found["failed"], found["shards"], found["complete"]) == (238, 2, 30, True)
    assert contents(out) == contents(tmp_path / "whole")


def test_local_processes_resume_and_ranges(tmp_path):
    source, out = picture_folder(tmp_path / "in", 30, broken={7}), tmp_path / "out"
    qk.process_images(source, tmp_path / "whole", preset="unit", shard_size=8)
    options = ["-o", out, "--preset", "unit", "--shard-size", 8]
    first = subprocess.run(
        command(source, *options, "--scheduler", "local", "--shard-range", "1:3"),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert first.returncode == 0, first.stderr
    assert sorted(path.name for path in out.glob("shard-*")) == [f"shard-00000{i}.safetensors" for i in (1, 2)]
    assert "not complete: other shards are missing" in first.stdout
    rest = subprocess.run(
        command(source, *options, "--scheduler", "local"), capture_output=True, text=True, timeout=120, check=False
    )
    assert rest.returncode == 1, rest.stderr
    assert "29 images in 4 shards, 2 of them there already; 1 failed, 0 skipped" in rest.stdout
    assert contents(out) == contents(tmp_path / "whole")
    # Errors end the run: what was finished stays.
    ended = subprocess.run(
        command(source, *options, "--restart", "--scheduler", "local", "--on-error", "raise"),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert re.match(r"quantkit: error: .*/cat/0007\.png: cannot be decoded as PNG", ended.stderr)


def test_a_scheduler_that_is_not_there(tmp_path):
    source = picture_folder(tmp_path / "in", 2)
    for address, said in (("tcp://127.0.0.1:port", "cannot be reached"), ("nonsense://x", "cannot be reached")):
        done = subprocess.run(
            command(source, "-o", tmp_path / "out", "--scheduler", address),
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert done.stderr.startswith(f"quantkit: error: scheduler {address}: {said}"), done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [
        ("distributed", ["{folder}", "-o", "{out}", "--scheduler", "local"], "scheduler='local': this needs Dask"),
        ("fsspec", ["s3://bucket/x", "-o", "{out}"], "s3://bucket/x: URLs need fsspec"),
        ("fsspec", ["{folder}", "-o", "s3://bucket/x"], "s3://bucket/x: URLs need fsspec"),
    ],
)
def test_without_the_extra_the_error_names_it(module, arguments, said, tmp_path):
    folder = picture_folder(tmp_path / "in", 2)
    script = (
        f"import sys\nsys.modules[{module!r}] = None\nfrom quantkit.cli import main\nsys.argv[0] = 'quantkit'\n"
        "sys.exit(main())"
    )
    given = [a.format(folder=folder, out=tmp_path / "out") for a in arguments]
    done = subprocess.run(
        [sys.executable, "-c", script, "images", *given], capture_output=True, text=True, timeout=60, check=False,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == f"quantkit: error: {said}, which is not installed: pip install quantkit[cluster]\n"
    assert not (tmp_path / "out").exists()


INTERRUPTED = """
import os, signal, sys, threading
import distributed
signal.signal(signal.SIGINT, signal.default_int_handler)
start = distributed.LocalCluster.__init__
def starting(self, **options):
    threading.Timer(float(sys.argv.pop()), os.killpg, (0, signal.{signal})).start()
    start(self, **options)
distributed.LocalCluster.__init__ = starting
from quantkit.cli import main
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:-1]))
"""


@pytest.mark.parametrize(
    ("sent", "code", "said"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")], ids=["Ctrl-C", "end"]
)
@pytest.mark.parametrize("after", [0.2, 0.7, 0.9])
def test_workers_that_start_are_ended_in_order(after, sent, code, said, tmp_path):
    source, script = picture_folder(tmp_path / "in", 200), tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED.replace("{signal}", sent))
    arguments = ["images", source, "-o", tmp_path / "out", "--shard-size", "1", "--scheduler", "local", after]
    process = subprocess.Popen(  # a group of its own, as a terminal makes: the workers get the signal as well
        [sys.executable, "-W", "ignore", str(script), *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        printed, errors = process.communicate(timeout=100)
    finally:
        process.kill()
    assert (process.returncode, printed, errors.strip()) == (code, "", f"quantkit: {said}, nothing half-written")
