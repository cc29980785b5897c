"""What a model's input accepts, and what it is told when something else comes."""

import ml_dtypes
import numpy as np
import pytest

from quantkit.errors import CalibrationError
from quantkit.models.inputs import InputSpec, check_dtype, fit_feed


def spec(dtype, shape, name="x"):
    return InputSpec(name, np.dtype(dtype), shape)


def fit(spec, value):
    notes = []
    return fit_feed({spec.name: value}, {spec.name: spec}, "here", notes)[spec.name], notes


@pytest.mark.parametrize(
    ("wanted", "came"),
    [
        ("float32", "float32"),
        ("float32", ">f4"),
        ("int64", "int32"),
        ("int64", "uint32"),
        ("int32", "bool"),
        ("bool", "bool"),
        ("int64", ">i8"),
    ],
)
def test_a_lossless_conversion_is_made_without_a_word(wanted, came):
    value = np.array([[0, 1, 1]], dtype=came)
    array, notes = fit(spec(wanted, (None, 3)), value)
    assert array.dtype == np.dtype(wanted)
    assert array.tolist() == value.tolist()
    assert notes == []


@pytest.mark.parametrize(
    ("wanted", "came"),
    [("float32", "float64"), ("float16", "float32"), ("float32", "float16"), ("float64", ml_dtypes.bfloat16)],
)
def test_float_to_float_is_converted_and_said(wanted, came):
    array, notes = fit(spec(wanted, (2,)), np.array([0.5, -2], dtype=came))
    assert array.dtype == np.dtype(wanted)
    assert array.tolist() == [0.5, -2.0]
    assert notes == [f"input 'x' came as {np.dtype(came).name} and was converted to {wanted}"]


@pytest.mark.parametrize(
    ("wanted", "came", "why"),
    [
        ("float32", "uint8", "integers are not converted; if they are pixels, normalise them"),
        ("float32", "int64", "integers are not converted"),
        ("float32", "bool", "integers are not converted"),
        ("int64", "float32", "float32 is not converted to int64"),
        ("int32", "int64", "int64 does not fit into int32"),
        ("int64", "uint64", "uint64 does not fit into int64"),
        ("bool", "int64", "int64 is not converted to bool"),
        ("float32", "complex64", "complex64 is not converted to float32"),
        ("float32", "U3", "<U3 is not converted to float32"),
        ("object", "float32", "only strings can be fed to it"),
    ],
)
def test_every_other_dtype_is_refused(wanted, came, why):
    with pytest.raises(CalibrationError, match="here: input 'x' wants ") as caught:
        fit(spec(wanted, (3,)), np.zeros(3, dtype=came))
    assert why in str(caught.value).replace("str96", "<U3")


def test_a_shape_message_says_what_was_wanted_and_what_came():
    with pytest.raises(CalibrationError) as caught:
        fit(spec("float32", ("N", 3, None, 224)), np.zeros((2, 3, 10, 225), np.float32))
    assert str(caught.value) == (
        "here: input 'x' wants float32[N, 3, ?, 224], got float32[2, 3, 10, 225]: dimension 3 is 225 instead of 224"
    )


def test_a_wrong_batch_says_where_samples_go():
    with pytest.raises(CalibrationError, match=r"one more dimension in front, here \(100, 1, \.\.\.\)"):
        fit(spec("float32", (1, 3)), np.zeros((100, 3), np.float32))


def test_a_wrong_rank():
    with pytest.raises(CalibrationError, match="3 dimensions instead of 2"):
        fit(spec("float32", (1, 3)), np.zeros((1, 1, 3), np.float32))


@pytest.mark.parametrize("free", [None, "N", 0, -1])
def test_free_dimensions_take_any_length(free):
    array, _ = fit(spec("float32", (free, 3)), np.zeros((7, 3), np.float32))
    assert array.shape == (7, 3)


def test_an_unknown_rank_takes_any_shape():
    array, _ = fit(spec("float32", None), np.zeros((1, 2, 3), np.float32))
    assert array.shape == (1, 2, 3)


def test_a_scalar_input_stays_a_scalar():
    array, _ = fit(spec("int64", ()), 16000)
    assert array.shape == ()
    assert array.dtype == np.int64


def test_strings_are_fed_as_objects():
    array, _ = fit(spec("object", (None,)), np.array(["a", "bc"]))
    assert array.dtype == object
    assert array.tolist() == ["a", "bc"]


def test_arrays_come_back_contiguous():
    array, _ = fit(spec("float32", (2, 3)), np.zeros((3, 2), np.float32).T)
    assert array.flags.c_contiguous


def test_a_value_beyond_the_narrower_float_is_an_error():
    with pytest.raises(CalibrationError, match=r"input 'x' has the value 1e\+39, which is beyond float32"):
        fit(spec("float32", (2,)), np.array([1.0, 1e39]))


def test_infinities_that_were_infinite_pass():
    array, _ = fit(spec("float32", (2,)), np.array([np.inf, np.nan]))
    assert array[0] == np.inf
    assert np.isnan(array[1])


def test_a_missing_input_is_named_with_what_came():
    inputs = {"x": spec("float32", (1, 3)), "y": spec("int64", (1,), "y")}
    with pytest.raises(CalibrationError) as caught:
        fit_feed({"x": np.zeros((1, 3), np.float32), "z": 1}, inputs, "file.npz", [])
    assert str(caught.value) == "file.npz: no data for input 'y' (int64[1]); got 'x', 'z'"


def test_keys_beyond_the_inputs_are_noted_and_labels_are_not():
    notes = []
    feed = {"x": np.zeros(1, np.float32), "token_type_ids": 1, "labels": 3}
    assert list(fit_feed(feed, {"x": spec("float32", (1,))}, "list", notes)) == ["x"]
    assert notes == ["list: ignored 'token_type_ids': no input of the model has that name"]


def test_a_feed_that_is_no_mapping():
    with pytest.raises(CalibrationError, match="wanted a mapping of input name to array, got list"):
        fit_feed([1], {"x": spec("float32", (1,))}, "list", [])


def test_a_ragged_value_is_no_array():
    with pytest.raises(CalibrationError, match=r"input 'x' wants float32\[2, \?\], got no array"):
        fit(spec("float32", (2, None)), [[1.0], [1.0, 2.0]])


def test_check_dtype_can_be_asked_before_any_data_is_read():
    assert check_dtype(spec("float32", (1,)), np.dtype("float32"), (1,), "here") is None
