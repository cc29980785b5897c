"""Weights in ONNX models: initializers and constants, those of nested graphs as well."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto

from quantkit.errors import FormatError, InvalidDType
from quantkit.files import DTYPES, dtype_name
from quantkit.graph import Model, load_model
from quantkit.graph.op_table import weight_axis, weight_inputs
from quantkit.graph.tensors import is_external
from quantkit.weights.source import Source, SourceTensor, check_names, open_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BITS_ONLY: dict[int, str] = {
    TensorProto.BFLOAT16: "BF16",
    TensorProto.FLOAT8E4M3FN: "F8_E4M3",
    TensorProto.FLOAT8E5M2: "F8_E5M2",
}


def open_onnx(path: str) -> Source:
    """Open a model. External data is mapped; what lies in the .onnx file itself is in memory, as protobuf has it."""
    model = load_model(path)
    axes = _axes(model)
    source = Source(path, [], files=[path, *_data_files(model)])
    taken: dict[str, int] = {}
    for name, tensor in _constants(model):
        taken[name] = taken.get(name, 0) + 1
        # Branches of an If may each have a constant of the same name.
        unique = name if taken[name] == 1 else f"{name}#{taken[name]}"
        source.tensors.append(_tensor(model, unique, tensor, axes.get(name)))
    check_names(path, [t.name for t in source.tensors])
    return source


def _constants(model: Model) -> Iterator[tuple[str, TensorProto]]:
    for graph in model.graph.walk():
        yield from graph.initializers.items()
        for node in graph.nodes:
            if node.is_op("Constant") and "value" in node.attributes and node.outputs:
                yield node.outputs[0], node.attributes["value"].t


def _data_files(model: Model) -> list[str]:
    paths = [model.tensors.data_path(t) for _, t in _constants(model) if is_external(t)]
    return [os.fspath(p) for p in dict.fromkeys(paths)]


def _axes(model: Model) -> dict[str, int]:
    """Return the axis of the output channels of each weight whose readers agree on one."""
    ranks = {name: len(tensor.dims) for name, tensor in _constants(model)}
    found: dict[str, set[int | None]] = {}
    for graph in model.graph.walk():
        for node in graph.nodes:
            for position in weight_inputs(node):
                name = node.input(position)
                if name in ranks:
                    found.setdefault(name, set()).add(weight_axis(node, position, ranks[name]))
    agreed = {name: axes.pop() for name, axes in found.items() if len(axes) == 1}
    return {name: axis for name, axis in agreed.items() if axis is not None and axis < ranks[name]}


def _tensor(model: Model, name: str, tensor: TensorProto, axis: int | None) -> SourceTensor:
    kind, shape = tensor.data_type, tuple(tensor.dims)
    if any(n < 0 for n in shape):
        raise FormatError(f"{model.tensors.where}: tensor {name!r} has a negative size: shape {shape}")
    label = _BITS_ONLY.get(kind)
    if label is None:
        try:
            from onnx.helper import tensor_dtype_to_np_dtype

            label = dtype_name(name, tensor_dtype_to_np_dtype(kind))
        except (InvalidDType, KeyError, TypeError):
            label = _kind_name(kind)
    bits = DTYPES.get(label, np.dtype("u1"))

    def load() -> NDArray[Any]:
        array = model.tensors.array(tensor)
        if label == "BF16" and array.dtype == np.float32:  # as onnx before 1.19 reads it
            return (np.ascontiguousarray(array).view(np.uint32) >> 16).astype(np.uint16)
        return array.view(bits) if array.dtype.itemsize == bits.itemsize else array.astype(bits)

    return SourceTensor(name, label, shape, open_array(load), axis)


def _kind_name(kind: int) -> str:
    try:
        return str(TensorProto.DataType.Name(kind))
    except ValueError:
        return f"data type {kind}"
