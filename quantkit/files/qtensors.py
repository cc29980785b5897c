"""`save` and `load`: tensors with their parameters in the one layout for files of tensors.

The codes of a QTensor ``name`` are the tensor ``name``; beside it stand ``name.scale`` and ``name.zero_point``, and the
metadata entry ``quantkit`` says what belongs together. Any reader of safetensors sees ordinary tensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit.errors import FormatError, InvalidArgument, InvalidDType, QuantkitError, StorageError
from quantkit.files.tensors import open_tensors, save_tensors
from quantkit.qparams import QParams
from quantkit.storage import Array, ByteStorage, QUInt8Storage
from quantkit.storage.dtypes import element_type
from quantkit.tensor import QTensor
from quantkit.text import told

if TYPE_CHECKING:
    from quantkit.files.tensors import TensorFile

_KEY = "quantkit"
_ALONE = "tensor"
_DTYPES = {
    "U8": "uint8", "I8": "int8", "I32": "int32", "I64": "int64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "BOOL": "bool",
}  # fmt: skip


def save(tensors: Any, path: str | os.PathLike[str]) -> None:
    """Write one tensor, or a mapping of name to tensor, to a safetensors file, atomically.

    Parameters
    ----------
    tensors : QTensor, Array or array_like, or mapping of str to them
        A QTensor keeps its parameters.
    path : path-like

    Raises
    ------
    InvalidArgument, InvalidDType
        For names that collide, and dtypes that the layout cannot hold.
    OutputError
        When the file cannot be written; nothing is left behind.
    """
    alone = not isinstance(tensors, Mapping)
    named: Mapping[str, Any] = {_ALONE: tensors} if alone else tensors
    arrays: dict[str, Any] = {}
    axes: dict[str, int | None] = {}

    def put(name: str, array: Any) -> None:
        if name in arrays:
            raise InvalidArgument(f"two tensors would be called {name!r} in the file")
        arrays[name] = array

    for name, tensor in named.items():
        put(name, np.asarray(tensor))
        if isinstance(tensor, QTensor):
            axes[name] = tensor.axis
            put(f"{name}.scale", np.asarray(tensor.scale, np.float32))
            zero_point = np.asarray(tensor.zero_point)
            put(f"{name}.zero_point", zero_point.astype(np.float32 if zero_point.dtype.kind == "f" else np.int32))
    save_tensors(path, arrays, {_KEY: json.dumps({"axes": axes, "alone": alone})})


def load(path: str | os.PathLike[str]) -> Any:
    """Map what `save` wrote, or any safetensors file, without reading it.

    Returns
    -------
    QTensor, Array, or dict of str to them
        One tensor if one was saved, else all by name. They are read-only and share one map of the file;
        ``clone()`` gives one that can be written.

    Raises
    ------
    FormatError
        When the file cannot be read, or is not what its header claims; names the file and the tensor.
    InvalidDType
        For a dtype that an Array cannot hold; names the tensor.
    """
    if not isinstance(path, str | os.PathLike):
        raise InvalidDType(f"load: wanted a path, got {told(path)}")
    file = open_tensors(path)
    axes, alone = _description(file)
    try:
        storage = ByteStorage.from_file(path, writable=False)
    except StorageError as error:
        raise FormatError(f"{file.path}: cannot be mapped: {error}") from error
    # The tensors lie without holes, in this order, and end where the file ends.
    offset = len(storage) - sum(array.nbytes for array in file.values())
    if offset < 0:
        raise FormatError(f"{file.path}: was replaced while it was read")
    parts: dict[str, Array] = {}
    for name, array in file.items():
        if file.dtypes[name] not in _DTYPES:
            raise InvalidDType(f"{file.path}: tensor {name!r} is {file.dtypes[name]}, which an Array cannot hold")
        cls = QUInt8Storage if name in axes and file.dtypes[name] == "U8" else Array
        parts[name] = cls._make(storage, element_type(_DTYPES[file.dtypes[name]]), array.shape, offset)
        offset += array.nbytes
    found: dict[str, Any] = dict(parts)
    for name, axis in axes.items():
        found[name] = _join(file.path, name, axis, parts)
        for suffix in ("scale", "zero_point"):
            del found[f"{name}.{suffix}"]
    return found[_ALONE] if alone else found


def _description(file: TensorFile) -> tuple[dict[str, int | None], bool]:
    text = file.metadata.get(_KEY)
    if text is None:
        return {}, False
    try:
        said = json.loads(text)
        axes, alone = said["axes"], said["alone"]
        wanted = [n for name in axes for n in (name, f"{name}.scale", f"{name}.zero_point")]
        if not isinstance(axes, dict) or not all(n in file for n in [*wanted, *([_ALONE] if alone else [])]):
            raise ValueError("it speaks of tensors that are not there")
    except (ValueError, TypeError, KeyError) as error:
        raise FormatError(f"{file.path}: the metadata of quantkit is damaged: {error}") from None
    return axes, bool(alone)


def _join(path: str, name: str, axis: int | None, parts: dict[str, Array]) -> QTensor:
    scale, zero_point = (np.array(parts[f"{name}.{suffix}"]) for suffix in ("scale", "zero_point"))
    try:
        return QTensor(parts[name], QParams(scale, zero_point, axis))
    except QuantkitError as error:
        raise FormatError(f"{path}: tensor {name!r}: {error}") from error
