"""The one layout for files of tensors: safetensors, placed so that it can be mapped and used without a copy.

A file is an 8-byte little-endian header length, a JSON header, and the tensors' bytes, little-endian and C-contiguous,
without holes. Three choices are ours, and any reader of the format takes them:

- The header is padded with spaces so that the data begins at a multiple of 64 bytes.
- Tensors whose size is a multiple of 64 bytes come first, so that each begins at such a multiple too.
- The others follow by falling item size, so that each is aligned to its items.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from quantkit.errors import InvalidArgument, InvalidDType

ALIGNMENT = 64
MAX_HEADER = 100_000_000  # bytes; the limit of the safetensors library

# safetensors dtype -> NumPy dtype of its items; the types that NumPy lacks are their bits.
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "BF16": np.dtype("<u2"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
}
_BITS_ONLY = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}
_BY_NUMPY = {dtype.str: name for name, dtype in DTYPES.items() if name not in _BITS_ONLY.values()}


class Placed(NamedTuple):
    """A tensor in a file: safetensors dtype, shape, and its bytes counted from the start of the data."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def dtype_name(name: str, dtype: Any) -> str:
    """Return the safetensors name of `dtype`, which may be one already."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    try:
        dtype = np.dtype(dtype)
        return _BITS_ONLY.get(dtype.name) or _BY_NUMPY[dtype.newbyteorder("<").str]
    except (TypeError, KeyError):
        raise InvalidDType(f"tensor {name!r}: a file of tensors holds {', '.join(DTYPES)}, and not {dtype!r}") from None


def _header(tensors: dict[str, Placed], metadata: Mapping[str, str] | None) -> bytes:
    entries: dict[str, Any] = {}
    if metadata is not None:
        if not all(isinstance(s, str) for item in metadata.items() for s in item):
            raise InvalidArgument("the metadata of a file of tensors maps text to text")
        entries["__metadata__"] = dict(metadata)
    for name, t in tensors.items():
        entries[name] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": (t.begin, t.end)}
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":"))
    try:
        header = text.encode()
    except UnicodeEncodeError as e:
        raise InvalidArgument(f"names and metadata of a file of tensors must be valid Unicode: {e}") from None
    header += b" " * (-(8 + len(header)) % ALIGNMENT)
    if len(header) > MAX_HEADER:
        raise InvalidArgument(f"the header of a file of tensors has at most {MAX_HEADER} bytes, got {len(header)}")
    return header


class TensorLayout:
    """Where everything lies in a file of tensors that is not written yet.

    Attributes
    ----------
    head : bytes
        The header length and the header: the first bytes of the file.
    size : int
        Bytes of the whole file.
    """

    def __init__(self, head: bytes, tensors: dict[str, Placed], size: int) -> None:
        self.head, self.size, self._tensors = head, size, tensors

    def __iter__(self) -> Iterator[str]:
        """The names in the order of their data."""
        return iter(self._tensors)

    def offset(self, name: str) -> int:
        """First byte of tensor `name` in the file."""
        return len(self.head) + self._tensors[name].begin

    def nbytes(self, name: str) -> int:
        """Bytes of tensor `name`."""
        return self._tensors[name].end - self._tensors[name].begin


def plan_tensors(
    specs: Mapping[str, tuple[Any, Sequence[int]]], metadata: Mapping[str, str] | None = None
) -> TensorLayout:
    """Place tensors in a file: the one layout, for those who write it themselves.

    Parameters
    ----------
    specs : mapping of str to (dtype, shape)
        dtype: a NumPy dtype, an ml_dtypes one, or the safetensors name (``"BF16"``).
    metadata : mapping of str to str, optional

    Raises
    ------
    InvalidArgument, InvalidDType
        For a name, dtype, shape or metadata that the layout cannot hold.
    """
    wanted: list[tuple[int, int, str, str, tuple[int, ...]]] = []
    for name, (dtype, shape) in specs.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise InvalidArgument(f"{name!r} cannot be the name of a tensor")
        label, dims = dtype_name(name, dtype), tuple(int(n) for n in shape)
        if any(n < 0 for n in dims):
            raise InvalidArgument(f"tensor {name!r}: wanted a shape of sizes >= 0, got {dims}")
        itemsize = DTYPES[label].itemsize
        size = math.prod(dims) * itemsize
        wanted.append((-ALIGNMENT if size % ALIGNMENT == 0 else -itemsize, size, name, label, dims))
    tensors, end = {}, 0
    for _, size, name, label, dims in sorted(wanted, key=lambda w: w[0]):  # stable: else in the caller's order
        tensors[name] = Placed(label, dims, end, end + size)
        end += size
    header = _header(tensors, metadata)
    head = len(header).to_bytes(8, "little") + header
    return TensorLayout(head, tensors, len(head) + end)
