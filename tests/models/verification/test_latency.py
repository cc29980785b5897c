"""Interleaved timing, with a clock that only moves when a model runs."""

import pytest

from quantkit.models.verification.latency import Latency, interleave


class Clock:
    def __init__(self):
        self.now = 0.0
        self.order = []

    def __call__(self):
        return self.now

    def run(self, name, *seconds):
        times = iter(seconds)
        last = seconds[-1]

        def step():
            self.order.append(name)
            self.now += next(times, last)

        return step


def test_medians_and_order():
    clock = Clock()
    before, after = clock.run("float", 9.0, 0.2, 0.2, 0.2, 0.3), clock.run("int8", 9.0, 0.1, 0.1, 0.4)
    got = interleave(before, after, budget=19.0, clock=clock)
    assert clock.order[:5] == ["float", "int8", "float", "int8", "float"]
    assert clock.order[5:8] == ["float", "int8", "float"]
    assert got.int8_ms == pytest.approx(100.0)
    assert got.float_ms == pytest.approx(200.0)
    assert got.runs == 2


def test_the_spread_is_between_two_medians_of_one_model():
    clock = Clock()
    times = [1.0] + [0.2, 0.3] * 50
    got = interleave(clock.run("float", *times), clock.run("int8", 0.1), budget=5.0, clock=clock)
    assert got.spread == pytest.approx(0.5)


def test_models_slower_than_the_budget_run_once():
    clock = Clock()
    got = interleave(clock.run("float", 10.0), clock.run("int8", 5.0), budget=3.0, clock=clock)
    assert clock.order == ["float", "int8"]
    assert got == Latency(10000.0, 5000.0, 0.0, 1, 1)
    assert got.speedup == 2.0


def test_fast_models_stop_after_200_rounds():
    clock = Clock()
    got = interleave(clock.run("float", 1e-6), clock.run("int8", 1e-6), budget=3.0, clock=clock)
    assert got.runs == 200


def test_to_dict():
    assert Latency(2.0, 1.0, 0.01, 7, 1).to_dict() == {
        "float_ms": 2.0,
        "int8_ms": 1.0,
        "spread": 0.01,
        "runs": 7,
        "threads": 1,
        "speedup": 2.0,
    }
