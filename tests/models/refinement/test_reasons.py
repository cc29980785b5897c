"""The numbers in the reasons of nodes that stay float."""

import numpy as np
import pytest

from quantkit.models.refinement.reasons import HOPELESS, by_outputs, by_time, effect
from quantkit.models.refinement.speed import Costs


def test_a_stretch_is_told_with_its_conversions():
    costs = Costs(np.full(5, 10.0), np.array([5.0, 30, 40, 5, 31]), np.array([1.0, 2, 4, 8, 16]), np.ones(5))
    assert by_time(costs, np.array([True, False, False, True, False]), "why") == {
        1: "why, 70.0 us instead of 30.0 for 2 nodes",
        2: "why, 70.0 us instead of 30.0 for 2 nodes",
        4: "why, 31.0 us instead of 26.0 for 1 node",
    }


def test_int8_from_the_first_node_on_converts_the_input():
    costs = Costs(np.full(2, 10.0), np.array([30.0, 5.0]), np.array([1.0, 2.0]), np.ones(2))
    assert by_time(costs, np.array([False, True]), "why") == {0: "why, 31.0 us instead of 12.0 for 1 node"}
    assert by_time(costs, np.array([True, True]), "why") == {}


@pytest.mark.parametrize(("nodes", "there"), [(1, "it"), (7, "these 7 nodes")])
def test_a_tenth_is_told_with_what_the_outputs_have(nodes, there):
    assert by_outputs(np.array([1e-2, 1e-3, 1]), 2, 10**-1.42, "why", nodes) == (
        f"why, 20.0 dB with {there} alone in int8, 14.2 with everything"
    )


def test_an_effect_that_is_not_known_is_not_told():
    assert effect(1e-3, 1e-2) == "; the outputs have 30.0 dB so, 20.0 with all such nodes in int8"
    assert effect(1e-3, np.inf) == ""


def test_infinite_values_have_no_decibels():
    assert by_outputs(np.array([HOPELESS]), 1, HOPELESS, "why", 2) == (
        "why, infinite values or NaN with these 2 nodes alone in int8"
    )
