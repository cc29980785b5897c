import multiprocessing
import os
import pickle
import signal
import threading
import time

import pytest
import sharing

from quantkit.errors import InvalidArgument, OutOfMemory, StorageError
from quantkit.storage import Arena, QUInt8Storage

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_messages_are_three_integers(method):
    arena = Arena(4, 100)
    before = sharing.descriptors()[0]
    with multiprocessing.get_context(method).Pool(2, initializer=sharing.keep, initargs=(arena,)) as pool:
        for round_ in range(3):
            jobs = [(slot := arena.acquire(), round_ * 10.0 + slot) for _ in range(4)]
            messages = pool.starmap(sharing.fill_slot, jobs)
            for (slot, value), message in zip(jobs, messages, strict=True):
                assert message == (slot, 0, 40)
                assert len(pickle.dumps(tuple(message))) < 30
                assert arena.array(slot, (10,), "float32").tolist() == [value] * 10
                assert arena.view(message).shape == (40,)
                arena.release(slot)
    assert sharing.descriptors()[0] == before  # one descriptor, whatever was sent


def test_slots_wait_and_come_back():
    arena = Arena(2, 64)
    first, second = arena.acquire(), arena.acquire()
    assert {first, second} == {0, 1}
    with pytest.raises(StorageError, match="no slot of 2 became free"):
        arena.acquire(timeout=0.01)
    threading.Timer(0.05, arena.release, [first]).start()
    assert arena.acquire(timeout=10) == first
    arena.release(second)
    with pytest.raises(StorageError, match="not in use"):
        arena.release(second)


def test_slots_of_killed_workers_come_back():
    arena = Arena(1, 64)
    worker = multiprocessing.get_context("fork").Process(target=sharing.sleep_forever)
    worker.start()
    assert arena.acquire(worker) == 0
    with pytest.raises(StorageError):
        arena.acquire(timeout=0.01)
    threading.Timer(0.05, os.kill, [worker.pid, signal.SIGKILL]).start()
    start = time.monotonic()
    assert arena.acquire(timeout=30) == 0
    assert time.monotonic() - start < 30
    worker.join()


def test_arrays_stay_in_their_slot():
    arena = Arena(2, 100)  # rounded up to 128
    assert arena.slot_nbytes == 128
    q = arena.array(1, (4, 4), "quint8", offset=112)
    assert isinstance(q, QUInt8Storage)
    assert arena.message(1, q) == (1, 112, 16)
    for slot, shape, offset in [(0, (129,), 0), (0, (1,), 128), (1, (1,), -1), (2, (1,), 0), (-1, (1,), 0)]:
        with pytest.raises(StorageError):
            arena.array(slot, shape, "uint8", offset)
    with pytest.raises(StorageError, match="slot 0"):
        arena.message(0, q)
    with pytest.raises(StorageError):
        arena.message(1, QUInt8Storage(3))
    for sizes, error in [((0, 10), InvalidArgument), ((10, 0), InvalidArgument), ((-1, 1), InvalidArgument)]:
        with pytest.raises(error):
            Arena(*sizes)
    with pytest.raises(OutOfMemory):
        Arena(2**40, 2**40)


def test_only_its_maker_hands_out_slots():
    arena = Arena(1, 1)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        returned = pool.apply(sharing.identity, (arena,))
    assert returned.storage is arena.storage
    with pytest.raises(StorageError, match="made the arena"):
        returned.acquire()
