"""Files of torch.save, read without torch."""

import collections
import io
import os
import pickle
import struct
import warnings
import zipfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from quantkit.errors import FormatError
from quantkit.weights import read_torch
from quantkit.weights.passes import to_float
from quantkit.weights.source import open_source

DATA = Path(__file__).parent / "data"


def numbers(*shape):
    return (np.arange(int(np.prod(shape))) % 61 - 30).reshape(shape)


BASE = numbers(10, 6)
EXPECTED = {
    "embedding.weight": ("F32", numbers(12, 8)),
    "half": ("F16", numbers(4, 6)),
    "brain": ("BF16", numbers(4, 6)),
    "double": ("F64", numbers(4, 6)),
    "transposed": ("F32", BASE.T),
    "slice": ("F32", BASE[2:8:2, 1:5]),
    "expanded": ("F32", np.broadcast_to(numbers(1, 6), (5, 6))),
    "ids": ("I64", numbers(7)),
    "small_ints": ("I8", numbers(3, 3)),
    "mask": ("BOOL", numbers(5) > -28),
    "scalar": ("F32", np.array(2.5)),
    "empty": ("F32", np.empty((0, 4))),
}


def read(tensor, step=7):
    """The values of a tensor, a few at a time."""
    begin = tensor.open()
    parts = [begin(i, min(i + step, tensor.size)) for i in range(0, tensor.size, step)]
    flat = np.concatenate(parts) if parts else np.empty(0)
    return to_float(flat, tensor.dtype).reshape(tensor.shape)


@pytest.mark.parametrize("name", ["state_dict.pth", "legacy.pth", "protocol4.pth"])
def test_every_dtype_and_view(name):
    source = open_source(DATA / name)
    assert {t.name: t.dtype for t in source.tensors} == {n: d for n, (d, _) in EXPECTED.items()}
    for tensor in source.tensors:
        assert np.array_equal(read(tensor), EXPECTED[tensor.name][1]), tensor.name
    assert source.ties == {"head.weight": "embedding.weight"}
    assert source.notes == []


def test_a_checkpoint_is_flattened_and_what_is_no_tensor_left_out():
    source = open_source(DATA / "checkpoint.pth")
    found = {t.name: (t.dtype, t.shape) for t in source.tensors}
    assert found == {
        "model.0.weight": ("F32", (4, 6)),
        "model.0.bias": ("F32", (4,)),
        "model.1.weight": ("F32", (4,)),
        "model.1.bias": ("F32", (4,)),
        "model.1.running_mean": ("F32", (4,)),
        "model.1.running_var": ("F32", (4,)),
        "model.1.num_batches_tracked": ("I64", ()),
        "moments.0": ("F32", (3, 4)),
        "moments.1.0": ("F32", (2, 2)),
        "parameter": ("F32", (4, 6)),
        "float8": ("F8_E4M3", (4, 6)),
        "uint16": ("U16", (3,)),
    }
    assert source.notes == [f"{DATA / 'checkpoint.pth'}: left out 9 values that are no tensors"]
    assert np.array_equal(read(source.tensors[0]), numbers(4, 6))


def test_a_pickled_module_is_refused_by_name():
    with pytest.raises(
        FormatError, match=r"module\.pth: refused the global 'torch\.nn\.modules\.container\.Sequential'"
    ):
        open_source(DATA / "whole_module.pth")


def test_what_torch_writes_today(tmp_path):
    torch = pytest.importorskip("torch", reason="writes the file that is read")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.nn.TransformerEncoderLayer(16, 2, 32)
    path = tmp_path / "m.pth"
    torch.save(model.state_dict(), path)
    source = open_source(path)
    expected = model.state_dict()
    assert [t.name for t in source.tensors] == list(expected)
    assert all(np.array_equal(read(t, 1000), expected[t.name].numpy()) for t in source.tensors)


# ------------------------------------------------------------------------------------------------ made by hand


class Global:
    """Pickles as a global, whatever it is."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class Call:
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments


class Storage:
    def __init__(self, key="0", count=12, kind="FloatStorage", extra=()):
        self.id = ("storage", Global("torch", kind), key, "cpu", count, *extra)


class Writer(pickle._Pickler):
    """Writes pickles that name what does not exist here."""

    def persistent_id(self, value):
        return value.id if isinstance(value, Storage) else None

    def save_global_name(self, value):
        self.write(b"c" + value.module.encode() + b"\n" + value.name.encode() + b"\n")

    def save_call(self, value):
        self.save(value.function)
        self.save(value.arguments)
        self.write(b"R")

    dispatch: ClassVar = {**pickle._Pickler.dispatch, Global: save_global_name, Call: save_call}


def dumps(value):
    stream = io.BytesIO()
    Writer(stream, 2).dump(value)
    return stream.getvalue()


def tensor(storage=None, offset=0, shape=(3, 4), strides=(4, 1), function="_rebuild_tensor_v2"):
    rebuild = Global("torch._utils", function)
    return Call(
        rebuild, storage or Storage(), offset, shape, strides, False, Call(Global("collections", "OrderedDict"))
    )


def archive(path, value, storages=None, raw=None, compression=zipfile.ZIP_STORED, **members):
    storages = {"0": np.arange(12, dtype="<f4").tobytes()} if storages is None else storages
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("archive/data.pkl", dumps(value) if raw is None else raw)
        for name, data in members.items():
            file.writestr(f"archive/{name}", data)
        for key, data in storages.items():
            file.writestr(f"archive/data/{key}", data)
    return path


def test_the_hand_made_archive_is_read(tmp_path):
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        source = open_source(archive(tmp_path / "a.pth", {"w": tensor()}, compression=compression))
        assert np.array_equal(read(source.tensors[0]), np.arange(12).reshape(3, 4))


def test_big_endian(tmp_path):
    data = np.arange(12, dtype=">f4").tobytes()
    source = open_source(archive(tmp_path / "a.pth", {"w": tensor()}, {"0": data}, byteorder=b"big"))
    assert np.array_equal(read(source.tensors[0]), np.arange(12).reshape(3, 4))


class Evil:
    def __init__(self, function, *arguments):
        self.what = function, arguments

    def __reduce__(self):
        return self.what


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("__builtin__", "exec"),
        ("subprocess", "Popen"),
        ("torch", "load"),
        ("torch.hub", "load"),
        ("torch._utils", "__builtins__"),
        ("torch._utils", "_rebuild_qtensor"),
        ("collections", "Counter"),
        ("numpy.core.multiarray", "scalar"),
        ("argparse", "Namespace"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_any_other_global_is_refused_by_name_and_nothing_runs(tmp_path, module, name, protocol):
    if protocol == 2:
        raw = b"\x80\x02c" + f"{module}\n{name}\n".encode() + b"U\x08touch xxq\x00\x85R."
    else:
        raw = b"\x80\x04" + b"".join(b"\x8c" + bytes([len(s)]) + s.encode() for s in (module, name)) + b"\x93."
    with pytest.raises(FormatError, match=f"a.pth: refused the global '{module}.{name}'"):
        open_source(archive(tmp_path / "a.pth", None, raw=raw))


def test_a_pickle_that_would_run_code_does_not(tmp_path):
    canary = tmp_path / "canary"
    for value in (
        Evil(os.system, f"touch {canary}"),
        {"w": Evil(eval, f"open({str(canary)!r}, 'w')")},
        Evil(exec, f"open({str(canary)!r}, 'w')"),
    ):
        for protocol in range(6):
            raw = pickle.dumps(value, protocol)
            with pytest.raises(FormatError, match="refused"):
                open_source(archive(tmp_path / "a.pth", None, raw=raw))
            old = tmp_path / "old.pth"
            old.write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + raw)
            with pytest.raises(FormatError, match="refused"):
                open_source(old)
    assert not canary.exists()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"(S'touch x'\nios\nsystem\n.", "refused the pickle operation INST"),
        (b"(cos\nsystem\nS'touch x'\no.", "refused the global 'os.system'"),
        (b"\x80\x02ctorch\nSize\n)\x81.", "refused the pickle operation NEWOBJ"),
        (b"\x80\x02\x82\x01.", "refused the pickle operation EXT1"),
        (b"Pabc\n.", "refused the pickle operation PERSID"),
        (b"\x80\x02ctorch\nSize\n}b.", "refused to set attributes of a Global"),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nN}\x86b.", "refused to set attributes of a Global"),
        (b"\x80\x02K\x01)R.", "refused to call a int"),
        (b"\x80\x02}(K\x01K\x02\x85)R.", "refused to call a tuple"),
        (b"\x80\x02}.extra", None),
        (b"", "malformed pickle"),
        (b".", "malformed pickle"),
        (b"\x80\x02", "malformed pickle"),
        (b"\x80\x02]", "malformed pickle"),
        (b"\x80\x02(.", "a mark came"),
        (b"\x80\x02t.", "no mark"),
        (b"\x80\x02h\x05.", "malformed pickle at byte 2: 5"),
        (b"\x80\x02}(K\x01u.", "a key of a dict has no value"),
        (b"\x80\x02}K\x01s.", "malformed pickle"),
        (b"\x80\x02K\x01K\x02a.", "wanted a list to fill"),
        (b"\x80\x02}]K\x01s.", "a key of a dict is a list"),
        (b"\x80\x02\x8a\xff.", "malformed pickle"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.", "malformed pickle"),
        (b"\x80\x02\xff.", "malformed pickle"),
        (b"\x80\x02X\x02\x00\x00\x00\xff\xff.", "malformed pickle"),
        (b"\x80\x02r\xff\xff\xff\x7f.", "malformed pickle"),
        (b"\x80\x02Nr\xff\xff\xff\x7f.", None),  # a high memo number costs nothing here
        (b"\x80\x02" + b"(" * 100_000 + b".", "a mark came"),
        (b"\x80\x02)" + b"\x85" * 100_000 + b".", "nested more than 64 deep"),
        (b"\x80\x02}q\x00" + b")" + b"\x85" * 100_000 + b"K\x01s.", "a key of a dict is a tuple"),
        (b"\x80\x02]q\x00h\x00a.", "contains itself"),
        (b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.", "the container 'a' contains itself"),
        (b"\x80\x02]q\x00]q\x01h\x00ah\x01a.", "contains itself"),
    ],
)
def test_malformed_and_hostile_pickles(tmp_path, raw, message):
    path = archive(tmp_path / "a.pth", None, raw=raw)
    if message is None:
        assert open_source(path).tensors == []
        return
    with pytest.raises(FormatError) as error:
        open_source(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_containers_that_multiply_are_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(read_torch, "MAX_VALUES", 100_000)
    # Each list holds the one before it ten times: 10^12 values in a hundred bytes.
    raw = b"\x80\x02]q\x00" + b"".join(
        b"](" + b"h" + bytes([i]) + (b"h" + bytes([i])) * 9 + b"eq" + bytes([i + 1]) for i in range(12)
    )
    with pytest.raises(FormatError, match="holds more than 100000 values"):
        open_source(archive(tmp_path / "a.pth", None, raw=raw + b"."))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            tensor(shape=(3, 5), strides=(5, 1)),
            "reaches to byte 60 of its storage, which has 48",
        ),
        (tensor(offset=1), "reaches to byte 52"),
        (tensor(strides=(2**62, 1)), "reaches to byte"),
        (tensor(shape=(3, -4)), "must be whole numbers >= 0"),
        (tensor(strides=(-4, 1)), "must be whole numbers >= 0"),
        (tensor(offset=-1), "must be whole numbers >= 0"),
        (tensor(shape=(3, 4.0)), "must be whole numbers >= 0"),
        (tensor(shape=(3, True)), "must be whole numbers >= 0"),
        (tensor(shape=(12,)), "as many of each"),
        (tensor(shape=(1,) * 33, strides=(1,) * 33), "has 33 dimensions"),
        (tensor(Storage("7")), "storage '7' is missing"),
        (tensor(Storage("../data.pkl")), "storage '../data.pkl' is missing"),
        (tensor(Storage(count=13)), "storage '0' should have 52 bytes, and has 48"),
        (tensor(Storage(count=-1)), "malformed storage"),
        (tensor(Storage(kind="ComplexFloatStorage")), "refused the global 'torch.ComplexFloatStorage'"),
        (tensor(Storage(kind="Size")), "malformed storage"),
        (tensor(Storage(extra=(("1", 0, 3),))), "refused a persistent id"),
        ([tensor(), tensor(Storage(count=6))], "storage '0' is described in two ways"),
        (tensor(storage="no storage"), "did not get a storage"),
        (Call(Global("torch._utils", "_rebuild_tensor_v2")), "did not get a storage"),
        (Call(Global("torch._utils", "_rebuild_parameter"), 3), "refused to call torch._utils._rebuild_parameter"),
        (Call(Global("torch", "float32")), "refused to call torch.float32"),
        (tensor(function="_rebuild_tensor_v3"), "did not get a storage and a dtype"),
    ],
)
def test_tensors_that_lie(tmp_path, made, message):
    with pytest.raises(FormatError, match=message):
        open_source(archive(tmp_path / "a.pth", {"w": made}))


def test_two_tensors_of_one_name(tmp_path):
    value = {"a": {"b": tensor()}, "a.b": tensor(offset=0, shape=(2, 2), strides=(2, 1))}
    with pytest.raises(FormatError, match=r"two tensors have the name 'a\.b'"):
        open_source(archive(tmp_path / "a.pth", value))


def test_ordered_dict_with_items_and_state(tmp_path):
    ordered = Call(Global("collections", "OrderedDict"), [("w", tensor())])
    assert [t.name for t in open_source(archive(tmp_path / "a.pth", ordered)).tensors] == ["w"]
    raw = pickle.dumps(collections.OrderedDict(a=1), 2)
    assert open_source(archive(tmp_path / "b.pth", None, raw=raw)).notes == [
        f"{tmp_path / 'b.pth'}: left out 1 values that are no tensors"
    ]


def test_other_archives(tmp_path):
    path = tmp_path / "a.pth"
    with pytest.raises(FormatError, match="is a TorchScript archive"):
        open_source(archive(path, {}, **{"constants.pkl": b""}))
    with pytest.raises(FormatError, match="byte order b'middle' is neither"):
        open_source(archive(path, {}, byteorder=b"middle"))
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("readme", "x")
    with pytest.raises(FormatError, match=r"with one data\.pkl, found 0"):
        open_source(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a/data.pkl", bytes(100 << 20))
    with pytest.raises(FormatError, match="at most 67108864 were expected"):
        open_source(path)


@pytest.mark.parametrize("name", ["state_dict.pth", "legacy.pth"])
def test_cut_short_anywhere(tmp_path, name):
    whole = (DATA / name).read_bytes()
    path = tmp_path / name
    for size in [*range(0, 40), *range(40, len(whole), 97)]:
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError, match=name):
            open_source(path)


@pytest.mark.parametrize("name", ["state_dict.pth", "legacy.pth"])
def test_damaged_anywhere_is_an_error_or_a_result(tmp_path, name):
    whole, path = bytearray((DATA / name).read_bytes()), tmp_path / name
    random = np.random.default_rng(0)
    for _ in range(400):
        damaged = bytearray(whole)
        for at in random.integers(0, len(whole), 3):
            damaged[at] = random.integers(256)
        path.write_bytes(damaged)
        try:
            source = open_source(path)
        except FormatError as error:
            if name not in str(error):
                raise
        else:
            for t in source.tensors:
                if t.size < 10_000:
                    read(t)


def test_legacy_storages_that_lie(tmp_path):
    whole = (DATA / "legacy.pth").read_bytes()
    path = tmp_path / "legacy.pth"
    # The first storage announces its number of elements in 8 bytes.
    at = whole.index(struct.pack("<q", 96))
    path.write_bytes(whole[:at] + struct.pack("<q", 2**40) + whole[at + 8 :])
    with pytest.raises(FormatError, match="is cut short: 4398046511104 bytes wanted"):
        open_source(path)
    path.write_bytes(whole[:at] + struct.pack("<q", 3) + whole[at + 8 :])
    with pytest.raises(FormatError, match=r"legacy\.pth"):
        open_source(path)


def test_damaged_pickles_are_an_error_or_a_result(tmp_path):
    with zipfile.ZipFile(DATA / "state_dict.pth") as file:
        whole = file.read("state_dict/data.pkl")
        storages = {n.rpartition("/")[2]: file.read(n) for n in file.namelist() if "/data/" in n}
    random, errors = np.random.default_rng(1), 0
    for _ in range(600):
        raw = bytearray(whole)
        for at in random.integers(0, len(whole), random.integers(1, 4)):
            raw[at] = random.integers(256)
        path = archive(tmp_path / "a.pth", None, storages, bytes(raw))
        try:
            source = open_source(path)
        except FormatError:
            errors += 1
        else:
            for t in source.tensors:
                if t.size < 10_000:
                    read(t, 1000)
    assert 100 < errors < 600
