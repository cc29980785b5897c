import errno
import os
import resource

import numpy as np
import pytest
import sharing

import quantkit as qk
from quantkit.errors import OutOfMemory, StorageBusy, StorageError
from quantkit.storage import Arena, limits, shared

LINUX = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux has memfd")


def test_share_memory_moves_in_place():
    t = qk.quantize(np.arange(6.0).reshape(2, 3), 0.5)
    storage, view, address = t.storage().storage(), t[:, 1], t.data_ptr()
    assert t.share_memory_() is t
    assert t.storage().storage() is storage
    assert all(x.is_shared() for x in (t, view, storage, t.storage()))
    assert t.data_ptr() != address
    assert t.dequantize().tolist() == [[0.0, 0.5 * 2, 2.0], [3.0, 4.0, 5.0]]
    view[0] = 2.5
    assert t[0, 1].item() == 2.5
    address = t.data_ptr()
    assert t.share_memory_().data_ptr() == address


def test_shared_bytes_keep_their_size():
    s = qk.ByteStorage(10).share_memory_()
    with pytest.raises(StorageError, match="shared bytes keep their size of 10"):
        s.resize_(11)
    t = qk.as_tensor(s)
    assert t.resize_(2, 5).shape == (2, 5)
    with pytest.raises(StorageError):
        t.resize_(11)
    assert not s.clone().is_shared()


def test_bytes_do_not_move_while_exported():
    t = qk.full((4,), 1.0)
    codes = np.asarray(t)
    for x in (t, t.storage(), t.storage().storage(), t[1:]):
        with pytest.raises(StorageBusy, match="share_memory_: 1 export"):
            x.share_memory_()
    del codes
    assert t.share_memory_().is_shared()


def test_a_borrowed_source_is_no_longer_aliased():
    source = bytearray(b"abc")
    s = qk.ByteStorage.from_buffer(source).share_memory_()
    s[0] = 0
    assert source == b"abc"
    source.extend(b"free again")
    frozen = qk.ByteStorage.from_buffer(b"abc").share_memory_()
    frozen[0] = 1
    assert not frozen.readonly


@LINUX
def test_descriptors_and_maps_go_with_the_storage():
    before, segments = (sharing.descriptors(), sharing.maps()), sharing.segments()
    many = [qk.ByteStorage(100).share_memory_() for _ in range(20)]
    assert sharing.descriptors()[0] == before[0][0] + 20
    assert sharing.maps() == before[1] + 20
    assert sharing.segments() == segments
    del many
    assert (sharing.descriptors(), sharing.maps()) == before


@LINUX
def test_nobody_can_change_the_size_of_shared_memory():
    s = qk.ByteStorage(1 << 14).share_memory_()
    assert shared.is_sealed(s._memory.fd)
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(s._memory.fd, size)


def test_the_second_route_without_memfd(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    s = qk.ByteStorage([1, 2, 3]).share_memory_()
    assert s.is_shared()
    assert s.tolist() == [1, 2, 3]
    assert not shared.is_sealed(s._memory.fd)
    os.ftruncate(s._memory.fd, 1)  # nobody has its name, but a peer has its descriptor
    with pytest.raises(StorageError, match="truncated while mapped"):
        s.tolist()


def test_too_much_shared_memory_is_an_error_at_creation():
    for size in (1 << 45, 1 << 60):
        with pytest.raises(OutOfMemory, match=str(size)):
            shared.allocate(size)


def write_cgroup(root, folder, limit, used, cache, version):
    path = root / folder
    path.mkdir(parents=True, exist_ok=True)
    names = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")}
    names = names.get(version, ("memory.max", "memory.current", "inactive_file"))
    (path / names[0]).write_text(f"{limit}\n")
    (path / names[1]).write_text(f"{used}\n")
    (path / "memory.stat").write_text(f"anon 5\n{names[2]} {cache}\n")


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_every_group_above_counts(tmp_path, monkeypatch, version):
    groups, proc = tmp_path / "cgroup", tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    root = groups / "memory" if version == 1 else groups
    (proc / "self/cgroup").write_text("4:cpu,memory:/job/step\n" if version == 1 else "0::/job/step\n")
    write_cgroup(root, "job/step", "max", 100, 0, version)
    write_cgroup(root, "job", 10000, 4000, 500, version)
    monkeypatch.setattr(limits, "_CGROUPS", groups)
    monkeypatch.setattr(limits, "_PROC", proc)
    limits.check_memory(6500)
    with pytest.raises(OutOfMemory, match=r"6501 bytes of shared memory: .*job/memory.* leaves 6500"):
        limits.check_memory(6501)
    (proc / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:     2 kB\nSwapFree: 1 kB\n")
    with pytest.raises(OutOfMemory, match="the memory of this machine leaves 3072"):
        qk.ByteStorage(3073).share_memory_()


def test_running_out_of_descriptors_names_the_limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd"))) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, hard))
    try:
        kept: list[qk.ByteStorage] = []
        with pytest.raises(StorageError, match=rf"may have {used + 8} \(RLIMIT_NOFILE"):
            kept.extend(qk.ByteStorage.full(10, 1).share_memory_() for _ in range(used + 20))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(s.tolist() == [1] * 10 for s in kept)


def test_no_address_space_left_is_an_error():
    s = qk.ByteStorage(1 << 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 16), hard))
    try:
        with pytest.raises(OutOfMemory, match="cannot map 1048576 bytes"):
            s.share_memory_()
        with pytest.raises(OutOfMemory, match="cannot allocate"):
            qk.ByteStorage(1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert s.share_memory_().is_shared()


def test_memory_that_ends_during_the_copy_is_an_error():
    s = qk.ByteStorage.full(1 << 20, 3)
    before = sharing.descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = s._memory.nbytes // 2
    memory = shared.allocate(1 << 20, reserved=False)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(OSError, match="cannot allocate 1048576 bytes of shared memory"):
            s._move(memory, s._memory, "test")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    del memory
    assert sharing.descriptors() == before
    assert not s.is_shared()
    assert s.tolist() == [3] * (1 << 20)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG, errno.ENOMEM])
def test_a_full_disk_or_memory_leaves_nothing_behind(monkeypatch, code):
    def full(*arguments):
        raise OSError(code, os.strerror(code))

    before = sharing.descriptors()
    s = qk.ByteStorage([1, 2])
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", full)
        with pytest.raises(OutOfMemory, match="2 bytes of shared memory"):
            s.share_memory_()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OutOfMemory, match="shared memory"):
        Arena(1, 100)
    assert sharing.descriptors() == before
    assert s.tolist() == [1, 2]
    assert not s.is_shared()
