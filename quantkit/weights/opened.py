"""A file of quantized weights, mapped: name -> QTensor."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit import ops
from quantkit.files import TensorFile, open_tensors
from quantkit.storage.dtypes import element_type
from quantkit.tensor import QTensor, from_numpy
from quantkit.weights.passes import to_float
from quantkit.weights.stored import StoredWeight, decode

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Weights(Mapping[str, Any]):
    """Name -> QTensor for what is quantized, read-only ndarray for what is not; nothing is read until it is used.

    Every name of the source is there, tied ones too. A QTensor lies on the pages of the file and cannot be written.
    One that is quantized in blocks comes as its blocks, shape (rows * blocks of a row, block), axis 0, because a
    QTensor has its parameters along one axis; `dequantize` gives every tensor in its own shape. bfloat16 needs
    ml_dtypes to be seen as an ndarray; `dequantize` does not.

    Attributes
    ----------
    path : str
    metadata : dict of str to str
    quantized : dict of str to StoredWeight
        How each quantized tensor is stored.
    ties : dict of str to str
        Name -> the tensor that it shares.
    """

    def __init__(self, file: TensorFile) -> None:
        self._file = file
        self.path, self.metadata = file.path, file.metadata
        self.quantized, self.ties = decode(file)
        parts = {part for w in self.quantized.values() for part in (w.scale, w.zero_point)}
        self._names = dict.fromkeys([*(name for name in file if name not in parts), *self.ties])

    def _target(self, name: str) -> str:
        if name not in self._names:
            raise KeyError(name)
        return self.ties.get(name, name)

    def __getitem__(self, name: str) -> Any:
        target = self._target(name)
        codes, weight = self._file[target], self.quantized.get(target)
        if weight is None:
            return self._plain(target)
        scale, zero_point = self._parameters(weight)
        if weight.block is not None:
            codes = codes.reshape(-1, weight.block)
        if weight.axis is None:
            return from_numpy(codes, scale=scale, zero_point=zero_point)
        return from_numpy(codes, scale=scale.ravel(), zero_point=zero_point.ravel(), axis=weight.axis)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def _plain(self, name: str) -> NDArray[Any]:
        bits, dtype = self._file[name], self._file.dtypes[name]
        return bits.view(element_type("bfloat16").dtype) if dtype == "BF16" else bits

    def _parameters(self, weight: StoredWeight) -> tuple[NDArray[Any], NDArray[Any]]:
        return self._file[weight.scale], self._file[weight.zero_point]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape that a tensor had in the source."""
        shape: tuple[int, ...] = self._file[self._target(name)].shape
        return shape

    def dtype(self, name: str) -> str:
        """Return the dtype that a tensor had in the source, as safetensors names it."""
        target = self._target(name)
        weight = self.quantized.get(target)
        return weight.source_dtype if weight is not None else self._file.dtypes[target]

    def dequantize(self, name: str) -> NDArray[Any]:
        """Return a tensor in the shape of the source: float32 (float64 where the source was) for all floats.

        Integers and others come as they are.
        """
        target = self._target(name)
        weight, dtype = self.quantized.get(target), self.dtype(name)
        if weight is None:
            array = self._file[target]
            return to_float(array, dtype).astype(np.float32) if dtype in ("BF16", "F16") else array
        tensor: QTensor = self[target]
        out = np.empty(tensor.shape, np.float64 if dtype == "F64" else np.float32)
        q = tensor.qparams
        ops.dequantize_linear(tensor.int_repr(), q.scale, q.zero_point, axis=q.axis, out=out)
        return out.reshape(self.shape(name))

    def __reduce__(self) -> tuple[Any, ...]:
        return open_weights, (self.path,)

    def __repr__(self) -> str:
        return f"Weights({self.path!r}, {len(self)} tensors, {len(self.quantized)} quantized)"


def open_weights(path: str | os.PathLike[str]) -> Weights:
    """Map a file that `quantize_weights` wrote; only its header is read.

    Raises
    ------
    FormatError
        When it is damaged, or holds no quantized weights; names the file and the tensor.

    Examples
    --------
    >>> import quantkit as qk
    >>> weights = qk.open_weights("model.int8.safetensors")  # doctest: +SKIP
    >>> weights["layer.weight"].scale.shape  # doctest: +SKIP
    (768,)
    """
    return Weights(open_tensors(path))
