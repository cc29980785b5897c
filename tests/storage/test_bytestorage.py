import copy
import gc
import pickle

import numpy as np
import pytest

from quantkit.errors import InvalidArgument, InvalidDType, OutOfMemory, ShapeMismatch, StorageBusy, StorageError
from quantkit.storage import ByteStorage


def test_size_and_bytes():
    s = ByteStorage(5)
    assert len(s) == s.nbytes() == 5
    assert s.device == "cpu"
    assert not s.is_shared()
    assert ByteStorage([1, 2, 255]).tolist() == [1, 2, 255]
    assert ByteStorage(np.int64(3)).nbytes() == 3
    assert ByteStorage.full(3, 7).tolist() == [7, 7, 7]
    assert list(ByteStorage([4, 5])) == [4, 5]
    assert ByteStorage(0).tolist() == []


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 1000, 1 << 20])
def test_heap_bytes_are_aligned_to_64(n):
    assert ByteStorage(n).data_ptr() % 64 == 0


def test_items_are_bytes_and_bounds_are_checked():
    s = ByteStorage([10, 20, 30])
    s[0], s[-1] = 1, 255
    assert (s[0], s[1], s[2], s[-3]) == (1, 20, 255, 1)
    for i in (3, -4, 2**70):
        with pytest.raises((IndexError, OverflowError)):
            s[i]
    with pytest.raises(IndexError):
        s[3] = 0
    for value in (-1, 256, 2**64):
        with pytest.raises(InvalidArgument, match="0 to 255"):
            s[0] = value
    with pytest.raises(InvalidDType):
        s[0] = 1.5
    with pytest.raises(InvalidDType, match="integer or a slice"):
        s["a"]


def test_slices_are_views_that_follow_the_bytes():
    s = ByteStorage(range(10))
    part, back = s[2:5], s[::-2]
    part[0] = 99
    s[3:5] = [7, 8]
    assert part.tolist() == [99, 7, 8]
    assert back.tolist() == [9, 7, 5, 7, 1]
    s.resize_(1000)
    s[2] = 1
    assert part.tolist() == [1, 7, 8]


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: ByteStorage(-1), InvalidArgument, ">= 0"),
        (lambda: ByteStorage(2**63), OutOfMemory, "9223372036854775808"),
        (lambda: ByteStorage(2**63 - 1), OutOfMemory, "9223372036854775807"),
        (lambda: ByteStorage(2**61), OutOfMemory, "2305843009213693952"),
        (lambda: ByteStorage([1, 256]), InvalidArgument, "256"),
        (lambda: ByteStorage(["a"]), InvalidDType, "byte"),
        (lambda: ByteStorage(1.5), InvalidDType, "float"),
        (lambda: ByteStorage.empty(1, device="mps:0"), InvalidArgument, "mps:0"),
        (lambda: ByteStorage(4).resize_(-1), InvalidArgument, ">= 0"),
        (lambda: ByteStorage(4).resize_(2**63), OutOfMemory, "9223372036854775808"),
    ],
)
def test_impossible_sizes_and_bytes(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_fill_copy_clone():
    s = ByteStorage(4).fill_(3)
    assert s.copy_(b"abcd") is s
    assert bytes(s) == b"abcd"
    other = s.clone()
    other[0] = 0
    assert bytes(s) == b"abcd"
    for copied in (copy.copy(s), copy.deepcopy(s)):
        copied[1] = 0
        assert bytes(s) == b"abcd"
    with pytest.raises(ShapeMismatch, match="wanted 4 bytes, got 3"):
        s.copy_(b"abc")
    with pytest.raises(InvalidDType):
        s.copy_([1, 2, 3, 4])


@pytest.mark.parametrize(("to", "source"), [(slice(2, 10), slice(0, 8)), (slice(0, 8), slice(2, 10))])
def test_overlapping_copies(to, source):
    s = ByteStorage(range(10))
    expected = np.arange(10, dtype=np.uint8)
    expected[to] = expected[source].copy()
    s[to].copy_(s[source])
    assert s.tolist() == expected.tolist()


def test_resize_keeps_the_common_part_and_zeroes_the_rest():
    s = ByteStorage([1, 2, 3])
    assert s.resize_(6) is s
    assert s.tolist() == [1, 2, 3, 0, 0, 0]
    assert s.resize_(2).tolist() == [1, 2]
    assert s.resize_(0).tolist() == []
    assert s.resize_(2).tolist() == [0, 0]


def test_a_view_left_behind_by_a_resize_is_an_error_not_a_dangling_pointer():
    s = ByteStorage(100)
    view = s[50:60]
    s.resize_(55)
    for use in (view.tolist, lambda: view[0], lambda: memoryview(view), lambda: view.fill_(1), view.clone):
        with pytest.raises((StorageError, BufferError), match="resized to 55"):
            use()
    s.resize_(100)
    assert view.tolist() == [0] * 10 or len(view.tolist()) == 10


EXPORTS = {
    "memoryview": memoryview,
    "ndarray": np.asarray,
    "frombuffer": lambda s: np.frombuffer(s, np.uint8),
    "slice of an ndarray": lambda s: np.asarray(s)[1:2],
    "memoryview of a view": lambda s: memoryview(s[1:2]),
    "DLPack": np.from_dlpack,
}


@pytest.mark.parametrize("kind", EXPORTS)
def test_bytes_do_not_move_under_an_export(kind):
    s = ByteStorage([1, 2, 3])
    export = EXPORTS[kind](s)
    for move in (lambda: s.resize_(10), s.share_memory_):
        with pytest.raises(StorageBusy, match="export"):
            move()
        with pytest.raises(BufferError):
            move()
    assert s.tolist() == [1, 2, 3]
    del export
    gc.collect()
    assert s.resize_(4).tolist() == [1, 2, 3, 0]


def test_an_export_keeps_the_bytes_alive():
    array = np.asarray(ByteStorage([5, 6, 7]))
    gc.collect()
    assert array.tolist() == [5, 6, 7]


def test_failed_calls_leave_no_export_behind():
    s = ByteStorage([1, 2, 3])
    caught = []
    for bad in (lambda: s[0:2].__setitem__(5, 1), lambda: s.copy_(b"1"), lambda: s[0:3].view(7), lambda: s[0:3][5]):
        try:
            bad()
        except Exception as error:
            caught.append(error)  # with its traceback, and all frames in it
    assert len(caught) == 4
    s.resize_(10)


def test_buffer_protocol():
    s = ByteStorage([1, 2, 3])
    view = memoryview(s)
    assert (view.format, view.shape, view.readonly, view.itemsize) == ("B", (3,), False, 1)
    view[0] = 9
    assert s[0] == 9
    assert np.shares_memory(np.asarray(s), view)
    assert bytes(s) == b"\x09\x02\x03"


def test_from_buffer_shares_and_keeps_the_source():
    source = bytearray(b"abcdef")
    s = ByteStorage.from_buffer(source, offset=1, count=3)
    s[0] = ord("X")
    assert source == b"aXcdef"
    with pytest.raises(BufferError):
        source.extend(b"more")
    with pytest.raises(StorageError, match="borrowed bytes keep their size"):
        s.resize_(10)
    assert bytes(s) == b"Xcd"
    array = np.arange(4, dtype=np.float32)
    assert ByteStorage.from_buffer(array).nbytes() == 16
    assert len(ByteStorage.from_buffer(b"")) == 0


def test_read_only_sources_stay_read_only():
    s = ByteStorage.from_buffer(b"abc")
    assert s.readonly
    for write in (lambda: s.fill_(0), lambda: s.__setitem__(0, 1), lambda: s[0:1].fill_(1), lambda: s.copy_(b"xyz")):
        with pytest.raises(StorageError, match="read-only"):
            write()
    assert memoryview(s).readonly
    assert not np.asarray(s).flags.writeable
    assert bytes(s) == b"abc"
    assert not s.clone().readonly


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([1, 2],), InvalidDType),
        ((np.zeros((4, 4), np.uint8)[:, 1],), StorageError),
        ((b"abc", np.float32), InvalidDType),
        ((b"abc", np.uint8, "mps"), InvalidArgument),
    ],
)
def test_from_buffer_refuses(arguments, error):
    with pytest.raises(error):
        ByteStorage.from_buffer(*arguments)


@pytest.mark.parametrize(("offset", "count"), [(4, -1), (-1, 1), (0, 4), (2, 2), (0, -2), (2**63, 1)])
def test_from_buffer_bounds(offset, count):
    with pytest.raises(InvalidArgument, match="outside"):
        ByteStorage.from_buffer(b"abc", offset=offset, count=count)


def test_new_quint8_storage_is_a_view():
    s = ByteStorage(range(6))
    q = s.new_quint8_storage(2, 3)
    q[1, 2] = 200
    assert s.tolist() == [0, 1, 2, 3, 4, 200]
    assert s.new_quint8_storage().shape == (6,)
    assert s.new_quint8_storage((2, 2)).tolist() == [[0, 1], [2, 3]]
    with pytest.raises(StorageError, match="the storage has 6"):
        s.new_quint8_storage(7)
    with pytest.raises(InvalidArgument):
        s.new_quint8_storage(-1)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_plain_pickle_carries_the_bytes(protocol):
    s = ByteStorage([1, 2, 3])
    got = pickle.loads(pickle.dumps(s, protocol))
    got[0] = 9
    assert (s.tolist(), got.tolist()) == ([1, 2, 3], [9, 2, 3])
    s.resize_(10)  # the pickle left no export behind


def test_a_pickle_can_carry_the_bytes_out_of_band():
    buffers = []
    data = pickle.dumps(ByteStorage.full(10000, 1), 5, buffer_callback=buffers.append)
    assert len(data) < 200
    assert pickle.loads(data, buffers=buffers).tolist() == [1] * 10000


def test_repr():
    assert repr(ByteStorage([1, 2])) == "ByteStorage([1, 2], nbytes=2, device='cpu', heap)"
    assert "15, ...], nbytes=20" in repr(ByteStorage(range(20)))
