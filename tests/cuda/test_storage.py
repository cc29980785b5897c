"""Bytes and arrays on a GPU, and how they get there and back."""

import copy
import gc
import pickle

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import CudaUnavailable, InvalidArgument, OutOfMemory, ShapeMismatch, StorageBusy, StorageError


def test_bytes(gpu):
    s = qk.ByteStorage.full(5, 7, device="cuda:0")
    assert isinstance(s, qk.ByteStorage)
    assert (s.device, s.nbytes(), len(s), s.tolist()) == ("cuda:0", 5, 5, [7] * 5)
    s[1], s[-1] = 9, 255
    assert (s[0], s[1], s[-1], s[1:3].tolist()) == (7, 9, 255, [9, 7])
    s[2:4] = [1, 2]
    assert s.clone().tolist() == s.cpu().tolist() == [7, 9, 1, 2, 255]
    assert s.fill_(3).tolist() == [3] * 5
    assert s.copy_(b"abcde").tolist() == list(b"abcde")
    assert qk.ByteStorage(5).copy_(s).tolist() == list(b"abcde")
    assert s[1:4].copy_(s[0:3]).tolist() == list(b"abc")  # overlap is safe
    assert repr(s) == "ByteStorage([97, 97, 98, 99, 101], nbytes=5, device='cuda:0')"
    with pytest.raises(IndexError):
        s[5]
    with pytest.raises(InvalidArgument, match="a byte holds 0 to 255, got 256"):
        s[0] = 256
    with pytest.raises(ShapeMismatch, match="copy_: wanted 5 bytes, got 2"):
        s.copy_(b"ab")
    assert s.resize_(7).tolist() == [97, 97, 98, 99, 101, 0, 0]
    assert s.resize_(2).tolist() == [97, 97]
    assert qk.ByteStorage.empty(0, device="cuda").tolist() == []


def test_moving(gpu):
    s = qk.ByteStorage(range(10))
    assert s.cpu() is s
    on = s.cuda()
    assert on.cuda() is on
    assert on.to("cuda:0") is on
    assert on.cpu().tolist() == list(range(10))
    assert qk.ByteStorage.from_buffer(b"xyz", device="cuda:0").tolist() == list(b"xyz")
    big = np.random.default_rng(0).integers(0, 256, 20_000_001, np.uint8)  # through pinned memory, in pieces
    a = qk.from_numpy(big).to("cuda:0")
    assert np.array_equal(a.cpu().int_repr(), big)
    if qk.cuda.device_count() > 1:
        other = on.to("cuda:1")
        assert (other.device, other.tolist()) == ("cuda:1", list(range(10)))
        assert on.clone().copy_(other.fill_(1)).tolist() == [1] * 10


def test_bytes_that_the_cpu_may_not_touch(gpu):
    s = qk.ByteStorage.full(4, 1, device="cuda:0")
    for use in (memoryview, np.asarray, bytes, lambda s: np.asarray(s.new_quint8_storage(2, 2))):
        with pytest.raises(StorageError, match=r"on cuda:0.*\.cpu\(\)"):
            use(s)
    with pytest.raises(StorageError, match=r"\.cpu\(\)"):
        memoryview(qk.full((2,), 1.0, device="cuda:0").storage())


def test_pickles_and_copies(gpu):
    s = qk.ByteStorage.full(4, 1, device="cuda:0")
    a = qk.full((2, 3), 1.5, dtype=np.float32, device="cuda:0")
    for one in (s, a, qk.full((2,), 3.0, device="cuda:0")):
        for twin in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
            assert twin.device == "cuda:0"
            assert twin.tolist() == one.tolist()
            assert twin.data_ptr() != one.data_ptr()


def test_devices_that_are_none(gpu):
    for name in ("gpu", "cuda:", "cuda:x", "cuda:-1", "mps", "cuda:0:1"):
        with pytest.raises(InvalidArgument, match="the devices are: cpu, cuda, cuda:0"):
            qk.empty(3, device=name)
    with pytest.raises(CudaUnavailable, match="there is no cuda:99: this machine has"):
        qk.empty(3, device="cuda:99")


def test_no_memory_left(gpu):
    with pytest.raises(OutOfMemory, match="the GPU has no memory left"):
        qk.ByteStorage.empty(1 << 46, device="cuda:0")


def test_memory_comes_back(gpu):
    if gpu is None:
        pytest.skip("others use a real GPU's memory as well")
    qk.cuda.memory_info()
    before = qk.cuda.memory_info()
    for _ in range(20):
        s = qk.ByteStorage.full(1 << 20, 1, device="cuda:0")
        del s
    for handle in list(gpu.streams):
        gpu._finish(handle)
    assert qk.cuda.memory_info() == before


# ---- arrays ----------------------------------------------------------------------------------------------------------

KEYS = [
    0, -1, (1, 2), (slice(1, 3),), (slice(None), 1), (..., 0), (None, 1), (slice(None, None, -1), slice(None, None, 2)),
    (1, ..., None), (slice(5, 2),), np.int64(1), (slice(None), slice(None), 3), (1, 2, 3),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_views(gpu, key):
    x = np.arange(4 * 5 * 6, dtype=np.int32).reshape(4, 5, 6)
    a = qk.from_numpy(x).to("cuda:0")
    got, wanted = a[key], x[key]
    if not isinstance(wanted, np.ndarray):
        assert got == wanted
        a[key] = 7
        x = x.copy()
        x[key] = 7
    else:
        assert got.tolist() == wanted.tolist()
        assert got.shape == wanted.shape
        got.fill_(-1)  # a view: what it changes is changed
        x = x.copy()
        x[key] = -1
    assert a.tolist() == x.tolist()


def test_masks_and_lists(gpu):
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    a = qk.from_numpy(x.copy()).to("cuda:0")
    assert a[[2, 0]].tolist() == x[[2, 0]].tolist()
    assert a[x > 7].device == "cuda:0"
    a[x > 7] = 0
    x[x > 7] = 0
    assert a.tolist() == x.tolist()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64", "float16", "float32", "float64", "bool"])
def test_values(gpu, dtype):
    one, zero = (True, False) if dtype == "bool" else (1, 0)
    a = qk.full((3, 4), one, dtype=dtype, device="cuda:0")
    x = np.ones((3, 4), dtype)
    a[1, :] = zero
    x[1, :] = zero
    a[:, ::2] = np.array([[one], [zero], [one]])
    x[:, ::2] = np.array([[one], [zero], [one]])
    assert a.tolist() == x.tolist()
    assert (a.dtype, a.shape, a.stride(), a.nbytes) == (x.dtype, x.shape, (4, 1), x.nbytes)
    a[0] = a[2]
    a[:, 1:] = a[:, :-1]  # overlap is safe
    x[0] = x[2]
    x[:, 1:] = x[:, :-1].copy()
    assert a.tolist() == x.tolist()
    assert a.T.clone().tolist() == x.T.tolist()
    assert a.reshape(2, -1).tolist() == x.reshape(2, -1).tolist()
    assert a.T.reshape(12).tolist() == x.T.reshape(12).tolist()
    assert a.permute(1, 0).contiguous().is_contiguous()
    assert a.astype(np.float64).tolist() == x.astype(np.float64).tolist()
    with pytest.raises(ShapeMismatch, match="give no view"):
        a.T.view(12)
    assert bool(a[0, 0]) == bool(x[0, 0])
    assert repr(a).endswith(f", dtype={dtype}, device='cuda:0')")


def test_between_devices(gpu):
    a = qk.full((2, 3), 5, dtype=np.int32, device="cuda:0")
    host = qk.full((2, 3), 0, dtype=np.int32)
    host[:, 1:] = a[:, 1:]
    assert host.tolist() == [[0, 5, 5], [0, 5, 5]]
    a.copy_(host)
    assert a.tolist() == host.tolist()
    a[1] = qk.full((3,), 2.0, dtype=np.float32, device="cuda:0").astype(np.int32)
    assert a.tolist() == [[0, 5, 5], [2, 2, 2]]
    with pytest.raises(InvalidArgument, match="uint8 holds 0 to 255, got 300"):
        qk.empty(3, dtype=np.uint8, device="cuda:0")[0] = 300


def test_tensors(gpu):
    t = qk.quantize(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), 0.01, 100)
    on = t.to("cuda:0")
    assert (on.device, on.shape, on.scale, on.dtype) == ("cuda:0", (3, 4), t.scale, qk.quint8)
    assert isinstance(on.storage(), qk.QUInt8Storage)
    assert on.equal(t)
    assert on.cpu().equal(t)
    assert on.dequantize().tolist() == t.dequantize().tolist()
    on[0] = 0.5
    t[0] = 0.5
    on.storage()[1, 1] = 200
    t.storage()[1, 1] = 200
    assert on.equal(t)
    assert (on.max(), on.min(), on[1, 1].item()) == (t.max(), t.min(), t[1, 1].item())
    assert bytes(on) == bytes(t)
    assert repr(on) == repr(t)[:-1] + ", device='cuda:0')"
    assert on.T[1].tolist() == t.T[1].tolist()
    assert qk.randint(0, 10, (5,), seed=1, device="cuda:0").tolist() == qk.randint(0, 10, (5,), seed=1).tolist()
    assert qk.as_tensor(on) is on
    assert qk.as_tensor(t, device="cuda:0").device == "cuda:0"
    assert qk.as_tensor(qk.ByteStorage.full(3, 4, device="cuda:0"), scale=0.5).tolist() == [2.0, 2.0, 2.0]
    per_channel = qk.quantize(np.eye(3, dtype=np.float32), axis=0)
    assert per_channel.cuda()[1].equal(per_channel[1])


# ---- other libraries ------------------------------------------------------------------------------------------------


class Theirs:
    """An array of another library, by the interface that it offers."""

    def __init__(self, array, *offers):
        self.array = array
        for name in offers:
            setattr(self, name, getattr(array, name))


def test_cuda_array_interface(gpu):
    a = qk.full((2, 3), 1.5, dtype=np.float32, device="cuda:0")
    told = a[:, ::2].__cuda_array_interface__
    assert told["version"] == 3
    assert (told["shape"], told["strides"], told["typestr"]) == ((2, 2), (12, 8), "<f4")
    assert told["data"] == (a.data_ptr(), False)
    assert told["stream"] == 1  # the legacy stream: there is no other current one
    b = qk.as_tensor(Theirs(a[:, ::2], "__cuda_array_interface__"))
    assert b.device == "cuda:0"
    b.fill_(2)
    assert a.tolist() == [[2, 1.5, 2]] * 2
    assert not hasattr(qk.full(3, 1.0), "__cuda_array_interface__")


def test_dlpack(gpu):
    a = qk.full((2, 3), 7, dtype=np.uint8, device="cuda:0")
    assert a.__dlpack_device__() == (2, 0)
    b = qk.from_dlpack(Theirs(a.T, "__dlpack__", "__dlpack_device__"))
    assert (b.device, b.shape, b.dtype, b.stride()) == ("cuda:0", (3, 2), qk.quint8, (1, 3))
    b.storage()[0, :] = 9
    assert a.tolist() == [[9, 7, 7], [9, 7, 7]]
    with pytest.raises(StorageBusy, match="1 export"):  # the importer has an address
        a.storage().resize_(100)
    del b
    gc.collect()
    a.__dlpack__()  # never taken: dropped with its capsule
    assert a.storage()._exports == 0
    assert hasattr(qk.full((2,), 1.0, device="cuda:0"), "__dlpack__")
