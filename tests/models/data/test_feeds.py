"""open_data: every kind of source becomes the same stream of feeds."""

import io
import itertools
import tracemalloc
import zipfile

import numpy as np
import pytest

from quantkit.errors import CalibrationError, InvalidArgument, OutputError
from quantkit.models.data.feeds import FeedSource, InputSpec, open_data

X = InputSpec("x", np.dtype("float32"), (1, 3))
IDS = InputSpec("ids", np.dtype("int64"), ("N", "T"))
RATE = InputSpec("rate", np.dtype("int64"), ())


def samples(n, start=0):
    return np.arange(start, start + n * 3, dtype=np.float32).reshape(n, 1, 3)


def firsts(source):
    """The first element of each feed's x, which numbers the samples of `samples`."""
    return [float(feed["x"][0, 0]) / 3 for feed in source]


def test_npz_samples_lie_along_one_more_dimension(tmp_path):
    np.savez(tmp_path / "a.npz", x=samples(5))
    source = open_data(tmp_path / "a.npz", [X])
    assert len(source) == 5
    assert firsts(source) == [0, 1, 2, 3, 4]
    assert firsts(source) == [0, 1, 2, 3, 4]  # again
    assert next(iter(source))["x"].tolist() == [[0.0, 1.0, 2.0]]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npz_reads_every_layout(tmp_path, save, order):
    save(tmp_path / "a.npz", x=np.asarray(samples(5), order=order))
    assert firsts(open_data(str(tmp_path / "a.npz"), [X])) == [0, 1, 2, 3, 4]


def spec(name, *shape):
    return InputSpec(name, np.dtype(np.float32), shape)


@pytest.mark.parametrize("dim", ["N", "batch_size", "unk__12", None, -1])
@pytest.mark.parametrize("form", ["npz", "npy", "fortran", "mapping"])
def test_rows_of_an_open_batch_are_samples(tmp_path, dim, form):
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    source = {"x": rows}
    if form == "npy":
        source = tmp_path / "a.npy"
        np.save(source, rows)
    elif form != "mapping":
        source = tmp_path / "a.npz"
        np.savez(source, x=np.asfortranarray(rows) if form == "fortran" else rows)
    found = open_data(source, [spec("x", dim, 3)])
    assert [feed["x"].tolist() for feed in found] == [[row.tolist()] for row in rows]
    assert len(found) == 4
    (note,) = found.notes
    assert "the 4 rows along axis 0 were taken as 4 samples" in note
    assert "for one sample of 4 rows, add a dimension in front: (1, 4, ...)" in note
    (whole,) = open_data({"x": rows[None]}, [spec("x", dim, 3)])
    assert whole["x"].tolist() == rows.tolist()


def test_labels_of_rows():
    found = open_data({"x": np.ones((3, 2), np.float32), "labels": np.array([5, 6, 7])}, [spec("x", "N", 2)])
    assert [labels.tolist() for _, labels in found.labelled()] == [[5], [6], [7]]


@pytest.mark.parametrize(
    ("specs", "shapes"),
    [
        ([spec("x", 4, 3)], [(4, 3)]),  # a fixed batch
        ([spec("x", "N", 3)], [(1, 3)]),
        ([spec("x", "seq_len", 3)], [(4, 3)]),  # its rows belong together
        ([spec("x", "T", 3)], [(4, 3)]),
        ([spec("x", "N", 3), spec("y", "M", 3)], [(4, 3), (4, 3)]),
        ([spec("x", None, 3), spec("y", None, 3)], [(4, 3), (4, 3)]),
        ([spec("x", "N", 3), spec("y", "N", 3)], [(4, 3), (5, 3)]),
        ([spec("x", "N", 3), spec("y")], [(4, 3), ()]),
    ],
)
def test_rows_that_are_one_sample(specs, shapes):
    arrays = {s.name: np.ones(shape, np.float32) for s, shape in zip(specs, shapes, strict=True)}
    (feed,) = open_data(arrays, specs)
    assert [feed[s.name].shape for s in specs] == shapes


def test_rows_of_inputs_with_one_batch():
    arrays = {"x": np.ones((4, 3), np.float32), "y": np.zeros((4, 2), np.float32)}
    shapes = [[feed[name].shape for name in "xy"] for feed in open_data(arrays, [spec("x", "N", 3), spec("y", "N", 2)])]
    assert shapes == [[(1, 3), (1, 2)]] * 4


def test_files_of_a_folder_are_samples_as_they_are(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((4, 3), np.float32))
    np.save(tmp_path / "b.npy", np.ones((5, 3), np.float32))
    assert [feed["x"].shape for feed in open_data(tmp_path, [spec("x", "N", 3)])] == [(4, 3), (5, 3)]


@pytest.mark.parametrize("form", [list, dict])
def test_samples_that_are_not_finite_are_named(form):
    rows = np.ones((9, 1, 3), np.float32)
    rows[3, 0, 1], rows[5, 0, 0] = np.nan, np.inf
    source = open_data({"x": rows} if form is dict else [{"x": row} for row in rows], [spec("x", "N", 3)])
    assert len(list(source)) == len(list(source)) == 9
    text = "input 'x' holds NaN or infinite values, which calibration leaves out"
    assert source.notes == [f"{form.__name__}, sample 3: {text}", f"{form.__name__}, sample 5: {text}"]


def test_a_preset_beside_arrays():
    arrays = {"x": np.ones((4, 1, 3), np.float32)}
    assert open_data(arrays, [spec("x", "N", 3)], recipe="imagenet").notes == [
        "preset 'imagenet' was not used: it prepares images, and the data are arrays"
    ]
    with pytest.raises(InvalidArgument, match="no preset 'magic'"):
        open_data(arrays, [spec("x", "N", 3)], recipe="magic")


def test_npz_with_several_inputs_repeats_what_has_no_samples(tmp_path):
    np.savez(tmp_path / "a.npz", x=samples(2), rate=16000)
    assert [(f["x"][0, 0], f["rate"].item()) for f in open_data(tmp_path / "a.npz", [X, RATE])] == [
        (0.0, 16000),
        (3.0, 16000),
    ]


def test_npz_inputs_with_different_numbers_of_samples(tmp_path):
    np.savez(tmp_path / "a.npz", x=samples(2), rate=np.arange(3))
    with pytest.raises(CalibrationError, match="'x' has 2, 'rate' has 3"):
        open_data(tmp_path / "a.npz", [X, RATE])


def test_npz_of_an_input_with_unknown_rank_follows_the_others(tmp_path):
    loose = InputSpec("loose", np.dtype("float32"), None)
    np.savez(tmp_path / "a.npz", x=samples(2), loose=np.zeros((2, 4), np.float32))
    assert [f["loose"].shape for f in open_data(tmp_path / "a.npz", [X, loose])] == [(4,), (4,)]
    np.savez(tmp_path / "b.npz", x=samples(2), loose=np.zeros((3, 4), np.float32))
    assert [f["loose"].shape for f in open_data(tmp_path / "b.npz", [X, loose])] == [(3, 4), (3, 4)]


def test_npz_labels(tmp_path):
    np.savez(tmp_path / "a.npz", x=samples(3), labels=np.array([7, 8, 9]))
    source = open_data(tmp_path / "a.npz", [X])
    assert source.has_labels
    assert [labels.tolist() for _, labels in source.labelled()] == [[7], [8], [9]]
    assert source.notes == []


def test_npz_labels_that_do_not_fit_are_left_out_and_noted(tmp_path):
    np.savez(tmp_path / "a.npz", x=samples(3), labels=np.array([7.0, 8.0]))
    source = open_data(tmp_path / "a.npz", [X])
    assert not source.has_labels
    assert source.notes == [
        f"{tmp_path / 'a.npz'}: 'labels' was left out: wanted 3 integers, got float64[2]",
    ]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_memory_does_not_grow_with_the_samples(tmp_path, save):
    wide = InputSpec("x", np.dtype("float32"), (1, 20_000))
    save(tmp_path / "a.npz", x=np.ones((200, 1, 20_000), np.float32))  # 16 MB
    source = open_data(tmp_path / "a.npz", [wide])
    tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        total = sum(float(feed["x"].sum()) for feed in source)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        if not tracing:
            tracemalloc.stop()
    assert total == 200 * 20_000
    assert peak < 2_000_000


def test_npy_feeds_the_only_input(tmp_path):
    np.save(tmp_path / "a.npy", samples(4))
    assert firsts(open_data(tmp_path / "a.npy", [X])) == [0, 1, 2, 3]


def test_npy_for_a_model_of_two_inputs(tmp_path):
    np.save(tmp_path / "a.npy", samples(4))
    with pytest.raises(CalibrationError, match=r"feeds one input, but the model has 2 \('x', 'rate'\); use \.npz"):
        open_data(tmp_path / "a.npy", [X, RATE])


def test_a_folder_of_arrays_is_read_in_the_order_of_names(tmp_path):
    np.save(tmp_path / "b.npy", samples(2, start=9))
    np.savez(tmp_path / "a.npz", x=samples(3))
    (tmp_path / "readme.txt").write_text("not data")
    source = open_data(tmp_path, [X])
    assert len(source) == 5
    assert firsts(source) == [0, 1, 2, 3, 4]


def test_a_fault_in_a_folder_names_the_file(tmp_path):
    np.savez(tmp_path / "a.npz", x=samples(3))
    np.savez(tmp_path / "b.npz", y=samples(3))
    with pytest.raises(CalibrationError, match=r"b\.npz: no data for input 'x' \(float32\[1, 3\]\); got 'y'"):
        open_data(tmp_path, [X])


def test_lengths_may_differ_between_files(tmp_path):
    for i, length in enumerate((5, 9)):
        np.savez(tmp_path / f"{i}.npz", ids=np.zeros((1, length), np.int64))
    assert [f["ids"].shape for f in open_data(tmp_path, [IDS])] == [(1, 5), (1, 9)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npz", b"", "is neither an .npz nor an .npy file"),
        ("a.npz", b"hello, this is text", "is neither an .npz nor an .npy file"),
        ("a.npz", b"PK\x03\x04 cut", "cannot be read as NumPy data"),
        ("a.npy", b"\x93NUMPY\x01\x00", "cannot be read as NumPy data"),
        ("a.txt", b"x", "is neither a folder nor an .npz or .npy file"),
    ],
)
def test_files_that_are_no_arrays(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CalibrationError, match=message) as caught:
        open_data(tmp_path / name, [X])
    assert str(tmp_path / name) in str(caught.value)


def test_a_damaged_member_names_the_sample(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((4000, 1, 3), np.float32))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    place = data.rindex(np.ones(1, np.float32).tobytes())
    data[place] ^= 0xFF
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(CalibrationError, match=r"a\.npz, sample \d{4}: cannot be read as NumPy data: Bad CRC"):
        list(open_data(tmp_path / "a.npz", [X]))


def test_pickled_objects_are_not_loaded(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{}], dtype=object))
    with pytest.raises(CalibrationError, match="'x' holds pickled Python objects, which are not loaded"):
        open_data(tmp_path / "a.npz", [X])


def test_no_samples(tmp_path):
    np.savez(tmp_path / "a.npz", x=samples(0))
    with pytest.raises(CalibrationError, match="holds no samples"):
        open_data(tmp_path / "a.npz", [X])


def test_an_empty_folder_and_a_missing_one(tmp_path):
    with pytest.raises(CalibrationError, match="the folder is empty"):
        open_data(tmp_path, [X])
    with pytest.raises(CalibrationError, match="no such file or folder"):
        open_data(tmp_path / "nowhere", [X])


def test_a_mapping_of_arrays_is_read_as_npz():
    assert firsts(open_data({"x": samples(3)}, [X])) == [0, 1, 2]


def test_an_array_feeds_the_only_input():
    assert firsts(open_data(samples(3), [X])) == [0, 1, 2]


def feeds(n):
    return [{"x": sample} for sample in samples(n)]


class Reader:
    """A calibration data reader as onnxruntime.quantization wants it."""

    def __init__(self, n):
        self.rest = iter(feeds(n))

    def get_next(self):
        return next(self.rest, None)


class Shuffling:
    """A loader that gives another order each time it is read."""

    def __init__(self):
        self.reads = 0

    def __iter__(self):
        self.reads += 1
        return iter(feeds(4) if self.reads == 1 else feeds(4)[::-1])


@pytest.mark.parametrize(
    "make",
    [
        lambda: feeds(4),
        lambda: tuple(feeds(4)),
        lambda: iter(feeds(4)),
        lambda: (feed for feed in feeds(4)),
        lambda: lambda: feeds(4),
        lambda: lambda: iter(feeds(4)),
        lambda: Reader(4),
        Shuffling,
    ],
    ids=["list", "tuple", "iterator", "generator", "callable", "callable-generator", "reader", "shuffling"],
)
def test_every_python_source_can_be_read_again_in_the_same_order(make):
    source = open_data(make(), [X])
    assert len(source) == 4
    assert firsts(source) == [0, 1, 2, 3]
    assert firsts(source) == [0, 1, 2, 3]


def test_a_generator_is_said_to_be_kept():
    (note,) = open_data(iter(feeds(4)), [X]).notes
    assert "can be read only once: its 4 samples were kept in a temporary file" in note
    assert open_data(feeds(4), [X]).notes == []


def test_an_endless_generator_with_a_limit():
    endless = ({"x": samples(1, start=3 * i)[0]} for i in itertools.count())
    assert firsts(open_data(endless, [X], limit=3)) == [0, 1, 2]


def test_a_spool_keeps_every_dtype():
    specs = [InputSpec("s", np.dtype(object), (None,)), InputSpec("b", np.dtype(bool), ()), IDS]
    given = [{"s": np.array(["a", "bcd"]), "b": True, "ids": [[1, 2**40]]}, {"s": ["z"], "b": False, "ids": [[3]]}]
    first, second = open_data(iter(given), specs)
    assert (first["s"].tolist(), first["b"].item(), first["ids"].tolist()) == (["a", "bcd"], True, [[1, 2**40]])
    assert (second["s"].tolist(), second["s"].dtype, second["b"].item()) == (["z"], object, False)


def test_a_spool_that_cannot_be_written(monkeypatch):
    class Full(io.BytesIO):
        def write(self, data):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: Full())
    with pytest.raises(OutputError, match="No space left on device; set TMPDIR"):
        open_data(iter(feeds(1)), [X])


def test_labels_in_feeds():
    source = open_data([{"x": s, "labels": i} for i, s in enumerate(samples(3))], [X])
    assert source.has_labels
    assert [labels.tolist() for _, labels in source.labelled()] == [[0], [1], [2]]
    with pytest.raises(CalibrationError, match="'labels' must be integers, got float64"):
        open_data([{"x": samples(1)[0], "labels": 0.5}], [X])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "list: holds no samples"),
        (iter([]), "list_iterator: yielded no samples"),
        (lambda: [], "function: yielded no samples"),
        (5, "wanted a path, a mapping, or an iterable or callable of {input: array}, got int"),
        (b"bytes", "got bytes"),
        (lambda: None, "got NoneType"),
        ([samples(1)[0]], "list, sample 0: wanted a mapping of input name to array, got ndarray"),
        ([{"y": 1}], r"list, sample 0: no data for input 'x' \(float32\[1, 3\]\); got 'y'"),
        (iter([{"x": np.zeros((1, 4), np.float32)}]), "sample 0: .* dimension 1 is 4 instead of 3"),
        ({}, "dict: no data for input 'x'.*; got nothing"),
    ],
)
def test_python_sources_at_fault(source, message):
    with pytest.raises(CalibrationError, match=message):
        open_data(source, [X])


def test_a_fault_in_a_later_sample_is_found_when_it_is_read():
    source = open_data([*feeds(2), {"x": np.zeros((1, 3), np.int64)}], [X])
    with pytest.raises(CalibrationError, match="list, sample 2: input 'x' wants float32"):
        list(source)


def test_a_model_without_inputs():
    with pytest.raises(CalibrationError, match="the model has no inputs"):
        open_data([], [])
    with pytest.raises(CalibrationError, match=r"^still\.onnx has no inputs, so there is nothing to feed$"):
        open_data([], [], model="still.onnx")


@pytest.mark.parametrize(("n", "held"), [(2, 1), (3, 1), (10, 5), (16, 8), (31, 8), (32, 8), (100, 25), (2000, 256)])
def test_split_holds_out_a_quarter(n, held):
    calibration, held_out = open_data({"x": samples(n)}, [X]).split()
    assert (len(calibration), len(held_out)) == (n - held, held)
    assert sorted(firsts(calibration) + firsts(held_out)) == list(range(n))


def test_split_depends_on_the_seed_alone():
    def held(seed):
        return firsts(open_data(feeds(40), [X], seed=seed).split()[1])

    assert held(0) == held(0) != held(1)
    assert held(0) == sorted(held(0))


def test_split_of_a_limited_source():
    source = open_data(feeds(100), [X], limit=20)
    assert len(source) == 20
    calibration, held_out = source.split()
    assert (len(calibration), len(held_out)) == (12, 8)
    assert sorted(firsts(calibration) + firsts(held_out)) == firsts(source)


def test_a_single_sample_serves_for_both_and_says_so():
    calibration, held_out = open_data(feeds(1), [X]).split()
    assert firsts(calibration) == firsts(held_out) == [0]
    assert held_out.notes == [
        "there is a single sample: agreement is measured on the sample that calibrated the ranges"
    ]
    assert calibration.notes == []


def test_a_limit_below_one():
    with pytest.raises(CalibrationError, match="at least 1 sample is needed, got a limit of 0"):
        open_data(feeds(3), [X], limit=0)


def test_version_3_headers_and_foreign_members(tmp_path):
    np.savez(tmp_path / "a.npz", x=samples(2))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("notes.txt", "text")
    source = open_data(tmp_path / "a.npz", [X])
    assert isinstance(source, FeedSource)
    assert firsts(source) == [0, 1]
