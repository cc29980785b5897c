"""Which parts are measured, and which of them are left float."""

import itertools

import numpy as np
import pytest

from quantkit.models.refinement import parts as module
from quantkit.models.refinement.parts import Part, choose_float, factors_of, give_back, measure_parts

GOALS = np.array([1.0, 2.0])


def measured(costs, **more):
    """Parts of a model with one node a part, whose noises add up exactly."""
    costs = np.array(costs, float)
    calls = []

    def alone(first, end):
        calls.append((first, end))
        return costs[first:end].sum(axis=0)

    found = measure_parts(list(range(len(costs))), len(costs), GOALS, alone, lambda done, total: None, **more)
    return found, calls


def test_a_short_model_is_measured_part_by_part():
    found, calls = measured([[1, 0], [0, 3], [0, 0]])
    assert [(part.first, part.end) for part in found] == [(0, 1), (1, 2), (2, 3)]
    assert len(calls) == 3


def test_only_what_matters_is_cut_in_two():
    costs = np.zeros((64, 2))
    costs[37, 1] = 5
    found, calls = measured(costs)
    assert len(calls) == 8 + 2 * 3
    assert (37, 38) in [(part.first, part.end) for part in found]
    edges = [found[0].first, *(part.end for part in found)]
    assert edges == sorted(edges)
    assert (edges[0], edges[-1]) == (0, 64)
    assert all(a.end == b.first for a, b in itertools.pairwise(found))


def test_measurements_are_limited():
    _, calls = measured(np.ones((1000, 2)))
    assert len(calls) <= module._MEASUREMENTS


def chosen(costs, macs, most=1.0, **more):
    made = [Part(i, i + 1, np.array(cost, float)) for i, cost in enumerate(costs)]
    return choose_float(made, more.get("before", set()), np.ones(2), GOALS, np.array(macs), most)


def test_nothing_is_left_float_where_the_sum_is_good_enough():
    assert chosen([[0.5, 0], [0.5, 2]], [0.5, 0.5]) == set()


def test_what_costs_most_for_its_arithmetic_goes_first():
    assert chosen([[0.9, 0], [0.9, 0]], [0.9, 0.1]) == {1}


def test_each_number_has_its_own_goal():
    assert chosen([[0.9, 0], [0, 3], [0, 1.5]], [0.1, 0.8, 0.1]) == {1}


def test_the_arithmetic_that_may_be_float_is_a_bound():
    assert chosen([[9, 0], [3, 0]], [0.7, 0.3], most=0.4) == {1}


def test_a_part_that_became_needless_stays_int8():
    # The small one looks cheap, but only the large one helps enough.
    assert chosen([[0.8, 0], [5, 0]], [0.0, 0.5]) == {1}


@pytest.mark.parametrize("noise", [np.inf, 1e300])
def test_noise_without_bound_is_left_float(noise):
    assert chosen([[noise, 0], [0.1, 0]], [0.5, 0.5]) == {0}


def test_what_was_chosen_before_stays():
    assert chosen([[0, 0], [5, 0]], [0.5, 0.5], before={0}) == {0, 1}


def test_what_measures_better_than_it_adds_up_gives_arithmetic_back():
    made = [Part(i, i + 1, np.array(noise, float)) for i, noise in enumerate([[0.2, 0], [0.4, 0], [0.7, 0], [0.1, 0]])]
    macs = np.array([0.1, 0.5, 0.3, 0.1])
    assert give_back(made, {1, 2}, np.ones(2), GOALS, macs) == {2}
    assert give_back(made, {1, 2}, np.array([3, 1]), GOALS, macs) == {1, 2}
    assert factors_of(made, {1, 2}, np.array([0.6, 0])).tolist() == pytest.approx([2, 0.1])
