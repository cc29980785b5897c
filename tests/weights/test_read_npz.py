"""Weights in .npz files, and zip files that lie."""

import io
import struct
import zipfile

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import FormatError, OutOfMemory
from quantkit.weights import read_npz
from quantkit.weights.source import open_source


def npy(array, fortran=False):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asfortranarray(array) if fortran else array, allow_pickle=True)
    return stream.getvalue()


def archive(path, compression=zipfile.ZIP_STORED, **members):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def read(tensor, step):
    begin = tensor.open()
    parts = [begin(i, min(i + step, tensor.size)) for i in range(0, tensor.size, step)]
    return np.concatenate(parts).reshape(tensor.shape)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("step", [1, 13, 10_000])
def test_every_layout(tmp_path, save, step):
    x = np.random.default_rng(0).normal(size=(9, 7, 3))
    tensors = {
        "c": x.astype("f4"),
        "fortran": np.asfortranarray(x.astype("f4")),
        "big": x.astype(">f8"),
        "half": x.astype("f2"),
        "ids": np.arange(7, dtype=">i2"),
        "flags": x > 0,
        "scalar": np.array(3.5),
        "a/b c": np.ones((1, 2), "u4"),
    }
    path = tmp_path / "m.npz"
    save(path, **tensors)
    source = open_source(path)
    assert [t.name for t in source.tensors] == list(tensors)
    for tensor in source.tensors:
        values = read(tensor, step)
        assert values.dtype == tensors[tensor.name].dtype.newbyteorder("<")
        assert np.array_equal(values, tensors[tensor.name]), tensor.name


def test_later_versions_of_npy_headers(tmp_path):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.ones((3, 4), "f4"), version=(2, 0))
    source = open_source(archive(tmp_path / "m.npz", **{"a.npy": stream.getvalue()}))
    assert np.array_equal(read(source.tensors[0], 5), np.ones((3, 4)))


def test_members_that_are_no_arrays_are_noted(tmp_path):
    path = archive(tmp_path / "m.npz", **{"a.npy": npy(np.ones((2, 2))), "../../readme": "x", "folder/": ""})
    source = open_source(path)
    assert [t.name for t in source.tensors] == ["a"]
    assert source.notes == [f"{path}: left out '../../readme', which is no .npy member"]


def test_odd_member_names_are_only_names(tmp_path):
    names = ["../../etc/passwd", "/abs", "C:\\x", "ü", "a" * 1000, "."]
    path = archive(tmp_path / "m.npz", **{f"{n}.npy": npy(np.ones((40, 40), "f4") * i) for i, n in enumerate(names)})
    out = tmp_path / "q.safetensors"
    qk.quantize_weights(path, out)
    assert set(qk.open_weights(out)) == set(names)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.npz", "q.safetensors"]


def test_pickled_objects_are_never_loaded(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "canary"), "w"))

    path = archive(tmp_path / "m.npz", **{"evil.npy": npy(np.array([Evil()], object))})
    with pytest.raises(FormatError, match="tensor 'evil' holds Python objects"):
        qk.quantize_weights(path, tmp_path / "q.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["m.npz"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is no .npy data"),
        (b"hello", "is no .npy data"),
        (b"\x93NUMPY\x09\x00", "is no .npy data"),
        (npy(np.ones((3, 4), "f4"))[:-1], "makes 176 bytes, the member has 175"),
        (npy(np.ones((3, 4), "f4")) + b"x", "makes 176 bytes, the member has 177"),
        (npy(np.ones((3, 4), "f4")).replace(b"(3, 4)", b"(9**9,"), "is no .npy data"),
        (npy(np.ones((3, 4), "f4")).replace(b"(3, 4)", b"(-3,4)"), "has a negative size"),
        (npy(np.ones((3, 4), "f4")).replace(b"(3, 4), }  ", b"(3<<99, 4)}"), "is no .npy data"),
        (npy(np.ones((3, 4), "f4")).replace(b"(3, 4), }          ", b"(1234567890123, 4)}"), "makes"),
        (npy(np.ones((3, 4), "f4")).replace(b"<f4", b"<f9"), "is no .npy data"),
    ],
)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_that_lie(tmp_path, data, message, compression):
    path = archive(tmp_path / "m.npz", compression, **{"a.npy": data})
    with pytest.raises(FormatError, match=message):
        open_source(path)


def test_a_flipped_bit_is_found(tmp_path):
    for save in (np.savez, np.savez_compressed):
        path = tmp_path / "m.npz"
        save(path, a=np.random.default_rng(0).normal(size=(50, 50)).astype("f4"))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
        with pytest.raises(FormatError, match=r"'a\.npy'.*(damaged|cannot be read)"):
            qk.quantize_weights(path, tmp_path / "q.safetensors")
        assert [p.name for p in tmp_path.iterdir()] == ["m.npz"]


def directory_entry(path):
    data = bytearray(path.read_bytes())
    return data, data.rindex(b"PK\1\2")


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (8, struct.pack("<H", 1), "is encrypted"),
        (10, struct.pack("<H", 12), "is packed by method 12"),
        (20, struct.pack("<I", 100), "is stored, but claims 100 bytes for 176"),
        (42, struct.pack("<I", 7), "has no header where the directory says"),
        (20, struct.pack("<II", 2**31, 2**31), "reaches beyond the end"),
    ],
)
def test_directories_that_lie(tmp_path, offset, value, message):
    path = archive(tmp_path / "m.npz", **{"a.npy": npy(np.ones((3, 4), "f4"))})
    data, at = directory_entry(path)
    data[at + offset : at + offset + len(value)] = value
    path.write_bytes(data)
    with pytest.raises(FormatError, match=message):
        open_source(path)


def test_members_that_overlap(tmp_path):
    path = archive(tmp_path / "m.npz", **{"a.npy": npy(np.ones((3, 4), "f4")), "b.npy": npy(np.ones((3, 4), "f4"))})
    data, at = directory_entry(path)
    data[at + 42 : at + 46] = struct.pack("<I", 0)
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"overlap|cut short"):
        open_source(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_of_one_name(tmp_path):
    path = tmp_path / "m.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.npy", npy(np.ones(3)))
        file.writestr("a.npy", npy(np.ones(4)))
    with pytest.raises(FormatError, match=r"member 'a\.npy': stands there twice"):
        open_source(path)


def test_a_bomb_is_streamed_or_refused(tmp_path):
    # 200 MB of zeros in 200 kB: they go through a piece at a time, and memory does not grow with them.
    path = tmp_path / "m.npz"
    shape = (5000, 10_000)
    head = npy(np.zeros((1, 1), "f4"))[:-4].replace(b"(1, 1), }" + b" " * 10, f"{shape}, }}".encode().ljust(19))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open("a.npy", "w", force_zip64=True) as member:
        member.write(head)
        for _ in range(200):
            member.write(bytes(1_000_000))
    assert path.stat().st_size < 300_000
    result = qk.quantize_weights(path, tmp_path / "q.safetensors", streams=1)
    assert result.tensors[0].shape == shape
    assert result.bytes_after == 50_000_000 + 5 * 5000
    # A claim that no deflate could keep.
    small = archive(tmp_path / "b.npz", zipfile.ZIP_DEFLATED, **{"a.npy": npy(np.ones((3, 4), "f4"))})
    data, at = directory_entry(small)
    data[at + 24 : at + 28] = struct.pack("<I", 4_000_000_000)
    small.write_bytes(data)
    with pytest.raises(FormatError, match="claims 4000000000 bytes out of"):
        open_source(small)


def test_fortran_order_that_does_not_fit_the_memory(tmp_path, monkeypatch):
    path = archive(tmp_path / "m.npz", zipfile.ZIP_DEFLATED, **{"a.npy": npy(np.ones((40, 50), "f4"), fortran=True)})
    source = open_source(path)

    def none(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(read_npz.np, "empty", none)
        with pytest.raises(OutOfMemory, match=r"tensor 'a', deflated in Fortran order, needs 8000 bytes of memory"):
            source.tensors[0].open()
    assert np.array_equal(read(source.tensors[0], 100), np.ones((40, 50)))


def test_cut_short_anywhere(tmp_path):
    path = tmp_path / "m.npz"
    np.savez_compressed(path, a=np.arange(100.0).reshape(10, 10), b=np.ones(3))
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError, match=r"m\.npz"):
            open_source(path)
