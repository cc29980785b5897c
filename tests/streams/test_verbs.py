"""Verbs on streams: the same results as called plainly, pending, and ordered by what they read and write."""

import threading

import ml_dtypes
import numpy as np
import pytest

import quantkit as qk
from quantkit import ops
from quantkit.errors import InvalidArgument, InvalidDType, InvalidQParams, ShapeMismatch, StorageBusy

rng = np.random.default_rng(5)
X = rng.standard_normal((6, 40, 30)).astype(np.float32)
A = rng.integers(0, 256, (70, 90)).astype(np.uint8)
B = rng.integers(-128, 128, (90, 50)).astype(np.int8)
IMAGE = rng.integers(0, 256, (2, 8, 9, 10)).astype(np.uint8)
W = rng.integers(-128, 128, (5, 8, 3, 3)).astype(np.int8)
DEPTHWISE = rng.integers(-128, 128, (8, 1, 3, 3)).astype(np.int8)
CODES = ops.quantize_linear(X, 0.02, 128)


def cases():
    yield lambda a: ops.quantize_linear(a(X), 0.02, 128)
    yield lambda a: ops.quantize_linear(a(X.T), 0.02, 128)
    yield lambda a: ops.quantize_linear(a(X), np.linspace(0.01, 1, 40), np.arange(40), axis=1)
    yield lambda a: ops.quantize_linear(a(X), np.linspace(0.01, 1, 40), np.linspace(0, 3, 40), axis=1)
    yield lambda a: ops.quantize_linear(a(X.astype(ml_dtypes.bfloat16)), 0.02, 3, dtype=np.int8)
    yield lambda a: ops.quantize_linear([0.5, 1.0], 0.5)
    yield lambda a: ops.dequantize_linear(a(CODES), 0.02, 128)
    yield lambda a: ops.dequantize_linear(a(CODES), np.float16(0.02), 1.5)
    yield lambda a: ops.dequantize_linear(a(CODES), np.asarray(0.5, ml_dtypes.bfloat16), 128)
    yield lambda a: ops.dynamic_quantize_linear(a(X))
    yield lambda a: ops.dynamic_quantize_linear(a(np.zeros((0, 3), np.float32)))
    yield lambda a: ops.finite_range(a(X))
    yield lambda a: ops.finite_range(a(X), axis=-1)
    yield lambda a: ops.finite_range(a(np.zeros((0, 3), np.float32)), axis=0)
    yield lambda a: ops.histogram(a(X), -1, 1, 33)
    yield lambda a: ops.copy(a(X))
    yield lambda a: ops.copy(a(X[::2, ::-1].T))
    yield lambda a: ops.copy(a(X.astype(ml_dtypes.bfloat16)))
    yield lambda a: ops.matmul_integer(a(A), a(B), 3, 4)
    yield lambda a: ops.matmul_integer(a(A), a(B), np.arange(70), np.arange(50) - 20)
    yield lambda a: ops.matmul_integer(a(A), ops.pack_matmul(a(B)), 3, 4)
    yield lambda a: ops.matmul_integer(a(A[0]), a(B[:, 0]))
    yield lambda a: ops.matmul_integer(a(A[:60].reshape(2, 3, 10, 90)), a(np.stack([B, B[::-1]])[:, None]), 3, 4)
    yield lambda a: ops.qlinear_matmul(a(A), 0.02, 120, a(B), np.linspace(0.01, 0.02, 50), 0, 0.5, np.uint8(7))
    for bias in (None, np.arange(50, dtype=np.int32), np.arange(50, dtype=np.float32)):
        yield lambda a, bias=bias: ops.matmul_integer_to_float(a(A), a(B), 0.5, 0.25, 3, 4, bias)
        if bias is None or bias.dtype == np.int32:
            yield lambda a, bias=bias: ops.qlinear_matmul(a(A), 0.02, 120, a(B), 0.01, 0, 0.5, 7, bias=bias)
    yield lambda a: ops.conv_integer(a(IMAGE), W, 4, 3, pads=[1, 1, 1, 1])
    yield lambda a: ops.qlinear_conv(
        a(IMAGE), 0.1, 3, ops.pack_conv(W), 0.02, 0, 0.9, np.uint8(9), np.arange(5, dtype=np.int32), strides=[2, 1]
    )
    yield lambda a: ops.conv_transpose_integer(a(IMAGE), W.swapaxes(0, 1), 4, 3, strides=[2, 2])
    yield lambda a: ops.qlinear_conv_transpose(a(IMAGE), 0.1, 4, W.swapaxes(0, 1), 0.2, 0, 3.0, 7, strides=[2, 3])
    yield lambda a: ops.conv_integer(a(IMAGE), DEPTHWISE, 4, 3, group=8)
    for packed in (False, True):
        w, r = X[:2, :24, :7], CODES[:2, :24, :6]
        if packed:
            w, r = ops.pack_rnn(w), ops.pack_rnn(r, 0.02, 128)
        how = {"r_scale": None if packed else 0.02, "r_zero_point": 0 if packed else 128, "direction": "bidirectional"}
        x, h = X[:4, :3, :7], X[:2, 3:6, 7:13]
        yield lambda a, w=w, r=r, how=how, x=x, h=h: ops.lstm(a(x), w, r, None, [4, 0, 2], a(h), a(-h), **how)
        last = np.asfortranarray(h)
        yield lambda a, w=w, r=r, how=how, x=x, h=last: ops.lstm(
            a(x.swapaxes(0, 1)), w, r, None, None, a(h.swapaxes(0, 1)), layout=1, **how
        )
    yield lambda a: ops.gru(a(X[:4, :3, :7]), a(X[:1, :18, :7]), a(X[:1, :18, :6]), a(X[:1, :2, :18].reshape(1, 36)))
    yield lambda a: ops.rnn(a(X[:4, :3, :7]), a(X[:1, :6, :7]), a(X[:1, :6, :6]))
    yield lambda a: ops.lookup(a(CODES), np.arange(256)[::-1].astype(np.uint8))
    yield lambda a: ops.requantize(a(CODES), 0.02, 128, 0.03, 5)
    yield lambda a: ops.requantize(a(CODES), 0.02, 128, np.linspace(0.01, 1, 40), np.arange(40), axis=1)
    yield lambda a: ops.requantize(a(CODES.astype(np.int32)), 0.02, 128, 0.03, 5)
    yield lambda a: ops.conv_integer(a(np.moveaxis(np.ascontiguousarray(np.moveaxis(IMAGE, 1, -1)), -1, 1)), W, 4, 0)


CASES = list(cases())


def flat(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
@pytest.mark.parametrize("pending", [False, True], ids=["from ndarrays", "from pending"])
def test_equal_to_the_plain_call(case, pending):
    expected = flat(case(np.asarray))
    s = qk.Stream()
    with qk.stream(s):
        results = flat(case(ops.copy if pending else np.asarray))
    assert all(isinstance(r, qk.Array) for r in results)
    for got, value in zip(results, expected, strict=True):
        wanted = np.asarray(value)
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        assert np.array_equal(np.asarray(got), wanted)
    s.close()


def test_memory_order_follows_the_plain_call():
    last = np.moveaxis(np.ascontiguousarray(np.moveaxis(IMAGE, 1, -1)), -1, 1)
    with qk.StreamContext():
        y, q = ops.conv_integer(last, W), ops.quantize_linear(X.T, 0.1)
    assert y.strides == ops.conv_integer(last, W).strides
    assert q.strides == ops.quantize_linear(X.T, 0.1).strides


def test_shape_and_dtype_are_known_before_the_work_is_done():
    s, gate = qk.Stream(), threading.Event()
    s.submit(gate.wait)
    with qk.stream(s):
        y = ops.quantize_linear(X, 0.02)
        z = ops.dequantize_linear(y, 0.02)
    assert (y.shape, y.dtype, z.dtype, s.query()) == (X.shape, np.uint8, np.float32, False)
    gate.set()
    assert np.array_equal(z, ops.dequantize_linear(ops.quantize_linear(X, 0.02), 0.02))


@pytest.mark.parametrize(
    "read",
    [
        np.asarray,
        lambda y: np.asarray(memoryview(y)),
        np.from_dlpack,
        lambda y: y[...],
        lambda y: y.reshape(-1).reshape(y.shape),
        lambda y: np.array(y.tolist()),
        lambda y: y.clone(),
        lambda y: np.frombuffer(y.storage(), np.uint8).reshape(y.shape),
        lambda y: np.array(list(y.storage())).reshape(y.shape),
        lambda y: np.array([y.storage()[i] for i in range(4)]).reshape(y.shape),
        lambda y: y + 0,
        np.array,
        lambda y: qk.QTensor(y).int_repr(),
        ops.copy,
        lambda y: y.share_memory_(),
    ],
)
def test_every_way_to_read_waits(read):
    s, gate = qk.Stream(), threading.Event()
    s.submit(gate.wait)
    with qk.stream(s):
        y = ops.quantize_linear(np.float32([[1, 2], [3, 4]]), 1.0)
    threading.Timer(0.05, gate.set).start()
    assert np.array_equal(read(y), [[1, 2], [3, 4]])


def gated(*streams):
    """Let streams wait until the returned event is set."""
    gate = threading.Event()
    for s in streams:
        s.submit(gate.wait)
    return gate


def test_read_after_write_across_streams():
    first, second = qk.Stream(), qk.Stream()
    gate = gated(first)
    with qk.stream(first):
        y = ops.quantize_linear(X, 0.02, 128)
    with qk.stream(second):
        z = ops.dequantize_linear(y, 0.02, 128)
    waited = second.wait_completion(0.05)
    gate.set()
    assert not waited
    assert np.array_equal(z, ops.dequantize_linear(CODES, 0.02, 128))


def test_write_after_read_and_after_write_across_streams():
    first, second, third = qk.Stream(), qk.Stream(), qk.Stream()
    x = qk.full((1000,), 1.0, dtype=np.float32)
    gate = gated(first)
    with qk.stream(first):
        y = ops.copy(x)
    with qk.stream(second):
        ops.copy(np.full(1000, 2, np.float32), out=x)
    with qk.stream(third):
        ops.copy(np.full(1000, 3, np.float32), out=x)
    waited = third.wait_completion(0.05)
    gate.set()
    assert not waited
    assert (np.asarray(y) == 1).all()
    assert (np.asarray(x) == 3).all()


def test_states_go_from_call_to_call_without_waiting():
    w, r = ops.pack_rnn(X[:1, :24, :7]), ops.pack_rnn(X[1:2, :24, :6])
    h = c = np.zeros((1, 3, 6), np.float32)
    first, second = qk.Stream(), qk.Stream()
    gate = gated(first)
    with qk.stream(first):
        _, h1, c1 = ops.lstm(X[:4, :3, :7], w, r, initial_h=h, initial_c=c)
    with qk.stream(second):
        z, h2, c2 = ops.lstm(X[2:, :3, :7], w, r, initial_h=h1, initial_c=c1)
    assert (z.shape, h2.shape, second.query()) == ((4, 1, 3, 6), (1, 3, 6), False)
    gate.set()
    _, h1, c1 = ops.lstm(X[:4, :3, :7], w, r, initial_h=h, initial_c=c)
    for got, wanted in zip((z, h2, c2), ops.lstm(X[2:, :3, :7], w, r, initial_h=h1, initial_c=c1), strict=True):
        assert np.array_equal(got, wanted)


def test_an_input_that_cannot_be_quantized_is_an_error_at_the_next_wait():
    s = qk.Stream()
    with qk.stream(s):
        y, _ = ops.rnn(np.full((2, 1, 7), np.inf, np.float32), np.ones((1, 6, 7), np.int8), X[:1, :6, :6], w_scale=0.1)
    with pytest.raises(InvalidArgument, match=r"finite x and states, got 14 values.*\nrnn, queued"):
        np.asarray(y)


def test_two_readers_do_not_wait_for_each_other():
    first, second = qk.Stream(), qk.Stream()
    x = qk.full((1000,), 1.0, dtype=np.float32)
    gate = gated(first)
    with qk.stream(first):
        ops.copy(x)
    with qk.stream(second):
        y = ops.copy(x)
    assert second.wait_completion(10)
    assert (np.asarray(y) == 1).all()
    gate.set()


def test_a_plain_write_waits_for_readers():
    s = qk.Stream()
    x = qk.full((1000,), 1.0, dtype=np.float32)
    gate = gated(s)
    with qk.stream(s):
        y = ops.copy(x)
    threading.Timer(0.05, gate.set).start()
    x.fill_(7)
    assert (np.asarray(y) == 1).all()


def test_in_place_and_overlapping():
    s = qk.Stream()
    x = qk.from_numpy(np.arange(100, dtype=np.float32))
    with qk.stream(s):
        ops.copy(x[:50], out=x[10:60])
        ops.copy(x[::-1], out=x)
    expected = np.arange(100, dtype=np.float32)
    expected[10:60] = expected[:50].copy()
    assert np.array_equal(x, expected[::-1])


def test_out_an_ndarray_is_done_at_return_and_out_an_array_is_not():
    s = qk.Stream()
    plain, array = np.empty(X.shape, np.uint8), qk.empty(X.shape, dtype=np.uint8)
    with qk.stream(s):
        assert ops.quantize_linear(X, 0.02, 128, out=plain) is plain
        assert np.array_equal(plain, CODES)
        gate = gated(s)
        assert ops.quantize_linear(X, 0.02, 128, out=array) is array
        assert not s.query()
        gate.set()
        tensor = qk.empty(X.shape)
        assert ops.quantize_linear(X, 0.02, 128, out=tensor) is tensor
        product = qk.empty((70, 50), dtype=np.int32)
        assert ops.matmul_integer(A, B, out=product.T.T) is not None
        convolved = qk.empty((2, 5, 7, 8), dtype=np.int32)
        assert ops.conv_integer(IMAGE, W, out=convolved) is convolved
        counts = qk.full((9,), 1, dtype=np.int64)
        assert ops.histogram(X, -1, 1, 9, counts=counts) is counts
    assert np.array_equal(array, CODES)
    assert np.array_equal(tensor, CODES)
    assert np.array_equal(product, ops.matmul_integer(A, B))
    assert np.array_equal(convolved, ops.conv_integer(IMAGE, W))
    assert np.array_equal(counts, ops.histogram(X, -1, 1, 9) + 1)


def test_out_an_array_in_plain_calls():
    product, convolved = qk.empty((70, 50), dtype=np.int32), qk.empty((2, 5, 7, 8), dtype=np.int32)
    counts = qk.full((9,), 1, dtype=np.int64)
    copied = qk.empty(X.shape, dtype=np.float32)
    assert ops.matmul_integer(A, B, out=product) is product
    assert ops.conv_integer(IMAGE, W, out=convolved) is convolved
    assert ops.histogram(X, -1, 1, 9, counts=counts) is counts
    assert ops.copy(X, out=copied) is copied
    assert np.array_equal(product, ops.matmul_integer(A, B))
    assert np.array_equal(convolved, ops.conv_integer(IMAGE, W))
    assert np.array_equal(counts, ops.histogram(X, -1, 1, 9) + 1)
    assert np.array_equal(copied, X)


def test_arguments_are_checked_at_the_call():
    s = qk.Stream()
    with qk.stream(s):
        y = ops.copy(A)
        for fault, call in [
            (InvalidQParams, lambda: ops.quantize_linear(X, -1.0)),
            (InvalidDType, lambda: ops.quantize_linear(A, 1.0)),
            (ShapeMismatch, lambda: ops.matmul_integer(y, y)),
            (ShapeMismatch, lambda: ops.copy(y, out=qk.empty((2, 2)))),
            (InvalidDType, lambda: ops.copy(np.zeros(2, complex))),
            (InvalidArgument, lambda: ops.histogram(X, 1, 1, 4)),
        ]:
            with pytest.raises(fault):
                call()
    s.synchronize()
    assert np.array_equal(y, A)


def test_parameters_that_are_pending_are_waited_for():
    with qk.StreamContext():
        q, scale, zero_point = ops.dynamic_quantize_linear(X)
        back = ops.dequantize_linear(q, scale, zero_point)
    q, scale, zero_point = ops.dynamic_quantize_linear(X)
    assert np.array_equal(back, ops.dequantize_linear(q, scale, zero_point))


def test_inputs_stay_alive_and_bytes_stay_in_place():
    s = qk.Stream()
    gate = gated(s)
    x = qk.from_numpy(X.copy()).clone()
    view = memoryview(x.storage())
    with qk.stream(s):
        y = ops.copy(x)
        z = ops.copy(X.copy())
    gate.set()
    with pytest.raises(StorageBusy):
        x.storage().resize_(1)
    view.release()
    x.resize_(0)  # waits, and then nothing holds the bytes
    assert np.array_equal(y, X)
    assert np.array_equal(z, X)


def test_a_right_operand_is_packed_in_its_turn_and_weights_at_the_call():
    first, second = qk.Stream(), qk.Stream()
    gate = gated(first)
    with qk.stream(first):
        b = ops.copy(B)
    with qk.stream(second):
        y = ops.matmul_integer(A, b)
        packed = ops.pack_matmul(B)
        z = ops.matmul_integer(A, packed)
    waited = second.wait_completion(0.05)
    gate.set()
    assert not waited
    assert np.array_equal(y, ops.matmul_integer(A, B))
    assert np.array_equal(z, ops.matmul_integer(A, B))


def test_tensors_inside_a_stream():
    with qk.StreamContext():
        t = qk.quantize(X, 0.05, 128)
        d = t.dequantize()
        r = qk.quantize(X)
        u = t.clone()
        codes = ops.copy(t)
    plain = qk.quantize(X, 0.05, 128)
    assert np.array_equal(t.int_repr(), plain.int_repr())
    assert np.array_equal(np.asarray(d), plain.dequantize())
    assert np.array_equal(r.int_repr(), qk.quantize(X).int_repr())
    assert np.array_equal(u.int_repr(), plain.int_repr())
    assert np.array_equal(codes, plain.int_repr())


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float16, np.float32, ml_dtypes.bfloat16])
def test_clone_is_made_in_its_turn(dtype):
    s = qk.Stream()
    x = qk.full((6, 4), 1, dtype=dtype)
    turned, gate = x.T, gated(s)
    with qk.stream(s):
        twin, other = x.clone(), turned.clone()
        assert not s.query()
        ops.copy(np.full((6, 4), 3, dtype), out=x)
    gate.set()
    assert (np.asarray(twin) == 1).all()
    assert (np.asarray(other) == 1).all()
    assert other.is_contiguous()
    assert (np.asarray(x) == 3).all()


def test_tensors_are_quantized_cloned_and_dequantized_in_their_turn():
    s = qk.Stream()
    gate = gated(s)
    with qk.stream(s):
        pending = ops.copy(X)
        t = qk.quantize(pending, 0.05, 128)
        u = t.clone()
        d = u.dequantize()
        assert not s.query()  # nothing was waited for
    assert (t.shape, d.shape, d.dtype) == (X.shape, X.shape, np.float32)
    gate.set()
    plain = qk.quantize(X, 0.05, 128)
    assert np.array_equal(u.int_repr(), plain.int_repr())
    assert np.array_equal(np.asarray(d), plain.dequantize())


def test_threads_of_a_stream():
    def threads(s):
        return s.submit(qk.cpu.num_threads).result()

    assert threads(qk.Stream()) == 1
    assert threads(qk.Stream(threads=0)) == qk.cpu.num_threads()
    assert threads(qk.default_stream()) == qk.cpu.num_threads()
