"""Weights in safetensors files, one or several with an index."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from quantkit.errors import FormatError
from quantkit.files import TensorFile, open_tensors
from quantkit.weights.source import Source, SourceTensor, open_array, text_map
from quantkit.weights.stored import KEY

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

MAX_INDEX = 100_000_000  # bytes


def open_safetensors(path: str) -> Source:
    """Open one file."""
    file = open_tensors(path)
    if KEY in file.metadata:
        raise FormatError(f"{path}: holds quantized weights already; dequantize_weights gives the floats back")
    return Source(path, [_tensor(file, name) for name in file], metadata=dict(file.metadata), files=[path])


def _tensor(file: TensorFile, name: str) -> SourceTensor:
    def load() -> NDArray[Any]:
        return file[name]

    return SourceTensor(name, file.dtypes[name], file[name].shape, open_array(load))


def _unique(path: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            raise FormatError(f"{path}: a key stands there twice")
        return found

    return pairs


def open_index(path: str) -> Source:
    """Open the shards that a ``model.safetensors.index.json`` names, as one source.

    Raises
    ------
    FormatError
        When the index is none, names a file outside its folder or one that is missing, or a tensor that its file
        does not have.
    """
    if os.path.getsize(path) > MAX_INDEX:
        raise FormatError(f"{path}: an index has at most {MAX_INDEX} bytes")
    try:
        with open(path, encoding="utf-8") as file:
            index = json.load(file, object_pairs_hook=_unique(path))
    except FormatError:
        raise
    except (OSError, ValueError, RecursionError) as e:
        raise FormatError(f"{path}: wanted an index of safetensors files, but it is not JSON: {e}") from None
    entries = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(entries, dict) or not all(isinstance(v, str) for v in entries.values()):
        raise FormatError(f'{path}: wanted an index of safetensors files, with "weight_map": name -> file')
    folder = os.path.dirname(path)
    shards = {shard: _open_shard(path, folder, shard) for shard in dict.fromkeys(entries.values())}
    tensors, metadata = [], dict[str, str]()
    for name, shard in entries.items():
        if name not in shards[shard]:
            raise FormatError(f"{path}: tensor {name!r} should be in {shard}, which does not have it")
        tensors.append(_tensor(shards[shard], name))
    for opened in shards.values():
        metadata.update(text_map(opened.metadata))
    source = Source(path, tensors, metadata=metadata, files=[path, *(f.path for f in shards.values())])
    for shard, opened in shards.items():
        extra = [name for name in opened if entries.get(name) != shard]
        if extra:
            source.notes.append(f"{shard}: left out {len(extra)} tensors that the index does not place there")
    return source


def _open_shard(path: str, folder: str, shard: str) -> TensorFile:
    if not shard or os.path.basename(shard) != shard or shard in {".", ".."} or "\0" in shard:
        raise FormatError(f"{path}: shard {shard!r} must be the name of a file in the same folder")
    where = os.path.join(folder, shard)
    if not os.path.exists(where):
        raise FormatError(f"{path}: names the file {shard}, which is missing")
    return open_tensors(where)
