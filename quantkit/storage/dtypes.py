"""What an Array may hold, and the checks of dtypes, shapes, devices and element values."""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit._kernels._core import ElementType
from quantkit.errors import InvalidArgument, InvalidDType, MissingDependency, OutOfMemory
from quantkit.qparams import QDType
from quantkit.text import told

if TYPE_CHECKING:
    from numpy.typing import NDArray

BYTE = ElementType("uint8", np.dtype(np.uint8), np.dtype(np.uint8))
_NAMES = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64", "bool")
# Looked up by whatever users write: the name, the scalar type, the dtype. Grows by the spellings met.
_TYPES: dict[Any, ElementType] = {}
for _name in _NAMES:
    _dtype = np.dtype(_name)
    _type = BYTE if _name == "uint8" else ElementType(_name, _dtype, _dtype)
    _TYPES.update({_name: _type, _dtype: _type, _dtype.type: _type})


_TYPES.update({"quint8": BYTE, "qint8": _TYPES["int8"]})
_RANGES = {
    t.wire: (int(np.iinfo(t.wire).min), int(np.iinfo(t.wire).max)) for t in _TYPES.values() if t.wire.kind in "iu"
}


def _bfloat16() -> ElementType:
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        raise MissingDependency("NumPy has no bfloat16; install the one that it knows: pip install ml_dtypes") from None
    dtype = np.dtype(bfloat16)
    made = ElementType("bfloat16", dtype, np.dtype(np.uint16))
    _TYPES.update({"bfloat16": made, dtype: made, dtype.type: made})
    return made


def element_type(dtype: Any) -> ElementType:
    """Return the `ElementType` for a dtype, its name or scalar type, or the codes of a `QDType`.

    Raises
    ------
    InvalidDType
        When an Array cannot hold it.
    """
    if isinstance(dtype, QDType):
        dtype = dtype.codes
    try:
        return _TYPES[dtype]
    except (KeyError, TypeError):
        pass
    try:
        exact = np.dtype(dtype)
    except (TypeError, ValueError):
        exact = None
    if exact is not None and exact.isnative and exact in _TYPES:
        return _TYPES[exact]
    if (isinstance(dtype, str) and dtype == "bfloat16") or (exact is not None and exact.name == "bfloat16"):
        return _bfloat16()
    raise InvalidDType(f"wanted one of quint8, qint8, {', '.join(_NAMES)}, bfloat16, got {told(dtype)}")


def _only(shape: Any) -> Any:
    """Return what was given as the only size, as its caller wrote it."""
    return shape[0] if isinstance(shape, tuple) and len(shape) == 1 else shape


def as_shape(shape: Any) -> tuple[int, ...]:
    """Return a shape given as one size, as several, or as a sequence of them, each >= 0.

    Raises
    ------
    InvalidArgument, OutOfMemory
        For negative sizes and things that are no sizes; for sizes beyond the address space.
    """
    given = shape
    while isinstance(shape, tuple | list) and len(shape) == 1 and isinstance(shape[0], tuple | list):
        shape = shape[0]
    try:
        sizes = tuple([operator.index(n) for n in (shape if isinstance(shape, tuple | list) else (shape,))])
    except TypeError:
        raise InvalidArgument(f"wanted a shape of integers, got {told(_only(given))}") from None
    for n in sizes:
        if n < 0:
            raise InvalidArgument(f"wanted sizes >= 0, got {sizes}")
        if n > sys.maxsize:
            raise OutOfMemory(f"cannot hold shape {sizes}: more than this machine can address")
    return sizes


def device_index(device: Any) -> int | None:
    """Return the number of the GPU that `device` names ("cuda" is the current one), or None for the CPU.

    Raises
    ------
    InvalidArgument
        For any other device.
    """
    name = str(device)
    if name in {"cpu", "None"}:
        return None
    kind, colon, number = name.partition(":")
    if kind == "cuda" and (number.isdecimal() or not colon):
        if colon:
            return int(number)
        from quantkit.cuda.queue import current_device

        return current_device()
    raise InvalidArgument(f"device {name!r} cannot hold bytes here; the devices are: cpu, cuda, cuda:0, cuda:1, ...")


def as_wire(value: Any, etype: ElementType) -> Any:
    """Return `value` as something that NumPy assigns to elements of `etype` without changing a number.

    Raises
    ------
    InvalidDType, InvalidArgument
        For values of another kind; for integers that the type does not reach.
    """
    wire = etype.wire
    if value.__class__ is int and etype.dtype.kind in "iu":
        low, high = _RANGES[wire]
        if not low <= value <= high:
            raise InvalidArgument(f"{etype.name} holds {low} to {high}, got {value}")
        return value
    array: NDArray[Any] = np.asarray(value._on_cpu() if hasattr(value, "_on_cpu") else value)
    kind = "f" if array.dtype.name == "bfloat16" else array.dtype.kind
    accepted = {"u": "iub", "i": "iub", "b": "b"}.get(etype.dtype.kind, "iufb")
    if kind not in accepted and array.size:
        wanted = {"iub": "integers", "b": "booleans"}.get(accepted, "real numbers")
        raise InvalidDType(f"wanted {wanted} for elements of {etype.name}, got {array.dtype}")
    if array.dtype == etype.dtype or not array.size:
        return array.view(wire) if array.dtype == etype.dtype else array.astype(wire)
    if wire is etype.dtype and wire.kind in "iu" and kind != "b":
        (low, high), least, most = _RANGES[wire], int(array.min()), int(array.max())
        if least < low or most > high:
            raise InvalidArgument(f"{etype.name} holds {low} to {high}, got {least if least < low else most}")
    return array.astype(etype.dtype).view(wire)
