import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import InvalidArgument, InvalidDType, InvalidQParams, OutOfMemory, StorageError


def test_empty():
    t = qk.empty(2, 3)
    assert (t.shape, t.dtype, t.scale, t.zero_point, t.axis) == ((2, 3), qk.quint8, 1.0, 0, None)
    assert qk.empty((2, 3), dtype="qint8").dtype is qk.qint8
    assert t.data_ptr() % 64 == 0
    a = qk.empty([4], dtype=np.float32)
    assert isinstance(a, qk.Array)
    assert (a.shape, a.dtype) == ((4,), np.float32)
    assert isinstance(qk.empty(3, dtype=np.uint8), qk.Array)
    assert qk.empty(()).shape == ()
    assert qk.empty((0, 3)).dequantize().shape == (0, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"size": -1}, InvalidArgument, ">= 0"),
        ({"size": (2, -3)}, InvalidArgument, r"\(2, -3\)"),
        ({"size": 1.5}, InvalidArgument, "integers"),
        ({"size": 2**63}, OutOfMemory, "9223372036854775808"),
        ({"size": (2**40, 2**40)}, OutOfMemory, "cannot hold"),
        ({"size": 2**61, "dtype": np.float32}, OutOfMemory, "cannot"),
        ({"size": 1, "dtype": "complex64"}, InvalidDType, "complex64"),
        ({"size": 1, "dtype": "nonsense"}, InvalidDType, "nonsense"),
        ({"size": 1, "dtype": []}, InvalidDType, "quint8"),
        ({"size": 1, "device": "mps"}, InvalidArgument, "mps"),
        ({"size": 1, "device": "tpu:3"}, InvalidArgument, "tpu:3"),
    ],
)
def test_bad_shapes_dtypes_and_devices(arguments, error, message):
    size = arguments.pop("size")
    with pytest.raises(error, match=message):
        qk.empty(size, **arguments)


def test_full():
    assert qk.full((2, 2), 7).int_repr().tolist() == [[7, 7], [7, 7]]
    assert qk.full(2, 300.0).int_repr().tolist() == [255, 255]
    assert qk.full(2, -3, dtype=qk.qint8).int_repr().tolist() == [-3, -3]
    assert qk.full(2, 1.5, dtype=np.float32).tolist() == [1.5, 1.5]
    with pytest.raises(InvalidArgument):
        qk.full(2, 256, dtype=np.uint8)


def test_randint():
    t = qk.randint(3, 7, (100, 10), seed=1)
    assert set(t.int_repr().ravel().tolist()) == {3, 4, 5, 6}
    assert t.equal(qk.randint(3, 7, (100, 10), seed=1))
    assert not t.equal(qk.randint(3, 7, (100, 10), seed=2))
    assert qk.randint(2, (50,), seed=0).int_repr().max() == 1
    everything = qk.randint((1 << 14,), seed=0)
    assert (everything.int_repr().min(), everything.int_repr().max()) == (0, 255)
    signed = qk.randint((1 << 14,), dtype=qk.qint8, seed=0)
    assert (signed.int_repr().min(), signed.int_repr().max()) == (-128, 127)
    assert qk.randint(-5, 5, (9,), dtype=np.int64, seed=0).dtype == np.int64
    assert qk.randint(-5, 5, (9,), dtype=np.float32, seed=0).dtype == np.float32
    for bad in ((5, 5, 3), (0, 257, 3), (-1, 5, 3), (4,)):
        with pytest.raises(InvalidArgument):
            qk.randint(*bad)


def test_from_buffer():
    source = bytearray(range(16))
    t = qk.from_buffer(source, offset=4, count=3, scale=0.5, zero_point=4)
    assert t.dequantize().tolist() == [0.0, 0.5, 1.0]
    t[0] = 10.0
    assert source[4] == 24
    f = qk.from_buffer(np.arange(4, dtype=np.float32).tobytes(), np.float32)
    assert f.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert f.readonly
    assert qk.from_buffer(bytes(9), np.float32).shape == (2,)
    for arguments in ({"offset": 17}, {"offset": -1}, {"count": 17}, {"count": -2}):
        with pytest.raises(InvalidArgument):
            qk.from_buffer(source, **arguments)
    with pytest.raises(InvalidDType):
        qk.from_buffer([1, 2, 3])
    with pytest.raises(InvalidDType, match="scale"):
        qk.from_buffer(source, np.float32, scale=1.0)


@pytest.mark.parametrize("layout", ["C", "F", "strided", "reversed"])
def test_from_numpy_shares_any_layout(layout):
    base = np.arange(24, dtype=np.uint8).reshape(4, 6)
    array = {"C": base, "F": base.T, "strided": base[1::2, ::3], "reversed": base[::-1, ::-1]}[layout]
    t = qk.from_numpy(array)
    assert t.strides == array.strides
    assert t.dtype is qk.quint8
    assert np.array_equal(t.int_repr(), array)
    t.storage()[0, 0] = 200
    assert array[0, 0] == 200
    wanted = array.copy()
    t.share_memory_()  # the source is no longer aliased
    t.storage()[0, 0] = 1
    assert array[0, 0] == 200
    assert np.array_equal(t.int_repr()[1:], wanted[1:])


def test_from_numpy_dtypes():
    assert qk.from_numpy(np.zeros(3, np.int8)).dtype is qk.qint8
    assert qk.from_numpy(np.zeros(3, np.float64)).dtype == np.float64
    frozen = np.zeros(3, np.uint8)
    frozen.flags.writeable = False
    with pytest.raises(StorageError, match="read-only"):
        qk.from_numpy(frozen)[0] = 1.0
    w = qk.from_numpy(np.zeros((2, 3), np.int8), scale=[0.1, 0.2], axis=0)
    assert w.axis == 0
    for bad in (np.zeros(3, "complex64"), np.zeros(3, ">f4"), np.array(["a"]), [1, 2]):
        with pytest.raises(InvalidDType):
            qk.from_numpy(bad)


def test_memmap_round_trip(tmp_path):
    path = tmp_path / "codes.bin"
    path.write_bytes(bytes(range(12)))
    t = qk.as_tensor(np.memmap(path, np.uint8, "r+", shape=(3, 4)), scale=2.0)
    t[0, 0] = 100.0
    assert np.memmap(path, np.uint8, "r")[0] == 50


def test_as_tensor_shares_what_it_can():
    s = qk.ByteStorage([1, 2, 3])
    t = qk.as_tensor(s)
    assert t.storage().storage() is s
    q = qk.QUInt8Storage(2, 2)
    assert qk.as_tensor(q).storage() is q
    assert qk.as_tensor(q, scale=0.5).scale == 0.5
    assert qk.as_tensor(t) is t
    assert qk.as_tensor(t, qk.quint8) is t
    assert qk.as_tensor(t, scale=2.0).storage() is t.storage()
    a = qk.empty(3, dtype=np.float32)
    assert qk.as_tensor(a) is a
    u = qk.as_tensor(qk.Array(s, (3,), np.uint8), qk.quint8)
    assert isinstance(u.storage(), qk.QUInt8Storage)
    assert u.storage().storage() is s
    codes = np.arange(3, dtype=np.int8)
    assert np.shares_memory(np.asarray(qk.as_tensor(codes)), codes)
    assert qk.as_tensor(bytearray(b"\x01\x02")).int_repr().tolist() == [1, 2]


def test_as_tensor_converts_what_fits():
    assert qk.as_tensor([[1, 2], [3, 4]], qk.quint8).int_repr().tolist() == [[1, 2], [3, 4]]
    assert qk.as_tensor([1, -2], "qint8", scale=0.5).dequantize().tolist() == [0.5, -1.0]
    assert qk.as_tensor([1.5]).dtype == np.float64
    assert qk.as_tensor([1.5], np.float32).dtype == np.float32
    assert qk.as_tensor(qk.full(2, 3), np.int32).tolist() == [3, 3]
    for bad, error in [
        ([256], InvalidArgument), ([-1], InvalidArgument), ([1.5], InvalidDType), (["a"], InvalidDType),
        (np.ones(2, np.float32), InvalidDType), (object(), InvalidDType),
    ]:  # fmt: skip
        with pytest.raises(error):
            qk.as_tensor(bad, qk.quint8)
    with pytest.raises(InvalidDType, match="scale"):
        qk.as_tensor([1.5], scale=2.0)
    with pytest.raises(InvalidArgument, match="mps"):
        qk.as_tensor([1], device="mps")


def test_from_dlpack():
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    t = qk.from_dlpack(array)
    assert t.dtype is qk.quint8
    t[0, 0] = 9.0
    assert array[0, 0] == 9
    assert qk.from_dlpack(qk.empty((2,), dtype=np.float32)).dtype == np.float32
    with pytest.raises(StorageError, match="list"):
        qk.from_dlpack([1, 2])


torch_warns = pytest.mark.filterwarnings("ignore:.*quantize:DeprecationWarning", "ignore::UserWarning")


@torch_warns
def test_torch_tensors_share_their_memory():
    torch = pytest.importorskip("torch", reason="torch is optional")
    x = torch.arange(6, dtype=torch.uint8).reshape(2, 3)
    t = qk.as_tensor(x.T)
    t[0, 1] = 50.0
    assert x[1, 0] == 50
    assert torch.from_dlpack(t).data_ptr() == x.data_ptr()
    assert np.array_equal(torch.as_tensor(np.asarray(t)).numpy(), np.asarray(t))
    half = qk.as_tensor(torch.ones(3, dtype=torch.float32, requires_grad=True))
    assert half.dtype == np.float32
    brain = torch.tensor([1.5, 2.5], dtype=torch.bfloat16)
    shared = qk.as_tensor(brain)
    shared[0] = 3.0
    assert brain.tolist() == [3.0, 2.5]
    assert qk.quantize(brain, 0.5).int_repr().tolist() == [6, 5]
    assert qk.quantize(torch.tensor([0.0, 1.0]), 0.25).int_repr().tolist() == [0, 4]


@torch_warns
def test_torch_quantized_tensors_keep_their_parameters():
    torch = pytest.importorskip("torch", reason="torch is optional")
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    q = torch.quantize_per_tensor(x, 0.05, 100, torch.quint8)
    t = qk.as_tensor(q)
    assert (t.scale, t.zero_point) == (np.float32(0.05), 100)
    assert np.array_equal(t.int_repr(), q.int_repr().numpy())
    assert np.array_equal(t.dequantize(), q.dequantize().numpy())
    assert t.data_ptr() == q.data_ptr()
    for axis in (0, 1):
        n = x.shape[axis]
        scale, zero_point = torch.tensor([0.1, 0.2, 0.3, 0.4])[:n], torch.arange(n)
        c = torch.quantize_per_channel(x, scale, zero_point, axis, torch.qint8)
        t = qk.as_tensor(c)
        assert t.axis == axis
        assert np.array_equal(t.int_repr(), c.int_repr().numpy())
        assert np.array_equal(t.dequantize(), c.dequantize().numpy())
        mine = qk.quantize(x, scale.numpy(), zero_point.numpy(), dtype=qk.qint8, axis=axis)
        assert np.abs(mine.int_repr().astype(int) - c.int_repr().numpy()).max() <= 1
    with pytest.raises(InvalidDType, match="qint32"):
        qk.as_tensor(torch.quantize_per_tensor(x, 0.05, 0, torch.qint32))


def test_quantize_chooses_parameters():
    x = np.array([[-1.0, 0.5], [2.0, 4.0]])
    t = qk.quantize(x)
    assert t.qparams == qk.choose_qparams(-1.0, 4.0)
    assert np.abs(t.dequantize() - x).max() <= t.scale / 2
    s = qk.quantize(x, dtype=qk.qint8, axis=1, symmetric=True)
    assert s.qparams == qk.choose_qparams([-1.0, 0.5], [2.0, 4.0], qk.qint8, symmetric=True, axis=1)
    assert s.zero_point.tolist() == [0, 0]
    assert qk.quantize(x, dtype=qk.qint8, axis=-1).axis == 1
    given = qk.quantize(x, 0.1, 20)
    assert given.int_repr().tolist() == [[10, 25], [40, 60]]
    assert qk.quantize(x, 0.1).zero_point == 0
    assert qk.quantize(t, 0.1, 20).int_repr().shape == (2, 2)
    assert qk.quantize(qk.as_tensor(x), 0.1, 20).equal(given)
    assert qk.quantize(x.T, 0.1, 20).is_contiguous()
    assert qk.quantize(3, 0.1).shape == ()


@pytest.mark.parametrize("method", ["percentile", "mse", "entropy"])
def test_quantize_by_a_method_that_lets_outliers_go(method):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 30_000)).astype(np.float32)
    x[0, 0] = 60
    whole, part = qk.quantize(x, axis=0), qk.quantize(x, axis=0, method=method)
    assert part.scale[0] < whole.scale[0]
    # Channel 1 has no outlier: little to gain, and nothing lost beyond the ends that were cut.
    np.testing.assert_allclose(part.scale[1], whole.scale[1], rtol=0.25)
    assert part.qparams.scale[0] == qk.quantize(x[0], method=method).scale
    assert np.abs(part.dequantize()[:, 1:] - x[:, 1:]).mean() < np.abs(whole.dequantize()[:, 1:] - x[:, 1:]).mean()


@pytest.mark.parametrize("method", ["minmax", "percentile", "mse", "entropy"])
def test_quantize_what_has_no_distribution(method):
    for values in ([0.0], [2.5, 2.5], [np.nan, np.inf], [-1.0, 3.0], []):
        t = qk.quantize(np.array(values, np.float32), method=method)
        assert t.qparams == qk.quantize(np.array(values, np.float32)).qparams
    assert qk.quantize(np.empty((0, 3)), axis=1, method=method).scale.tolist() == [1.0, 1.0, 1.0]


def test_quantize_leaves_nan_and_inf_out_of_the_range():
    t = qk.quantize([np.nan, -1.0, np.inf, 3.0, -np.inf])
    assert t.qparams == qk.choose_qparams(-1.0, 3.0)
    assert t.int_repr().tolist() == [0, 0, 255, 255, 0]
    nothing = qk.quantize([np.nan, np.inf])
    assert (nothing.scale, nothing.zero_point) == (1.0, 0)
    assert qk.quantize(np.empty((0, 3)), axis=1).scale.tolist() == [1.0, 1.0, 1.0]
    assert qk.quantize(np.empty(0)).size == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"scale": 0.0}, InvalidQParams, "> 0"),
        ({"scale": -1.0}, InvalidQParams, "> 0"),
        ({"scale": np.nan}, InvalidQParams, "finite"),
        ({"scale": [1.0, 0.0, 1.0], "axis": 1}, InvalidQParams, "channel 1"),
        ({"scale": [1.0, 2.0], "axis": 1}, InvalidQParams, "2 channels"),
        ({"scale": [1.0, 2.0, 3.0]}, InvalidQParams, "axis"),
        ({"scale": 1.0, "zero_point": 256}, InvalidQParams, "256"),
        ({"zero_point": 1}, InvalidArgument, "without scale"),
        ({"axis": 2}, InvalidArgument, "axis 2"),
        ({"method": "magic"}, InvalidArgument, "magic"),
        ({"dtype": np.float32}, InvalidDType, "quint8"),
    ],
)
def test_quantize_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        qk.quantize(np.ones((2, 3)), **arguments)
    with pytest.raises(InvalidDType):
        qk.quantize(["a"])
