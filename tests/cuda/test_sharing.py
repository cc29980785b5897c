"""CUDA IPC: several processes, one piece of GPU memory."""

import fcntl
import multiprocessing
import os

import cuda_sharing
import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import StorageBusy, StorageError


@pytest.fixture(params=["spawn", "forkserver"])
def pool(gpu, request):
    context = multiprocessing.get_context(request.param)
    with context.Pool(1, cuda_sharing.prepare, (gpu is None, os.environ.get("QUANTKIT_TEST_IPC"))) as made:
        yield made


def test_processes_write_the_same_bytes(gpu, pool):
    a = qk.full((2, 3), 1, dtype=np.int32, device="cuda:0")
    view = a[1]
    assert not a.is_shared()
    assert a.share_memory_() is a
    assert a.is_shared()
    assert view.is_shared()
    assert a.share_memory_().tolist() == [[1, 1, 1], [1, 1, 1]]
    assert pool.apply(cuda_sharing.write, (a, 0, 7)) == ("cuda:0", [[7, 7, 7], [1, 1, 1]])
    assert pool.apply(cuda_sharing.write, (view, slice(0, 2), 9)) == ("cuda:0", [9, 9, 1])
    assert a.tolist() == [[7, 7, 7], [9, 9, 1]]
    t = qk.full((4,), 3.0, device="cuda:0").share_memory_()
    assert pool.apply(cuda_sharing.write, (t, 0, 5.0))[1] == [5.0, 3.0, 3.0, 3.0]
    assert t.tolist() == [5.0, 3.0, 3.0, 3.0]
    assert pool.apply(cuda_sharing.from_handle, (a.handle(),)) == a.tolist()
    s = qk.ByteStorage.full(3, 4, device="cuda:0").share_memory_()
    assert pool.apply(cuda_sharing.write, (s, 1, 6))[1] == s.tolist() == [4, 6, 4]


def test_known_here(gpu, pool):
    back = pool.apply(cuda_sharing.make)  # its maker holds it for as long as we have it open
    assert (back.device, back.is_shared(), back.tolist()) == ("cuda:0", True, [5, 5, 5])
    back.fill_(6)
    assert pool.apply(cuda_sharing.write, (back, 0, 8))[1] == [8, 6, 6] == back.tolist()
    own = qk.full((3,), 1, dtype=np.int32, device="cuda:0").share_memory_()
    assert qk.Array.from_handle(own.handle()).storage() is own.storage()


def test_not_shared_travels_by_value(gpu, pool):
    a = qk.full((3,), 1, dtype=np.int32, device="cuda:0")
    assert pool.apply(cuda_sharing.write, (a, 0, 7))[1] == [7, 1, 1]
    assert a.tolist() == [1, 1, 1]
    with pytest.raises(StorageError, match="not shared"):
        a.handle()


def test_memory_comes_back_when_nobody_has_it_open(gpu):
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=cuda_sharing.die_holding, args=(there,))
    child.start()
    here.send((gpu is None, os.environ.get("QUANTKIT_TEST_IPC")))
    a = qk.full((1 << 20,), 2, dtype=np.uint8, device="cuda:0")[:3].share_memory_()
    here.send(a)
    assert here.recv() == [2, 2, 2]
    child.join()
    from quantkit.storage import cuda_sharing as sharing

    if gpu is not None:
        assert len(gpu.files) == 1
    del a
    assert sharing._in_use == []  # a killed process holds nothing
    if gpu is not None:
        assert gpu.files == {}


@pytest.mark.parametrize("receiver_ends", [True, False])
def test_bytes_that_were_sent_on_stay(gpu, receiver_ends):
    context = multiprocessing.get_context("spawn")
    (here, there), (here2, there2), (onward, source) = (context.Pipe() for _ in range(3))
    children = [
        context.Process(target=cuda_sharing.send_on, args=(there, onward)),
        context.Process(target=cuda_sharing.receive, args=(there2, source)),
    ]
    for child, connection in zip(children, (here, here2), strict=True):
        child.start()
        connection.send((gpu is None, os.environ.get("QUANTKIT_TEST_IPC")))
    a = qk.full((3,), 2, dtype=np.uint8, device="cuda:0").share_memory_()
    here.send(a)
    assert here2.recv() == [7, 2, 2]
    here.send("the other has them")
    assert here.recv() == "sent"
    last, other = (1, 0) if not receiver_ends else (0, 1)  # who has them for longest
    connections = (here, here2)
    connections[other].send("end")
    if other == 0:
        assert here.recv() == [7, 2, 2]
    children[other].join()
    from quantkit.storage import cuda_sharing as sharing

    del a
    assert len(sharing._in_use) == 1
    assert gpu is None or len(gpu.files) == 1
    connections[last].send("end")
    if last == 0:
        assert here.recv() == [7, 2, 2]
    children[last].join()
    assert [child.exitcode for child in children] == [0, 0]
    qk.full((3,), 2, dtype=np.uint8, device="cuda:0").share_memory_()  # the next to be given back looks again
    assert sharing._in_use == []
    assert gpu is None or gpu.files == {}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_holds_no_lock():
    from quantkit.storage import cuda_sharing as sharing

    token = qk.ByteStorage.full(1, 0).share_memory_()
    lock = sharing._Lock(token, fcntl.LOCK_SH)
    assert sharing._is_open_elsewhere(token)
    (waiting, ready), (until, end) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        lock.close()
        os.write(ready, b"1")
        os.read(until, 1)
        os._exit(0)
    try:
        assert os.read(waiting, 1) == b"1"
        assert sharing._is_open_elsewhere(token)  # the child has not unlocked it for us
        lock.close()
        assert not sharing._is_open_elsewhere(token)
    finally:
        os.close(end)
        os.waitpid(child, 0)
        for fd in (waiting, ready, until):
            os.close(fd)


def test_what_share_memory_refuses(gpu):
    a = qk.full((3,), 1, dtype=np.uint8, device="cuda:0")
    export = qk.from_dlpack(a)
    with pytest.raises(StorageBusy, match="1 export"):
        a.share_memory_()
    del export
    a.share_memory_()
    with pytest.raises(StorageError, match="resize_: shared bytes keep their size"):
        a.storage().resize_(100)
    for bad in (None, (1, 2), "abcd"):
        with pytest.raises(StorageError, match="wanted a handle"):
            qk.ByteStorage.from_handle(bad)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused(gpu):
    a = qk.full((3,), 1, dtype=np.uint8, device="cuda:0").share_memory_()
    child = os.fork()
    if child == 0:
        try:
            a.tolist()
        except qk.errors.CudaUnavailable as error:
            os._exit(0 if "start processes with spawn or forkserver" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert a.tolist() == [1, 1, 1]
