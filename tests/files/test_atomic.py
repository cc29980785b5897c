import errno
import os
import resource
import signal
import stat
import subprocess
import sys

import pytest

from quantkit.errors import OutputError, QuantkitError
from quantkit.files import atomic_write, check_output


def names(folder):
    return sorted(os.listdir(folder))


def test_the_file_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "out.bin"
    with atomic_write(path) as f:
        f.write(b"abc")
        assert not path.exists()
        assert len(names(tmp_path)) == 1
        f.seek(1)
        assert f.read() == b"bc"
    assert path.read_bytes() == b"abc"
    assert names(tmp_path) == ["out.bin"]


def test_it_has_the_mode_of_a_plain_file(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    with atomic_write(tmp_path / "ours"):
        pass
    modes = {stat.S_IMODE((tmp_path / n).stat().st_mode) for n in ("plain", "ours")}
    assert len(modes) == 1


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "out.bin"
    path.write_bytes(b"old")
    with pytest.raises(error), atomic_write(path) as f:  # noqa: PT012
        f.write(b"new")
        raise error
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["out.bin"]


def test_a_symlink_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.bin"
    link.symlink_to(tmp_path / "real" / "out.bin")
    with atomic_write(link) as f:
        f.write(b"abc")
    assert link.is_symlink()
    assert (tmp_path / "real" / "out.bin").read_bytes() == b"abc"


def test_a_relative_path_and_a_very_long_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with atomic_write("n" * 255) as f:
        f.write(b"1")
    assert names(tmp_path) == ["n" * 255]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing/out.bin", "does not exist"),
        ("file/out.bin", "is not a folder|Not a directory"),
        ("folder", "it is a folder"),
        ("folder/", "wanted a file name"),
        ("pipe", "not a regular file"),
        ("", "wanted a file name"),
        ("a\0b", "null byte|null character"),
        ("n" * 256, "File name too long"),
        ("loop", "symbolic links"),
    ],
)
def test_paths_that_cannot_be_written(tmp_path, monkeypatch, path, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    before = names(tmp_path)
    for attempt in (check_output, lambda p: atomic_write(p).__enter__()):
        with pytest.raises(OutputError, match=reason) as caught:
            attempt(path)
        assert repr(path)[1:-1] in str(caught.value)
    assert isinstance(caught.value, (QuantkitError, OSError))
    assert names(tmp_path) == before
    assert names(tmp_path / "folder") == []


def test_devices_are_refused():
    with pytest.raises(OutputError, match="/dev/null: it is not a regular file"):
        check_output("/dev/null")


def test_a_read_only_folder(tmp_path, monkeypatch):
    # As root every folder is writable, so the kernel's answer is put in its place.
    real = os.access
    monkeypatch.setattr(os, "access", lambda p, mode, **k: False if mode & os.W_OK else real(p, mode, **k))
    with pytest.raises(OutputError, match=f"the folder {tmp_path} is not writable"):
        check_output(tmp_path / "x")
    monkeypatch.undo()

    def refuse(*_args, **_kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OutputError, match=r"x: Permission denied"), atomic_write(tmp_path / "x"):
        pass


def test_a_full_disk(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    path = tmp_path / "out.bin"
    path.write_bytes(b"old")
    with pytest.raises(OutputError, match=r"out.bin: No space left on device"), atomic_write(path) as f:  # noqa: PT012
        full = os.open("/dev/full", os.O_RDWR)
        os.dup2(full, f.fileno())
        os.close(full)
        f.write(b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["out.bin"]


def test_a_quota(tmp_path):
    """The kernel's own limit on the size of a file, hit half-way through one large write."""
    code = (
        "import sys, quantkit.files as f\n"
        "from quantkit.errors import OutputError\n"
        "try:\n"
        "    with f.atomic_write(sys.argv[1]) as out: out.write(bytes(100_000))\n"
        "except OutputError as e: print(e)\n"
    )

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out.bin")],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout == f"cannot write {tmp_path / 'out.bin'}: File too large\n"
    assert names(tmp_path) == []


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_failures_of_the_last_steps(tmp_path, monkeypatch, function):
    def fail(*_args):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(OutputError, match=r"x: Input/output error"), atomic_write(tmp_path / "x") as f:
        f.write(b"1")
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_synced_is_no_failure(tmp_path, monkeypatch):
    real = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic_write(tmp_path / "x") as f:
        f.write(b"1")
    assert names(tmp_path) == ["x"]


def test_a_kill_leaves_the_old_file(tmp_path):
    path = tmp_path / "out.bin"
    path.write_bytes(b"old")
    code = (
        "import os, sys, quantkit.files as f\n"
        "with f.atomic_write(sys.argv[1]) as out:\n"
        "    out.write(b'new'); os.kill(os.getpid(), 9)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False, env=env)
    assert done.returncode == -9
    assert path.read_bytes() == b"old"
    assert all(n == "out.bin" or (n.startswith(".quantkit-") and n.endswith(".tmp")) for n in names(tmp_path))


@pytest.mark.parametrize("data", [b"", bytearray(b"ab"), memoryview(b"abcd").cast("H")])
def test_write_takes_any_buffer(tmp_path, data):
    with atomic_write(tmp_path / "x") as f:
        assert f.write(data) == len(bytes(data))
    assert (tmp_path / "x").read_bytes() == bytes(data)
