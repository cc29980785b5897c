"""matmul_integer and qlinear_matmul as users call them, and bit equality with onnxruntime."""

import numpy as np
import onnxruntime as ort
import oracle
import pytest
from onnx import TensorProto, helper

from quantkit import _kernels, ops
from quantkit.errors import InvalidArgument, InvalidDType, InvalidQParams, ShapeMismatch

TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int32": TensorProto.INT32, "float32": TensorProto.FLOAT}


def run_onnxruntime(op, inputs, output):
    names = [f"i{i}" for i in range(len(inputs))]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"])],
        "one",
        [helper.make_tensor_value_info(n, TYPES[v.dtype.name], v.shape) for n, v in zip(names, inputs, strict=True)],
        [helper.make_tensor_value_info("y", TYPES[output], None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip(names, inputs, strict=True)))[0]


def codes(rng, shape, dtype):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def test_matmul_integer_equals_onnxruntime():
    rng = np.random.default_rng(0)
    for i in range(250):
        a_type = np.uint8
        b_type = np.dtype(("int8", "uint8")[i % 2])
        m, k, n = (int(v) for v in rng.integers(1, 80, 3))
        batch = [(), (3,), (2, 3)][i % 3]
        a, b = codes(rng, (*batch, m, k), a_type), codes(rng, (k, n), b_type)
        a_zero = codes(rng, (), a_type)
        b_zero = codes(rng, (n,) if i % 5 == 0 else (), b_type)
        expected = run_onnxruntime("MatMulInteger", [a, b, a_zero, b_zero], "int32")
        assert np.array_equal(ops.matmul_integer(a, b, a_zero, b_zero), expected)


def test_qlinear_matmul_equals_onnxruntime():
    rng = np.random.default_rng(1)
    for i in range(250):
        a_type = np.dtype(("uint8", "int8")[i % 4 == 3])
        b_type = a_type if a_type == np.int8 else np.dtype(("int8", "uint8")[i % 2])
        m, k, n = (int(v) for v in rng.integers(1, 90, 3))
        batch = [(), (3,), (2, 3)][i % 3]
        a, b = codes(rng, (*batch, m, k), a_type), codes(rng, (k, n), b_type)
        a_scale, y_scale = np.float32(rng.uniform(0.01, 0.1)), np.float32(rng.uniform(0.3, 2) * np.sqrt(k))
        columns = (n,) if i % 5 == 0 and b_type == np.int8 else ()
        b_scale = np.asarray(rng.uniform(0.01, 0.1, columns), np.float32)
        b_zero = np.zeros(columns, b_type) if columns else codes(rng, (), b_type)
        a_zero, y_zero = codes(rng, (), a_type), codes(rng, (), a_type)
        inputs = [a, np.asarray(a_scale), a_zero, b, b_scale, b_zero, np.asarray(y_scale), y_zero]
        expected = run_onnxruntime("QLinearMatMul", inputs, a_type.name)
        actual = ops.qlinear_matmul(*inputs)
        assert actual.dtype == expected.dtype
        assert np.array_equal(actual, expected)


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (6, 4, 5)),
        ((3, 4), (7, 4, 5)),
        ((7, 3, 4), (4,)),
        ((0, 4), (4, 5)),
        ((2, 0, 4), (4, 5)),
    ],
)
def test_shapes_are_those_of_numpy(isa, a_shape, b_shape):
    rng = np.random.default_rng(2)
    a, b = codes(rng, a_shape, np.uint8), codes(rng, b_shape, np.int8)
    expected = np.matmul(a.astype(np.int32), b.astype(np.int32))
    assert np.array_equal(ops.matmul_integer(a, b), expected)
    out = np.empty(expected.shape, np.int32)
    assert ops.matmul_integer(a, b, out=out) is out
    assert np.array_equal(out, expected)
    turned = np.empty(expected.shape, np.int32, order="F")
    assert np.array_equal(ops.matmul_integer(a, b, out=turned), expected)
    if len(b_shape) == 2:
        assert np.array_equal(ops.matmul_integer(a, ops.pack_matmul(b)), expected)


def test_zero_points_in_the_shapes_of_onnx():
    rng = np.random.default_rng(3)
    a, b = codes(rng, (2, 3, 4), np.uint8), codes(rng, (4, 5), np.uint8)
    rows, columns = codes(rng, (3,), np.uint8), codes(rng, (5,), np.uint8)
    expected = oracle.matmul_integer(a.reshape(6, 4), b, np.tile(rows, 2), columns).reshape(2, 3, 5)
    assert np.array_equal(ops.matmul_integer(a, b, rows, columns), expected)
    assert np.array_equal(ops.matmul_integer(a, b, rows.reshape(1, 3, 1), columns.reshape(1, 5)), expected)
    assert np.array_equal(ops.matmul_integer(a[:, :, ::-1], b[::-1], rows, columns), expected)


def test_views_and_transposes():
    rng = np.random.default_rng(4)
    a, b = codes(rng, (6, 50, 40), np.uint8), codes(rng, (70, 40), np.int8)
    expected = np.matmul(a.astype(np.int32), b.T.astype(np.int32))
    assert np.array_equal(ops.matmul_integer(a, b.T), expected)
    assert np.array_equal(ops.matmul_integer(a[::2], b.T), expected[::2])
    assert np.array_equal(ops.matmul_integer(np.asfortranarray(a), b.T), expected)
    assert np.array_equal(ops.matmul_integer(a[:1], b.T), expected[:1])


def test_packed_operand_is_a_copy():
    b = np.ones((4, 3), np.int8)
    packed = ops.pack_matmul(b)
    b[:] = 0
    assert (packed.shape, packed.is_signed) == ((4, 3), True)
    assert ops.matmul_integer(np.ones((1, 4), np.uint8), packed).tolist() == [[4, 4, 4]]
    assert repr(packed) == "PackedMatmul(shape=(4, 3), dtype=int8)"


A, B = np.zeros((2, 3), np.uint8), np.zeros((3, 4), np.int8)
BAD = [
    (InvalidDType, "a must be uint8 or int8, got float32", (np.zeros((2, 3), np.float32), B)),
    (InvalidDType, "b must be uint8 or int8, got int32", (A, np.zeros((3, 4), np.int32))),
    (ShapeMismatch, "at least one dimension", (np.uint8(3), B)),
    (ShapeMismatch, "do not fit: K is 3 and 5", (A, np.zeros((5, 4), np.int8))),
    (ShapeMismatch, "do not fit: K is 3 and 5", (A, ops.pack_matmul(np.zeros((5, 4), np.int8)))),
    (ShapeMismatch, "do not broadcast", (np.zeros((2, 2, 3), np.uint8), np.zeros((3, 3, 4), np.int8))),
    (InvalidQParams, r"a_zero_point must be in \[0, 255\]", (A, B, 256)),
    (InvalidQParams, r"b_zero_point must be in \[-128, 127\]", (A, B, 0, 200)),
    (InvalidQParams, "a_zero_point must be an integer", (A, B, 0.5)),
    (ShapeMismatch, "wanted 1 or 2 values of a_zero_point, got 3", (A, B, [1, 2, 3])),
    (ShapeMismatch, "wanted 1 or 4 values of b_zero_point, got 2", (A, B, 0, [1, 2])),
    (ShapeMismatch, "differs along a batch", (A, B, np.zeros((2, 2, 1), np.uint8))),
]


@pytest.mark.parametrize(("error", "message", "arguments"), BAD, ids=lambda v: str(v)[:30])
def test_bad_calls(error, message, arguments):
    with pytest.raises(error, match="matmul_integer: .*" + message):
        ops.matmul_integer(*arguments)


@pytest.mark.parametrize("out", [np.empty((2, 4), np.int64), np.empty((2, 5), np.int32), [[0] * 4] * 2])
def test_bad_out(out):
    with pytest.raises(ShapeMismatch, match=r"wanted out of int32 \(2, 4\)"):
        ops.matmul_integer(A, B, out=out)


def test_bad_packs():
    for b in (np.zeros(3, np.int8), np.zeros((2, 3, 4), np.uint8), np.zeros((2, 3), np.float32)):
        with pytest.raises(InvalidDType, match="wanted a 2-d uint8 or int8 matrix to pack"):
            ops.pack_matmul(b)


def test_qlinear_matmul_arguments():
    good = [A, 0.1, 3, B, 0.2, 0, 0.3, 7]
    assert ops.qlinear_matmul(*good).dtype == np.uint8
    assert ops.qlinear_matmul(*good[:7], np.int8(7)).dtype == np.int8
    out = np.empty((2, 4), np.int8)
    assert ops.qlinear_matmul(*good, out=out) is out
    for at, value, error, message in [
        (1, 0.0, InvalidQParams, "a_scale must be finite and > 0, got 0.0"),
        (4, [0.1, np.nan, 1, 1], InvalidQParams, "b_scale must be finite and > 0, got nan at channel 1"),
        (6, -1, InvalidQParams, "y_scale must be finite and > 0"),
        (7, 300, InvalidQParams, r"y_zero_point must be in \[0, 255\]"),
        (1, [0.1, 0.2], ShapeMismatch, "wanted one value of a_scale, got 2"),
        (4, [0.1, 0.2], ShapeMismatch, "wanted 1 or 4 values of b_scale, got 2"),
        (2, [1, 2], ShapeMismatch, "wanted one value of a_zero_point, got 2"),
    ]:
        bad = [*good[:at], value, *good[at + 1 :]]
        with pytest.raises(error, match=message):
            ops.qlinear_matmul(*bad)
    deep = np.zeros((1, 65_794), np.uint8)
    with pytest.raises(InvalidArgument, match=r"wanted at most 65793 products a sum, .* got 65794"):
        ops.qlinear_matmul(deep, 0.1, 0, np.zeros((65_794, 1), np.int8), 0.1, 0, 0.1, 0)


@pytest.mark.parametrize(("dtype", "zero_point"), [(np.uint8, 0), (np.int8, 127), (np.int8, -128)])
def test_sums_that_could_leave_int32_are_refused(dtype, zero_point):
    """Products of full range reach 255 * 255, so that K = 33,026 is one too many."""
    for k in (33_025, 33_026):
        a = np.full((1, k), 255, np.uint8)
        b = np.full((k, 1), 255 if dtype == np.uint8 else -128 if zero_point > 0 else 127, dtype)
        exact = 255 * (int(b[0, 0]) - zero_point) * k
        if k == 33_025:
            assert ops.matmul_integer(a, b, 0, zero_point).item() == exact
            y = ops.qlinear_matmul(a, 1.0, 0, b, 1.0, zero_point, abs(exact) / 100, np.int8(0))
            assert y.item() == np.sign(exact) * 100
        else:
            with pytest.raises(InvalidArgument, match=r"at most 33025 products a sum, .* got 33026"):
                ops.qlinear_matmul(a, 1.0, 0, b, 1.0, zero_point, 1e7, np.int8(0))


@pytest.mark.parametrize(("a", "b"), [((7, 0), (0, 5)), ((3, 2), (2, 0)), ((2, 7, 0), (0, 5)), ((2, 3, 0), (2, 0, 5))])
def test_nothing_to_add_up(a, b):
    expected = np.matmul(np.zeros(a, np.int32), np.zeros(b, np.int32))
    assert np.array_equal(ops.matmul_integer(np.ones(a, np.uint8), np.ones(b, np.int8), 3, 4), expected)


def test_out_may_lie_in_an_operand():
    rng = np.random.default_rng(9)
    room = codes(rng, (4, 8, 8), np.int8)
    for where in (slice(0, 3), slice(1, 4)):
        b = room.copy()
        a = codes(rng, (3, 8, 8), np.int8)
        expected = ops.qlinear_matmul(a, 0.1, 0, b[:3].copy(), 0.1, 0, 0.3, np.int8(0))
        out = b[where]
        assert np.array_equal(ops.qlinear_matmul(a, 0.1, 0, b[:3], 0.1, 0, 0.3, np.int8(0), out=out), expected)
        packed, left = ops.pack_matmul(room[0]), a.copy()
        for _ in range(2):  # the second call takes the plan that the first one kept
            left[:] = a
            expected = ops.qlinear_matmul(a[0], 0.1, 0, room[0], 0.1, 0, 0.3, np.int8(0))
            got = ops.qlinear_matmul(left[0], 0.1, 0, packed, 0.1, 0, 0.3, np.int8(0), out=left[0])
            assert np.array_equal(got, expected)


def test_all_extremes_through_the_fused_end(isa):
    k = 65_793
    a, b = np.full((1, k), 255, np.uint8), np.full((k, 17), -128, np.int8)
    scale = 1 / (255 * 128 * k)
    assert (ops.qlinear_matmul(a, 100.0, 0, b, scale, 0, 1.0, np.int8(100)) == 0).all()


def test_plans_kept_with_a_packed_operand_are_those_of_the_parameters(isa):
    rng = np.random.default_rng(5)
    a, b = codes(rng, (5, 30), np.uint8), codes(rng, (30, 20), np.int8)
    packed = ops.pack_matmul(b)
    for _ in range(2):
        for a_zero, b_zero in [(0, 0), (3, 0), (0, 3), (np.uint8(3), np.int8(-4)), *((i, 0) for i in range(20))]:
            assert np.array_equal(
                ops.matmul_integer(a, packed, a_zero, b_zero), oracle.matmul_integer(a, b, int(a_zero), int(b_zero))
            )
        for y_zero in (7, np.uint8(7), np.int8(7)):
            for y_scale in (0.5, np.float32(0.25)):
                for left in (a, a.view(np.int8), a[::2]):
                    arguments = (0.02, 1, b, 0.03, 2, y_scale, y_zero)
                    with_packed = ops.qlinear_matmul(left, 0.02, 1, packed, *arguments[3:])
                    expected = ops.qlinear_matmul(left, *arguments)
                    assert with_packed.dtype == expected.dtype
                    assert np.array_equal(with_packed, expected)
    with pytest.raises(InvalidQParams, match="a_zero_point must be an integer"):
        ops.matmul_integer(a, packed, 3.0, 0)
    with pytest.raises(ShapeMismatch, match="K is 29 and 30"):
        ops.matmul_integer(a[:, 1:], packed, 0, 0)
    with pytest.raises(ShapeMismatch, match="wanted out of int32"):
        ops.matmul_integer(a, packed, 0, 0, out=np.empty((5, 21), np.int32))


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_of_two_activations(isa, threads):
    before = _kernels.num_threads()
    _kernels.set_num_threads(threads)
    try:
        rng = np.random.default_rng(6)
        a, b = codes(rng, (2, 3, 40, 70), np.uint8), codes(rng, (3, 50, 70), np.uint8)
        rows, columns = codes(rng, 40, np.uint8), codes(rng, 50, np.uint8)
        left, right = a.astype(np.int32), b.astype(np.int32).swapaxes(-1, -2)
        expected = np.matmul(left - rows.astype(np.int32)[:, None], right - columns.astype(np.int32))
        assert np.array_equal(ops.matmul_integer(a, b.swapaxes(-1, -2), rows, columns), expected)
        y = ops.qlinear_matmul(a, 0.02, 100, b.swapaxes(-1, -2), 0.03, 7, 0.5, 30)
        sums = np.matmul(left - 100, right - 7)
        assert np.array_equal(y, oracle.requantize(sums, oracle.multiplier(0.02, 0.03, 0.5), 30, np.uint8))
        assert np.array_equal(ops.matmul_integer(a[:, ::-1], b[0].T), np.matmul(left[:, ::-1], right[0]))
    finally:
        _kernels.set_num_threads(before)


def test_an_output_that_is_an_operand():
    rng = np.random.default_rng(7)
    parameters = [0.02, 100, None, 0.03, 7, 0.5, 30]
    for a, b in [(codes(rng, (3, 40, 40), np.uint8), codes(rng, (3, 40, 40), np.uint8))] * 3:
        expected = ops.qlinear_matmul(a, *parameters[:2], b, *parameters[3:])
        for operand in (0, 1):
            pair = [a.copy(), b.copy()]
            y = ops.qlinear_matmul(pair[0], *parameters[:2], pair[1], *parameters[3:], out=pair[operand])
            assert y is pair[operand]
            assert np.array_equal(y, expected)


def test_real_values_of_a_product(isa):
    rng = np.random.default_rng(8)
    a, b = codes(rng, (3, 9, 50), np.uint8), codes(rng, (50, 33), np.int8)
    b_scale = rng.uniform(0.01, 0.1, 33).astype(np.float32)
    bias = rng.standard_normal(33).astype(np.float32)
    sums = oracle.matmul_integer(a.reshape(-1, 50), b, 100, 3).reshape(3, 9, 33)
    steps = np.float32(0.02) * b_scale
    for right in (b, ops.pack_matmul(b)):
        y = ops.matmul_integer_to_float(a, right, 0.02, b_scale, 100, 3)
        assert np.array_equal(y, sums.astype(np.float32) * steps)
        y = ops.matmul_integer_to_float(a, right, 0.02, b_scale, 100, 3, bias)
        assert np.array_equal(y, sums.astype(np.float32) * steps + bias)
        whole = np.arange(33, dtype=np.int32) * 1000
        out = np.empty((3, 9, 33), np.float32)
        assert ops.matmul_integer_to_float(a, right, 0.02, b_scale, 100, 3, whole, out=out) is out
        assert np.array_equal(out, (sums + whole).astype(np.float32) * steps)
        expected = oracle.requantize(sums + whole, oracle.multiplier(0.02, b_scale, 0.5), 9, np.uint8)
        assert np.array_equal(ops.qlinear_matmul(a, 0.02, 100, right, b_scale, 3, 0.5, 9, bias=whole), expected)
    batch = ops.matmul_integer_to_float(a, np.stack([b] * 3), 0.02, 0.5, 100, 3, bias)
    assert np.array_equal(batch, sums.astype(np.float32) * np.float32(0.01) + bias)
    with pytest.raises(ShapeMismatch, match="wanted a bias of 33 values and one matrix b"):
        ops.matmul_integer_to_float(a, np.stack([b] * 3), 0.02, 0.5, bias=np.zeros(33, np.int32))
    with pytest.raises(ShapeMismatch, match="wanted 33 values of bias"):
        ops.matmul_integer_to_float(a, b, 0.02, 0.5, bias=np.zeros(3))
    with pytest.raises(InvalidDType, match="bias must be int32, got float64"):
        ops.qlinear_matmul(a, 0.02, 100, b, 0.1, 3, 0.5, 9, bias=np.zeros(33))
