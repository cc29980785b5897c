import errno
import gc
import json
import os
import pickle
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.errors import FormatError, InvalidArgument, InvalidDType, OutOfMemory, OutputError, ShapeMismatch
from quantkit.files import create_tensors, open_tensors, save_tensors

DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]
BITS = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}


def sample(dtype, shape, seed=0):
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.random.default_rng(seed).integers(0, 2 if np.dtype(dtype) == bool else 256, count, dtype=np.uint8)
    return raw.view(dtype).reshape(shape)


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def raw_file(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (7, 5, 3), (64, 64)])
def test_round_trip_and_both_ways_with_the_safetensors_library(tmp_path, dtype, shape):
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    tensors = {"a": sample(dtype, shape), "ü/b": sample(dtype, shape, 1), "u8": sample("u1", (3,))}
    save_tensors(ours, tensors, {"recipe": "{}", "é": "ü\n"})
    safetensors.numpy.save_file(tensors, theirs, {"recipe": "{}", "é": "ü\n"})
    read = safetensors.numpy.load_file(ours)
    assert read.keys() == tensors.keys()
    assert all(same(read[n], tensors[n]) for n in tensors)
    with safetensors.safe_open(ours, "np") as f:
        assert f.metadata() == {"recipe": "{}", "é": "ü\n"}
    for path in (ours, theirs):
        opened = open_tensors(path)
        assert opened.metadata == {"recipe": "{}", "é": "ü\n"}
        assert set(opened) == set(tensors)
        assert len(opened) == 3
        assert all(same(opened[n], tensors[n]) for n in tensors)


@pytest.mark.parametrize("dtype", BITS)
def test_types_that_numpy_lacks_come_as_their_bits(tmp_path, dtype):
    path = tmp_path / "x.safetensors"
    values = np.linspace(-2, 2, 9).astype(dtype).reshape(3, 3)
    save_tensors(path, {"x": values, "t": values.T})
    opened = open_tensors(path)
    assert opened.dtypes == {"x": BITS[dtype], "t": BITS[dtype]}
    assert opened["x"].dtype == ("u2" if dtype == "bfloat16" else "u1")
    assert np.array_equal(opened["t"].view(getattr(ml_dtypes, dtype)).T, values)
    if dtype == "bfloat16":
        # The library's NumPy door needs ml_dtypes registered; it reads the same bits.
        assert np.array_equal(safetensors.numpy.load_file(path)["x"].astype("f4"), values.astype("f4"))
    again = tmp_path / "again.safetensors"
    with create_tensors(again, {n: (opened.dtypes[n], opened[n].shape) for n in opened}) as writer:
        for n in opened:
            writer.write(n, opened[n])
    assert again.read_bytes() == path.read_bytes()


def test_data_is_aligned_and_mapped(tmp_path):
    path = tmp_path / "x.safetensors"
    tensors = {
        "odd": sample("u1", (3,)),
        "scale": sample("f4", (3,)),
        "row": sample("i8", (5,)),
        "codes": sample("u1", (5, 64)),
        "half": sample("f2", (3,)),
        "weights": sample("f4", (16, 3)),
    }
    save_tensors(path, tensors)
    opened = open_tensors(path)
    assert list(opened) == ["codes", "weights", "row", "scale", "half", "odd"]
    for name, array in opened.items():
        assert same(array, tensors[name])
        assert array.flags.aligned
        assert not array.flags.writeable
        assert not array.flags.owndata
    for name in ("codes", "weights", "row"):
        assert opened[name].ctypes.data % 64 == 0
    (length,) = struct.unpack("<Q", path.read_bytes()[:8])
    assert (8 + length) % 64 == 0


def test_arrays_outlive_the_file_object_and_the_name(tmp_path):
    path = tmp_path / "x.safetensors"
    save_tensors(path, {"x": np.arange(100_000)})
    array = open_tensors(path)["x"]
    save_tensors(path, {"x": np.zeros(3)})  # replaces the file, the old bytes live on
    path.unlink()
    gc.collect()
    assert np.array_equal(array, np.arange(100_000))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(10)[::-2],
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.broadcast_to(np.float32(3), (4, 5)),
        np.arange(5, dtype=">f8")[::2],
    ],
    ids=["transposed", "reversed", "big-endian", "fortran", "broadcast", "big-endian strided"],
)
def test_any_strides_and_byte_order(tmp_path, array, monkeypatch):
    for block in (1 << 24, 16, 1):
        monkeypatch.setattr("quantkit.files.tensors._BLOCK", block)
        save_tensors(tmp_path / "x", {"x": array})
        read = open_tensors(tmp_path / "x")["x"]
        assert np.array_equal(read, array)
        assert read.dtype == array.dtype.newbyteorder("<")


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.text(max_size=8), st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=4)),
        max_size=6,
        unique_by=lambda t: t[0],
    )
)
def test_any_set_of_tensors(tmp_path_factory, specs):
    path = tmp_path_factory.getbasetemp() / "hypothesis.safetensors"
    tensors = {n: sample(d, s) for n, d, s in specs if n != "__metadata__"}
    save_tensors(path, tensors)
    opened, read = open_tensors(path), safetensors.numpy.load_file(path)
    assert set(opened) == set(read) == set(tensors)
    assert all(same(opened[n], tensors[n]) and same(read[n], tensors[n]) and opened[n].flags.aligned for n in tensors)


def test_writer_takes_tensors_in_any_order_and_wants_all(tmp_path):
    path = tmp_path / "x"
    specs = {"a": ("u1", (2,)), "b": (np.float32, [3]), "c": ("BF16", (1,))}
    with create_tensors(path, specs, {"k": "v"}) as writer:
        writer.write("c", np.zeros(1, "bfloat16"))
        writer.write("b", np.arange(3, dtype="f4"))
        writer.write("a", np.array([1, 2], "u1"))
    assert open_tensors(path)["a"].tolist() == [1, 2]
    path.unlink()
    with pytest.raises(InvalidArgument, match="not written: b, c"), create_tensors(path, specs) as writer:
        writer.write("a", np.array([1, 2], "u1"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "array", "error", "match"),
    [
        ("z", np.zeros(2, "u1"), InvalidArgument, "'z' was not announced; announced: a"),
        ("a", np.zeros(2, "i1"), InvalidDType, "'a': announced as U8, got int8"),
        ("a", np.zeros(3, "u1"), ShapeMismatch, r"'a': announced with shape \(2,\), got \(3,\)"),
    ],
)
def test_writer_refuses_what_was_not_announced(tmp_path, name, array, error, match):
    with pytest.raises(error, match=match), create_tensors(tmp_path / "x", {"a": ("u1", (2,))}) as writer:
        writer.write(name, array)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("tensors", "metadata", "error", "match"),
    [
        ({"x": np.zeros(2, "c8")}, None, InvalidDType, "'x': .*complex64"),
        ({"x": np.array(["a"])}, None, InvalidDType, "'x'"),
        ({"x": np.array([None])}, None, InvalidDType, "'x'.*dtype\\('O'\\)"),
        ({"x": np.zeros(2, "f4,i4")}, None, InvalidDType, "'x'"),
        ({"__metadata__": np.zeros(2)}, None, InvalidArgument, "cannot be the name"),
        ({3: np.zeros(2)}, None, InvalidArgument, "cannot be the name"),
        ({"\ud800": np.zeros(2)}, None, InvalidArgument, "Unicode"),
        ({"x": np.zeros(2)}, {"a": 1}, InvalidArgument, "text to text"),
    ],
)
def test_what_the_layout_cannot_hold(tmp_path, tensors, metadata, error, match):
    with pytest.raises(error, match=match):
        save_tensors(tmp_path / "x", tensors, metadata)
    assert os.listdir(tmp_path) == []


def test_a_negative_size_and_a_missing_folder(tmp_path):
    with pytest.raises(InvalidArgument, match="-1"), create_tensors(tmp_path / "x", {"x": ("u1", (-1,))}):
        pass
    with pytest.raises(OutputError, match="does not exist"):
        save_tensors(tmp_path / "no" / "x", {"x": np.zeros(2)})


GOOD = {"a": entry()}
HOSTILE = {
    "overlap": ({"a": entry(), "b": entry(offsets=(2, 6))}, 6, r"'b': its bytes 2:6 overlap those of 'a'"),
    "same bytes twice": ({"a": entry(), "b": entry()}, 4, "overlap"),
    "hole": ({"a": entry(offsets=(4, 8))}, 8, "'a': begins at byte 4, but bytes 0:4 belong to no tensor"),
    "bytes left over": (GOOD, 9, "the tensors end at byte 4 of the data, which has 9"),
    "cut short": (GOOD, 3, r"'a': data_offsets \[0, 4\]: the end lies behind the data, which has 3 bytes"),
    "no data": (GOOD, 0, "the end lies behind the data"),
    "backwards": ({"a": entry(offsets=(4, 0))}, 4, "the end lies before the begin"),
    "negative offset": ({"a": entry(offsets=(-4, 0))}, 4, "'a': data_offsets must be two whole numbers"),
    "float offset": ({"a": entry(offsets=(0, 4.0))}, 4, "two whole numbers"),
    "three offsets": ({"a": entry(offsets=(0, 4, 4))}, 4, "two whole numbers"),
    "bool in shape": ({"a": entry(shape=[True, 4])}, 4, "'a': shape must be a list"),
    "negative size": ({"a": entry(shape=[-4])}, 4, "shape must be a list"),
    "two negative sizes": ({"a": entry(shape=[-2, -2])}, 4, "shape must be a list"),
    "shape is text": ({"a": {"dtype": "U8", "shape": "4", "data_offsets": [0, 4]}}, 4, "shape must be a list"),
    "shape too small": ({"a": entry(shape=[3])}, 4, r"shape \[3\] of U8 takes 3 bytes, data_offsets 4"),
    "wraps 64 bits": ({"a": entry(shape=[2**32, 2**32 + 4])}, 4, "larger than any memory"),
    "wraps to 4": ({"a": entry(shape=[2**62, 4, 1])}, 4, "larger than any memory"),
    "wraps with items": ({"a": entry("F64", shape=[2**61])}, 0, "data_offsets"),
    "empty but huge": ({"a": entry(shape=[0, 2**63], offsets=(0, 0))}, 0, "larger than any memory"),
    "too many axes": ({"a": entry(shape=[1] * 33, offsets=(0, 1))}, 1, "at most 32"),
    "unknown dtype": ({"a": entry("C64")}, 4, "'a': dtype 'C64' is not one of BOOL, U8"),
    "dtype is a list": ({"a": entry(["U8"])}, 4, "dtype"),
    "no dtype": ({"a": {"shape": [4], "data_offsets": [0, 4]}}, 4, "wanted dtype, shape and data_offsets"),
    "one key more": ({"a": {**entry(), "x": 1}}, 4, "wanted dtype, shape and data_offsets"),
    "entry is a number": ({"a": 3}, 4, "wanted dtype"),
    "metadata is a list": ({"__metadata__": []}, 0, "__metadata__ must map text to text"),
    "metadata holds a number": ({"__metadata__": {"a": 1}}, 0, "__metadata__ must map text to text"),
    "duplicate": (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{}}', 4, "'a' stands there twice"),
    "duplicate inside": (b'{"a":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}}', 4, "'dtype' stands"),
    "not JSON": (b"{abc", 0, "not JSON"),
    "a list": (b"[1]", 0, "does not begin with"),
    "leading space": (b" {}", 0, "does not begin with"),
    "not UTF-8": (b'{"\xff":1}', 0, "not JSON"),
    "deeply nested": (b'{"a":' * 50_000, 0, "not JSON"),
    "a number of 5000 digits": (b'{"a":' + b"9" * 5000 + b"}", 0, "not JSON"),
    "a long number": ({"a": entry(offsets=(0, 10**3000))}, 0, r"data_offsets \[0, 1000000000"),
    "not a number": (b'{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,Infinity]}}', 0, "shape must be a list"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers(tmp_path, case):
    header, size, match = HOSTILE[case]
    path = raw_file(tmp_path / "x.safetensors", header, bytes(size))
    with pytest.raises(FormatError, match=match) as caught:
        open_tensors(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) < 300 + len(str(path))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "got 0 bytes, which is too short"),
        (b"1234567", "got 7 bytes"),
        (struct.pack("<Q", 0), "header length of 0 bytes"),
        (struct.pack("<Q", 1) + b"{", "header length of 1 bytes"),
        (struct.pack("<Q", 2**64 - 1), "header length of 18446744073709551615"),
        (struct.pack("<Q", 100_000_001), "header length of 100000001"),
        (struct.pack("<Q", 3) + b"{}", "cut short: the header has 3 bytes, the file 2"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "header length"),
    ],
)
def test_files_that_are_none(tmp_path, content, match):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(FormatError, match=match):
        open_tensors(tmp_path / "x")


def test_files_that_cannot_be_opened(tmp_path):
    with pytest.raises(FormatError, match="no: cannot be read: No such file"):
        open_tensors(tmp_path / "no")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(FormatError, match="got none that can be mapped"):
            open_tensors(path)
    with pytest.raises(FormatError, match="null"):
        open_tensors("a\0b")


def test_every_byte_of_a_header_flipped(tmp_path):
    """A damaged header either still describes the file, or is a FormatError; never anything else."""
    path = tmp_path / "x"
    save_tensors(path, {"a": np.arange(6, dtype="u1"), "b": np.arange(3, dtype="f4")}, {"k": "v"})
    good = path.read_bytes()
    (length,) = struct.unpack("<Q", good[:8])
    refused = 0
    for i in range(8 + length):
        for bit in (0x01, 0x20, 0x80):
            path.write_bytes(good[:i] + bytes([good[i] ^ bit]) + good[i + 1 :])
            try:
                opened = open_tensors(path)
                assert all(opened[n].size >= 0 for n in opened)
            except FormatError:
                refused += 1
    assert refused > 200


def test_a_pickled_file_is_opened_again(tmp_path):
    save_tensors(tmp_path / "x", {"a": np.arange(3)}, {"k": "v"})
    again = pickle.loads(pickle.dumps(open_tensors(tmp_path / "x")))
    assert again["a"].tolist() == [0, 1, 2]
    assert again.metadata == {"k": "v"}


def test_an_empty_file_of_tensors(tmp_path):
    save_tensors(tmp_path / "x", {})
    opened = open_tensors(tmp_path / "x")
    assert dict(opened) == {}
    assert "0 tensors" in repr(opened)
    with pytest.raises(KeyError):
        opened["a"]


def test_no_memory_to_map_a_file(tmp_path, monkeypatch):
    save_tensors(tmp_path / "a.safetensors", {"a": np.zeros(4, np.float32)})

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("quantkit.files.tensors.mmap.mmap", refuse)
    with pytest.raises(OutOfMemory, match=r"a\.safetensors: no memory to map its \d+ bytes"):
        open_tensors(tmp_path / "a.safetensors")
