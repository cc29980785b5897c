"""Noise over signal of outputs and of the slices that matter."""

import numpy as np

from quantkit.models.refinement.judge import GOOD, GOOD_SLICE, Judge


def noises(expected, got, **more):
    return Judge(expected, **more).noises(got).tolist()


def test_noise_is_that_of_each_float_output():
    a = [[np.float32([3, 4]), np.float32([1, 1]), np.array([7])]]
    b = [[np.float32([3, 4]), np.float32([1, 0.5]), np.array([8])]]
    assert noises(a, b) == [0, 0.125]
    assert noises(a, a) == [0, 0]


def test_runs_are_taken_together():
    a = [[np.float32([3, 0])], [np.float32([0, 4])]]
    b = [[np.float32([3, 5])], [np.float32([0, 4])]]
    assert noises(a, b) == [1.0]


def test_nan_in_the_candidate_is_no_agreement():
    assert noises([[np.float32([1, 2])]], [[np.float32([1, np.nan])]]) == [np.inf]


def test_infinite_values_are_no_warnings():
    with np.errstate(all="raise"):
        assert noises([[np.float32([np.inf, 2])]], [[np.float32([np.inf, 1])]]) == [0.25]
        assert noises([[np.float32([1, 2])]], [[np.float32([-np.inf, 2])]]) == [np.inf]


def test_slices_that_matter_have_a_number_of_their_own():
    a = [[np.float32([[100, 2, 1e-3]])]]
    b = [[np.float32([[100, 1, 0]])]]
    judge = Judge(a)
    whole, first, second = judge.noises(b).tolist()
    assert 0 < whole < 2e-4
    assert (first, second) == (0, 0.25)
    assert judge.outputs == 1
    assert judge.goals.tolist() == [GOOD, GOOD_SLICE, GOOD_SLICE]


def test_classes_far_below_the_winner_do_not_matter():
    a = [[np.float32([[0.99, 0.05, 0.005]])]]
    assert len(Judge(a, class_axes={0: -1}).goals) == 3
    assert len(Judge(a).goals) == 4


def test_an_axis_of_changing_length_has_no_slices():
    a = [[np.ones((1, 2), np.float32)], [np.ones((1, 3), np.float32)]]
    assert noises(a, a) == [0]


def test_silent_and_empty_outputs_are_no_judges():
    a = [[np.zeros((1, 2), np.float32), np.zeros((0, 3), np.float32)]]
    assert noises(a, a) == []
    assert noises([], []) == []
