"""How many bytes a model takes, external data included."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from quantkit.graph import all_tensors, read_proto
from quantkit.graph.io import ModelSource
from quantkit.graph.tensors import TensorReader, is_external


def external_files(proto: Any, reader: TensorReader) -> dict[Path, int]:
    """Return the external data files of a model, and the bytes of each that it uses; shared bytes count once.

    Raises
    ------
    ModelError
        When a file is missing or cut short.
    """
    spans: dict[Path, set[tuple[int, int]]] = {}
    for tensor in all_tensors(proto.graph):
        if is_external(tensor):
            _, offset, length = reader.span(tensor)
            spans.setdefault(reader.data_path(tensor), set()).add((offset, length))
    return {path: sum(length for _, length in found) for path, found in spans.items()}


def model_size(model: ModelSource) -> int:
    """Return the bytes of a model: its own file and the external data that it uses.

    Raises
    ------
    ModelError
        When it is no ONNX model, or an external data file is missing.
    """
    if isinstance(model, (str, os.PathLike)):
        return Path(model).stat().st_size + sum(external_files(*read_proto(model)).values())
    if isinstance(model, (bytes, bytearray, memoryview)):
        return memoryview(model).nbytes
    return int(model.ByteSize())
