"""Files of tensors: written whole or one tensor at a time, and mapped for reading (`layout` has the layout)."""

from __future__ import annotations

import errno
import json
import math
import mmap
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from quantkit.errors import FormatError, InvalidArgument, InvalidDType, OutOfMemory, ShapeMismatch
from quantkit.files.atomic import atomic_write
from quantkit.files.layout import DTYPES, MAX_HEADER, Placed, dtype_name, plan_tensors

if TYPE_CHECKING:
    import io

    from numpy.typing import NDArray

_BLOCK = 1 << 24  # bytes copied at a time while writing an array that is not contiguous


# --------------------------------------------------------------------------------------------------- writing


class TensorWriter:
    """Fills a file made by `create_tensors`, one tensor at a time, in any order."""

    def __init__(self, file: io.FileIO, start: int, tensors: dict[str, Placed]) -> None:
        self._file, self._start, self._tensors = file, start, tensors
        self._missing = set(tensors)

    def write(self, name: str, array: Any) -> None:
        """Write tensor `name`; `array` has the announced shape and dtype, and any strides.

        An array of the bits (uint16 for BF16, uint8 for F8) is taken as well.

        Raises
        ------
        InvalidArgument, InvalidDType, ShapeMismatch
            When `name` was not announced, or was with another dtype or shape.
        OutputError
            When the disk is full.
        """
        if name not in self._tensors:
            raise InvalidArgument(f"tensor {name!r} was not announced; announced: {', '.join(self._tensors) or 'none'}")
        tensor, array = self._tensors[name], np.asarray(array)
        bits = DTYPES[tensor.dtype]
        if dtype_name(name, array.dtype) != tensor.dtype and array.dtype != bits:
            raise InvalidDType(f"tensor {name!r}: announced as {tensor.dtype}, got {array.dtype}")
        if array.shape != tensor.shape:
            raise ShapeMismatch(f"tensor {name!r}: announced with shape {tensor.shape}, got {array.shape}")
        self._file.seek(self._start + tensor.begin)
        for block in _contiguous_blocks(array):
            self._file.write(block.data)
        self._missing.discard(name)

    def _check_complete(self) -> None:
        if self._missing:
            raise InvalidArgument(f"tensors announced and not written: {', '.join(sorted(self._missing))}")


def _contiguous_blocks(array: NDArray[Any]) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of `array` in C order, little-endian, copying at most about `_BLOCK` bytes at a time."""
    if array.size == 0:
        return
    # An extension dtype (isbuiltin 2: those of ml_dtypes) has the machine's order and no other.
    little = array.dtype if array.dtype.isbuiltin == 2 else array.dtype.newbyteorder("<")
    if array.flags.c_contiguous and array.dtype == little:
        yield array.reshape(-1).view(np.uint8)
    elif array.nbytes <= _BLOCK or array.ndim == 0:
        yield np.ascontiguousarray(array, little).reshape(-1).view(np.uint8)
    else:
        rows = max(1, _BLOCK * len(array) // array.nbytes)
        for i in range(0, len(array), rows):
            part = array[i : i + rows] if rows > 1 else array[i]
            yield from _contiguous_blocks(part)


@contextmanager
def create_tensors(
    path: str | os.PathLike[str],
    specs: Mapping[str, tuple[Any, Sequence[int]]],
    metadata: Mapping[str, str] | None = None,
) -> Iterator[TensorWriter]:
    """Write a file of tensors whose values come one by one.

    Parameters
    ----------
    path : path-like
        Written atomically: it appears when the block ends and every tensor was written.
    specs, metadata
        As `plan_tensors` takes them.

    Yields
    ------
    TensorWriter

    Raises
    ------
    InvalidArgument, InvalidDType
        For a name, dtype, shape or metadata that the layout cannot hold, or a tensor that was not written.
    OutputError
        When the file cannot be written.
    """
    layout = plan_tensors(specs, metadata)
    with atomic_write(path) as file:
        file.write(layout.head)
        writer = TensorWriter(file, len(layout.head), layout._tensors)
        yield writer
        writer._check_complete()


def save_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> None:
    """Write `tensors` to `path`, atomically, as a safetensors file whose data is 64-byte aligned.

    Parameters
    ----------
    path : path-like
    tensors : mapping of str to array_like
        bool, integers of 8 to 64 bits, float16, float32, float64, and bfloat16 or float8 of ml_dtypes; any strides.
    metadata : mapping of str to str, optional

    Raises
    ------
    InvalidArgument, InvalidDType
        For a name, dtype or metadata that the layout cannot hold; names the tensor.
    OutputError
        When the file cannot be written; nothing is left behind.
    """
    arrays = {name: np.asarray(value) for name, value in tensors.items()}
    with create_tensors(path, {name: (a.dtype, a.shape) for name, a in arrays.items()}, metadata) as writer:
        for name, array in arrays.items():
            writer.write(name, array)


# --------------------------------------------------------------------------------------------------- reading


class TensorFile(Mapping[str, "NDArray[Any]"]):
    """A mapped safetensors file: name -> read-only ndarray on the file's pages. Nothing is read until it is used.

    Attributes
    ----------
    path : str
    metadata : dict of str to str
    dtypes : dict of str to str
        The safetensors dtype of each tensor. BF16 comes as uint16 and F8_* as uint8: their bits.

    Notes
    -----
    The map lives as long as this object or any array it gave. A file that another program shortens meanwhile ends the
    process with a bus error, as with every mapped file; `save_tensors` never shortens one, it replaces it.
    """

    def __init__(self, path: str, tensors: dict[str, Placed], metadata: dict[str, str], data: memoryview) -> None:
        self.path, self.metadata, self._tensors, self._data = path, metadata, tensors, data
        self.dtypes = {name: t.dtype for name, t in tensors.items()}

    def __getitem__(self, name: str) -> NDArray[Any]:
        t = self._tensors[name]
        array: NDArray[Any] = np.frombuffer(self._data[t.begin : t.end], DTYPES[t.dtype]).reshape(t.shape)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_tensors, (self.path,)

    def __repr__(self) -> str:
        return f"TensorFile({self.path!r}, {len(self)} tensors)"


def open_tensors(path: str | os.PathLike[str]) -> TensorFile:
    """Map a safetensors file read-only, after checking its whole header.

    Returns
    -------
    TensorFile
        In the order of the data.

    Raises
    ------
    FormatError
        When the file cannot be read or its header lies; names the file and the tensor.
    """
    shown = os.fspath(path)
    try:
        if not stat.S_ISREG(os.stat(shown).st_mode):  # asked before it is opened: a pipe would wait for its writer
            _bad(shown, "wanted a safetensors file, got none that can be mapped (a folder, pipe or device)")
        with open(shown, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8:
                _bad(shown, f"wanted a safetensors file, got {size} bytes, which is too short for one")
            if length > MAX_HEADER or length < 2:
                _bad(shown, f"wanted a safetensors file, got a header length of {length} bytes")
            if length > size - 8:
                _bad(shown, f"cut short: the header has {length} bytes, the file {size - 8} behind the header length")
            tensors, metadata = _parse(shown, file.read(length), size - 8 - length)
            mapped = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as e:
        if isinstance(e, FormatError):
            raise
        if isinstance(e, OSError) and e.errno == errno.ENOMEM:
            raise OutOfMemory(f"{shown}: no memory to map its {size} bytes") from None
        raise FormatError(f"{shown}: cannot be read: {e.strerror if isinstance(e, OSError) else e}") from e
    return TensorFile(shown, tensors, metadata, mapped[8 + length :])


def _bad(path: str, what: str) -> NoReturn:
    raise FormatError(f"{path}: {what}")


def _parse(path: str, header: bytes, size: int) -> tuple[dict[str, Placed], dict[str, str]]:
    """Return tensors and metadata of a header that describes `size` bytes of data, in the order of the data."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            _bad(path, f"header: {_short(twice)} stands there twice")
        return found

    try:
        if header[:1] != b"{":
            raise ValueError("it does not begin with '{'")
        entries = json.loads(header.decode(), object_pairs_hook=unique)
    except FormatError:
        raise
    except (ValueError, RecursionError) as e:
        raise FormatError(f"{path}: wanted a safetensors file, but its header is not JSON: {e}") from None
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        _bad(path, "header: __metadata__ must map text to text")
    tensors = {name: _parse_tensor(path, name, entry, size) for name, entry in entries.items()}
    tensors = dict(sorted(tensors.items(), key=lambda item: item[1][2:]))
    end, before = 0, ""
    for name, t in tensors.items():
        if t.begin < end:
            _bad(path, f"tensor {name!r}: its bytes {t.begin}:{t.end} overlap those of {before!r}")
        if t.begin > end:
            _bad(path, f"tensor {name!r}: begins at byte {t.begin}, but bytes {end}:{t.begin} belong to no tensor")
        end, before = t.end, name
    if end != size:
        _bad(path, f"the tensors end at byte {end} of the data, which has {size}")
    return tensors, metadata


def _parse_tensor(path: str, name: str, entry: Any, size: int) -> Placed:
    def bad(what: str) -> NoReturn:
        _bad(path, f"tensor {name!r}: {what}")

    def whole(values: Any) -> bool:
        return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)

    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        bad("wanted dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        bad(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    if not whole(shape) or len(shape) > 32:
        bad(f"shape must be a list of at most 32 whole numbers >= 0, got {_short(shape)}")
    if not whole(offsets) or len(offsets) != 2:
        bad(f"data_offsets must be two whole numbers >= 0, got {_short(offsets)}")
    begin, end = offsets
    if not begin <= end <= size:
        what = (
            "the end lies before the begin"
            if begin > end
            else f"the end lies behind the data, which has {size} bytes (cut short?)"
        )
        bad(f"data_offsets {_short(offsets)}: {what}")
    itemsize = DTYPES[dtype].itemsize
    # The sizes that are not 0 count alone: an empty array of impossible sizes is refused as well.
    if math.prod(n for n in shape if n) * itemsize >= 1 << 63:
        bad(f"shape {_short(shape)} is larger than any memory")
    if math.prod(shape) * itemsize != end - begin:
        bad(f"shape {_short(shape)} of {dtype} takes {math.prod(shape) * itemsize} bytes, data_offsets {end - begin}")
    return Placed(dtype, tuple(shape), begin, end)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
