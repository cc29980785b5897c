"""Large files that a killed run leaves for the next."""

import errno
import os
import subprocess
import sys
import threading

import pytest

from quantkit.errors import OutputError
from quantkit.files import resumable_write


def leftovers(folder):
    return sorted(name.rpartition(".")[2] for name in os.listdir(folder) if name.startswith(".quantkit-"))


def interrupt(path, key, pieces, error=KeyboardInterrupt, resume=True):
    def run():
        with resumable_write(path, key, resume=resume) as file:
            file.resize(10)
            for name, (offset, data) in pieces.items():
                file.write_at(offset, data)
                file.record(name, [offset, len(data)])
            raise error

    with pytest.raises(error):
        run()


def test_written_whole(tmp_path):
    path = tmp_path / "x"
    with resumable_write(path, "k") as file:
        file.resize(6)
        file.write_at(3, b"def")
        file.write_at(0, memoryview(b"abc"))
        file.write_at(6, b"")
        assert file.finished == {}
        room = bytearray(4)
        assert file.read_at(2, room) == 4
        assert room == b"cdef"
        assert not path.exists()
    assert path.read_bytes() == b"abcdef"
    assert os.listdir(tmp_path) == ["x"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_an_interrupted_run_is_taken_up(tmp_path):
    path = tmp_path / "x"
    interrupt(path, "k", {"a": (0, b"12"), "ü\n": (2, b"34")})
    assert leftovers(tmp_path) == ["journal", "partial"]
    with resumable_write(path, "k") as file:
        assert file.finished == {"a": [0, 2], "ü\n": [2, 2]}
        file.resize(5)
        file.write_at(4, b"5")
    assert path.read_bytes() == b"12345"
    assert os.listdir(tmp_path) == ["x"]


def test_interrupted_twice(tmp_path):
    path = tmp_path / "x"
    interrupt(path, "k", {"a": (0, b"1")})
    interrupt(path, "k", {"b": (1, b"2")})
    with resumable_write(path, "k") as file:
        assert set(file.finished) == {"a", "b"}


def test_another_key_or_no_resume_begins_again(tmp_path):
    path = tmp_path / "x"
    for key, resume in (("other", True), ("k", False)):
        interrupt(path, "k", {"a": (0, b"12")})
        with resumable_write(path, key, resume=resume) as file:
            assert file.finished == {}
            file.resize(1)
        assert path.read_bytes() == b"\0"
        assert leftovers(tmp_path) == []
    interrupt(path, "k", {"a": (0, b"12")}, resume=False)
    assert leftovers(tmp_path) == []


def test_an_error_removes_everything_and_keeps_the_old_file(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    interrupt(path, "k", {"a": (0, b"12")}, error=ValueError)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize(
    "damage", [b'["b",', b'["b", 1', b"", b"\xff\n", b"[1]\n", b'"k"\n', b"{}\n", b"[" * 100_000 + b"\n"]
)
def test_a_journal_cut_off_or_damaged(tmp_path, damage):
    path = tmp_path / "x"
    interrupt(path, "k", {"a": (0, b"12")})
    (journal,) = tmp_path.glob(".quantkit-*.journal")
    journal.write_bytes(journal.read_bytes() + damage)
    with resumable_write(path, "k") as file:
        assert file.finished in ({"a": [0, 2]}, {})
        assert ("a" in file.finished) == (not damage.endswith(b"\n"))
        file.record("c", 3)
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("kind", ["partial", "journal"])
def test_one_of_the_two_files_is_gone(tmp_path, kind):
    path = tmp_path / "x"
    interrupt(path, "k", {"a": (0, b"12")})
    next(iter(tmp_path.glob(f".quantkit-*.{kind}"))).unlink()
    with resumable_write(path, "k") as file:
        file.resize(2)
        room = bytearray(2)
        file.read_at(0, room)
        assert room == b"\0\0"  # what the journal claims is not there, and its reader finds out
    assert os.listdir(tmp_path) == ["x"]


def test_two_at_once(tmp_path):
    path = tmp_path / "x"
    with resumable_write(path, "k") as file:
        file.write_at(0, b"1")
        with pytest.raises(OutputError, match="another process is writing it now"), resumable_write(path, "k"):
            pass
    assert path.read_bytes() == b"1"
    assert os.listdir(tmp_path) == ["x"]


def test_killed(tmp_path):
    path = tmp_path / "x"
    script = (
        "import os, sys\nfrom quantkit.files import resumable_write\n"
        "with resumable_write(sys.argv[1], 'k') as file:\n"
        "    file.write_at(0, b'12'); file.record('a', 1); os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == -9
    assert leftovers(tmp_path) == ["journal", "partial"]
    with resumable_write(path, "k") as file:
        assert file.finished == {"a": 1}
    assert path.read_bytes() == b"12"


@pytest.mark.parametrize("call", ["pwrite", "ftruncate", "fsync", "replace", "write"])
def test_a_failing_disk_names_the_final_path(tmp_path, monkeypatch, call):
    def fails(*_):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    def run():
        with resumable_write(tmp_path / "x", "k") as file:
            file.resize(1)
            file.write_at(0, b"1")
            file.record("a", 1)

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(OutputError, match=rf"cannot write {tmp_path / 'x'}: Disk quota exceeded"):
        run()
    monkeypatch.undo()
    assert os.listdir(tmp_path) == []


def test_a_symlink_in_place_of_the_temporary_file_is_not_followed(tmp_path):
    path, victim = tmp_path / "x", tmp_path / "victim"
    victim.write_bytes(b"precious")
    interrupt(path, "k", {})
    for kind in ("partial", "journal"):
        (found,) = tmp_path.glob(f".quantkit-*.{kind}")
        found.unlink()
        found.symlink_to(victim)
        with pytest.raises(OutputError), resumable_write(path, "other"):
            pass
        assert victim.read_bytes() == b"precious"
        found.unlink(missing_ok=True)


def test_records_from_several_threads_are_whole_lines(tmp_path):
    def record(file, i):
        for j in range(50):
            file.record(f"{i}-{j}", "v" * 500)

    def run():
        with resumable_write(tmp_path / "x", "k") as file:
            threads = [threading.Thread(target=record, args=(file, i)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    with resumable_write(tmp_path / "x", "k") as file:
        assert len(file.finished) == 200


def test_what_was_written_stays_when_memory_ran_out(tmp_path):
    interrupt(tmp_path / "x", "k", {"a": (0, b"12")}, error=MemoryError)
    assert leftovers(tmp_path) == ["journal", "partial"]
