import copy
import hashlib
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import quantkit as qk
from quantkit.errors import InvalidDType, InvalidQParams, ShapeMismatch, StorageBusy


def per_tensor():
    return qk.quantize(np.arange(12.0).reshape(3, 4) - 4, 0.5, 10)


def per_channel(axis=1):
    x = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4) - 7
    n = x.shape[axis]
    return qk.quantize(x, np.array([0.25, 0.5, 1.0, 2.0])[:n], np.arange(n), dtype=qk.qint8, axis=axis)


def test_what_a_tensor_says_about_itself():
    t = per_tensor()
    assert (t.scale, t.zero_point, t.axis) == (0.5, 10, None)
    assert (t.shape, t.strides, t.stride(), t.ndim, t.size, t.nbytes) == ((3, 4), (4, 1), (4, 1), 2, 12, 12)
    assert (t.dtype, t.device, len(t), t.is_contiguous()) == (qk.quint8, "cpu", 3, True)
    assert t.int_repr().tolist() == [[2, 4, 6, 8], [10, 12, 14, 16], [18, 20, 22, 24]]
    assert t.dequantize().dtype == np.float32
    assert t.dequantize().tolist() == (np.arange(12.0).reshape(3, 4) - 4).tolist()
    assert isinstance(t.storage(), qk.QUInt8Storage)
    assert t.data_ptr() == t.storage().data_ptr()
    w = per_channel()
    assert w.dtype is qk.qint8
    assert w.scale.tolist() == [0.25, 0.5, 1.0]
    assert w.zero_point.tolist() == [0, 1, 2]
    assert w.axis == 1
    for array in (w.scale, w.zero_point):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    assert w.qparams == qk.QParams([0.25, 0.5, 1.0], [0, 1, 2], 1)


def test_the_codes_are_seen_without_a_copy():
    t = per_tensor()
    codes = np.asarray(t)
    assert codes.dtype == np.uint8
    codes[0, 0] = 200
    assert t.int_repr()[0, 0] == 200
    np.from_dlpack(t)[0, 1] = 201
    assert t.storage()[0, 1] == 201
    assert np.asarray(t, np.uint8).flags.writeable
    assert not np.shares_memory(np.array(t), codes)
    assert bytes(t) == codes.tobytes()
    assert hashlib.sha256(t.reshape(-1)).digest() == hashlib.sha256(codes.tobytes()).digest()
    with pytest.raises(StorageBusy):
        t.share_memory_()
    assert memoryview(t.storage()).shape == (3, 4)
    with pytest.raises(BufferError, match="storage"):
        memoryview(t)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int32, object])
def test_codes_never_pass_for_numbers(dtype):
    for convert in (np.asarray, np.array):
        with pytest.raises(TypeError, match="dequantize"):
            convert(per_tensor(), dtype)


def test_one_element():
    t = per_tensor()
    one = t[2, 3]
    assert isinstance(one, qk.QTensor)
    assert (one.shape, one.item(), float(one)) == ((), 7.0, 7.0)
    one[()] = 1.0
    assert t[2, 3].item() == 1.0
    with pytest.raises(ShapeMismatch):
        t.item()
    assert [float(v) for v in t[0]] == [-4.0, -3.0, -2.0, -1.0]
    assert t[0].tolist() == [-4.0, -3.0, -2.0, -1.0]


@given(st.data())
def test_parameters_follow_any_index(data):
    t = per_channel(data.draw(st.integers(0, 2)))
    key = data.draw(hnp.basic_indices(t.shape, allow_newaxis=True) | hnp.integer_array_indices(t.shape))
    wanted = t.dequantize()[key]
    try:
        got = t[key]
    except InvalidQParams:  # channels along several axes: only a result of several axes can have that
        assert np.ndim(wanted) > 1
        return
    assert got.shape == wanted.shape
    assert np.array_equal(got.dequantize(), wanted)
    if got.axis is not None:
        assert len(got.scale) == got.shape[got.axis]


@pytest.mark.parametrize(
    ("key", "axis", "scale"),
    [
        (np.s_[0], 0, [0.25, 0.5, 1.0]),
        (np.s_[:, 1], None, 0.5),
        (np.s_[:, ::-1], 1, [1.0, 0.5, 0.25]),
        (np.s_[:, 1:2], 1, [0.5]),
        (np.s_[None, ..., 0], 2, [0.25, 0.5, 1.0]),
        (np.s_[:, [2, 0]], 1, [1.0, 0.25]),
        (np.s_[[1]], 1, [0.25, 0.5, 1.0]),
        (np.s_[0, [True, False, True]], 0, [0.25, 1.0]),
    ],
)
def test_where_the_channel_axis_goes(key, axis, scale):
    got = per_channel()[key]
    assert got.axis == axis
    assert np.array_equal(got.scale, scale)


def test_rearranging_moves_the_channel_axis():
    t = per_channel()
    x = t.dequantize()
    for got, wanted, axis in [
        (t.permute(2, 1, 0), x.transpose(2, 1, 0), 1),
        (t.permute(1, 2, 0), x.transpose(1, 2, 0), 0),
        (t.T, x.T, 1),
        (t.transpose(1, 2), x.swapaxes(1, 2), 2),
        (t.reshape(2, 3, 2, 2), x.reshape(2, 3, 2, 2), 1),
        (t.reshape(1, 2, 3, -1), x.reshape(1, 2, 3, 4), 2),
        (t.view(2, 3, 4, 1), x.reshape(2, 3, 4, 1), 1),
        (t.reshape(6, 4), x.reshape(6, 4), 0),
    ]:
        assert np.array_equal(got.dequantize(), wanted)
        assert got.axis == axis
        assert got.storage().storage() is t.storage().storage()
    with pytest.raises(InvalidQParams, match="dequantize"):
        per_channel(2).reshape(2, 3, 2, 2)
    assert per_tensor().reshape(-1).shape == (12,)


def test_setting_takes_real_values():
    t = per_tensor()
    t[0] = 1.5
    t[1, 1:] = [0.0, 0.25, 1000.0]
    t[t.dequantize() == 7.0] = -1.0
    assert t.dequantize().tolist() == [[1.5] * 4, [0.0, 0.0, 0.0, 122.5], [4.0, 5.0, 6.0, -1.0]]
    t.storage()[0, 0] = 255
    assert t[0, 0].item() == 122.5
    assert t.fill_(2.0).dequantize().tolist() == [[2.0] * 4] * 3
    t.copy_(np.arange(4.0))
    assert t[2].dequantize().tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(InvalidDType, match="real numbers"):
        t[0] = "a"
    with pytest.raises((ShapeMismatch, ValueError)):
        t[0] = [1.0, 2.0]


@given(st.data())
def test_setting_any_elements_of_channels(data):
    t = per_channel(data.draw(st.integers(0, 2)))
    key = data.draw(hnp.basic_indices(t.shape, allow_newaxis=True) | hnp.integer_array_indices(t.shape))
    wanted = t.dequantize()
    wanted[key] = 4.0
    t[key] = 4.0
    assert np.array_equal(t.dequantize(), wanted)


def test_set_of_channels_checks_shapes():
    t = per_channel()
    t[:, 1] = np.full((2, 4), 2.0)
    assert t.dequantize()[:, 1].tolist() == [[2.0] * 4] * 2
    with pytest.raises(ShapeMismatch, match=r"\(3,\)"):
        t[:, 1] = [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("codes", "qparams"),
    [
        ("uint8", qk.QParams(1.0, -1)),
        ("int8", qk.QParams(1.0, 128)),
        ("uint8", qk.QParams([1.0, 1.0], [0, 0], 0)),
        ("uint8", qk.QParams([1.0, 1.0], [0, 0], 2)),
    ],
)
def test_parameters_must_fit_codes_and_shape(codes, qparams):
    with pytest.raises(InvalidQParams):
        qk.QTensor(qk.Array(qk.ByteStorage(6), (3, 2), codes), qparams)


def test_only_codes_make_a_tensor():
    with pytest.raises(InvalidDType):
        qk.QTensor(qk.Array(qk.ByteStorage(8), (2,), "float32"))
    with pytest.raises(InvalidDType, match="as_tensor"):
        qk.QTensor(np.zeros(3, np.uint8))
    t = qk.QTensor(qk.QUInt8Storage(2, 3), qk.QParams([1.0, 2.0, 3.0], 0, -1))
    assert t.axis == 1


def test_resize():
    t = per_tensor()
    t.resize_(2, 8)
    assert t.shape == (2, 8)
    assert t.int_repr()[1].tolist() == [18, 20, 22, 24, 0, 0, 0, 0]
    w = per_channel(0)
    assert w.resize_(2, 100).shape == (2, 100)
    for bad in ((3, 4), ()):
        with pytest.raises(InvalidQParams, match="2 channels"):
            w.resize_(*bad)


def test_copies_are_independent():
    for t in (per_tensor(), per_channel()):
        for copied in (t.clone(), copy.copy(t), copy.deepcopy(t), t.T.contiguous().T, pickle.loads(pickle.dumps(t))):
            assert t.equal(copied)
            copied.storage()[0] = 1
            assert not t.equal(copied)
        assert t.contiguous() is t


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles(protocol):
    t = per_channel()[:, 1:]
    got = pickle.loads(pickle.dumps(t, protocol))
    assert got.equal(t)
    assert not got.scale.flags.writeable


def test_float_zero_points():
    t = qk.quantize(np.linspace(-1, 1, 5), 1 / 127, 127.5)
    assert t.zero_point == 127.5
    assert t[1:3].zero_point == 127.5
    assert np.abs(t.dequantize() - np.linspace(-1, 1, 5)).max() <= 0.5 / 127 + 1e-6
    t[0] = 0.0
    assert t.int_repr()[0] == 128


def test_repr_shows_values_as_numpy_does():
    assert repr(per_tensor()) == (
        "QTensor([[-4., -3., -2., -1.],\n         [ 0.,  1.,  2.,  3.],\n         [ 4.,  5.,  6.,  7.]], "
        "dtype=quint8, scale=0.5, zero_point=10)"
    )
    assert repr(per_channel()[0, :, 0]) == (
        "QTensor([-7., -3.,  1.], dtype=qint8, scale=[0.25, 0.5 , 1.  ], zero_point=[0, 1, 2], axis=0)"
    )
    assert "scale=0.05, zero_point=1.5" in repr(qk.quantize([0.0], 0.05, 1.5))


@pytest.mark.parametrize("shape", [(5000,), (2000, 3), (40, 40), (3, 2000), (2, 2, 2, 1000)])
def test_repr_of_a_large_tensor_is_numpys(shape):
    x = np.random.default_rng(0).integers(-50, 50, shape).astype(np.float32)
    t = qk.quantize(x, 1.0, 100)
    text = np.array2string(x, separator=", ", prefix="QTensor(")
    assert repr(t) == f"QTensor({text}, dtype=quint8, scale=1.0, zero_point=100)"
