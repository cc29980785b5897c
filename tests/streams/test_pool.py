"""StreamPool: order, bounds, errors, cancelling, nesting."""

import threading
import time
import weakref

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import InvalidArgument, StreamError


@pytest.fixture
def pool():
    with qk.StreamPool(3) as made:
        yield made


def test_results_come_in_order_whatever_takes_how_long(pool):
    delays = np.random.default_rng(1).permutation(40) / 10_000
    assert list(pool.map(lambda d: (time.sleep(d), d)[1], delays)) == list(delays)


def test_unordered_results_come_as_they_are_done(pool):
    gate = threading.Event()
    results = pool.map(lambda i: i or (gate.wait(10) and 0), range(3), ordered=False)
    assert sorted([next(results), next(results)]) == [1, 2]
    gate.set()
    assert list(results) == [0]


def test_several_run_at_a_time_and_never_more_than_there_are_streams(pool):
    together, most, barrier, lock = [0], [0], threading.Barrier(3), threading.Lock()

    def work(i):
        with lock:
            together[0] += 1
            most[0] = max(most[0], together[0])
        if i < 3:
            barrier.wait(10)  # only three at once get past this
        with lock:
            together[0] -= 1

    list(pool.map(work, range(50)))
    assert most[0] == 3
    assert {s.submit(qk.cpu.num_threads).result() for s in pool.streams} == {1}


def test_items_are_taken_no_further_ahead_than_the_bound(pool):
    taken = []

    def items():
        for i in range(30):
            taken.append(i)
            yield i

    results = pool.map(lambda i: i, items(), in_flight=5)
    assert taken == []
    for done in range(1, 20):
        next(results)
        assert len(taken) <= done - 1 + 5
    results.close()
    assert len(taken) <= 19 + 5


def test_bytes_in_flight_and_an_item_that_is_larger(pool):
    live, most, lock = [0], [0], threading.Lock()
    sizes = [10, 10, 80, 50, 60, 200, 10, 10, 10]

    def work(x):
        with lock:
            live[0] += x.nbytes
            most[0] = max(most[0], live[0])
        time.sleep(0.002)
        with lock:
            live[0] -= x.nbytes
        return x.nbytes

    items = (np.zeros(n, np.uint8) for n in sizes)
    assert list(pool.map(work, items, in_flight=9, bytes_in_flight=100)) == sizes
    assert most[0] == 200  # alone
    again = pool.map(lambda n: n, sizes, in_flight=9, bytes_in_flight=100, nbytes=lambda n: n)
    assert list(again) == sizes


def test_results_are_not_kept(pool):
    class Result:
        pass

    seen = []
    for result in pool.map(lambda i: Result(), range(10)):
        seen.append(weakref.ref(result))
        assert sum(r() is not None for r in seen) <= 1 + 4
    del result
    pool.submit(int).result()  # until then a worker may still be on its way out of the last one
    assert all(r() is None for r in seen)


def test_the_first_error_cancels_and_waits_for_what_runs(pool):
    begun, ended = [], []

    def work(i):
        begun.append(i)
        if i == 3:
            raise KeyError(i)
        time.sleep(0.001)
        ended.append(i)
        return i

    results = pool.map(work, range(1000))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="3"):
        next(results)
    assert len(begun) < 20
    assert sorted([*ended, 3]) == sorted(begun)
    assert list(pool.map(abs, [-1])) == [1]  # and goes on


def test_errors_are_collected(pool):
    for ordered in (True, False):
        results = list(pool.map(lambda i: 1 // (i % 3), range(100), return_exceptions=True, ordered=ordered))
        assert sum(isinstance(r, ZeroDivisionError) for r in results) == 34
        assert sum(r in (0, 1) for r in results if isinstance(r, int)) == 66


def test_an_error_of_the_items(pool):
    def items():
        yield 1
        raise OSError("no more")

    results = pool.map(abs, items(), in_flight=1)
    assert next(results) == 1
    with pytest.raises(OSError, match="no more"):
        next(results)


def test_progress(pool):
    seen = []
    list(pool.map(abs, [1, 2, 3], progress=lambda *a: seen.append(a)))
    list(pool.map(abs, iter([1]), progress=lambda *a: seen.append(a)))
    assert seen == [(1, 3), (2, 3), (3, 3), (1, None)]


def test_an_item_may_map_over_its_own_pool(pool):
    def work(i):
        return sum(pool.map(lambda k: k, range(i)))

    assert list(pool.map(work, range(12))) == [sum(range(i)) for i in range(12)]

    def failing(i):
        return list(pool.map(lambda k: 1 // k, [1, 0], return_exceptions=i > 0))

    results = pool.map(failing, [0, 1], return_exceptions=True)
    assert isinstance(next(results), ZeroDivisionError)
    assert isinstance(next(results)[1], ZeroDivisionError)


def test_verbs_in_items_and_maps_in_streams(pool):
    x = np.random.default_rng(0).standard_normal((20, 500)).astype(np.float32)
    expected = [qk.ops.quantize_linear(row, 0.1, 3) for row in x]
    with qk.StreamContext():
        got = list(pool.map(lambda row: qk.ops.quantize_linear(row, 0.1, 3), x))
    assert all(type(g) is np.ndarray and np.array_equal(g, e) for g, e in zip(got, expected, strict=True))


def test_submit_and_close():
    pool = qk.StreamPool(2)
    futures = [pool.submit(pow, i, 2) for i in range(20)]
    pool.close()
    assert [f.result() for f in futures] == [i * i for i in range(20)]
    with pytest.raises(StreamError, match="closed"):
        pool.submit(int)
    assert qk.StreamPool().size == qk.cpu.usable_cpus()


@pytest.mark.parametrize("bad", [{"in_flight": 0}, {"bytes_in_flight": 0}, {"in_flight": "many"}])
def test_bounds_are_checked_at_the_call(pool, bad):
    with pytest.raises(InvalidArgument, match="wanted"):
        pool.map(abs, [1], **bad)
    with pytest.raises(InvalidArgument, match="number of streams"):
        qk.StreamPool(0)
