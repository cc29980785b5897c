"""Running comparison of one output, against the same numbers computed at once."""

import numpy as np
import pytest

from quantkit.models.verification.compare_outputs import OutputComparison, channel_axis


def compare(pairs, **options):
    comparison = OutputComparison("y", **options)
    for a, b in pairs:
        comparison.add(a, b)
    return comparison.result()


def test_streamed_numbers_are_those_of_all_samples_at_once():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(20, 4, 3, 3)).astype(np.float32)
    b = a + rng.normal(scale=[[[0.01]], [[0.02]], [[0.3]], [[0.001]]], size=a.shape).astype(np.float32)
    got = compare((a[i : i + 5], b[i : i + 5]) for i in range(0, 20, 5))
    x, y = a.astype(np.float64), b.astype(np.float64)
    assert got.elements == a.size
    assert got.sqnr_db == pytest.approx(10 * np.log10((x**2).sum() / ((x - y) ** 2).sum()))
    assert got.cosine == pytest.approx((x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum()))
    assert got.max_error == np.abs(x - y).max()
    assert (got.low, got.high) == (x.min(), x.max())
    assert (got.worst_slice.axis, got.worst_slice.index) == (1, 2)
    ratio = (x[:, 2] ** 2).sum() / ((x - y)[:, 2] ** 2).sum()
    assert got.worst_slice.sqnr_db == pytest.approx(10 * np.log10(ratio))
    assert (got.worst_slice.low, got.worst_slice.high) == (x[:, 2].min(), x[:, 2].max())


def test_scores_lost_beside_boxes_are_the_worst_slice():
    rng = np.random.default_rng(1)
    boxes, scores = rng.uniform(0, 640, (1, 4, 100)), rng.uniform(0, 1, (1, 1, 100))
    a = np.concatenate([boxes, scores], axis=1).astype(np.float32)
    step = 640 / 255
    got = compare([(a, (np.rint(a / step) * step).astype(np.float32))], declared=[1, 5, 100])
    assert got.sqnr_db > 40
    assert (got.worst_slice.axis, got.worst_slice.index) == (1, 4)
    assert got.worst_slice.sqnr_db == 0.0


def test_slices_that_do_not_matter_are_left_out():
    a = np.array([[100.0, 1.0, 1e-3, 0.0]])
    b = np.array([[100.0, 0.5, 0.0, 0.0]])
    assert compare([(a, b)]).worst_slice.index == 1
    assert compare([(a, b)], class_axis=-1).worst_slice.index == 1
    a[0, 1] = b[0, 1] = 0.5  # below a hundredth of the largest class
    assert compare([(a, b * 0.9)], class_axis=1).worst_slice.index == 0


def test_equal_outputs_are_exact():
    a = np.ones((2, 3), np.float32)
    got = compare([(a, a)])
    assert (got.sqnr_db, got.cosine, got.max_error) == (200.0, 1.0, 0.0)


def test_outputs_of_zeros():
    zeros = np.zeros((2, 3), np.float32)
    assert compare([(zeros, zeros)]).cosine == 1.0
    got = compare([(zeros, zeros + 1)])
    assert (got.sqnr_db, got.cosine, got.worst_slice) == (-200.0, 0.0, None)


def test_decisions():
    a = np.array([[0.1, 0.9], [0.8, 0.2], [0.6, 0.4]])
    b = np.array([[0.2, 0.8], [0.9, 0.1], [0.4, 0.6]])
    got = compare([(a, b), (a[:1], b[:1])], class_axis=-1).decisions
    assert (got.axis, got.count, got.kept) == (1, 4, 3)
    assert compare([(a, b)]).decisions is None


def test_decisions_need_two_classes_and_an_axis_that_exists():
    assert compare([(np.ones((3, 1)), np.ones((3, 1)))], class_axis=1).decisions is None
    assert compare([(np.ones(3), np.ones(3))], class_axis=1).decisions is None


def test_nan_alike_is_left_out_and_nan_in_one_is_broken():
    nan, inf = np.nan, np.inf
    a = np.array([1.0, nan, inf, inf, 2.0, nan])
    b = np.array([1.0, nan, inf, -inf, nan, 3.0])
    got = compare([(a, b)])
    assert (got.elements, got.nonfinite, got.broken) == (1, 2, 3)
    assert (got.sqnr_db, got.max_error, got.low, got.high) == (200.0, 0.0, 1.0, 1.0)


def test_an_output_of_only_nan():
    got = compare([(np.full((2, 2), np.nan), np.zeros((2, 2)))])
    assert (got.elements, got.broken, got.sqnr_db) == (0, 4, None)


def test_other_shapes_are_counted_and_not_compared():
    got = compare([(np.ones((2, 3)), np.ones((1, 3))), (np.ones((2, 3)), np.ones((2, 3)))])
    assert (got.reshaped, got.elements, got.sqnr_db) == (1, 6, 200.0)


def test_outputs_that_are_no_floats_are_compared_for_equality():
    got = compare([(np.array([1, 2, 3]), np.array([1, 2, 4])), (np.array([True]), np.array([True]))])
    assert (got.elements, got.equal, got.sqnr_db, got.dtype) == (4, 0.75, None, "int64")


def test_empty_outputs():
    got = compare([(np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32))])
    assert (got.elements, got.sqnr_db) == (0, None)
    got = compare([(np.zeros(0, np.int64), np.zeros(0, np.int64))])
    assert (got.elements, got.equal) == (0, None)


def test_half_floats_are_summed_in_double():
    a = np.full((1, 4, 5000), 60000, np.float16)
    got = compare([(a, a * np.float16(0.5))])
    assert got.sqnr_db == pytest.approx(20 * np.log10(2), abs=1e-2)


def test_an_axis_that_changes_its_length_has_no_slices():
    got = compare([(np.ones((1, n)), np.ones((1, n)) * 2) for n in (3, 4)])
    assert got.worst_slice is None
    assert got.elements == 7


@pytest.mark.parametrize(
    ("rank", "declared", "class_axis", "wanted"),
    [
        (0, [], None, None),
        (1, [10], None, None),
        (2, ["N", 10], None, 1),
        (3, ["N", 25200, 85], None, 2),
        (3, ["N", 84, 8400], None, 1),
        (3, ["N", "T", 768], None, 2),
        (3, ["N", 64, "T"], None, 1),
        (3, ["N", "T", 6625], -1, 2),
        (4, ["N", 64, 8, 8], None, 1),
        (4, ["N", "H", "W", 64], None, 3),
        (4, ["N", 1, "H", "W"], None, 1),
        (4, None, None, 1),
        (5, [1, 8, 4, 4, 4], None, 1),
        (3, [1, 2], None, 1),
    ],
)
def test_channel_axis(rank, declared, class_axis, wanted):
    assert channel_axis(rank, declared, class_axis) == wanted
