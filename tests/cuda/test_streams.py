"""Streams of a GPU: order, events, callables, and the order that operands enforce between streams."""

import asyncio
import random

import fake_cuda
import numpy as np
import on_cpu
import pytest

import quantkit as qk
from quantkit.errors import CudaUnavailable, InvalidArgument, InvalidDType, StreamError

X = np.linspace(-1, 1, 1000, dtype=np.float32)


def there(x):
    return qk.from_numpy(x).to("cuda:0")


def test_a_stream(gpu):
    s = qk.Stream(device="cuda:0", name="mine")
    assert isinstance(s, qk.Stream)
    assert (s.device, s.name) == ("cuda:0", "mine")
    x = there(X)
    with qk.stream(s):
        assert qk.current_stream("cuda:0")._queue is s._queue
        assert qk.current_stream() is qk.default_stream()  # the CPU's
        q = qk.ops.quantize_linear(x, 1 / 127, 128)
        host = qk.ops.quantize_linear(X, 1 / 127, 128)
        assert isinstance(host, np.ndarray)  # work of the CPU is not touched by it
        made = qk.empty(3, device="cuda")
        assert made.device == "cuda:0"
    assert qk.current_stream("cuda:0") is qk.default_stream("cuda:0")
    assert (q.shape, q.dtype) == ((1000,), np.uint8)
    s.synchronize()
    assert s.query()
    assert np.array_equal(np.asarray(q.cpu()), host)
    assert repr(s) == "<Stream 'mine' on cuda:0, idle>"
    s.close()
    with pytest.raises(StreamError, match="stream 'mine' is closed"):
        s.record_event()


def test_events(gpu):
    a, b = qk.Stream("cuda:0"), qk.Stream("cuda:0")
    begin, end = qk.Event(enable_timing=True), qk.Event(enable_timing=True)
    with qk.stream(a):
        begin.record(a)
        y = qk.ops.copy(there(X))
        end.record(a)
    b.wait_event(end)
    b.wait_stream(a)
    end.synchronize()
    assert end.query()
    assert begin.elapsed_time(end) >= 0
    assert b.wait_completion(timeout=5.0)
    assert y.tolist() == X.tolist()
    never = qk.Event()
    b.wait_event(never)  # was never recorded: does nothing
    cpu = qk.Stream()
    cpu.wait_event(end)
    cpu.wait_stream(a)
    a.wait_stream(cpu)
    a.wait_event(cpu.record_event())
    cpu.synchronize()
    with pytest.raises(StreamError, match="on a GPU, the other on the CPU"):
        begin.elapsed_time(_recorded_on_cpu())


def _recorded_on_cpu():
    event = qk.Event(enable_timing=True)
    qk.Stream().record_event(event)
    return event


def test_callables_in_their_turn(gpu):
    s = qk.Stream("cuda:0")
    seen = []
    x = there(X)
    with qk.stream(s):
        y = qk.ops.copy(x)
        future = s.submit(lambda: seen.append(y.tolist()))
        z = qk.ops.copy(y)  # waits for the callable
        assert len(seen) == 1
    assert future.result() is None
    assert seen == [X.tolist()] == [z.tolist()]
    assert s.submit(lambda: qk.ops.copy(y).tolist()).result() == X.tolist()  # its own work does not wait for itself

    def fails():
        raise KeyError("on purpose")

    s.submit(fails)
    with pytest.raises(KeyError, match="on purpose"):
        s.synchronize()

    async def main():
        await s
        return await s.submit(sum, [1, 2])

    assert asyncio.run(main()) == 3
    assert s.cancel() == 0


def test_streams_of_others(gpu):
    class Torch:
        def __init__(self, stream):
            self.cuda_stream = stream._queue.handle
            self.device = type("Device", (), {"index": 0})

    s = qk.Stream("cuda:0")
    version, handle = s.__cuda_stream__()
    assert (version, handle) == (0, s._queue.handle)
    with qk.stream(Torch(s)) as c:
        assert qk.full((3,), 2.0, device="cuda:0").tolist() == [2.0] * 3
        assert qk.full((3,), 1.0, dtype=np.float32, device="cuda:0").__cuda_array_interface__["stream"] == handle
    c.synchronize()
    with qk.stream(qk.default_stream("cuda:0")):
        assert qk.current_stream("cuda:0") is qk.default_stream("cuda:0")
    with pytest.raises(InvalidDType, match="wanted a Stream, got int"):
        qk.stream(7)


def test_what_a_stream_refuses(gpu):
    with pytest.raises(InvalidArgument, match="threads belong to streams of the CPU"):
        qk.Stream("cuda:0", threads=2)
    with pytest.raises(InvalidArgument, match="the devices are"):
        qk.Stream("tpu")
    with pytest.raises(CudaUnavailable, match="there is no cuda:9"):
        qk.Stream("cuda:9")
    with pytest.raises(InvalidArgument, match="cannot be closed"):
        qk.default_stream("cuda:0").close()


@pytest.mark.skipif(on_cpu.missing() is not None, reason=str(on_cpu.missing()))
@pytest.mark.parametrize("seed", range(12))
def test_operands_order_streams(monkeypatch, seed):
    """Random work on four streams of two GPUs, done as late and in as odd an order as a driver may."""
    fake_cuda.install(monkeypatch, seed=seed)
    dice = random.Random(seed)
    streams = [qk.default_stream("cuda:0"), *[qk.Stream(f"cuda:{i % 2}") for i in range(3)]]
    n = 64
    arrays = {
        f"cuda:{g}": [qk.full((n,), k + 10 * g, dtype=np.uint8, device=f"cuda:{g}") for k in range(3)] for g in range(2)
    }
    model = {device: [np.full(n, a.tolist()[0], np.uint8) for a in held] for device, held in arrays.items()}
    for step in range(40):
        s = dice.choice(streams)
        i, j = dice.randrange(3), dice.randrange(3)
        held, plain = arrays[s.device], model[s.device]
        with qk.stream(s):
            match dice.randrange(6):
                case 0:
                    table = np.random.default_rng(step).permutation(256).astype(np.uint8)
                    qk.ops.lookup(held[i], table, out=held[j])
                    plain[j] = table[plain[i]]
                case 1:
                    held[i].fill_(step)
                    plain[i] = np.full(n, step, np.uint8)
                case 2:
                    held[i] = qk.ops.copy(held[j])  # the old bytes are let go of while work may be on its way
                    plain[i] = plain[j].copy()
                case 3:
                    other = dice.choice(["cuda:0", "cuda:1"])
                    held[i].copy_(arrays[other][j])
                    plain[i] = model[other][j].copy()
                case 4:
                    held[i].copy_(np.full(n, 200 - step, np.uint8))
                    plain[i] = np.full(n, 200 - step, np.uint8)
                case 5:
                    held[i][::2] = held[j][1::2]
                    plain[i] = plain[i].copy()
                    plain[i][::2] = plain[j][1::2].copy()
        if dice.random() < 0.1:
            assert held[i].tolist() == plain[i].tolist()
    for device, held in arrays.items():
        assert [a.tolist() for a in held] == [p.tolist() for p in model[device]]
    del arrays, held, streams, s
    fake_cuda.remove()
