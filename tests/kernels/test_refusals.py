"""What the extension refuses: whatever it is called with, an error comes back, never a crash."""

import copy

import numpy as np
import pytest

from quantkit import _kernels, ops
from quantkit._kernels import ConvPlan, MatmulPlan, PackedMatmul, PackedTaps
from quantkit.errors import InvalidArgument, InvalidDType, OutOfMemory, QuantkitError, ShapeMismatch

B = PackedMatmul(np.ones((3, 5), np.int8))
SCALE = np.ones(5, np.float32)
W = ops.pack_conv(np.ones((4, 2, 3, 3), np.int8)).for_zero_point(0)[0]
DEPTHWISE = ops.pack_conv(np.ones((4, 1, 3, 3), np.int8), 4).for_zero_point(0)[0]


def unaligned(shape, dtype):
    """Return zeros whose elements begin one byte beyond a boundary."""
    itemsize = np.dtype(dtype).itemsize
    made = np.zeros(int(np.prod(shape)) * itemsize + 1, np.uint8)[1:].view(dtype).reshape(shape)
    assert made.flags.aligned == (itemsize == 1)
    return made


def plan(packed=B, **changes):
    given = {"a_is_signed": False, "a_zero_point": 0, "b_zero_point": 0, "bias": None, "out": "uint8", "scale": SCALE}
    return MatmulPlan(packed, **given | changes)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"scale": None}, InvalidArgument, "wanted 5 values of scale for out='uint8', got None"),
        ({"scale": None, "out": "float32"}, InvalidArgument, "wanted 5 values of scale"),
        ({"scale": SCALE[:4]}, ShapeMismatch, "wanted 5 values of scale, got 4"),
        ({"scale": SCALE.astype(np.float64)}, InvalidDType, "wanted scale of float32 in one dimension, got float64"),
        ({"scale": np.ones(10, np.float32)[::2]}, InvalidDType, "wanted scale in contiguous memory"),
        ({"scale": 1.0}, InvalidDType, "wanted scale in contiguous memory, got float"),
        ({"out": "int16"}, InvalidArgument, "wanted out='int32', 'uint8', 'int8' or 'float32', got 'int16'"),
        ({"a_zero_point": 256}, InvalidArgument, "wanted the zero point of the left operand from 0 to 255, got 256"),
        ({"a_zero_point": 2.0}, InvalidArgument, "got 2.0"),
        ({"b_zero_point": 2**40}, InvalidArgument, "zero point of the right operand from -128 to 127"),
        ({"b_zero_point": None}, InvalidDType, "the zero point of the right operand"),
        ({"b_zero_point": np.zeros(6, np.int32)}, ShapeMismatch, "wanted 5 values"),
        ({"bias": np.zeros(5)}, InvalidDType, "wanted bias of int32"),
        ({"bias": np.zeros((5, 1), np.int32)}, InvalidDType, "wanted bias of int32 in one dimension"),
        ({"zero_point": -1}, InvalidArgument, "wanted zero_point from 0 to 255"),
        ({"low": 9, "high": 8}, InvalidArgument, "wanted low <= high, got 9 and 8"),
        ({"out": "int8"}, InvalidArgument, "wanted high from -128 to 127, got 255"),
        ({"table": np.zeros(255, np.uint8)}, ShapeMismatch, "wanted 256 values of table, got 255"),
        ({"table": np.zeros(256, np.uint8), "out": "int32"}, InvalidArgument, "wanted a table for 8-bit codes"),
    ],
)
def test_parameters_of_a_plan(changes, error, message):
    with pytest.raises(error, match=message):
        plan(**changes)


def test_parameters_need_not_be_aligned():
    scale, bias = unaligned(5, np.float32), unaligned(5, np.int32)
    scale[...], bias[...] = 0.5, 4
    y = np.empty((2, 5), np.uint8)
    plan(scale=scale, bias=bias, b_zero_point=unaligned(5, np.int32)).run(np.ones((2, 3), np.uint8), y)
    assert (y == 4).all()  # 3.5 and half to even


def test_runs_of_a_product():
    a, y, good = np.ones((2, 3), np.uint8), np.empty((2, 5), np.uint8), plan()
    sums = plan(out="int32", scale=None)
    for run in (
        lambda: good.run(a[:, :2], y),
        lambda: good.run(a, y[:1]),
        lambda: good.run(a.view(np.int8), y),
        lambda: good.run(a, y.view(np.int8)),
        lambda: good.run(a[0], y),
        lambda: good.run(a, y.T),
        lambda: good.run(a, y, np.zeros(3, np.int32)),
        lambda: good.run(a, y, None, y[:1]),
        lambda: good.run(a, y, None, np.zeros((2, 5), np.int32)),
        lambda: good.run(a, y, None, np.zeros((2, 10), np.uint8)[:, ::2]),
        lambda: good.run(a, y, None, y, 1, 2**30),
        lambda: good.run(a, y, None, y, 1, 0, 1, -129),
        lambda: sums.run(a, np.zeros((2, 5), np.int32), None, y),
        lambda: sums.run(a, unaligned((2, 5), np.int32)),
        lambda: good.run_batch(a[None], a[None], y[None]),
        lambda: plan(PackedMatmul.to_come(3, 5, True), scale=SCALE).run(a, y),
        lambda: plan(PackedMatmul.to_come(3, 5, True), bias=np.zeros(5, np.int32)),
        lambda: plan(PackedMatmul(None), scale=SCALE[:0]).run(a, y),
    ):
        with pytest.raises(QuantkitError):
            run()
    assert not good.run_plain(a, y.T)
    assert not sums.run_plain(a, unaligned((2, 5), np.int32))


def test_runs_of_batches():
    batch = plan(PackedMatmul.to_come(3, 5, True), out="int32", scale=None)
    a, b, y = np.ones((4, 2, 3), np.uint8), np.ones((4, 3, 5), np.int8), np.empty((4, 2, 5), np.int32)
    batch.run_batch(a, b, y)
    assert (y == 3).all()
    for bad in [
        (a[:3], b, y),
        (a, b[:3], y),
        (a, b, y[:3]),
        (a, b.view(np.uint8), y),
        (a.view(np.int8), b, y),
        (a, b.astype(np.int32), y),
        (a[0], b[0], y[0]),
        (a, b[:, :, :4], y),
        (a, b, unaligned((4, 2, 5), np.int32)),
        (a, b, y, np.zeros(3, np.int32)),
    ]:
        with pytest.raises(QuantkitError):
            batch.run_batch(*bad)
    most = 2**57
    nothing = np.empty((most, 0, 5), np.int32)
    batch.run_batch(np.empty((most, 0, 3), np.uint8), np.broadcast_to(b[:1], (most, 3, 5)), nothing)


def test_shapes_beyond_memory():
    with pytest.raises(OutOfMemory, match="more than this machine can address"):
        PackedMatmul(np.empty((0, 2**62), np.int8))
    with pytest.raises(OutOfMemory, match="more than this machine can address"):
        PackedMatmul(np.broadcast_to(np.int8(1), (2**31, 2**31)))
    for k, n in [(-1, 5), (5, -1), (2**40, 2**40)]:
        with pytest.raises(ShapeMismatch, match="wanted the shape of a matrix"):
            PackedMatmul.to_come(k, n, True)


def test_plans_and_packed_operands_have_no_copies():
    for held in (B, plan(), W, ConvPlan(W, False, 0, 0, None, "int32", None)):
        with pytest.raises(TypeError):
            copy.copy(held)


MATRIX = np.ones((36, 4), np.int8)


@pytest.mark.parametrize(
    "given",
    [
        ([], (3, 3), 4, 1, "taps"),
        ([MATRIX], (), 4, 1, "taps"),
        ([MATRIX], (1, 1, 3, 3), 4, 1, "taps"),
        ([MATRIX], (3, -3), 4, 1, "taps"),
        ([MATRIX], (3, 3), 0, 1, "taps"),
        ([MATRIX], (3, 3), 4, 0, "taps"),
        ([MATRIX], (3, 3), 5, 1, "taps"),
        ([MATRIX[:35]], (3, 3), 4, 1, "taps"),
        ([MATRIX], (3, 3), 4, 2, "taps"),
        ([MATRIX, MATRIX[:, :3]], (3, 3), 8, 2, "taps"),
        ([MATRIX, MATRIX.view(np.uint8)], (3, 3), 8, 2, "taps"),
        ([MATRIX[:, :0]], (3, 3), 4, 1, "taps"),
        ([None], (3, 3), 4, 1, "taps"),
        ([MATRIX], (3, 3), 4, 1, "rows"),
        ([MATRIX], (2**31, 2**31, 2**31), 4, 1, "columns"),
        ([MATRIX[:12]], (3, 3), 4, 4, "depthwise"),
        ([MATRIX[:12]], (3, 3), 4, 4, "depthwise", np.full(12, 9, np.int32)),
        ([MATRIX[:12]], (3, 3), 4, 4, "depthwise", np.full(12, -2, np.int32)),
        ([MATRIX[:12]], (3, 3), 4, 4, "depthwise", np.zeros(11, np.int32)),
        ([MATRIX[:12]], (3, 3), 4, 4, "depthwise", np.zeros(16, np.int32)),
        ([MATRIX[:12]], (3, 3), 4, 4, "depthwise", np.zeros(12, np.int64)),
        ([MATRIX[:12]], (3, 3), 4, 4, "depthwise", np.zeros(12, np.int32), 5),
        ([MATRIX[:12]], (3, 1), 4, 4, "depthwise", np.zeros(12, np.int32), 3),
        ([MATRIX[:12]], (3, 3), 8, 4, "depthwise", np.zeros(12, np.int32), 3),
        ([MATRIX[:12]], (3, 3), 4, 1, "taps", np.zeros(12, np.int32)),
    ],
)
def test_packed_taps(given):
    with pytest.raises(QuantkitError):
        PackedTaps(*given)


def test_the_order_of_taps_is_copied():
    order = np.int32([0, 3, 6, -1, 1, 4, 7, -1, 2, 5, 8, -1])
    matrix = np.repeat(np.int8(order >= 0)[:, None], 4, 1)
    taps = PackedTaps([matrix], (3, 3), 4, 4, "depthwise", order, 3)
    order[...] = 2**30
    y = np.empty((1, 4, 3, 3), np.int32)
    ConvPlan(taps, False, 0, 0, None, "int32", None).run(np.ones((1, 4, 5, 5), np.uint8), y, (1, 1), (0, 0), (1, 1))
    assert (y == 9).all()


def test_runs_of_a_convolution(isa):
    x, y = np.ones((1, 2, 5, 5), np.uint8), np.empty((1, 4, 5, 5), np.int32)
    good = ConvPlan(W, False, 0, 0, None, "int32", None)
    ones = (1, 1)
    good.run(x, y, ones, ones, ones)
    assert y[0, 0, 2, 2] == 18
    for bad in [
        (x[:, :1], y, ones, ones, ones),
        (x, y[:, :3], ones, ones, ones),
        (x[..., 0], y[..., 0], (1,), (1,), (1,)),
        (x.view(np.int8), y, ones, ones, ones),
        (x, y.view(np.float32), ones, ones, ones),
        (x, y, (1,), ones, ones),
        (x, y, (0, 1), ones, ones),
        (x, y, ones, ones, (1, -1)),
        (x, y, ones, (2**61, 0), ones),
        (x, y, (2**60, 1), ones, ones),
        (x, y, ones, ones, (1, 2**62)),
        (x, unaligned(y.shape, np.int32), ones, ones, ones),
        (x, y, ones, ones, ones, y.astype(np.uint8)),
    ]:
        with pytest.raises(QuantkitError):
            good.run(*bad)
    with pytest.raises(OverflowError):
        good.run(x, y, ones, ones, (1, 2**70))
    with pytest.raises(InvalidArgument, match="depthwise weights are packed without a zero point"):
        ConvPlan(DEPTHWISE, False, 0, np.ones(4, np.int32), None, "int32", None)
    with pytest.raises(InvalidArgument, match="wanted 4 values of scale"):
        ConvPlan(DEPTHWISE, False, 0, 0, None, "uint8", None)
    codes = ConvPlan(DEPTHWISE, False, 0, 0, None, "uint8", np.ones(4, np.float32))
    with pytest.raises(ShapeMismatch, match="channels-last"):
        codes.run(np.ones((1, 4, 5, 5), np.uint8), y.astype(np.uint8), ones, ones, ones, y.astype(np.uint8))


def test_pixels_far_outside_of_the_image(isa):
    """Pads that leave nothing of the image, and outputs that reach beyond it: all of it is the zero point."""
    for taps, channels, weight in [(W, 2, 18), (DEPTHWISE, 4, 9)]:
        sums = ConvPlan(taps, False, 3, 0, None, "int32", None)
        for pad in (-(2**59), -7, 7, 40, 2**59):
            for stride in (1, 2, 2**40):
                y = np.ones((1, 4, 4, 4), np.int32)
                x = np.full((1, channels, 5, 5), 4, np.uint8)
                sums.run(x, y, (stride, stride), (pad, pad), (1, 1))
                reached = [any(0 <= i * stride - pad + k < 5 for k in range(3)) for i in range(4)]
                inside = np.outer(reached, reached)
                assert (y[0, 0][~inside] == 0).all()
                assert (y[0, 0][inside] > 0).all()
                assert (y[0, 0] <= weight).all()
        y = np.ones((1, 4, 2, 2), np.int32)
        sums.run(np.empty((1, channels, 0, 5), np.uint8), y, (1, 1), (1, 1), (1, 1))
        assert (y == 0).all()


def test_elementwise_calls():
    x, y = np.ones((3, 4), np.float32), np.empty((3, 4), np.uint8)
    scale, zero = np.ones(4, np.float32), np.zeros(4, np.int32)
    _kernels.affine(x, y, scale, zero, 1)
    for bad in [
        (x, y, scale, zero, 2),
        (x, y, scale, zero, -2),
        (x, y, scale[:3], zero, 1),
        (x, y, scale.astype(np.float64), zero, 1),
        (x, y, scale, zero.astype(np.int64), 1),
        (x, y, unaligned(4, np.float32), zero, 1),
        (unaligned((3, 4), np.float32), y, 1.0, 0),
        (y, unaligned((3, 4), np.float32), 1.0, 0),
        (x, y[:2], 1.0, 0),
        (x, x, 1.0, 0),
    ]:
        with pytest.raises(QuantkitError):
            _kernels.affine(*bad)
    assert not _kernels.affine_plain(unaligned((3, 4), np.float32), y, 1.0, 0)
    assert not _kernels.affine_plain(y, unaligned((3, 4), np.float32), 1.0, 0)
    with pytest.raises(ValueError, match="contiguous"):
        _kernels.affine(x, y, np.ones(8, np.float32)[::2], zero, 1)
    table = np.zeros(256, np.uint8)
    for bad in [(y, y, table[:255]), (y, y, table, 1), (y, y, table, 5), (x, x, table), (y, y[:2], table)]:
        with pytest.raises(QuantkitError):
            _kernels.lookup(*bad)
    with pytest.raises(InvalidArgument, match="wanted out whose elements lie on boundaries of their 4 bytes"):
        _kernels.copy(x, unaligned((3, 4), np.float32))
    _kernels.copy(unaligned((3, 4), np.float32), x)
    assert (x == 0).all()


def test_statistics_calls():
    x, nothing = np.ones((3, 4), np.float32), np.array([(np.inf, -np.inf, 0)] * 4, "f8, f8, i8")
    _kernels.value_range(x, nothing, 1)
    counts = np.zeros(4, np.int64)
    _kernels.histogram(x, 0.0, 1.0, counts)
    for call in (
        lambda: _kernels.value_range(x, nothing, 2),
        lambda: _kernels.value_range(x, nothing[:3], 1),
        lambda: _kernels.value_range(unaligned((3, 4), np.float32), nothing, 1),
        lambda: _kernels.value_range(x, unaligned(96, np.uint8), 1),
        lambda: _kernels.histogram(unaligned((3, 4), np.float32), 0.0, 1.0, counts),
        lambda: _kernels.histogram(x, 0.0, 1.0, unaligned(4, np.int64)),
        lambda: _kernels.histogram(x, float("nan"), 1.0, counts),
        lambda: _kernels.histogram(x, 0.0, float("inf"), counts),
        lambda: _kernels.histogram(x, 0.0, -1.0, counts),
    ):
        with pytest.raises(QuantkitError):
            call()
    with pytest.raises(IndexError):
        _kernels.histogram(x, 0.0, 1.0, counts[:0])
    with pytest.raises(IndexError):
        _kernels.dynamic_quantize(x, np.empty((3, 4), np.uint8), np.empty(0, np.float32), np.empty(1, np.uint8))
