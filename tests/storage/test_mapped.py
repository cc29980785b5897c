import os

import numpy as np
import pytest
import sharing

import quantkit as qk
from quantkit.errors import InvalidArgument, OutOfMemory, StorageError
from quantkit.storage import ByteStorage, limits


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "bytes.bin"
    path.write_bytes(bytes(range(200)))
    return path


def test_a_private_map_keeps_its_writes(path):
    s = ByteStorage.from_file(path)
    assert (len(s), s[199], s.is_shared(), s.readonly) == (200, 199, False, False)
    s.fill_(7)
    assert path.read_bytes() == bytes(range(200))
    path.chmod(0o400)
    ByteStorage.from_file(path)[0] = 1  # writing stays here, so reading rights do


def test_a_shared_map_writes_to_the_file(path):
    s, other = ByteStorage.from_file(path, True), ByteStorage.from_file(path, shared=True)
    s[3] = 99
    assert other[3] == 99
    assert path.read_bytes()[3] == 99
    assert s.is_shared()
    assert s.share_memory_() is s  # it is shared already, through the file
    with pytest.raises(StorageError, match="shared bytes keep their size of 200"):
        s.resize_(10)


@pytest.mark.parametrize("offset", [0, 1, 64, 199, 200])
def test_offset_and_size(path, offset):
    assert ByteStorage.from_file(path, offset=offset).tolist() == list(range(offset, 200))
    some = min(10, 200 - offset)
    assert ByteStorage.from_file(path, False, some, offset=offset).tolist() == list(range(offset, offset + some))
    big = path.with_name("big")
    big.write_bytes(bytes(5000) + bytes(range(200)))
    assert ByteStorage.from_file(big, True, 10, offset=5000 + offset // 2)[0] == offset // 2


def test_a_private_map_can_be_shared_afterwards(path):
    s = ByteStorage.from_file(path).share_memory_()
    s[0] = 5
    assert path.read_bytes()[0] == 0
    with pytest.raises(StorageError, match="mapped bytes keep their size"):
        ByteStorage.from_file(path).resize_(3)


@pytest.mark.parametrize("shared", [False, True])
def test_a_read_only_map(path, shared):
    s = ByteStorage.from_file(path, shared, writable=False)
    assert s.readonly
    for write in (lambda: s.fill_(0), lambda: s.__setitem__(0, 1), lambda: s[:4].copy_(b"1234")):
        with pytest.raises(StorageError, match="read-only"):
            write()
    t = qk.as_tensor(s)
    with pytest.raises(StorageError, match="read-only"):
        t[0] = 1.0
    assert not np.asarray(t).flags.writeable
    assert path.read_bytes() == bytes(range(200))


def test_a_shared_map_creates_and_grows_its_file(tmp_path):
    path = tmp_path / "new"
    s = ByteStorage.from_file(path, True, 100)
    assert s.tolist() == [0] * 100
    s[0] = 1
    ByteStorage.from_file(path, True, 50, offset=100)[0] = 2
    assert path.read_bytes() == b"\x01" + bytes(99) + b"\x02" + bytes(49)
    assert len(s) == 100  # as far as it was
    with path.open("ab") as file:
        file.write(b"more")
    assert len(s) == 100
    assert len(ByteStorage.from_file(path)) == 154


def test_an_empty_file(tmp_path):
    path = tmp_path / "empty"
    path.write_bytes(b"")
    for shared in (False, True):
        s = ByteStorage.from_file(path, shared)
        assert s.tolist() == []
        assert np.asarray(s).size == 0
    with pytest.raises(StorageError, match="has 0 bytes, wanted 1 at offset 0"):
        ByteStorage.from_file(path, False, 1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"size": 201}, StorageError, "has 200 bytes, wanted 201 at offset 0"),
        ({"size": 10, "offset": 191}, StorageError, "wanted 10 at offset 191"),
        ({"offset": 201}, InvalidArgument, "wanted offset 201"),
        ({"offset": -1}, InvalidArgument, ">= 0"),
        ({"size": -1}, InvalidArgument, ">= 0"),
        ({"size": 2**63}, OutOfMemory, "9223372036854775808"),
        ({"size": 2**62}, StorageError, "has 200 bytes"),
        ({"size": 300, "shared": True, "writable": False}, StorageError, "has 200 bytes"),
    ],
)
def test_parts_that_are_not_there(path, arguments, error, message):
    with pytest.raises(error, match=message):
        ByteStorage.from_file(path, **arguments)
    assert path.stat().st_size == 200


def test_files_that_are_none(tmp_path):
    missing = tmp_path / "missing"
    for arguments in ((), (True,), (False, 10)):
        with pytest.raises(StorageError, match="missing' does not exist"):
            ByteStorage.from_file(missing, *arguments)
    with pytest.raises(StorageError, match="cannot create"):
        ByteStorage.from_file(tmp_path / "no" / "folder", True, 10)
    with pytest.raises(StorageError, match="not a regular file"):
        ByteStorage.from_file(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="not a regular file"):
        ByteStorage.from_file(tmp_path / "pipe")
    with pytest.raises(StorageError, match="not a regular file"):
        ByteStorage.from_file("/dev/zero")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_may_not_be_written(path):
    path.chmod(0o400)
    with pytest.raises(StorageError, match="Permission denied"):
        ByteStorage.from_file(path, True)


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_that_is_truncated_under_its_map_is_an_error_and_no_crash(path, shared):
    path.write_bytes(bytes(20000))
    s = ByteStorage.from_file(path, shared)
    view, t = s[15000:], qk.as_tensor(s)
    os.truncate(path, 100)
    for use in (
        s.tolist,
        lambda: s[19999],
        lambda: s.__setitem__(19999, 1),
        view.tolist,
        t.dequantize,
        s.clone,
        lambda: np.asarray(s),
        lambda: memoryview(s),
    ):
        with pytest.raises(StorageError, match=r"bytes.bin' was truncated while mapped: it has 100 bytes"):
            use()
    os.truncate(path, 20000)
    assert s[19999] == 0


def test_a_replaced_file_stays_as_it_was_mapped(path):
    s = ByteStorage.from_file(path, True)
    other = path.with_name("other")
    other.write_bytes(b"short")
    os.replace(other, path)
    assert s[199] == 199
    path.unlink()
    assert s[199] == 199


def test_a_full_disk_leaves_the_file_as_it_was(path, monkeypatch):
    def full(fd, start, size):
        os.ftruncate(fd, start + size // 2)
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(limits.os, "posix_fallocate", full)
    before = sharing.descriptors()
    with pytest.raises(OutOfMemory, match="No space left"):
        ByteStorage.from_file(path, True, 1000)
    assert path.stat().st_size == 200
    with pytest.raises(OutOfMemory):
        ByteStorage.from_file(path.with_name("new"), True, 1000)
    assert not path.with_name("new").exists()
    assert sharing.descriptors() == before


def test_descriptors_go_with_the_map(path):
    before = sharing.descriptors()
    s = ByteStorage.from_file(path, True)
    assert sharing.descriptors()[1] == before[1] + 1
    del s
    assert sharing.descriptors() == before
