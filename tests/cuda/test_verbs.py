"""Every verb on a GPU gives what it gives on the CPU, bit for bit."""

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import InvalidArgument, InvalidDType, InvalidQParams, ShapeMismatch, StorageError


def there(x, device="cuda:0"):
    """An Array of the same elements, strides included, on a GPU."""
    x = np.asarray(x)
    order = sorted(range(x.ndim), key=lambda d: -x.strides[d])
    made = qk.from_numpy(np.ascontiguousarray(x.transpose(order))).to(device)
    return (made.storage() if isinstance(made, qk.QTensor) else made).permute(*np.argsort(order))


def same(got, wanted):
    """Exactly equal: dtype, shape, memory order of more than one pixel, every bit."""
    assert isinstance(got, qk.Array)
    assert got.device == "cuda:0"
    assert (got._type.name, got.shape) == (np.asarray(wanted).dtype.name, wanted.shape)
    assert np.array_equal(np.asarray(got.cpu()), wanted)


def codes(rng, shape, dtype=np.uint8):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


RNG = np.random.default_rng(7)
REALS = (RNG.standard_normal((4, 6, 5)) * 50).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_quantize_and_dequantize(gpu, dtype):
    x = REALS.astype(dtype)
    scale, zero = RNG.uniform(0.1, 1, 6).astype(np.float32), codes(RNG, 6)
    for view in (x, x.transpose(2, 0, 1), x[:, ::2], x[::-1], np.asfortranarray(x), x[:0]):
        q = qk.ops.quantize_linear(view, 0.3, 100)
        same(qk.ops.quantize_linear(there(view), 0.3, 100), q)
        same(qk.ops.dequantize_linear(there(q), 0.3, 100), qk.ops.dequantize_linear(q, 0.3, 100))
    same(qk.ops.quantize_linear(there(x), scale, zero, axis=1), qk.ops.quantize_linear(x, scale, zero, axis=1))
    turned = x.transpose(1, 2, 0)
    same(
        qk.ops.quantize_linear(there(turned), scale, zero, axis=0), qk.ops.quantize_linear(turned, scale, zero, axis=0)
    )
    same(qk.ops.quantize_linear(there(x), 0.3, np.int8(-3)), qk.ops.quantize_linear(x, 0.3, np.int8(-3)))
    same(qk.ops.quantize_linear(there(x), 0.3, 123.675), qk.ops.quantize_linear(x, 0.3, 123.675))
    out = qk.full(x.shape, 0, dtype=np.uint8, device="cuda:0").transpose(2, 1, 0)
    assert qk.ops.quantize_linear(there(x.T), 0.3, 5, out=out) is out
    same(out, qk.ops.quantize_linear(x.T, 0.3, 5))
    reals = qk.full(x.shape, 0, dtype=dtype, device="cuda:0")
    q = codes(RNG, x.shape, np.int8)
    qk.ops.dequantize_linear(there(q), 0.3, 5, out=reals)
    same(reals, qk.ops.dequantize_linear(q, 0.3, 5, out=np.empty(x.shape, dtype)))


def test_dynamic_quantize(gpu):
    for x in (REALS, REALS.astype(np.float64), np.float32([0, 0]), np.float32([]), REALS[:, :, ::2]):
        got, wanted = qk.ops.dynamic_quantize_linear(there(x)), qk.ops.dynamic_quantize_linear(x)
        same(got[0], wanted[0])
        assert got[1:] == wanted[1:]
    with pytest.raises(InvalidArgument, match="finite"):
        qk.ops.dynamic_quantize_linear(there(np.float32([1, np.nan, np.inf])))


def test_statistics(gpu):
    x = REALS.copy()
    x[0, 0, :2] = np.nan, np.inf
    for axis in (None, 0, 1, -1):
        got, wanted = qk.ops.finite_range(there(x), axis=axis), qk.ops.finite_range(x, axis=axis)
        assert [np.array_equal(a, b) for a, b in zip(got, wanted, strict=True)] == [True] * 3
    assert np.array_equal(qk.ops.histogram(there(x), -90, 80, 37), qk.ops.histogram(x, -90, 80, 37))
    counts = np.ones(37, np.int64)
    qk.ops.histogram(there(x), -90, 80, 37, counts=counts)
    assert np.array_equal(counts, qk.ops.histogram(x, -90, 80, 37) + 1)


def test_lookup_requantize_copy(gpu):
    q, table = codes(RNG, (5, 6, 7), np.int8), codes(RNG, 256)
    same(qk.ops.lookup(there(q), table), qk.ops.lookup(q, table))
    same(qk.ops.lookup(there(q[:, ::2]), table), qk.ops.lookup(q[:, ::2], table))
    for values, axis in (((0.5, 3, 0.25, 7), None), ((0.5, 3.5, RNG.uniform(0.1, 1, 6), 100.25), 1)):
        for dtype in (None, np.uint8):
            options = {"axis": axis, "dtype": dtype}
            same(qk.ops.requantize(there(q), *values, **options), qk.ops.requantize(q, *values, **options))
    wide = q.astype(np.int32) * 1000
    same(qk.ops.requantize(there(wide), 0.5, 3, 90.0, 7), qk.ops.requantize(wide, 0.5, 3, 90.0, 7))
    same(qk.ops.copy(there(REALS.T)), qk.ops.copy(REALS.T))
    out = qk.full(REALS.shape, 0, dtype=np.float32, device="cuda:0")
    assert qk.ops.copy(there(REALS), out=out) is out
    same(out, REALS)


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((5, 7), (7, 3)), ((130, 64), (64, 140)), ((7,), (7, 3)), ((5, 7), (7,)), ((7,), (7,)), ((2, 3, 5, 7), (7, 3)),
        ((2, 1, 5, 16), (3, 16, 3)), ((3, 16, 8), (3, 8, 5)), ((0, 7), (7, 3)), ((5, 0), (0, 3)),
    ],
)  # fmt: skip
def test_matmul(gpu, a_shape, b_shape):
    for a_type, b_type in ((np.uint8, np.int8), (np.int8, np.uint8)):
        a, b = codes(RNG, a_shape, a_type), codes(RNG, b_shape, b_type)
        same(qk.ops.matmul_integer(there(a), there(b), 3, 5), qk.ops.matmul_integer(a, b, 3, 5))
        given = (0.02, 3, 0.5, 7, 90.0, np.uint8(9))
        values = (given[0], given[1])
        got = qk.ops.qlinear_matmul(there(a), *values, there(b), *given[2:])
        same(got, qk.ops.qlinear_matmul(a, *values, b, *given[2:]))
        real = qk.ops.matmul_integer_to_float(there(a), there(b), 0.3, 0.7, 3, 5)
        same(real, qk.ops.matmul_integer_to_float(a, b, 0.3, 0.7, 3, 5))


def test_matmul_with_all_parameters(gpu):
    a, b = codes(RNG, (40, 33)), codes(RNG, (33, 50), np.int8)
    columns = RNG.uniform(0.01, 1, 50).astype(np.float32)
    bias, zeros = RNG.integers(-999, 999, 50, np.int32), codes(RNG, 50, np.int8)
    packed, there_packed = qk.ops.pack_matmul(b), qk.ops.pack_matmul(there(b))
    assert (there_packed.shape, there_packed.is_signed, there_packed.device) == (b.shape, True, "cuda:0")
    assert there_packed.nbytes == 50 * 48 + 200
    for left in (a, a.T.copy().T, a[::2], np.repeat(a, 2, 1)[:, ::2]):
        for right in (there_packed, there(b), there(b.T.copy().T)):
            got = qk.ops.qlinear_matmul(there(left), 0.1, 7, right, columns, zeros, 9.0, 100, bias=bias)
            same(got, qk.ops.qlinear_matmul(left, 0.1, 7, packed, columns, zeros, 9.0, 100, bias=bias))
    rows = codes(RNG, 40)
    same(qk.ops.matmul_integer(there(a), there_packed, rows, zeros), qk.ops.matmul_integer(a, b, rows, zeros))
    for addend in (bias, columns):
        got = qk.ops.matmul_integer_to_float(there(a), there_packed, 0.1, columns, 3, zeros, addend)
        same(got, qk.ops.matmul_integer_to_float(a, b, 0.1, columns, 3, zeros, addend))
    out = qk.full((50, 40), 0, dtype=np.int32, device="cuda:0").T
    assert qk.ops.matmul_integer(there(a), there_packed, out=out) is out
    same(out, qk.ops.matmul_integer(a, b))


CONVS = [  # x, w, attributes
    ((1, 3, 9, 8), (5, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((2, 16, 7, 9), (17, 16, 3, 3), {"pads": (1, 0, 1, 2), "strides": (2, 1)}),
    ((1, 32, 12, 11), (8, 32, 1, 1), {}),
    ((1, 32, 12, 12), (130, 32, 3, 3), {"pads": (2, 2, 2, 2), "dilations": (2, 2)}),
    ((2, 12, 6, 6), (6, 4, 3, 3), {"group": 3, "pads": (1, 1, 1, 1)}),
    ((1, 32, 5, 5), (32, 16, 3, 3), {"group": 2}),
    ((2, 8, 9, 7), (8, 1, 3, 3), {"group": 8, "pads": (1, 1, 1, 1)}),
    ((1, 6, 9, 7), (12, 1, 5, 5), {"group": 6, "pads": (2, 2, 2, 2), "strides": (2, 2)}),
    ((1, 5, 4, 4), (5, 1, 3, 3), {"group": 5, "auto_pad": "SAME_UPPER"}),
    ((2, 3, 20), (4, 3, 5), {"pads": (2, 2), "strides": (3,)}),
    ((1, 4, 5, 6, 7), (6, 4, 3, 2, 3), {"pads": (1, 1, 1, 1, 0, 1), "strides": (1, 2, 1)}),
    ((1, 1, 7, 7), (3, 1, 3, 3), {}),
    ((1, 16, 1, 1), (4, 16, 1, 1), {}),
    ((0, 3, 5, 5), (2, 3, 3, 3), {}),
]


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "channels last"])
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), CONVS)
def test_conv(gpu, x_shape, w_shape, attributes, last):
    for x_type, w_type, w_zero in ((np.uint8, np.int8, 0), (np.int8, np.uint8, 131), (np.uint8, np.int8, "each")):
        x, w = codes(RNG, x_shape, x_type), codes(RNG, w_shape, w_type)
        if last:
            x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
        zero = codes(RNG, w_shape[0], w_type) if w_zero == "each" else w_zero
        wanted = qk.ops.conv_integer(x, w, 77, zero, **attributes)
        got = qk.ops.conv_integer(there(x), there(w), 77, zero, **attributes)
        same(got, wanted)
        if last and wanted.size and x_shape[1] > 1 and max(wanted.shape[2:]) > 1 and w_shape[0] > 1:
            assert got.stride()[1] == 1
        scale = RNG.uniform(0.001, 0.1, w_shape[0]).astype(np.float32)
        bias = RNG.integers(-9999, 9999, w_shape[0], np.int32)
        given = (scale, zero, 2.5, np.uint8(3), bias)
        packed = qk.ops.pack_conv(there(w), attributes.get("group", 1))
        wanted = qk.ops.qlinear_conv(x, 0.1, 77, w, *given, **attributes)
        same(qk.ops.qlinear_conv(there(x), 0.1, 77, packed, *given, **attributes), wanted)
        out = there(np.zeros((*wanted.shape, 2), np.uint8))[..., 0]
        assert qk.ops.qlinear_conv(there(x), 0.1, 77, packed, *given, out=out, **attributes) is out
        same(out, wanted)


def test_tensors(gpu):
    t, w = qk.quantize(REALS[0]), qk.quantize(REALS[1].T, dtype=qk.qint8, axis=1, symmetric=True)
    on, w_on = t.cuda(), w.cuda()
    assert qk.quantize(there(REALS[0])).equal(t)
    assert qk.quantize(there(REALS[0]), axis=1, dtype=qk.qint8).equal(qk.quantize(REALS[0], axis=1, dtype=qk.qint8))
    got, wanted = qk.matmul(on, w_on, np.arange(6.0), scale=0.5), qk.matmul(t, w, np.arange(6.0), scale=0.5)
    assert got.device == "cuda:0"
    assert got.equal(wanted)
    assert qk.matmul(on, w_on).equal(qk.matmul(t, w))
    image = qk.quantize(RNG.standard_normal((1, 4, 6, 6)).astype(np.float32))
    kernel = qk.quantize(RNG.standard_normal((5, 4, 3, 3)).astype(np.float32), dtype=qk.qint8, axis=0, symmetric=True)
    options = {"padding": 1, "scale": 0.05, "zero_point": 120}
    got = qk.conv2d(image.cuda(), kernel.cuda(), np.arange(5.0), **options)
    assert got.equal(qk.conv2d(image, kernel, np.arange(5.0), **options))
    assert qk.conv2d(image.cuda(), kernel.cuda(), np.arange(5.0)).equal(qk.conv2d(image, kernel, np.arange(5.0)))


def test_errors(gpu):
    a, b = codes(RNG, (4, 5)), codes(RNG, (5, 6), np.int8)
    with pytest.raises(
        InvalidArgument, match=r"operands on one device, got a on cuda:0, b on cpu; use b.to\('cuda:0'\)"
    ):
        qk.ops.matmul_integer(there(a), b)
    with pytest.raises(InvalidArgument, match=r"got a on cpu, b on cuda:0; use a.to\('cuda:0'\) or .cpu\(\)"):
        qk.ops.matmul_integer(a, qk.ops.pack_matmul(there(b)))
    with pytest.raises(InvalidArgument, match="one device"):
        qk.ops.quantize_linear(REALS, 1.0, out=qk.empty(REALS.shape, device="cuda:0").storage())
    if qk.cuda.device_count() > 1:
        with pytest.raises(InvalidArgument, match="a on cuda:0, b on cuda:1"):
            qk.ops.matmul_integer(there(a), there(b, "cuda:1"))
    with pytest.raises(ShapeMismatch, match="do not fit"):
        qk.ops.matmul_integer(there(a), there(a))
    with pytest.raises(InvalidDType, match="a must be uint8 or int8, got float32"):
        qk.ops.matmul_integer(there(REALS), there(b))
    with pytest.raises(InvalidDType, match="q must be uint8, int8 or int32, got float32"):
        qk.ops.dequantize_linear(there(REALS), 1.0)
    with pytest.raises(InvalidQParams, match="scale"):
        qk.ops.quantize_linear(there(REALS), 0.0)
    long = qk.full((1, 70_000), 1, dtype=np.uint8, device="cuda:0")
    weights = qk.full((70_000, 1), 1, dtype=np.int8, device="cuda:0")
    with pytest.raises(InvalidArgument, match="at most 65793"):
        qk.ops.qlinear_matmul(long, 1.0, 0, weights, 1.0, 0, 1.0, 0)
    with pytest.raises(ShapeMismatch, match=r"wants x \(N, 3, \.\.\.\) of 4 dimensions"):
        qk.ops.conv_integer(there(codes(RNG, (1, 4, 5, 5))), there(codes(RNG, (2, 3, 3, 3))))


def test_packed_for_another_verb(gpu):
    a, b = codes(RNG, (4, 27)), codes(RNG, (27, 6), np.int8)
    x, w = codes(RNG, (1, 3, 5, 5)), codes(RNG, (2, 3, 3, 3), np.int8)
    matrix, kernel = qk.ops.pack_matmul(there(b)), qk.ops.pack_conv(there(w))
    assert (repr(matrix).split("(")[0], repr(kernel).split("(")[0]) == ("PackedMatmul", "PackedConv")
    given = (1.0, 0, 1.0, 0)
    crossings = [
        lambda verb: getattr(qk.ops, verb)(there(a), kernel),
        lambda verb: getattr(qk.ops, verb)(there(x), matrix),
        lambda verb: getattr(qk.ops, verb)(there(a), 1.0, 0, kernel, *given),
        lambda verb: getattr(qk.ops, verb)(there(x), 1.0, 0, matrix, *given),
        lambda verb: getattr(qk.ops, verb)(there(a), kernel, 1.0, 1.0),
        lambda verb: getattr(qk.ops, verb)(matrix, there(b)),
        lambda verb: getattr(qk.ops, verb)(matrix),
        lambda verb: getattr(qk.ops, verb)(kernel),
        lambda verb: getattr(qk.ops, verb)(kernel, 1.0),
    ]
    verbs = [
        "matmul_integer", "conv_integer", "qlinear_matmul", "qlinear_conv", "matmul_integer_to_float", "matmul_integer",
        "pack_matmul", "pack_conv", "dequantize_linear",
    ]  # fmt: skip
    for verb, crossing in zip(verbs, crossings, strict=True):
        with pytest.raises(InvalidDType, match=rf"^{verb}: \w must be uint8.* or int.*, got Packed"):
            crossing(verb)
    same(qk.ops.matmul_integer(there(a), matrix), qk.ops.matmul_integer(a, b))
    same(qk.ops.conv_integer(there(x), kernel), qk.ops.conv_integer(x, w))


def test_group(gpu):
    x, w = codes(RNG, (1, 4, 5, 5)), codes(RNG, (4, 4, 3, 3))
    for group in (0, -2):
        for on in (np.asarray, there):
            with pytest.raises(ShapeMismatch, match=f"^pack_conv: group must be >= 1, got {group}$"):
                qk.ops.pack_conv(on(w), group)
            with pytest.raises(ShapeMismatch, match=f"^conv_integer: group must be >= 1, got {group}$"):
                qk.ops.conv_integer(on(x), on(w), group=group)
        with pytest.raises(ShapeMismatch, match=f"^conv_transpose_integer: group must be >= 1, got {group}$"):
            qk.ops.conv_transpose_integer(x, w, group=group)


def test_transposed_convolutions_are_the_cpus(gpu):
    x, w = codes(RNG, (1, 4, 5, 5)), codes(RNG, (4, 3, 3, 3))
    out = qk.empty((1, 3, 7, 7), device="cuda:0").storage()
    packed = qk.ops.pack_conv_transpose(w)

    def integer(x, w, out=None):
        return qk.ops.conv_transpose_integer(x, w, out=out)

    def qlinear(x, w, out=None):
        return qk.ops.qlinear_conv_transpose(x, 1.0, 0, w, 1.0, 0, 1.0, 0, out=out)

    for verb, call in (("conv_transpose_integer", integer), ("qlinear_conv_transpose", qlinear)):
        for name, given in (
            ("x", (there(x), w)), ("x", (there(x), packed)), ("w", (x, there(w))), ("out", (x, packed, out)),
        ):  # fmt: skip
            wanted = rf"^{verb}: {name} is on cuda:0, and this verb runs on the CPU; use {name}\.cpu\(\)$"
            with pytest.raises(StorageError, match=wanted):
                call(*given)
            with qk.StreamContext(), pytest.raises(StorageError, match=wanted):
                call(*given)
    with pytest.raises(StorageError, match=r"^pack_conv_transpose: w is on cuda:0.*; use w\.cpu"):
        qk.ops.pack_conv_transpose(there(w))
    image, kernel = qk.quantize(REALS[None, :3]), qk.quantize(REALS[None, :3], dtype=qk.qint8, symmetric=True)
    with pytest.raises(StorageError, match=r"this verb runs on the CPU"):
        qk.conv_transpose2d(image.cuda(), kernel.cuda())


def test_arithmetic_is_the_cpus(gpu):
    t = qk.full((3,), 2.0, device="cuda:0")
    with pytest.raises(StorageError, match=r"\.cpu\(\)"):
        t + 1
    assert (t.cpu() + 1).tolist() == [3.0, 3.0, 3.0]
