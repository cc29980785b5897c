"""Runs that stop, go on, and come back to a source that has changed."""

import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from pictures import contents, picture, picture_folder

import quantkit as qk
from quantkit.errors import FormatError, InvalidArgument, OutputError
from quantkit.images.shards import ShardFolder


def changed_files(before, after):
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def test_a_second_run_keeps_every_shard(tmp_path):
    source, out = picture_folder(tmp_path / "in", 10, broken={3}), tmp_path / "out"
    qk.process_images(source, out, preset="unit", shard_size=4)
    stamps = {p: p.stat().st_mtime_ns for p in out.glob("shard-*")}
    before = contents(out)
    result = qk.process_images(source, out, preset="unit", shard_size=4)
    assert (result.shards, result.shards_kept, result.images, result.failed) == (3, 3, 9, 1)
    assert result.bytes_read == 0
    assert contents(out) == before
    assert {p: p.stat().st_mtime_ns for p in out.glob("shard-*")} == stamps


def test_a_changed_file_is_noticed(tmp_path):
    source, out = picture_folder(tmp_path / "in", 10), tmp_path / "out"
    qk.process_images(source, out, preset="unit", shard_size=4)
    before = contents(out)
    pixels = picture(source / "dog" / "0005.png", 99)
    result = qk.process_images(source, out, preset="unit", shard_size=4)
    assert (result.shards, result.shards_kept) == (3, 2)
    assert changed_files(before, contents(out)) == {
        "shard-000001.safetensors", "manifest/shard-000001.jsonl", "manifest.jsonl"
    }  # fmt: skip
    np.testing.assert_array_equal(qk.open_images(out).read_codes(5), pixels.transpose(2, 0, 1))


def test_files_that_come_and_go(tmp_path):
    source, out = picture_folder(tmp_path / "in", 10), tmp_path / "out"
    qk.process_images(source, out, preset="unit", shard_size=4)
    (source / "dog" / "0009.png").unlink()
    (source / "dog" / "0008.png").unlink()
    result = qk.process_images(source, out, preset="unit", shard_size=4)
    assert (result.images, result.shards, result.shards_kept) == (8, 2, 2)
    assert sorted(p.name for p in out.glob("shard-*")) == ["shard-000000.safetensors", "shard-000001.safetensors"]
    picture(source / "cat" / "00.png", 50)
    result = qk.process_images(source, out, preset="unit", shard_size=4)
    assert (result.images, result.shards, result.shards_kept) == (9, 3, 0)
    fresh = tmp_path / "fresh"
    qk.process_images(source, fresh, preset="unit", shard_size=4)
    assert contents(fresh) == contents(out)


def test_a_class_that_comes_shifts_the_labels(tmp_path):
    source, out = picture_folder(tmp_path / "in", 4), tmp_path / "out"
    qk.process_images(source, out, preset="unit")
    (source / "ant").mkdir()
    qk.process_images(source, out, preset="unit")
    images = qk.open_images(out)
    assert images.classes == ("ant", "cat", "dog")
    assert images.labels.tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [({"preset": "raw"}, "recipe"), ({"shard_size": 5}, "shard size"), ({"format": "npy"}, "format")],
)
def test_another_recipe_or_layout_is_an_error_until_restart(arguments, what, tmp_path):
    source, out = picture_folder(tmp_path / "in", 10), tmp_path / "out"
    before = {"preset": "unit", "shard_size": 4}
    qk.process_images(source, out, **before)
    kept = contents(out)
    with pytest.raises(InvalidArgument, match=f"holds shards of another {what}"):
        qk.process_images(source, out, **(before | arguments))
    assert contents(out) == kept
    qk.process_images(source, out, resume=False, **(before | arguments))
    qk.process_images(source, tmp_path / "fresh", **(before | arguments))
    assert contents(out) == contents(tmp_path / "fresh")


def test_another_source_is_an_error(tmp_path):
    a, b = picture_folder(tmp_path / "a", 4), picture_folder(tmp_path / "b", 4)
    qk.process_images(a, tmp_path / "out", preset="unit")
    with pytest.raises(InvalidArgument, match="holds shards of another source"):
        qk.process_images(b, tmp_path / "out", preset="unit")


def test_retry_failed_does_only_the_shards_with_failures(tmp_path):
    source, out = picture_folder(tmp_path / "in", 10, broken={5}), tmp_path / "out"
    qk.process_images(source, out, preset="unit", shard_size=4)
    bad = source / "dog" / "0005.png"
    stamp = bad.stat()
    # Whole again, and nobody can see it: the manifest has the size and time that it has now.
    pixels = picture(bad, 5)
    os.utime(bad, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    lines = out / "manifest" / "shard-000001.jsonl"
    lines.write_text(lines.read_text().replace('"bytes":60', f'"bytes":{bad.stat().st_size}'))
    result = qk.process_images(source, out, preset="unit", shard_size=4)
    assert (result.shards_kept, result.failed) == (3, 1)
    result = qk.process_images(source, out, preset="unit", shard_size=4, retry_failed=True)
    assert (result.shards_kept, result.failed, result.images) == (2, 0, 10)
    np.testing.assert_array_equal(qk.open_images(out).read_codes(5), pixels.transpose(2, 0, 1))


def test_damaged_shards_are_made_anew(tmp_path):
    source, out = picture_folder(tmp_path / "in", 12), tmp_path / "out"
    qk.process_images(source, out, preset="unit", shard_size=4)
    before = contents(out)
    shard = out / "shard-000000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    (out / "manifest" / "shard-000001.jsonl").write_text("no manifest\n")
    result = qk.process_images(source, out, preset="unit", shard_size=4)
    assert (result.shards, result.shards_kept) == (3, 1)
    assert contents(out) == before


def test_a_full_disk_loses_only_the_shard_in_work(tmp_path, monkeypatch):
    source, out = picture_folder(tmp_path / "in", 20), tmp_path / "out"
    qk.process_images(source, tmp_path / "whole", preset="unit", shard_size=4)
    write = ShardFolder.write

    def full(self, number, shard, lines):
        if number == 3:
            raise OutputError("cannot write shard: No space left on device")
        write(self, number, shard, lines)

    monkeypatch.setattr(ShardFolder, "write", full)
    with pytest.raises(OutputError, match="No space left on device"):
        qk.process_images(source, out, preset="unit", shard_size=4)
    assert {p.name for p in out.glob("shard-*")} >= {f"shard-00000{k}.safetensors" for k in range(3)}
    with pytest.raises(FormatError, match="is not complete yet"):
        qk.open_images(out)
    monkeypatch.undo()
    result = qk.process_images(source, out, preset="unit", shard_size=4)
    assert result.shards_kept >= 3
    assert contents(out) == contents(tmp_path / "whole")


def test_a_file_limit_of_the_system_leaves_nothing_half_written(tmp_path):
    source = picture_folder(tmp_path / "in", 8)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
        with pytest.raises(OutputError, match=r"cannot write .*shard-000000\.safetensors: File too large"):
            qk.process_images(source, tmp_path / "out", preset="unit", shard_size=4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert list((tmp_path / "out").glob("shard-*")) == []
    assert list((tmp_path / "out").rglob("*.tmp")) == []


_SLOW = """
import sys, time
import quantkit as qk
from quantkit.images import shard_work
read = shard_work.read_frames
def slow(*args, **kwargs):
    time.sleep(0.02)
    return read(*args, **kwargs)
shard_work.read_frames = slow
qk.process_images(sys.argv[1], sys.argv[2], preset="unit", shard_size=5, streams=2)
"""


def test_kill_9_loses_only_the_shard_in_work(tmp_path):
    source, out = picture_folder(tmp_path / "in", 100), tmp_path / "out"
    qk.process_images(source, tmp_path / "whole", preset="unit", shard_size=5)
    child = subprocess.Popen([sys.executable, "-c", _SLOW, str(source), str(out)])
    try:
        end = time.monotonic() + 60
        while len(list(out.glob("shard-*"))) < 4:
            assert child.poll() is None
            assert time.monotonic() < end
            time.sleep(0.005)
    finally:
        child.kill()
        child.wait()
    finished = len(list(out.glob("shard-*")))
    assert 4 <= finished < 20
    (out / ".quantkit-0123456789abcdef.tmp").write_bytes(b"what a killed run leaves behind")
    result = qk.process_images(source, out, preset="unit", shard_size=5)
    assert result.shards_kept == finished
    assert contents(out) == contents(tmp_path / "whole")


def test_two_runs_do_not_write_to_one_folder(tmp_path):
    source, out = picture_folder(tmp_path / "in", 4), tmp_path / "out"
    seen = []

    def again(progress):
        if not seen:
            seen.append(progress)
            with pytest.raises(OutputError, match="another process is writing there now"):
                qk.process_images(source, out, preset="unit")

    qk.process_images(source, out, preset="unit", progress=again)
    assert seen[0].done == 4


def test_ranges_of_shards_give_the_same_as_one_run(tmp_path):
    source, out = picture_folder(tmp_path / "in", 22, broken={9}), tmp_path / "out"
    qk.process_images(source, tmp_path / "whole", preset="unit", shard_size=4)
    first = qk.process_images(source, out, preset="unit", shard_size=4, shard_range=(3, 9))
    assert (first.complete, first.shards) == (False, 3)
    with pytest.raises(FormatError, match="is not complete yet"):
        qk.open_images(out)
    second = qk.process_images(source, out, preset="unit", shard_size=4, shard_range=(0, 3))
    assert (second.complete, second.shards, second.failed) == (True, 3, 1)
    assert contents(out) == contents(tmp_path / "whole")
