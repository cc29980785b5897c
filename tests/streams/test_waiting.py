"""Callables that wait for work that comes after them, or for each other: told, and never hanging."""

import threading

import numpy as np
import pytest

import quantkit as qk
from quantkit import ops
from quantkit.errors import StreamError

X = np.linspace(-3, 3, 1000, dtype=np.float32)


def gated(s):
    gate = threading.Event()
    s.submit(gate.wait)
    return gate


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
