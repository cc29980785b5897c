"""Stream, Event and StreamContext: order, waits, futures, errors, cancelling and closing."""

import asyncio
import contextvars
import threading
import time

import numpy as np
import pytest

import quantkit as qk
from quantkit import ops
from quantkit.errors import InvalidArgument, InvalidDType, StreamCancelled, StreamError

X = np.linspace(-3, 3, 1000, dtype=np.float32)
BAD = np.float32([1, np.nan, np.inf])


def gated(s):
    gate = threading.Event()
    s.submit(gate.wait)
    return gate


def test_a_stream_is_in_order():
    s, seen = qk.Stream(), []
    for i in range(100):
        s.submit(seen.append, i)
    s.synchronize()
    assert seen == list(range(100))


def test_query_and_wait_completion():
    s = qk.Stream()
    assert s.query()
    gate = gated(s)
    assert not s.query()
    start = time.monotonic()
    assert not s.wait_completion(0.05)
    assert time.monotonic() - start >= 0.05
    assert not s.wait_completion(0)
    gate.set()
    assert s.wait_completion()
    assert s.query()
    assert "idle" in repr(s)


def test_contexts_nest_and_belong_to_their_thread():
    first, second = qk.Stream(), qk.Stream()
    assert qk.current_stream() is qk.default_stream()
    with qk.stream(first):
        with qk.stream(second):
            assert qk.current_stream() is second
            with qk.stream(qk.default_stream()):
                assert qk.current_stream() is qk.default_stream()
                assert isinstance(ops.copy(X), np.ndarray)
        assert qk.current_stream() is first
        seen = []
        thread = threading.Thread(target=lambda: seen.append(qk.current_stream()))
        thread.start()
        thread.join()
        assert seen == [qk.default_stream()]
    assert qk.current_stream() is qk.default_stream()


def test_a_context_makes_a_stream_where_none_is_given():
    with qk.StreamContext() as c:
        y = ops.copy(X)
        assert qk.current_stream() is c.stream
    c.synchronize()
    assert c.wait_completion(1)
    assert np.array_equal(y, X)
    with c, c:  # again, and in itself
        assert qk.current_stream() is c.stream
    with pytest.raises(InvalidDType, match="wanted a Stream"):
        qk.stream("cpu")


def test_arguments():
    for device in ("mps", "gpu:0", "meta"):
        with pytest.raises(InvalidArgument, match=f"device '{device}'"):
            qk.Stream(device)
    with pytest.raises(InvalidArgument, match="threads"):
        qk.Stream(threads=-1)
    assert qk.Stream("cpu", name="mine").name == "mine"
    assert (qk.Stream().device, qk.Stream().threads) == ("cpu", 1)


def test_the_default_stream_is_the_calling_thread():
    s = qk.default_stream()
    assert s.submit(threading.get_ident).result() == threading.get_ident()
    assert s.query()
    assert s.record_event().query()
    other = qk.Stream()
    gate = gated(other)
    event = other.record_event()
    threading.Timer(0.05, gate.set).start()
    s.wait_event(event)
    assert event.query()
    s.wait_event(qk.Event())
    s.wait_stream(other)
    s.synchronize()
    with pytest.raises(InvalidArgument, match="calling thread"):
        s.close()


def test_events_order_streams():
    first, second, seen = qk.Stream(), qk.Stream(), []
    gate = gated(first)
    first.submit(seen.append, "first")
    event = first.record_event()
    second.wait_event(event)
    second.submit(seen.append, "second")
    assert not event.query()
    assert "pending" in repr(event)
    assert not second.wait_completion(0.05)
    gate.set()
    second.synchronize()
    assert seen == ["first", "second"]
    assert event.query()
    event.synchronize()


def test_wait_stream_and_an_event_of_the_current_stream():
    first, second, seen = qk.Stream(), qk.Stream(), []
    gate = gated(first)
    first.submit(seen.append, 1)
    second.wait_stream(first)
    second.submit(seen.append, 2)
    event = qk.Event()
    assert event.query()
    assert "not recorded" in repr(event)
    second.wait_event(event)  # never recorded: nothing to wait for
    with qk.stream(second):
        event.record()
    with qk.stream(first):
        event.wait()
    first.submit(seen.append, 3)
    gate.set()
    first.synchronize()
    assert seen == [1, 2, 3]
    assert "complete" in repr(event)


def test_elapsed_time():
    s = qk.Stream()
    begin, end = qk.Event(enable_timing=True), qk.Event(enable_timing=True)
    s.record_event(begin)
    s.submit(time.sleep, 0.05)
    s.record_event(end)
    assert 50 <= begin.elapsed_time(end) < 5000  # waits for both
    assert end.elapsed_time(begin) <= -50
    with pytest.raises(InvalidArgument, match="enable_timing"):
        begin.elapsed_time(s.record_event())
    with pytest.raises(StreamError, match="recorded"):
        begin.elapsed_time(qk.Event(enable_timing=True))


def test_futures():
    s = qk.Stream()
    assert s.submit(pow, 2, 5).result() == 32
    assert s.submit(dict, a=1).result(1) == {"a": 1}
    failed = s.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failed.result()
    assert isinstance(failed.exception(), ZeroDivisionError)
    s.synchronize()  # somebody has seen it
    gate = gated(s)
    slow = s.submit(int)
    with pytest.raises(TimeoutError):
        slow.result(0.01)
    assert slow.cancel()
    gate.set()
    s.synchronize()
    assert slow.cancelled()


def test_callables_see_context_variables_and_are_outside_of_streams():
    variable = contextvars.ContextVar("variable", default=0)
    s = qk.Stream()
    with qk.stream(s):
        variable.set(3)
        assert s.submit(variable.get).result() == 3
        assert s.submit(qk.current_stream).result() is qk.default_stream()
        assert type(s.submit(ops.copy, X).result()) is np.ndarray


def test_thread_locals_last_and_threads_have_names():
    s, local = qk.Stream(name="worker-of-mine"), threading.local()
    s.submit(setattr, local, "value", 5).result()
    assert s.submit(getattr, local, "value").result() == 5
    assert s.submit(threading.get_ident).result() == s.submit(threading.get_ident).result() != threading.get_ident()


def test_asyncio():
    async def work(s, seen):
        with qk.stream(s):
            y = ops.copy(X)
            await asyncio.sleep(0)
            assert qk.current_stream() is s  # other tasks have their own
            z = ops.quantize_linear(y, 0.1, 30)
        assert await s.submit(sum, [1, 2]) == 3
        await s
        assert s.query()
        seen.append(np.asarray(z))
        with pytest.raises(ZeroDivisionError):
            await s.submit(lambda: 1 / 0)
        s.submit(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await s

    async def main():
        seen = []
        await asyncio.gather(*[work(qk.Stream(), seen) for _ in range(4)])
        return seen

    for z in asyncio.run(main()):
        assert np.array_equal(z, ops.quantize_linear(X, 0.1, 30))


def test_a_task_made_in_a_context_stays_in_it():
    async def main():
        s = qk.Stream()
        with qk.stream(s):
            task = asyncio.create_task(asyncio.to_thread(qk.current_stream))
        assert await task is s

    asyncio.run(main())


def test_cancel():
    first, second, seen = qk.Stream(), qk.Stream(), []
    gate = gated(first)
    with qk.stream(first):
        y = ops.copy(X)
    future = first.submit(seen.append, 1)
    event = first.record_event()
    with qk.stream(second):
        z = ops.copy(y)
    assert first.cancel() in (3, 4)  # with the gate, where that has not begun
    assert event.query()
    assert future.cancelled()
    for broken in (y, z):
        with pytest.raises(StreamCancelled, match="copy was cancelled on stream-"):
            np.asarray(broken)
    gate.set()
    first.synchronize()  # asked for: no error
    assert seen == []
    assert first.submit(int).result() == 0


def test_cancel_while_waiting_for_another_stream():
    first, second = qk.Stream(), qk.Stream()
    gate = gated(first)
    second.wait_stream(first)
    second.submit(int)
    assert second.cancel() == 2
    assert second.wait_completion(10)
    assert second.submit(int).result(10) == 0
    gate.set()


def test_close():
    s = qk.Stream()
    done = s.submit(int)
    s.close()
    assert done.result() == 0
    with pytest.raises(StreamError, match="closed"):
        s.submit(int)
    with qk.stream(s), pytest.raises(StreamError, match="closed: copy cannot be queued"):
        ops.copy(X)
    s.close()
    s.synchronize()


def test_a_dropped_stream_finishes_its_work():
    def dropped():
        s = qk.Stream()
        with qk.stream(s):
            return ops.quantize_linear(ops.copy(X), 0.1, 30), s.submit(sum, [1, 2])

    results = [dropped() for _ in range(50)]
    for y, future in results:
        assert np.array_equal(y, ops.quantize_linear(X, 0.1, 30))
        assert future.result() == 3


def test_many_streams_do_not_outgrow_their_threads():
    before = threading.active_count()
    streams = [qk.Stream() for _ in range(30)]
    for s in streams:
        with qk.stream(s):
            ops.copy(X)
    for s in streams:
        s.close()
    assert threading.active_count() == before  # C threads are none of Python's


def test_a_recurrent_network_on_a_stream():
    rng = np.random.default_rng(6)
    steps = rng.standard_normal((20, 8)).astype(np.float32)
    w, r = (rng.standard_normal((5, n)).astype(np.float32) / 4 for n in (8, 5))

    def rnn(x):
        h = np.zeros(5, np.float32)
        for x_t in x:
            h = np.tanh(w @ x_t + r @ h)
        return h

    first, second = qk.Stream(), qk.Stream()
    futures = [stream.submit(rnn, x) for stream, x in ((first, steps), (second, steps[::-1]))]
    assert np.array_equal(futures[0].result(), rnn(steps))
    assert np.array_equal(futures[1].result(), rnn(steps[::-1]))
    for stream in (first, second):
        stream.close()
