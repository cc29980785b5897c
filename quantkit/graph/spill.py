"""Tensors that are made while a large model is rewritten, kept in a temporary file instead of in memory.

They take the form of external data, so that whoever reads or saves a model need not know about it.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from quantkit.errors import OutputError

# No path can hold this character, so the name cannot be that of a file.
LOCATION = "\0spilled"
# Smaller tensors stay in memory.
LEAST_BYTES = 1 << 16
_ALIGNMENT = 64


class Spill:
    """An unnamed temporary file of tensors.

    Parameters
    ----------
    folder : path, optional
        Where it lies; the system's folder for temporary files by default.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._file = tempfile.TemporaryFile(prefix="quantkit-", dir=folder)  # noqa: SIM115 - lives as long as the model
        weakref.finalize(self, self._file.close)
        self._end = 0
        self._map: mmap.mmap | None = None

    def store(self, values: np.ndarray[Any, Any], name: str) -> TensorProto:
        """Write `values` and return a tensor that points to them.

        Raises
        ------
        OutputError
            When the disk is full.
        """
        tensor = TensorProto(name=name, dims=values.shape, data_location=TensorProto.EXTERNAL)
        tensor.data_type = helper.np_dtype_to_tensor_dtype(values.dtype)
        offset = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        try:
            self._file.seek(offset)
            self._file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
            self._file.flush()
        except OSError as error:
            where = self.folder or tempfile.gettempdir()
            raise OutputError(f"{where}: cannot keep quantized weights in a temporary file: {error.strerror}") from None
        self._end = offset + values.nbytes
        for key, value in (("location", LOCATION), ("offset", offset), ("length", values.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    def span(self, offset: int, length: int) -> tuple[mmap.mmap, int, int]:
        """Return the mapped file, and where in it these bytes lie."""
        if self._map is None or len(self._map) < offset + length:
            size = os.fstat(self._file.fileno()).st_size
            self._map = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ)
        return self._map, offset, length
