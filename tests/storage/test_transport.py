import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import sharing

import quantkit as qk
from quantkit.errors import StorageError
from quantkit.storage import transport

# Python >= 3.12 warns at a fork while another thread lives; handing out descriptors takes one.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

METHODS = ["fork", "spawn", "forkserver"]
VALUES = np.arange(24.0, dtype=np.float32).reshape(4, 6)


def per_channel():
    return qk.quantize(VALUES, [0.5, 1.0, 2.0, 4.0], 3, axis=0)


KINDS = {
    "whole": lambda: qk.quantize(VALUES, 0.5),
    "slice": lambda: qk.quantize(VALUES, 0.5)[1:3, ::2],
    "permuted": lambda: qk.quantize(VALUES, 0.5).permute(1, 0),
    "per-channel": per_channel,
    "float32": lambda: qk.as_tensor(VALUES.copy()),
}


@pytest.fixture(params=METHODS, scope="module")
def context(request):
    return multiprocessing.get_context(request.param)


@pytest.fixture(scope="module")
def pool(context):
    with context.Pool(1) as pool:
        yield pool


@pytest.fixture(scope="module")
def executor(context):
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        yield executor


@pytest.fixture(scope="module")
def server(context):
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=sharing.serve, args=(inbox, outbox))
    process.start()
    yield inbox, outbox
    inbox.put(None)
    process.join()


def check(t, touch, read):
    """Both sides see the other's writes."""
    before = sharing.numbers(t).tolist()
    seen, shared, pid = touch(t)
    assert seen == before
    assert shared
    assert pid != os.getpid()
    assert sharing.read(t) == 5.0
    t[0, 1] = 1.0
    t[sharing.SLOT] = 2.0
    assert read(t) == 2.0
    assert sharing.numbers(t)[0, 1] == 1.0
    if isinstance(t, qk.QTensor):
        t.storage()[sharing.SLOT] = 6
        assert read(t) == sharing.read(t)


@pytest.mark.parametrize("kind", KINDS)
class TestMatrix:
    def test_argument(self, context, kind):
        t = KINDS[kind]().share_memory_()
        ours, theirs = context.Pipe()
        process = context.Process(target=sharing.converse, args=(t, theirs))
        process.start()

        def ask(command):
            ours.send(command)
            return ours.recv()

        check(t, lambda t: ask("touch"), lambda t: ask("read"))
        ours.send(None)
        process.join()
        assert process.exitcode == 0

    def test_queue(self, server, kind):
        t = KINDS[kind]().share_memory_()
        inbox, outbox = server

        def ask(t):
            inbox.put(t)
            answer, back = outbox.get()
            assert type(back) is type(t)
            assert back.storage() is t.storage() or back.storage().storage() is t.storage().storage()
            assert (back.shape, back.strides) == (t.shape, t.strides)
            return answer

        def read(t):
            expected = sharing.read(t)  # it is about to be touched again
            assert ask(t)[0][0][0] == expected
            t[sharing.SLOT] = expected
            return expected

        check(t, ask, read)

    def test_pool(self, pool, kind):
        t = KINDS[kind]().share_memory_()
        check(t, lambda t: pool.apply(sharing.touch, (t,)), lambda t: pool.map(sharing.read, [t])[0])

    def test_executor(self, executor, kind):
        t = KINDS[kind]().share_memory_()
        check(t, lambda t: executor.submit(sharing.touch, t).result(), lambda t: next(executor.map(sharing.read, [t])))


def test_what_a_worker_makes_comes_back_shared(pool):
    t = pool.apply(sharing.make, (5,))
    assert t.is_shared()
    assert t.dequantize().tolist() == [[3.0] * 5] * 5
    assert pool.apply(sharing.touch, (t,))[2] != os.getpid()
    assert sharing.read(t) == 5.0


def test_bytes_that_are_not_shared_travel_by_value(pool):
    t = qk.quantize(VALUES, 0.5)
    assert pool.apply(sharing.touch, (t,))[:2] == (VALUES.tolist(), False)
    assert sharing.read(t) == 0.0
    s = qk.ByteStorage([1, 2, 3])
    assert pool.apply(sharing.identity, (s,)).tolist() == [1, 2, 3]


def test_storages_and_views_in_one_message_stay_one_piece_of_memory(pool):
    t = qk.quantize(VALUES, 0.5).share_memory_()
    parts = [t, t[1], t.T, t[::-1], t.clone().share_memory_()]
    assert pool.apply(sharing.same_storage, (parts,)) == (2, 4)
    s = t.storage().storage()
    assert pool.apply(sharing.identity, (s,)) is s
    assert pool.apply(sharing.identity, (t.storage(),)).storage() is s


def test_a_storage_sent_many_times_is_mapped_once(pool):
    t = qk.quantize(VALUES, 0.5).share_memory_()
    before, ours = pool.apply(sharing.maps), sharing.maps()
    got = [pool.apply(sharing.identity, (t,)) for _ in range(20)]
    assert all(g.storage().storage() is t.storage().storage() for g in got)
    assert sharing.maps() == ours
    pool.apply(gc.collect)
    assert pool.apply(sharing.maps) <= before + 1


def test_an_empty_tensor_travels_too(pool):
    t = qk.empty((0, 3)).share_memory_()
    assert t.is_shared()
    back = pool.apply(sharing.identity, (t,))
    assert back.shape == (0, 3)
    assert back.is_shared()


def test_nested_sends(context):
    t = qk.quantize(VALUES, 0.5).share_memory_()
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=sharing.forward, args=(1, inbox, outbox))
    process.start()
    inbox.put(t)
    assert outbox.get().storage().storage() is t.storage().storage()
    process.join()
    assert sharing.read(t) == 2.0


def test_a_child_that_sends_and_ends_is_waited_for(context):
    queue = context.Queue()
    process = context.Process(target=sharing.send_and_end, args=(queue,))
    process.start()
    time.sleep(0.2)
    assert queue.get().dequantize().tolist() == [[3.0] * 4] * 4
    process.join()
    assert process.exitcode == 0


def test_a_sender_killed_before_receipt_is_a_clear_error(context):
    queue = context.Queue()
    ours, theirs = context.Pipe()
    process = context.Process(target=sharing.send_and_die, args=(queue, theirs))
    process.start()
    assert ours.recv() == "sent"
    process.join()
    with pytest.raises(StorageError, match="has ended before"):
        queue.get()


def test_a_dropped_tensor_lives_until_it_is_received():
    before = sharing.descriptors()[0]
    inbox, outbox = (multiprocessing.get_context("fork").Queue() for _ in range(2))
    process = multiprocessing.get_context("fork").Process(target=sharing.serve, args=(inbox, outbox))
    process.start()
    for _ in range(20):
        inbox.put(sharing.make(3))  # nobody here holds it any more
    for _ in range(20):
        assert outbox.get()[0][0] == [[3.0] * 3] * 3
    inbox.put(None)
    process.join()
    assert let_go(before)


def let_go(before):
    """Whether the descriptors of shared memory go back to `before`; the thread that drops them has its own pace."""
    end = time.monotonic() + 20
    while sharing.descriptors()[0] > before and time.monotonic() < end:
        gc.collect()
        time.sleep(0.02)
    return sharing.descriptors()[0] <= before


@pytest.mark.parametrize("method", METHODS)
def test_messages_to_killed_receivers_are_let_go(method):
    # In a process of its own, which has no other children that could be receivers.
    code = f"import sharing; sharing.lose_messages({method!r})"
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["10", "0", "StorageError", "let", "go"], done.stderr


def test_one_handle_for_many_processes(pool):
    t = qk.quantize(np.zeros((8, 2)), 0.5).share_memory_()
    t[sharing.SLOT] = 3.0
    handle = pickle.loads(pickle.dumps(t.handle()))  # plain data: any way of sending will do
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as many:
        assert many.map(sharing.attach, [handle] * 9, chunksize=1) == [3.0] * 9
    assert pool.apply(sharing.attach, (handle,)) == 3.0
    assert (np.asarray(t)[:, 1] == 14).any()
    assert qk.QTensor.from_handle(handle).storage().storage() is t.storage().storage()


def test_handles_of_storages_arrays_and_tensors(pool):
    w = per_channel().share_memory_()
    got = qk.QTensor.from_handle(w[1:].handle())
    assert got.equal(w[1:])
    a = qk.as_tensor(VALUES.copy()).share_memory_()
    assert qk.Array.from_handle(a.T.handle()).shape == (6, 4)
    q = qk.QUInt8Storage(2, 3).share_memory_()
    assert isinstance(qk.Array.from_handle(q.handle()), qk.QUInt8Storage)
    s = qk.ByteStorage([1, 2]).share_memory_()
    assert qk.ByteStorage.from_handle(tuple(s.handle())) is s
    for plain in (qk.ByteStorage(3), qk.QUInt8Storage(3), qk.empty(3)):
        with pytest.raises(StorageError, match="share_memory_"):
            plain.handle()


def test_a_handle_holds_nothing():
    context = multiprocessing.get_context("spawn")
    t = qk.quantize(VALUES, 0.5).share_memory_()
    ours, theirs = context.Pipe()
    process = context.Process(target=sharing.attach_when_told, args=(t.handle(), theirs))
    process.start()
    before = sharing.descriptors()[0]
    handle = t.handle()
    del t
    gc.collect()
    assert sharing.descriptors()[0] <= before - 1
    ours.send("now")
    error = ours.recv()
    assert isinstance(error, StorageError)
    assert "let go" in str(error)
    process.join()
    with pytest.raises(StorageError, match="let go"):
        qk.QTensor.from_handle(handle)


@pytest.mark.parametrize(
    "handle",
    [None, 5, (), ("x", 1, 2), ("\0quantkit-none", 1, 2, 0, 4, True), ("\0quantkit-none", -1, 2, 0, 4, True), "abcdef"],
)
def test_foreign_handles(handle):
    with pytest.raises(StorageError):
        qk.ByteStorage.from_handle(handle)
    with pytest.raises(StorageError):
        qk.Array.from_handle(handle)
    with pytest.raises(StorageError):
        qk.QTensor.from_handle(handle)


def test_a_foreign_layout_in_a_message():
    s = qk.ByteStorage(16).share_memory_()
    with pytest.raises(StorageError, match="the storage has 16"):
        transport._receive_array(qk.Array, "float32", s, (5,), 0, (4,))
    with pytest.raises(StorageError):
        qk.Array.from_handle((s.handle(), "float32", (1,), 16, (4,)))


def test_another_user_gets_nothing(monkeypatch):
    t = qk.quantize(VALUES, 0.5).share_memory_()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=sharing.attach_when_told, args=(t.handle(), theirs))
    process.start()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    ours.send("now")
    error = ours.recv()
    process.join()
    assert isinstance(error, StorageError)


def test_a_shared_file_travels_as_the_same_file(tmp_path, pool):
    path = tmp_path / "bytes.bin"
    path.write_bytes(bytes(64))
    s = qk.ByteStorage.from_file(path, True, offset=16)
    t = qk.as_tensor(s).reshape(6, 8)
    path.rename(tmp_path / "elsewhere.bin")  # the file travels, not its name
    assert pool.apply(sharing.touch, (t,))[1]
    assert (tmp_path / "elsewhere.bin").read_bytes()[16] == 5
    private = qk.as_tensor(qk.ByteStorage.from_file(tmp_path / "elsewhere.bin")).reshape(8, 8)
    assert pool.apply(sharing.touch, (private,))[1] is False
    frozen = qk.ByteStorage.from_file(tmp_path / "elsewhere.bin", True, writable=False)
    assert pool.apply(sharing.identity, (frozen,)) is frozen
    with pytest.raises(StorageError, match="read-only"):
        pool.apply(sharing.touch, (qk.as_tensor(frozen).reshape(8, 8),))


def test_the_file_system_socket_of_other_systems(monkeypatch, pool):
    monkeypatch.setattr(transport.sys, "platform", "darwin")
    monkeypatch.delattr(transport.socket, "SO_PEERCRED", raising=False)
    monkeypatch.setattr(transport, "_server", transport._Server())
    t = qk.quantize(VALUES, 0.5).share_memory_()
    assert os.path.exists(t.handle().codes.storage.address)
    assert pool.apply(sharing.touch, (t,))[1]
    assert sharing.read(t) == 5.0
