"""ordered_map: in order, bounded, and what happens to errors."""

import threading
import time

import pytest

from quantkit.errors import InvalidArgument
from quantkit.parallel import ordered_map


@pytest.mark.parametrize("workers", [1, 2, 8, None])
@pytest.mark.parametrize("in_flight", [1, 3, None])
def test_results_come_in_the_order_of_the_items(workers, in_flight):
    def slow_first(i):
        time.sleep(0.002 * (i % 3 == 0))
        return i * i

    assert list(ordered_map(slow_first, range(50), workers=workers, in_flight=in_flight)) == [i * i for i in range(50)]
    assert list(ordered_map(slow_first, [], workers=workers)) == []


@pytest.mark.parametrize(("workers", "in_flight"), [(1, 1), (2, 3), (4, 2), (3, 10)])
def test_never_more_at_once_than_asked(workers, in_flight):
    lock, running, most, taken = threading.Lock(), 0, 0, 0

    def items():
        nonlocal taken
        for i in range(40):
            taken += 1
            yield i

    def work(i):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.001)
        with lock:
            running -= 1
        return i

    for got, i in enumerate(ordered_map(work, items(), workers=workers, in_flight=in_flight)):
        assert got == i
        assert taken - got <= in_flight
    assert taken == 40
    assert most <= min(workers, in_flight)


def test_several_run_side_by_side():
    barrier = threading.Barrier(3, timeout=10)
    assert len(list(ordered_map(lambda _: barrier.wait(), range(3), workers=3))) == 3


def test_the_first_error_in_order_is_raised_and_the_rest_never_begins():
    begun = []

    def work(i):
        begun.append(i)
        if i == 5:
            raise KeyError(i)
        return i

    got = []
    with pytest.raises(KeyError, match="5"):
        got.extend(ordered_map(work, range(1000), workers=2, in_flight=4))
    assert got == list(range(len(got)))
    assert len(got) <= 5
    assert max(begun) <= 5 + 4


def test_an_error_of_an_earlier_item_wins():
    later_failed = threading.Event()

    def work(i):
        if i == 1:
            later_failed.set()
            raise ValueError("later")
        later_failed.wait(10)
        raise ValueError("earlier")

    with pytest.raises(ValueError, match="earlier"):
        list(ordered_map(work, range(2), workers=2))


def test_errors_collected():
    def work(i):
        if i % 3 == 1:
            raise ValueError(i)
        return i

    found = list(ordered_map(work, range(7), workers=2, return_exceptions=True))
    assert [str(v) if isinstance(v, ValueError) else v for v in found] == [0, "1", 2, 3, "4", 5, 6]


def test_an_error_of_the_items_is_raised():
    def items():
        yield 1
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        list(ordered_map(lambda i: i, items(), workers=2))


def test_stopping_early_leaves_no_thread():
    before = threading.active_count()
    results = ordered_map(lambda i: i, range(1000), workers=4)
    assert next(results) == 0
    results.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"in_flight": 0}, {"workers": -1}])
def test_wrong_numbers_are_refused_at_the_call(wrong):
    with pytest.raises(InvalidArgument, match="at least one worker and one item in flight"):
        ordered_map(str, [1], **wrong)
