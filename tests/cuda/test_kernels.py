"""The kernels themselves, run by a CPU that stands in for the hardware, against the oracle."""

import ctypes

import numpy as np
import on_cpu
import oracle
import pytest
from guard import guarded

from quantkit.cuda import calls
from quantkit.cuda.module import PRODUCT_SHARED

pytestmark = pytest.mark.skipif(on_cpu.missing() is not None, reason=str(on_cpu.missing()))


def pointer(array):
    return None if array is None else array.ctypes.data


def test_every_kernel_takes_the_struct_that_python_fills():
    library, found, i = on_cpu.library(), {}, 0
    while name := library.qk_kernel_name(i):
        found[name.decode()] = library.qk_kernel_bytes(name)
        i += 1
    assert found == {name: ctypes.sizeof(struct) for name, struct in calls.ARGUMENTS.items()}


# ---- one element after another -----------------------------------------------------------------------------------

COUNTS = [1, 3, 4, 1023, 1024, 4096, 4097, 3 * 1024 + 5]


def reals(rng, count, dtype):
    x = (rng.standard_normal(count) * 100).astype(np.float32)
    x[:: max(count // 7, 1)] = np.resize(
        [np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5, -0.0, 1e-40, 3e38], x[:: max(count // 7, 1)].shape
    )
    return x.astype(dtype)


def wire(x):
    return x.view(np.uint16) if x.dtype.name == "bfloat16" else x


def dtypes():
    found = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.float64)]
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        return found
    return [*found, np.dtype(bfloat16)]


def quantized(x, scale, zero_point, out_dtype=np.uint8, inner=1, misalign=0):
    y = guarded(np.zeros(x.size + misalign, np.uint8))[misalign:]
    x = guarded(x)
    channels = np.size(scale)
    info = np.iinfo(out_dtype)
    g = calls.Affine(
        x=pointer(x), y=pointer(y), count=x.size, channels=channels, inner=inner, low=info.min, high=info.max
    )
    is_float = np.asarray(zero_point).dtype.kind == "f"
    g.float_zero = is_float
    keep = [np.asarray(scale, np.float32), np.asarray(zero_point, np.float32 if is_float else np.int32)]
    if channels > 1:
        g.scale = pointer(keep[0])
        setattr(g, "zero_f" if is_float else "zero", pointer(keep[1]))
    else:
        g.scale_value = float(keep[0])
        setattr(g, "zero_f_value" if is_float else "zero_value", keep[1].item())
    on_cpu.launch(f"quantize_{x.dtype.name}", (-(-x.size // 4096), 1, 1), 256, g)
    return y.view(out_dtype)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype", dtypes(), ids=str)
def test_quantize(count, dtype):
    x = reals(np.random.default_rng(count), count, dtype)
    for out, zero in ((np.uint8, 0), (np.uint8, 200), (np.int8, -3), (np.uint8, np.float32(123.675))):
        assert np.array_equal(quantized(x, 0.37, zero, out), oracle.quantize_linear(x, 0.37, zero, dtype=out))


def test_quantize_at_any_alignment():
    x = reals(np.random.default_rng(1), 5000, np.float32)
    for skip in range(4):
        y = quantized(x[skip:].copy(), 0.37, 7, misalign=skip)
        assert np.array_equal(y, oracle.quantize_linear(x[skip:], 0.37, 7))


def test_quantize_ties_and_tiny_scales():
    scale = np.float32(0.0048828125 * 1.37)
    codes = np.arange(-300, 300, dtype=np.float32) + np.float32(0.5)
    x = np.concatenate([np.nextafter(codes * scale, d, dtype=np.float32) for d in (-np.inf, np.inf)] + [codes * scale])
    for s in (scale, np.float32(1e-38), np.float32(3e38), np.float32(1e-45)):
        assert np.array_equal(quantized(x, s, 100), oracle.quantize_linear(x, s, 100))


@pytest.mark.parametrize(("channels", "inner"), [(3, 1), (3, 5), (7, 64), (2, 1000)])
@pytest.mark.parametrize("kind", ["f", "i"])
def test_quantize_by_channel(channels, inner, kind):
    rng = np.random.default_rng(channels)
    x = reals(rng, 3 * channels * inner, np.float32).reshape(3, channels, inner)
    scale = rng.uniform(0.1, 2, channels).astype(np.float32)
    zero = rng.integers(0, 255, channels).astype(np.int32)
    zero = zero + np.float32(0.25) if kind == "f" else zero
    got = quantized(x.ravel(), scale, zero, inner=inner).reshape(x.shape)
    assert np.array_equal(got, oracle.quantize_linear(x, scale, zero, axis=1))


@pytest.mark.parametrize("dtype", dtypes(), ids=str)
@pytest.mark.parametrize("codes", [np.uint8, np.int8, np.int32])
@pytest.mark.parametrize("zero", [0, 77, -128, np.float32(103.53)])
def test_dequantize(dtype, codes, zero):
    rng = np.random.default_rng(5)
    info = np.iinfo(codes)
    q = rng.integers(info.min, info.max, 4099, codes, endpoint=True)
    for scale in (0.37, 1e-8, 3e30):
        y, x = guarded(wire(np.zeros(q.size, dtype))), guarded(q)
        g = calls.Affine(x=pointer(x), y=pointer(y), count=q.size, channels=1, inner=1, scale_value=scale)
        g.float_zero = isinstance(zero, np.floating)
        setattr(g, "zero_f_value" if g.float_zero else "zero_value", zero)
        on_cpu.launch(f"dequantize_{q.dtype.name}_{dtype.name}", (2, 1, 1), 256, g)
        with np.errstate(over="ignore"):
            wanted = oracle.dequantize_linear(q, scale, zero, dtype=dtype)
        assert np.array_equal(y, wire(wanted))


def test_every_float16_survives():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    got = quantized(finite, 2.0**-12, np.float32(0))
    assert np.array_equal(got, oracle.quantize_linear(finite, 2.0**-12, np.float32(0)))
    for shift in (-24, -14, -10, 0):  # and is made, subnormal ones too
        q = np.arange(-3000, 3000, dtype=np.int32)
        y = np.zeros(q.size, np.float16)
        g = calls.Affine(x=pointer(q), y=pointer(y), count=q.size, channels=1, inner=1, scale_value=0.7 * 2.0**shift)
        on_cpu.launch("dequantize_int32_float16", (2, 1, 1), 256, g)
        assert np.array_equal(y, oracle.dequantize_linear(q, 0.7 * 2.0**shift, 0, dtype=np.float16))


@pytest.mark.parametrize("count", [1, 15, 16, 4096, 16384, 16385, 20000])
def test_lookup(count):
    rng = np.random.default_rng(count)
    x, table = rng.integers(0, 256, count, np.uint8), rng.integers(0, 256, 256, np.uint8)
    x, y = guarded(x), guarded(np.zeros(count, np.uint8))
    g = calls.Lookup(x=pointer(x), y=pointer(y), count=count, channels=1, inner=1, tables=pointer(table))
    on_cpu.launch("lookup", (-(-count // 16384), 1, 1), 256, g)
    assert np.array_equal(y, table[x])
    g.y = g.x  # in place
    wanted = table[x]
    on_cpu.launch("lookup", (-(-count // 16384), 1, 1), 256, g)
    assert np.array_equal(x, wanted)


def test_lookup_by_channel():
    rng = np.random.default_rng(0)
    x, tables = rng.integers(0, 256, (5, 3, 77), np.uint8), rng.integers(0, 256, (3, 256), np.uint8)
    y = np.zeros_like(x)
    g = calls.Lookup(x=pointer(x), y=pointer(y), count=x.size, channels=3, inner=77, tables=pointer(tables))
    on_cpu.launch("lookup", (1, 1, 1), 256, g)
    assert np.array_equal(y, tables[np.arange(3)[:, None], x])


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_copy_between_layouts(itemsize):
    rng = np.random.default_rng(itemsize)
    x = rng.integers(0, 256, (3, 5, 7, itemsize), np.uint8).view(f"u{itemsize}")[..., 0].transpose(2, 0, 1)
    y = np.zeros((7, 5, 3), x.dtype).transpose(0, 2, 1)[:, :, ::-1]
    g = calls.Copy(x=pointer(x), y=pointer(y), count=x.size, itemsize=itemsize, ndim=3)
    g.flip = 0x80 if itemsize == 1 else 0
    for d in range(3):
        g.shape[d], g.x_strides[d], g.y_strides[d] = x.shape[d], x.strides[d], y.strides[d]
    on_cpu.launch("copy", (1, 1, 1), 256, g)
    assert np.array_equal(y, x ^ 0x80 if itemsize == 1 else x)


@pytest.mark.parametrize("dtype", dtypes(), ids=str)
@pytest.mark.parametrize("blocks", [1, 3])
def test_ranges_and_dynamic_parameters(dtype, blocks):
    rng = np.random.default_rng(blocks)
    x = reals(rng, 4 * 3 * 100, dtype).reshape(4, 3, 100)
    low, high, odd = np.empty((blocks, 3)), np.empty((blocks, 3)), np.empty((blocks, 3), np.int64)
    g = calls.Ranges(
        x=pointer(wire(x)), outer=4, channels=3, inner=100, low=pointer(low), high=pointer(high), nonfinite=pointer(odd)
    )
    on_cpu.launch(f"ranges_{dtype.name}", (blocks, 3, 1), 256, g)
    wanted = oracle.finite_range(x.astype(np.float64), axis=1)
    assert np.array_equal(low.min(0), wanted[0])
    assert np.array_equal(high.max(0), wanted[1])
    assert odd.sum() == wanted[2]
    for values in (
        x[np.isfinite(x.astype(np.float32))],
        np.zeros(3, dtype),
        np.array([1, 2, 3], dtype),
        np.array([-5, -1], dtype),
    ):
        low, high, odd = (np.empty(blocks, t) for t in (float, float, np.int64))
        scale, zero = np.empty(1, np.float32), np.empty(1, np.int32)
        g = calls.Ranges(
            x=pointer(wire(values)), outer=1, channels=1, inner=values.size, low=pointer(low), high=pointer(high),
            nonfinite=pointer(odd), scale=pointer(scale), zero=pointer(zero), blocks=blocks,
        )  # fmt: skip
        on_cpu.launch(f"ranges_{dtype.name}", (blocks, 1, 1), 256, g)
        on_cpu.launch("dynamic_parameters", (1, 1, 1), 32, g)
        import quantkit as qk

        own = qk.ops.dynamic_quantize_linear(values)
        assert (scale[0], zero[0], odd[0]) == (own[1], own[2], 0)


@pytest.mark.parametrize("bins", [1, 100, 4096, 5000])
def test_histogram(bins):
    x = reals(np.random.default_rng(bins), 3001, np.float32)
    counts = np.zeros(bins, np.int64)
    low, high = np.float32(-150.25), np.float32(99)
    per_unit = np.float32(bins / (float(high) - float(low)))
    g = calls.Histogram(x=pointer(x), count=x.size, bins=bins, counts=pointer(counts), low=low, per_unit=per_unit)
    on_cpu.launch("histogram_float32", (3, 1, 1), 256, g)
    assert np.array_equal(counts, oracle.histogram(x, low, high, bins))


# ---- products ------------------------------------------------------------------------------------------------------


def packed(b, signed):
    """Rows of outputs, k padded with zeros to 16; and the sums of the flipped codes."""
    k, n = b.shape
    rows = np.zeros((n, -(-k // 16) * 16), np.uint8)
    rows[:, :k] = np.ascontiguousarray(b.T).view(np.uint8) ^ (0 if signed else 0x80)
    return guarded(rows), rows.view(np.int8).sum(1, dtype=np.int32)


def run_product(
    a, b, a_zero=0, b_zero=0, lda=None, misalign=0, tensor_cores=True, bias=None, scale=None, y=None, **fields
):
    """A product of codes through the kernels as the driver of products would call them."""
    (m, k), n = a.shape, b.shape[1]
    a_signed, b_signed = a.dtype == np.int8, b.dtype == np.int8
    lda = lda or k
    room = np.zeros(misalign + (m - 1) * lda + k, np.uint8)
    where = np.lib.stride_tricks.as_strided(room[misalign:], (m, k), (lda, 1))
    where[...] = a.view(np.uint8)
    room = guarded(room)
    rows, column_sum = packed(b, b_signed)
    outside = np.zeros(32, np.uint8)
    outside = outside[-outside.ctypes.data % 16 :][:16]
    g = calls.Product(
        a=room.ctypes.data + misalign, b=pointer(rows), outside=pointer(outside), m=m, n=n, k=k, b_pitch=rows.shape[1],
        a_stride=lda, y_rows=m, y_row=n, y_column=1, column_step=n, flip=0x80808080 if a_signed else 0,
    )  # fmt: skip
    y = np.zeros((m, n), np.int32) if y is None else y
    y = guarded(y)
    g.y = pointer(y)
    keep = [
        column_sum,
        np.asarray(a_zero, np.int32) + 128 * a_signed,
        np.asarray(b_zero, np.int32) - 128 * (not b_signed),
    ]
    g.column_sum = pointer(column_sum)
    if keep[1].ndim:
        g.a_zero = pointer(keep[1])
    else:
        g.a_zero_value = keep[1].item()
    if keep[2].ndim:
        g.b_zero = pointer(keep[2])
    else:
        g.b_zero_value = keep[2].item()
    sums = np.empty(m, np.int32)
    if keep[2].any():
        r = calls.RowSums(of=g, sums=pointer(sums), flip=0x80 if a_signed else 0)
        on_cpu.launch("row_sums", (-(-m // 4), 1, 1), 128, r, 0, tensor_cores)
        g.row_sum = pointer(sums)
    for name, value in {"bias": bias, "scale": scale, **fields}.items():
        keep.append(value)
        setattr(g, name, pointer(value) if isinstance(value, np.ndarray) else value)
    on_cpu.launch("product_rows", (-(-m // 128), -(-n // 128), 1), 128, g, PRODUCT_SHARED, tensor_cores)
    return y


def codes(rng, shape, dtype, extreme=False):
    info = np.iinfo(dtype)
    if extreme:
        return rng.choice(np.array([info.min, info.max], dtype), shape)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


EDGES = [
    (1, 1, 1), (1, 1, 64), (2, 3, 15), (16, 8, 32), (17, 9, 33), (63, 64, 65), (64, 65, 63), (127, 127, 16),
    (128, 128, 64), (129, 129, 128), (128, 130, 191), (130, 128, 192), (1, 257, 193), (257, 1, 320), (65, 31, 400),
]  # fmt: skip


@pytest.mark.parametrize("tensor_cores", [True, False], ids=["mma", "dp4a"])
@pytest.mark.parametrize(("m", "n", "k"), EDGES)
def test_matmul_at_tile_edges(m, n, k, tensor_cores):
    rng = np.random.default_rng(m * n * k)
    for a_type, b_type in ((np.uint8, np.int8), (np.int8, np.uint8)):
        a, b = codes(rng, (m, k), a_type), codes(rng, (k, n), b_type)
        got = run_product(a, b, 3, 5, tensor_cores=tensor_cores)
        assert np.array_equal(got, oracle.matmul_integer(a, b, 3, 5))


@pytest.mark.parametrize("a_type", [np.uint8, np.int8])
@pytest.mark.parametrize("b_type", [np.uint8, np.int8])
def test_matmul_of_every_kind_of_codes(a_type, b_type):
    rng = np.random.default_rng(3)
    for extreme in (False, True):
        a, b = codes(rng, (37, 100), a_type, extreme), codes(rng, (100, 45), b_type, extreme)
        a_zero, b_zero = codes(rng, 37, a_type), codes(rng, 45, b_type)
        for za, zb in ((0, 0), (int(a_zero[0]), int(b_zero[0])), (a_zero.astype(np.int32), b_zero.astype(np.int32))):
            assert np.array_equal(run_product(a, b, za, zb), oracle.matmul_integer(a, b, za, zb))


@pytest.mark.parametrize(("lda", "misalign"), [(None, 0), (None, 1), (112, 0), (112, 16), (101, 3)])
def test_matmul_of_rows_at_any_place(lda, misalign):
    rng = np.random.default_rng(4)
    a, b = codes(rng, (131, 100), np.uint8), codes(rng, (100, 7), np.int8)
    assert np.array_equal(run_product(a, b, 128, 0, lda, misalign), oracle.matmul_integer(a, b, 128, 0))


def test_sums_wrap_in_int32():
    a, b = np.full((3, 33_100), 255, np.uint8), np.full((33_100, 2), 255, np.uint8)
    assert np.array_equal(run_product(a, b), oracle.matmul_integer(a, b))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("n", [16, 45, 128, 131])
@pytest.mark.parametrize("column", [1, 3])
def test_matmul_requantizes(dtype, n, column):
    rng = np.random.default_rng(n)
    a, b = codes(rng, (50, 70), np.uint8), codes(rng, (70, n), np.int8)
    bias, scale = rng.integers(-9999, 9999, n, np.int32), rng.uniform(1e-4, 4e-3, n).astype(np.float32)
    info = np.iinfo(dtype)
    y = np.zeros((50, n, column), np.uint8)
    fields = {
        "kind": 1,
        "zero": 12,
        "low": int(info.min),
        "high": int(info.max),
        "y_column": column,
        "y_row": n * column,
    }
    got = run_product(a, b, 7, 0, bias=bias, scale=scale, y=y, **fields)[..., 0].view(dtype)
    sums = oracle.matmul_integer(a, b, 7, 0) + bias
    wanted = oracle.requantize(sums, scale, 12, dtype)
    assert np.array_equal(got, wanted)
    if column > 1:
        return
    # an activation's bounds, a table, and a residual that is added after requantizing
    table = rng.permutation(256).astype(np.uint8)
    got = run_product(a, b, 7, 0, bias=bias, scale=scale, y=y, table=table, **{**fields, "low": 10, "high": 100})
    wanted = oracle.requantize(sums, scale, 12, dtype, 10, 100)
    assert np.array_equal(got[..., 0], oracle.lookup(wanted, table))
    other = codes(rng, (50, n), dtype)
    ratios = np.float32(0.3) / np.float32(0.7), np.float32(0.9) / np.float32(0.7)
    got = run_product(
        a, b, 7, 0, bias=bias, scale=scale, y=y, residual=other, own_zero=12, residual_zero=5, zero=9,
        own_ratio=ratios[0], residual_ratio=ratios[1], residual_signed=info.min < 0, y_signed=info.min < 0,
        **{k: v for k, v in fields.items() if k != "zero"},
    )  # fmt: skip
    wanted = oracle.qlinear_add(oracle.requantize(sums, scale, 12, dtype), 0.3, 12, other, 0.9, 5, 0.7, 9, dtype)
    assert np.array_equal(got[..., 0].view(dtype), wanted)


def test_matmul_to_float():
    rng = np.random.default_rng(0)
    a, b = codes(rng, (33, 70), np.int8), codes(rng, (70, 130), np.int8)
    scale, bias = rng.uniform(1e-4, 1, 130).astype(np.float32), rng.standard_normal(130).astype(np.float32)
    sums = oracle.matmul_integer(a, b, 1, 2).astype(np.float32)
    for given in (None, bias):
        y = np.zeros((33, 130), np.float32)
        got = run_product(a, b, 1, 2, scale=scale, y=y, kind=2, bias_f=given)
        assert np.array_equal(got, sums * scale if given is None else sums * scale + given)
