"""Stream, Event and StreamContext: order, waits, futures, errors, cancelling and closing."""

import asyncio
import contextvars
import threading
import time
import traceback

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


def enqueue_bad():
    return ops.dynamic_quantize_linear(BAD)


def test_an_error_names_the_line_that_queued_it_and_reaches_the_next_wait_once():
    s = qk.Stream(name="mine")
    with qk.stream(s):
        enqueue_bad()
    with pytest.raises(InvalidArgument, match="got 2 that are NaN or infinite") as caught:
        s.synchronize()
    (note,) = caught.value.__notes__
    assert note.startswith("dynamic_quantize_linear, queued on mine at ")
    assert note.endswith(f"{__file__}:{enqueue_bad.__code__.co_firstlineno + 1}, in enqueue_bad")
    s.synchronize()


def test_an_error_poisons_what_depends_on_it_and_nothing_else():
    first, second = qk.Stream(), qk.Stream()
    with qk.stream(first):
        bad, scale, _ = enqueue_bad()
        good = ops.copy(X)
        worse = ops.dequantize_linear(bad, 0.1)
    with qk.stream(second):
        worst = ops.copy(worse)
        fine = ops.copy(good)
    assert np.array_equal(fine, X)
    assert np.array_equal(good, X)
    for broken in (bad, scale, worse, worst, worst):
        with pytest.raises(InvalidArgument, match="NaN or infinite"):
            np.asarray(broken)
    with pytest.raises(InvalidArgument, match="NaN or infinite") as caught:
        worst[0]
    notes = caught.value.__notes__
    assert "dynamic_quantize_linear" in notes[0]
    assert notes[-1].startswith("copy, queued on")
    first.synchronize()  # all of them were seen
    second.synchronize()


def test_a_failed_result_is_good_again_when_all_of_it_is_written():
    s = qk.Stream()
    with qk.stream(s):
        bad = enqueue_bad()[0]
        with pytest.raises(InvalidArgument):
            s.synchronize()
        ops.copy(np.uint8([1, 2, 3]), out=bad)
    assert np.asarray(bad).tolist() == [1, 2, 3]


def test_a_part_written_does_not_mend_the_rest():
    s = qk.Stream()
    whole = qk.full((4,), 0, dtype=np.uint8)
    part = whole[:3]
    with qk.stream(s):
        gate = gated(s)
        ops.copy(s_poison(s), out=whole)
        ops.copy(np.uint8([1, 2, 3]), out=part)
    gate.set()
    with pytest.raises(InvalidArgument):
        np.asarray(whole)
    with pytest.raises(InvalidArgument):
        s.synchronize()


def s_poison(s):
    return ops.dynamic_quantize_linear(np.float32([np.nan, 1, 2, 3]))[0]


def test_several_errors_come_together():
    s = qk.Stream()
    s.submit(lambda: 1 / 0)
    s.submit([].pop)
    with pytest.raises(ZeroDivisionError) as caught:
        s.synchronize()
    assert any("pop from empty list" in note for note in caught.value.__notes__)
    s.synchronize()


def test_raising_twice_does_not_grow_the_traceback():
    with qk.StreamContext():
        bad = enqueue_bad()[0]
    depths = []
    for _ in range(3):
        try:
            np.asarray(bad)
        except InvalidArgument as error:
            depths.append(len(traceback.extract_tb(error.__traceback__)))
    assert len(set(depths)) == 1


def test_an_error_with_out_an_ndarray_is_raised_at_the_call():
    with qk.StreamContext() as c:
        bad = enqueue_bad()[0]
        with pytest.raises(InvalidArgument, match="NaN or infinite"):
            ops.copy(bad, out=np.empty(3, np.uint8))
    c.synchronize()


def test_an_error_that_nobody_sees_is_printed(monkeypatch):
    seen = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: seen.append(args.exc_value))
    s = qk.Stream()
    with qk.stream(s):
        enqueue_bad()
    while not s.query():
        time.sleep(0.001)
    del s
    time.sleep(0)  # where the main thread looks for what it was asked to do
    assert [str(error) for error in seen] == [
        "dynamic_quantize_linear: wanted finite values, got 2 that are NaN or infinite"
    ]


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


@pytest.mark.parametrize("wait", ["synchronize", "wait_completion", "future", "event", "array", "other stream"])
def test_a_callable_that_waits_for_itself_is_told(wait):
    s, other = qk.Stream(), qk.Stream()
    gate = gated(s)

    def body():
        if wait == "future":
            later.result()
        elif wait == "event":
            event.synchronize()
        elif wait == "array":
            with qk.stream(s):
                y = ops.copy(X)
            np.asarray(y)
        elif wait == "other stream":
            other.synchronize()
        else:
            getattr(s, wait)()

    future = s.submit(body)
    later, event = s.submit(int), s.record_event()
    other.wait_event(event)
    gate.set()
    if wait == "array":
        future.exception()  # the copy comes after the callable: it has no values yet, which is told or seen
    else:
        with pytest.raises(StreamError, match="never end"):
            future.result(10)
    assert later.result(10) == 0
    assert s.wait_completion(10)
    assert other.wait_completion(10)


def test_two_callables_that_wait_for_each_other():
    first, second = qk.Stream(), qk.Stream()
    ready = threading.Barrier(2)

    def body(other):
        ready.wait(10)
        other.record_event().synchronize()

    futures = [first.submit(body, second), second.submit(body, first)]
    errors = [f.exception(10) for f in futures]
    assert sum(isinstance(error, StreamError) for error in errors) == 1
    assert first.wait_completion(10)
    assert second.wait_completion(10)


def test_a_callable_reads_arrays_as_they_were_in_its_turn():
    s = qk.Stream()
    a = qk.full((100,), 1.0, dtype=np.float32)
    gate = gated(s)
    future = s.submit(lambda: np.array(a))
    with qk.stream(s):
        ops.copy(np.full(100, 2, np.float32), out=a)  # comes later, waits for nothing that the callable could block
    gate.set()
    assert (future.result(10) == 1).all()
    assert (np.asarray(a) == 2).all()


def test_many_streams_do_not_outgrow_their_threads():
    before = threading.active_count()
    streams = [qk.Stream() for _ in range(30)]
    for s in streams:
        with qk.stream(s):
            ops.copy(X)
    for s in streams:
        s.close()
    assert threading.active_count() == before  # C threads are none of Python's
