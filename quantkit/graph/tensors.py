"""TensorProto to ndarray and back, external data mapped and never read before it is used."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from quantkit.errors import ModelError
from quantkit.graph.spill import LEAST_BYTES, LOCATION, Spill

_PIECE = 1 << 20  # elements looked at in one go


def from_array(values: np.ndarray[Any, Any], name: str) -> TensorProto:
    """Return a TensorProto with the raw bytes of `values`."""
    return numpy_helper.from_array(np.ascontiguousarray(values).reshape(values.shape), name)


def all_finite(values: np.ndarray[Any, Any]) -> bool:
    """Whether no element is NaN or infinite, also once it is float32; needs no copy of a large tensor."""
    flat = values.reshape(-1)
    with np.errstate(over="ignore"):
        return all(np.all(np.isfinite(flat[i : i + _PIECE].astype(np.float32))) for i in range(0, flat.size, _PIECE))


def is_external(tensor: TensorProto) -> bool:
    """Whether the data of `tensor` lies in another file."""
    return tensor.data_location == TensorProto.EXTERNAL


def is_spilled(tensor: TensorProto) -> bool:
    """Whether the data of `tensor` lies in a `Spill`."""
    return is_external(tensor) and external_entries(tensor).get("location") == LOCATION


def external_entries(tensor: TensorProto) -> dict[str, str]:
    """Return location, offset and length of external data."""
    return {entry.key: entry.value for entry in tensor.external_data}


class TensorReader:
    """Reads the tensors of one model.

    Parameters
    ----------
    folder : path, optional
        Where the model lies; external data is found relative to it and never outside it.
    where : str
        How messages call the model.

    Attributes
    ----------
    spill : Spill or None
        Where large tensors that are made from now on go; None: they stay in memory.
    """

    def __init__(self, folder: Path | None = None, where: str = "the model") -> None:
        self.folder, self.where = folder, where
        self.spill: Spill | None = None
        self._maps: dict[Path, mmap.mmap] = {}

    def tensor(self, values: np.ndarray[Any, Any], name: str) -> TensorProto:
        """Return a tensor of these values: in memory, or where `spill` is set and they are large, in that file."""
        if self.spill is not None and values.nbytes >= LEAST_BYTES and not values.dtype.hasobject:
            return self.spill.store(values, name)
        return from_array(values, name)

    def array(self, tensor: TensorProto) -> np.ndarray[Any, Any]:
        """Return the values of `tensor`, read-only where they are mapped.

        Raises
        ------
        ModelError
            When the bytes do not fit the shape, or the data file is missing, too short or outside the folder.
        """
        if not is_external(tensor):
            try:
                return np.asarray(numpy_helper.to_array(tensor))
            except (ValueError, TypeError) as error:
                raise ModelError(f"{self.where}: tensor {tensor.name!r} cannot be read: {error}") from None
        mapped, offset, length = self.span(tensor)
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
        shape = tuple(tensor.dims)
        count = int(np.prod(shape, dtype=np.int64))
        if length != count * dtype.itemsize:
            raise ModelError(
                f"{self.where}: tensor {tensor.name!r} of shape {shape} needs {count * dtype.itemsize} bytes, "
                f"its external data has {length}"
            )
        if not count:
            return np.empty(shape, dtype)
        return np.frombuffer(mapped, dtype, count, offset).reshape(shape)

    def data_path(self, tensor: TensorProto) -> Path:
        """Return the data file of an external tensor.

        Raises
        ------
        ModelError
            When it is missing, or its path leaves the model's folder.
        """
        location = external_entries(tensor).get("location", "")
        what = f"{self.where}: external data {location!r} of tensor {tensor.name!r}"
        if self.folder is None:
            raise ModelError(f"{what} needs a model given by its path")
        if not location or Path(location).is_absolute() or ".." in Path(location).parts:
            raise ModelError(f"{what} must be a path inside the model's folder")
        path = self.folder / location
        if path.is_dir():
            raise ModelError(f"{what} is a folder, wanted a file")
        if not path.is_file():
            raise ModelError(f"{what} is missing: no file {path}")
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise ModelError(f"{what} leads outside the model's folder")
        return path

    def span(self, tensor: TensorProto) -> tuple[mmap.mmap | bytes, int, int]:
        """Return the mapped file of an external tensor, and offset and length of its bytes within."""
        entries = external_entries(tensor)
        if self.spill is not None and is_spilled(tensor):
            return self.spill.span(int(entries["offset"]), int(entries["length"]))
        path = self.data_path(tensor)
        size = path.stat().st_size
        try:
            offset = int(entries.get("offset", 0))
            length = int(entries.get("length", size - offset))
        except ValueError:
            raise ModelError(f"{self.where}: tensor {tensor.name!r} has a malformed offset or length") from None
        if offset < 0 or length < 0:
            raise ModelError(
                f"{self.where}: tensor {tensor.name!r} has a negative offset or length of external data: "
                f"{offset}, {length}"
            )
        if offset + length > size:
            raise ModelError(
                f"{self.where}: external data of tensor {tensor.name!r} is truncated: bytes {offset} to "
                f"{offset + length} wanted, {path} has {size}"
            )
        if not size:
            return b"", 0, 0
        if path not in self._maps:
            with path.open("rb") as file:
                self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[path], offset, length
