"""The numbers of agreement and when they fall short."""

import json

import pytest

from quantkit.errors import InvalidArgument
from quantkit.models.verification.agreement import (
    Accuracy,
    Agreement,
    Decisions,
    OutputAgreement,
    Thresholds,
    WorstSlice,
    wilson_interval,
)
from quantkit.sqnr import sqnr_db


def output(**more):
    given = {"sqnr_db": 40.0, "cosine": 0.999, "max_error": 0.1, "low": -1.0, "high": 1.0}
    return OutputAgreement("y", "float32", 10, **{**given, **more})


def shortfalls(*outputs, accuracy=None, **limits):
    return Agreement(5, list(outputs), accuracy).shortfalls(Thresholds(**limits))


@pytest.mark.parametrize(
    ("signal", "noise", "wanted"),
    [(100.0, 1.0, 20.0), (1.0, 0.0, 200.0), (0.0, 1.0, -200.0), (1e-300, 1e300, -200.0), (0.0, 0.0, 200.0)],
)
def test_sqnr(signal, noise, wanted):
    assert sqnr_db(signal, noise) == pytest.approx(wanted)


def test_wilson_interval_against_its_published_values():
    # Wilson 1927 by hand: p = 0.9, n = 10, z = 1.96 -> (0.5958, 0.9821)
    assert wilson_interval(9, 10) == pytest.approx((0.59585, 0.98212), abs=1e-5)
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(10, 10)[1] == 1.0
    assert wilson_interval(0, 10)[0] == 0.0


def test_a_good_output_falls_short_of_nothing():
    assert shortfalls(output()) == []


def test_sqnr_below_the_threshold():
    assert shortfalls(output(sqnr_db=19.9)) == ["output 'y': SQNR 19.9 dB (at least 20 wanted)"]
    assert shortfalls(output(sqnr_db=19.9), min_sqnr=15) == []
    assert shortfalls(output(sqnr_db=20.0)) == []


def test_a_lost_slice():
    lost = WorstSlice(1, 4, 2.0, 0.0, 1.0)
    assert shortfalls(output(worst_slice=lost)) == [
        "output 'y': slice 4 of axis 1 is lost, SQNR 2.0 dB (at least 3 wanted)"
    ]


@pytest.mark.parametrize(
    ("kept", "count", "short"),
    [(94, 100, True), (95, 100, False), (9, 10, False), (5, 10, True), (189, 200, True), (0, 1, True), (1, 1, False)],
)
def test_decisions_count_by_share_or_by_wilson(kept, count, short):
    assert bool(shortfalls(output(decisions=Decisions(1, count, kept)))) is short


def test_known_classes_judge_instead_of_decisions():
    accuracy = Accuracy(1000, 900, 899)
    assert shortfalls(output(decisions=Decisions(1, 1000, 500)), accuracy=accuracy) == []


def test_labels_that_the_float_model_misses_do_not_judge():
    short = shortfalls(output(decisions=Decisions(1, 1000, 500)), accuracy=Accuracy(1000, 499, 499))
    assert short == ["output 'y': 500 of 1000 decisions stayed (at least 95% wanted)"]


@pytest.mark.parametrize(
    ("count", "before", "after", "short"),
    [(1000, 900, 895, False), (1000, 900, 894, True), (100, 90, 89, False), (100, 90, 88, True), (10, 5, 6, False)],
)
def test_accuracy_may_fall_by_half_a_point_or_one_decision(count, before, after, short):
    assert bool(shortfalls(output(), accuracy=Accuracy(count, before, after))) is short


def test_the_accuracy_line():
    assert shortfalls(accuracy=Accuracy(1000, 900, 880)) == [
        "accuracy fell by 2.00 points, from 90.00% to 88.00% (at most 0.5 wanted)"
    ]


def test_outputs_of_which_nothing_was_compared():
    nothing = OutputAgreement("y", "float32", 0, nonfinite=12)
    assert shortfalls(nothing) == ["output 'y': not verified: all its elements are NaN or infinite in both models"]
    assert shortfalls(OutputAgreement("y", "float32", 0)) == ["not verified: the outputs were empty in every sample"]
    assert shortfalls(OutputAgreement("boxes", "float32", 0), output()) == []


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("min_sqnr", float("nan"), "a finite number"),
        ("min_slice_sqnr", float("inf"), "a finite number"),
        ("max_accuracy_drop", -1, "0 to 100"),
        ("min_argmax", 1.5, "0 to 1"),
        ("min_equal", -0.1, "0 to 1"),
    ],
)
def test_thresholds_that_cannot_be(name, value, wanted):
    with pytest.raises(InvalidArgument, match=f"threshold {name}: wanted {wanted}, got "):
        Thresholds(**{name: value})


def test_broken_and_reshaped_elements_always_fall_short():
    assert shortfalls(output(broken=3, reshaped=2)) == [
        "output 'y': the shape differs from the float model's in 2 samples",
        "output 'y': 3 elements are NaN or infinite in one model only",
    ]


def test_outputs_that_are_no_floats():
    whole = OutputAgreement("n", "int64", 1000, equal=0.98)
    assert shortfalls(whole) == ["output 'n': 98.0% of the elements are equal (at least 99% wanted)"]
    assert shortfalls(whole, min_equal=0.9) == []


def test_to_dict_is_json_and_holds_the_derived_numbers():
    agreement = Agreement(
        5, [output(decisions=Decisions(1, 10, 9), worst_slice=WorstSlice(1, 2, 30.0, 0.0, 1.0))], Accuracy(10, 9, 8)
    )
    plain = json.loads(json.dumps(agreement.to_dict(), allow_nan=False))
    assert plain["samples"] == 5
    assert plain["accuracy"] == {
        "count": 10,
        "float_correct": 9,
        "int8_correct": 8,
        "float": 0.9,
        "int8": 0.8,
        "drop_points": 10.0,
    }
    (first,) = plain["outputs"]
    assert first["sqnr_db"] == 40.0
    assert first["worst_slice"] == {"axis": 1, "index": 2, "sqnr_db": 30.0, "low": 0.0, "high": 1.0}
    assert first["decisions"]["share"] == 0.9
    assert first["decisions"]["interval"] == pytest.approx([0.59585, 0.98212], abs=1e-5)


def test_the_worst_output_and_all_decisions():
    a, b = output(decisions=Decisions(1, 10, 9)), output(sqnr_db=30.0, decisions=Decisions(1, 10, 8))
    agreement = Agreement(5, [a, OutputAgreement("n", "int64", 1, equal=1.0), b])
    assert agreement.worst_sqnr is b
    assert agreement.decisions == Decisions(1, 20, 17)
    assert Agreement(5, []).worst_sqnr is None
    assert Agreement(5, []).decisions is None
