"""How quantized weights stand in a file of tensors: the names, and the entry of the metadata that describes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quantkit.errors import FormatError
from quantkit.qparams import QDType, as_qdtype

if TYPE_CHECKING:
    from quantkit.files import TensorFile
    from quantkit.weights.rules import Grid

KEY = "quantkit.weights"
VERSION = 1


@dataclass(frozen=True)
class StoredWeight:
    """One quantized tensor of a file.

    Attributes
    ----------
    name : str
        Also that of its codes, which have the shape of the source.
    dtype : QDType
    source_dtype : str
        What it was before, as safetensors names it.
    axis : int or None
        The axis that the scales run along; None for a single scale.
    block : int or None
        Elements of a block; then `axis` is 0 and the scales have shape (rows, blocks of a row).
    scale, zero_point : str
        Names of the tensors that hold them.
    """

    name: str
    dtype: QDType
    source_dtype: str
    axis: int | None
    block: int | None
    scale: str
    zero_point: str


def free_name(wanted: str, taken: set[str]) -> str:
    """Return `wanted`, or that with underscores, and take it."""
    while wanted in taken:
        wanted += "_"
    taken.add(wanted)
    return wanted


def describe(name: str, dtype: QDType, source_dtype: str, grid: Grid, taken: set[str]) -> StoredWeight:
    """Name the parts of a quantized tensor."""
    scale, zero_point = free_name(f"{name}.scale", taken), free_name(f"{name}.zero_point", taken)
    return StoredWeight(name, dtype, source_dtype, grid.axis, grid.block, scale, zero_point)


def encode(weights: Iterable[StoredWeight], ties: Mapping[str, str], metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a file."""
    entries = {
        w.name: {
            "dtype": w.dtype.name,
            "source_dtype": w.source_dtype,
            "axis": w.axis,
            "block": w.block,
            "scale": w.scale,
            "zero_point": w.zero_point,
        }
        for w in weights
    }
    text = json.dumps({"version": VERSION, "tensors": entries, "ties": dict(ties)}, separators=(",", ":"))
    return {**{k: v for k, v in metadata.items() if k != KEY}, KEY: text}


def decode(file: TensorFile) -> tuple[dict[str, StoredWeight], dict[str, str]]:
    """Return the quantized tensors and the ties of a file, each checked against what the file holds.

    Raises
    ------
    FormatError
        When the file holds no weights that `quantize_weights` wrote, or describes what it does not hold.
    """
    path = file.path
    if KEY not in file.metadata:
        raise FormatError(f"{path}: holds no quantized weights: its metadata has no {KEY!r}")
    try:
        found = json.loads(file.metadata[KEY])
        version, entries, ties = found["version"], found["tensors"], found["ties"]
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise FormatError(f"{path}: the metadata {KEY!r} is damaged: {e}") from None
    if version != VERSION:
        raise FormatError(f"{path}: version {str(version)[:20]} of quantized weights; this quantkit reads {VERSION}")
    if not isinstance(entries, dict) or not isinstance(ties, dict):
        raise FormatError(f"{path}: the metadata {KEY!r} is damaged")
    weights = {name: _weight(file, name, entry) for name, entry in entries.items()}
    for name, target in ties.items():
        # A tie leads to a tensor, never to another tie, so there are no circles.
        if not isinstance(target, str) or target not in file or name in file:
            raise FormatError(f"{path}: {name!r} is tied to {str(target)[:80]!r}, which is no tensor of the file")
    return weights, ties


def _weight(file: TensorFile, name: str, entry: Any) -> StoredWeight:
    def bad(what: str) -> FormatError:
        return FormatError(f"{file.path}: quantized tensor {name!r}: {what}")

    try:
        dtype = as_qdtype(entry["dtype"])
        weight = StoredWeight(
            name, dtype, entry["source_dtype"], entry["axis"], entry["block"], entry["scale"], entry["zero_point"]
        )
    except (TypeError, KeyError) as e:
        raise bad(f"its description is damaged: {e}") from None
    for part in (name, weight.scale, weight.zero_point):
        if not isinstance(part, str) or part not in file:
            raise bad(f"the file has no {str(part)[:80]!r}")
    label = "U8" if dtype.name == "quint8" else "I8"
    if file.dtypes[name] != label or file.dtypes[weight.zero_point] != label or file.dtypes[weight.scale] != "F32":
        raise bad(f"wanted codes and zero points of {label} and scales of F32")
    if weight.source_dtype not in ("F16", "BF16", "F32", "F64"):
        raise bad(f"source_dtype {str(weight.source_dtype)[:20]!r} is no floating-point type")
    shape, wanted = file[name].shape, _scale_shape(file[name].shape, weight)
    for part in (weight.scale, weight.zero_point):
        if wanted is None or file[part].shape != wanted:
            raise bad(f"axis {weight.axis} and block {weight.block} do not fit {shape} and {part!r} {file[part].shape}")
    return weight


def _scale_shape(shape: tuple[int, ...], weight: StoredWeight) -> tuple[int, ...] | None:
    axis, block = weight.axis, weight.block
    if axis is None:
        return () if block is None else None
    if type(axis) is not int or not 0 <= axis < len(shape):
        return None
    if block is None:
        return (shape[axis],)
    size = 1
    for n in shape[1:]:
        size *= n
    if type(block) is not int or block < 1 or axis != 0 or size % block:
        return None
    return (shape[0], size // block)
