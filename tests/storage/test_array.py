import copy
import hashlib
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantkit.errors import InvalidArgument, InvalidDType, OutOfMemory, ShapeMismatch, StorageBusy, StorageError
from quantkit.storage import Array, ByteStorage, QUInt8Storage
from quantkit.storage.dtypes import element_type

DTYPES = ["uint8", "int8", "int32", "int64", "float16", "float32", "float64", "bool"]


def make(array):
    """An Array with the elements of an ndarray, on bytes of its own."""
    etype = element_type(array.dtype)
    made = Array(ByteStorage(array.size * etype.itemsize), array.shape, array.dtype)
    return made.copy_(array)


def base(shape=(3, 4, 5)):
    return np.arange(np.prod(shape), dtype=np.int32).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_holds_its_values(dtype):
    values = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    a = make(values)
    assert (a.dtype, a.shape, a.strides, a.itemsize) == (values.dtype, (2, 3), values.strides, values.itemsize)
    assert (a.ndim, a.size, a.nbytes, len(a), a.device) == (2, 6, values.nbytes, 2, "cpu")
    assert a.stride() == (3, 1)
    assert a.tolist() == values.tolist()
    assert type(a[0, 1]) is type(values[0, 1].item())
    got = np.asarray(a)
    assert got.dtype == values.dtype
    assert got.flags.writeable
    assert np.shares_memory(got, np.asarray(a.storage()))
    assert memoryview(a).format == memoryview(values).format


def test_bfloat16_has_no_buffer_format_and_works_all_the_same():
    bfloat16 = np.dtype(pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 of its own").bfloat16)
    values = (np.arange(6).reshape(2, 3) / 3).astype(bfloat16)
    a = make(values)
    assert a.dtype == np.asarray(a).dtype == bfloat16
    assert np.shares_memory(np.asarray(a), np.asarray(a.storage()))
    assert a[0, 1] == float(values[0, 1])
    assert np.array_equal(np.asarray(a.T[1:]), values.T[1:])
    a[0] = 1.5
    assert a[0].tolist() == [1.5] * 3
    assert (a + 1).dtype == bfloat16
    assert pickle.loads(pickle.dumps(a)).dtype == bfloat16
    with pytest.raises(BufferError, match="bfloat16"):
        memoryview(a)
    with pytest.raises(BufferError, match="bfloat16"):
        np.from_dlpack(a)
    a.resize_(3, 3)  # no export is left


INDICES = [
    np.s_[0], np.s_[-1], np.s_[1, 2], np.s_[1, -1, 3], np.s_[1:], np.s_[::-1], np.s_[:, ::2], np.s_[..., 1],
    np.s_[0, ..., 1:3], np.s_[None], np.s_[:, None, 1], np.s_[5:], np.s_[1:1], np.s_[()], np.s_[...],
    np.s_[[0, 2]], np.s_[[2, 0, 0], [1, 2, 3]], np.s_[:, [1, -1]], np.s_[base() % 2 == 0], np.s_[[True, False, True]],
    np.s_[0, base()[0] > 7], np.s_[np.array([[0, 1], [2, 0]])], np.s_[-1:-4:-1, 3:0:-2, ::3],
]  # fmt: skip


@pytest.mark.parametrize("key", INDICES, ids=range(len(INDICES)))
def test_indexing_is_numpys_for_get_and_set(key):
    expected = base()
    a = make(expected)
    got, wanted = a[key], expected[key]
    assert np.array_equal(got, wanted)
    assert np.shape(got) == wanted.shape
    if isinstance(got, Array) and got.size:
        is_view = np.shares_memory(np.asarray(a), np.asarray(got))
        assert is_view == np.shares_memory(expected, wanted)
    a[key] = 1000
    expected[key] = 1000
    assert np.array_equal(a, expected)


@given(st.data())
def test_any_index_is_numpys(data):
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=5))
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True) | hnp.integer_array_indices(shape))
    expected = base(shape)
    a = make(expected)
    assert np.array_equal(a[key], expected[key])
    a[key] = np.ones(np.shape(expected[key]), np.int32)
    expected[key] = 1
    assert np.array_equal(a, expected)


@pytest.mark.parametrize("key", [3, -4, (0, 4), (0, 0, 0, 0), [3], "a", 1.5, (slice(None), [0, 9])])
def test_bad_indices(key):
    a = make(base())
    with pytest.raises((IndexError, ValueError)):
        a[key]
    a.resize_(3, 4, 6)


def test_arrays_are_indices_too():
    a = make(base((5,)))
    assert a[make(np.array([3, 1]))].tolist() == [3, 1]
    assert a[make(np.array([True, False, True, False, False]))].tolist() == [0, 2]


def test_set_broadcasts_and_takes_overlapping_views():
    a = make(base((3, 4)))
    a[...] = [1, 2, 3, 4]
    a[:, 0] = a[:, 1]
    assert a.tolist() == [[2, 2, 3, 4]] * 3
    b = make(base((6,)))
    b[1:] = b[:-1]
    assert b.tolist() == [0, 0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="broadcast"):
        a[...] = [1, 2, 3]
    a.fill_(np.array([[1], [2], [3]]))
    assert a[:, 3].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("dtype", "value", "error", "message"),
    [
        ("uint8", 256, InvalidArgument, "uint8 holds 0 to 255, got 256"),
        ("uint8", -1, InvalidArgument, "got -1"),
        ("int8", [1, 128], InvalidArgument, "int8 holds -128 to 127, got 128"),
        ("uint8", np.array([-3, 4]), InvalidArgument, "got -3"),
        ("int32", 2**40, InvalidArgument, "int32"),
        ("uint8", 1.0, InvalidDType, "wanted integers for elements of uint8, got float64"),
        ("uint8", "a", InvalidDType, "integers"),
        ("bool", 1, InvalidDType, "booleans"),
        ("float32", 1j, InvalidDType, "real numbers"),
        ("float32", None, InvalidDType, "real numbers"),
    ],
)
def test_values_that_do_not_fit(dtype, value, error, message):
    a = Array(ByteStorage(64), (2,), dtype)
    with pytest.raises(error, match=message):
        a[...] = value
    with pytest.raises(error, match=message):
        a.fill_(value)


def test_views_without_a_copy():
    expected = base()
    a = make(expected)
    pairs = [
        (a.reshape(12, 5), expected.reshape(12, 5)),
        (a.reshape(-1), expected.reshape(-1)),
        (a.view((4, 15)), expected.reshape(4, 15)),
        (a.permute(2, 0, 1), expected.transpose(2, 0, 1)),
        (a.transpose(), expected.T),
        (a.transpose(0, 2), expected.swapaxes(0, 2)),
        (a.transpose((1, 0, 2)), expected.transpose(1, 0, 2)),
        (a.T[1:, ::-1], expected.T[1:, ::-1]),
        (a[:, 1:3].permute(1, 0, 2), expected[:, 1:3].transpose(1, 0, 2)),
    ]
    for got, wanted in pairs:
        assert np.array_equal(got, wanted)
        assert got.strides == wanted.strides
        assert got.storage() is a.storage()
        assert got.is_contiguous() == wanted.flags.c_contiguous
    copied = a.T.reshape(-1)
    assert np.array_equal(copied, expected.T.reshape(-1))
    assert copied.storage() is not a.storage()
    with pytest.raises(ShapeMismatch, match="use reshape"):
        a.T.view(60)
    with pytest.raises(ValueError, match="reshape"):
        a.reshape(7)


def test_clone_and_contiguous():
    a = make(base())
    assert a.contiguous() is a
    part = a.T[::2]
    for copied in (part.clone(), part.contiguous(), copy.copy(part), copy.deepcopy(part)):
        assert copied.is_contiguous()
        assert np.array_equal(copied, part)
        copied.fill_(0)
    assert np.array_equal(a, base())


def test_views_follow_their_storage():
    a = make(base((4,)))
    view = a[1:3]
    a.storage().resize_(1 << 16)
    a[1] = 50
    assert view.tolist() == [50, 2]


def test_resize_grows_keeps_order_and_zeroes():
    a = make(base((2, 3)))
    assert a.resize_(3, 3) is a
    assert a.tolist() == [[0, 1, 2], [3, 4, 5], [0, 0, 0]]
    assert a.resize_((2, 2)).tolist() == [[0, 1], [2, 3]]
    assert len(a.storage()) == 36  # never shrinks, so that views of it stay whole
    with pytest.raises(StorageError, match="contiguous"):
        a.T.resize_(9)
    view = np.asarray(a)
    with pytest.raises(StorageBusy):
        a.resize_(3)
    del view
    with pytest.raises(InvalidArgument):
        a.resize_(-1)
    with pytest.raises(OutOfMemory):
        a.resize_(2**40, 2**40)


@pytest.mark.parametrize(
    ("shape", "offset", "strides"),
    [
        ((17,), 0, None),
        ((1,), 61, None),
        ((1,), -1, None),
        ((4,), 0, (-4,)),
        ((2, 2), 0, (64, 4)),
        ((2,), 0, (2**62,)),
        ((4, 4), 4, None),
    ],
)
def test_elements_lie_inside_the_storage(shape, offset, strides):
    with pytest.raises(StorageError):
        Array(ByteStorage(64), shape, "float32", offset, strides)


def test_unusual_layouts():
    s = ByteStorage(64)
    assert Array(s, (4,), "float32", 60, (-4,)).strides == (-4,)
    spread = Array(s, (1000, 4), "float32", 0, (0, 4))
    spread[0, 0] = 3
    assert spread[999, 0] == 3
    assert Array(s, (0, 5), "float32", 64).tolist() == []
    assert Array(s, (), "float32").fill_(2).item() == 2.0
    for shape in ((2**40, 2**40), (2**62,)):
        with pytest.raises(OutOfMemory):
            Array(s, shape, "float32")
    with pytest.raises(StorageError, match="stride"):
        Array(s, (2,), "float32", 0, (4, 4))
    with pytest.raises(InvalidDType, match="complex64"):
        Array(s, (1,), np.complex64)
    with pytest.raises(InvalidDType, match="ByteStorage"):
        Array(bytearray(4), (1,), "float32")
    with pytest.raises(InvalidDType):
        Array(s, (1,), ">f4")


@pytest.mark.parametrize("order", ["C", "F", "neither"])
def test_buffers_are_given_only_in_a_layout_that_was_asked_for(order):
    a = make(base((3, 4)))
    a = {"C": a, "F": a.T, "neither": a[:, ::2]}[order]
    wanted = np.asarray(a)
    view = memoryview(a)
    assert (view.shape, view.strides, view.tolist()) == (wanted.shape, wanted.strides, wanted.tolist())
    assert (view.c_contiguous, view.f_contiguous) == (order == "C", order == "F")
    if order == "C":
        assert hashlib.sha256(a.reshape(-1)).digest() == hashlib.sha256(wanted.tobytes()).digest()
    else:
        with pytest.raises(BufferError, match="not contiguous"):
            hashlib.sha256(a)


def test_numpy_functions_and_operators_give_ndarrays():
    a, b = make(base((2, 3))), make(base((2, 3)))
    for got, wanted in [
        (a + b, base((2, 3)) * 2),
        (1 - a, 1 - base((2, 3))),
        (a @ b.T, base((2, 3)) @ base((2, 3)).T),
        (a == b, np.ones((2, 3), bool)),
        (np.concatenate([a, b]), np.concatenate([base((2, 3))] * 2)),
        (np.sqrt(a), np.sqrt(base((2, 3)))),
        (np.ones((2, 3)) * a, base((2, 3)) * 1.0),
    ]:
        assert type(got) is np.ndarray
        assert np.array_equal(got, wanted)
    a += 10
    assert isinstance(a, Array)
    assert a[0, 0] == 10
    np.add(a, 1, out=a)
    assert a[0, 0] == 11
    assert np.asarray(a, np.float64).dtype == np.float64
    assert np.array(a).base is None


def test_small_protocols():
    a = make(base((2, 3)))
    assert [row.tolist() for row in a] == [[0, 1, 2], [3, 4, 5]]
    assert a[0, 1:2].item() == 1
    assert a.astype("float32").dtype == np.float32
    assert a.data.tolist() == a.tolist()
    assert bool(a[1, 2:3])
    with pytest.raises(TypeError):
        hash(a)
    with pytest.raises(TypeError, match="0-d"):
        len(Array(ByteStorage(4), (), "int32"))
    with pytest.raises(ShapeMismatch, match="one element"):
        a.item()
    with pytest.raises(ValueError, match="ambiguous"):
        bool(a)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_plain_pickle_carries_the_elements_and_not_the_storage_around_them(protocol):
    a = Array(ByteStorage(1 << 20), (512, 512), "float32").fill_(0)
    a[:, 3] = np.arange(512)
    data = pickle.dumps(a[10:20, 3], protocol)
    assert len(data) < 1000
    got = pickle.loads(data)
    assert got.tolist() == list(range(10, 20))
    assert got.dtype == np.float32
    a.resize_(600, 512)


@pytest.mark.parametrize(
    "state",
    [
        (Array, "float32", (3,), b"1234"),
        (Array, "float32", (-1,), b""),
        (Array, "object", (1,), b"12345678"),
        (dict, "uint8", (4,), b"1234"),
        (Array, "uint8", (4,), [1, 2, 3, 4]),
        (Array, "uint8", "shape", b"1234"),
    ],
)
def test_foreign_pickles(state):
    from quantkit.storage import array

    class Foreign:
        def __reduce__(self):
            return array._unpickle, state

    with pytest.raises((StorageError, InvalidDType, InvalidArgument)):
        pickle.loads(pickle.dumps(Foreign()))


def test_repr_is_numpys():
    a = make(base((2, 3)))
    assert repr(a) == "Array([[0, 1, 2],\n       [3, 4, 5]], dtype=int32)"


def test_dlpack_both_ways():
    a = make(base((2, 3)))
    got = np.from_dlpack(a)
    got[0, 0] = 5
    assert a[0, 0] == 5
    assert a.__dlpack_device__() == (1, 0)
    torch = pytest.importorskip("torch", reason="torch is optional")
    shared = torch.from_dlpack(a.T)
    shared[0, 1] = 77
    assert a[1, 0] == 77


def test_quint8_storage():
    s = QUInt8Storage(10, 20)
    assert (s.shape, s.stride(), s.device, str(s.dtype)) == ((10, 20), (20, 1), "cpu", "quantkit.quint8")
    assert not np.asarray(s).any()
    s[0, 0] = 100
    s[0:5, :] = 255
    assert (s[0, 0], s[4, 19], s[5, 0]) == (255, 255, 0)
    assert isinstance(s[0:2], QUInt8Storage)
    assert s.resize_(20, 10).shape == (20, 10)
    assert repr(QUInt8Storage(2)) == "QUInt8Storage([0, 0])"
    assert QUInt8Storage((2, 3)).shape == QUInt8Storage([2, 3]).shape == (2, 3)
    got = pickle.loads(pickle.dumps(s))
    assert isinstance(got, QUInt8Storage)
    assert np.array_equal(got, s)
    with pytest.raises(InvalidArgument, match="0 to 255"):
        s[0, 0] = 256
    for bad in ((-1,), ("a",), (2.5,)):
        with pytest.raises(InvalidArgument):
            QUInt8Storage(*bad)
    with pytest.raises(OutOfMemory):
        QUInt8Storage(*itertools.repeat(2**16, 4))
