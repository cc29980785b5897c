"""Errors of work on streams: where they are raised, what they poison, and that none is lost."""

import contextlib
import gc
import threading
import time
import traceback
import weakref

import numpy as np
import pytest

import quantkit as qk
from quantkit import ops
from quantkit.errors import InvalidArgument

X = np.linspace(-3, 3, 1000, dtype=np.float32)
BAD = np.float32([1, np.nan, np.inf])


def gated(s):
    gate = threading.Event()
    s.submit(gate.wait)
    return gate


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


def test_an_error_that_passed_through_frames_keeps_no_array_alive():
    s = qk.Stream()

    def read():
        with qk.stream(s):
            bad = ops.copy(enqueue_bad()[0])
        seen.append(weakref.ref(bad))
        with pytest.raises(InvalidArgument):
            s.submit(lambda: np.asarray(bad)).result()

    seen = []
    for _ in range(5):
        read()
    with contextlib.suppress(InvalidArgument):
        s.synchronize()
    gc.collect()
    assert [ref() for ref in seen] == [None] * 5
