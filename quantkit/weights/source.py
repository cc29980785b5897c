"""What every source of weights gives: named tensors that are read piece by piece."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit.errors import FormatError, OutOfMemory
from quantkit.files import DTYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Elements start to stop of a tensor in C order, as a 1-d array of the bits that `DTYPES` says. Asked for in rising
# order, so that a compressed source can stream.
Read = Callable[[int, int], "NDArray[Any]"]


@dataclass(frozen=True)
class SourceTensor:
    """One tensor of a source.

    Attributes
    ----------
    name : str
    dtype : str
        As safetensors names it; for a type that a file of tensors cannot hold, any other text.
    shape : tuple of int
    open : callable
        Begins reading: returns a `Read`. Each pass over the values calls it once.
    axis : int or None
        The output channels, where the source knows them.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    open: Callable[[], Read]
    axis: int | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in a file of tensors."""
        return self.size * DTYPES[self.dtype].itemsize


@dataclass
class Source:
    """A weight file, opened.

    Attributes
    ----------
    path : str
    tensors : list of SourceTensor
        Names are unique.
    ties : dict of str to str
        Name -> the tensor that it is the same memory as.
    metadata : dict of str to str
        What a safetensors source says about itself; kept.
    files : list of str
        Every file that the values come from.
    notes : list of str
        What the user should hear: values left out.
    """

    path: str
    tensors: list[SourceTensor]
    ties: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def identity(self) -> list[Any]:
        """What tells whether the source is still the same: its files, their sizes and times."""
        found: list[Any] = []
        for path in self.files:
            status = os.stat(path)
            found.append([os.path.realpath(path), status.st_size, status.st_mtime_ns])
        return found


def open_array(load: Callable[[], NDArray[Any]]) -> Callable[[], Read]:
    """Return the `open` of a tensor that is one array, mapped or in memory, of any strides and byte order."""

    def begin() -> Read:
        array = load()
        little = array.dtype if array.dtype.isbuiltin == 2 else array.dtype.newbyteorder("<")
        if array.flags.c_contiguous:
            flat = array.reshape(-1)
            return lambda start, stop: flat[start:stop].astype(little, copy=False)
        elements = array.flat  # a part of it is a copy of these elements alone
        return lambda start, stop: elements[start:stop].astype(little, copy=False)

    return begin


def allocate(count: int, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    """Return an uninitialised array, or raise `OutOfMemory` that says for what."""
    try:
        return np.empty(count, dtype)
    except (MemoryError, ValueError):
        raise OutOfMemory(f"{what} needs {count * dtype.itemsize} bytes of memory") from None


def check_names(path: str, names: Sequence[str]) -> None:
    """Raise `FormatError` when two tensors have one name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise FormatError(f"{path}: two tensors have the name {name!r}")
        seen.add(name)


def open_source(path: str | os.PathLike[str]) -> Source:
    """Open a weight file: .safetensors, its index of shards, .npz, .pth or .onnx, told apart by their first bytes.

    Nothing is read but headers; a pickle is interpreted, never executed.

    Raises
    ------
    FormatError
        When the file is missing or is none of these, or lies about itself; names the file and the place.
    """
    shown = os.fspath(path)
    try:
        if not stat.S_ISREG(os.stat(shown).st_mode):
            raise FormatError(f"{shown}: wanted a weight file, got none that can be mapped (a folder, pipe or device)")
        with open(shown, "rb") as file:
            head = file.read(16)
    except (OSError, ValueError) as e:
        if isinstance(e, FormatError):
            raise
        raise FormatError(f"{shown}: cannot be read: {e.strerror if isinstance(e, OSError) else e}") from None
    if not head:
        raise FormatError(f"{shown}: is empty, wanted a weight file")
    return _reader(shown, head)(shown)


def _reader(path: str, head: bytes) -> Callable[[str], Source]:
    lower = path.lower()
    if head.startswith(b"PK"):
        from quantkit.weights.read_npz import is_npz, open_npz
        from quantkit.weights.read_torch import open_torch_zip

        return open_npz if is_npz(path) else open_torch_zip
    if lower.endswith(".onnx"):
        from quantkit.weights.read_onnx import open_onnx

        return open_onnx
    if lower.endswith((".pth", ".pt", ".bin", ".ckpt")) and head[:1] == b"\x80":
        from quantkit.weights.read_torch import open_torch_legacy

        return open_torch_legacy
    if lower.endswith(".json"):
        from quantkit.weights.read_safetensors import open_index

        return open_index
    if lower.endswith((".npz", ".pth", ".pt")):
        raise FormatError(f"{path}: is no {os.path.splitext(lower)[1]} file: it does not begin as one (cut short?)")
    if lower.endswith(".safetensors") or head[8:9] == b"{":
        from quantkit.weights.read_safetensors import open_safetensors

        return open_safetensors
    raise FormatError(
        f"{path}: wanted .safetensors, .safetensors.index.json, .npz, .pth or .onnx, got none of them by name and bytes"
    )


def text_map(value: Mapping[Any, Any]) -> dict[str, str]:
    """Return the entries that are text on both sides."""
    return {k: v for k, v in value.items() if isinstance(k, str) and isinstance(v, str)}
