"""Look into an ONNX file: what is in it, what is int8, with which scales and ranges; whoever made it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.errors import InvalidQParams, ModelError
from quantkit.graph import all_tensors, read_proto
from quantkit.graph.quantized_ops import CODE_TYPES, DYNAMIC_OPS, OPERAND_SCALES, WEIGHT_ONLY_OPS, Operand, is_qoperator
from quantkit.graph.sizes import external_files
from quantkit.models.inputs import InputSpec
from quantkit.qparams import as_scale

__all__ = ["Inspection", "QuantizedTensor", "StoredTensors", "inspect_model"]

_CODE_RANGES = {
    "uint8": (0, 255),
    "int8": (-128, 127),
    "uint16": (0, 65535),
    "int16": (-32768, 32767),
    "uint4": (0, 15),
    "int4": (-8, 7),
    "int32": (-(2**31), 2**31 - 1),
}
_FLOATS = {"float", "double", "float16", "bfloat16"}
_BITS = {"uint4": 4, "int4": 4, "uint2": 2, "int2": 2}


@dataclass(frozen=True)
class QuantizedTensor:
    """One tensor with constant quantization parameters.

    Attributes
    ----------
    tensor : str
    kind : str
        ``weight`` (stored in the file), ``bias`` (stored, int32) or ``activation``.
    dtype : str
        Of the codes.
    channels : int
        Number of scales; 1 is per tensor.
    axis : int or None
    scale : tuple of float
        Smallest and largest scale.
    zero_point : tuple of int
        Smallest and largest zero point.
    low, high : float
        The widest range of real values that the codes can express.
    """

    tensor: str
    kind: str
    dtype: str
    channels: int
    axis: int | None
    scale: tuple[float, float]
    zero_point: tuple[int, int]
    low: float
    high: float


@dataclass
class StoredTensors:
    """The tensors of one type that a file stores."""

    tensors: int = 0
    elements: int = 0
    bytes: int = 0


@dataclass
class Inspection:
    """What `inspect_model` finds.

    Attributes
    ----------
    path : str
    bytes : int
        Of the .onnx file.
    external : dict of str to int
        External data files and the bytes that the model uses of each.
    ir_version : int
    opsets : dict of str to int
        By domain; the default one is ``ai.onnx``.
    producer : str
    metadata : dict of str to str
    inputs, outputs : dict of str to str
        Name to type and shape.
    form : list of str
        Of ``qdq``, ``qoperator``, ``dynamic``, ``weight_only``; empty for a float model.
    operators : dict of str to int
        Nodes by operator, the most frequent first; bodies included.
    stored : dict of str to StoredTensors
        By type.
    quantized : list of QuantizedTensor
    """

    path: str
    bytes: int
    external: dict[str, int]
    ir_version: int
    opsets: dict[str, int]
    producer: str
    metadata: dict[str, str]
    inputs: dict[str, str]
    outputs: dict[str, str]
    form: list[str] = field(default_factory=list)
    operators: dict[str, int] = field(default_factory=dict)
    stored: dict[str, StoredTensors] = field(default_factory=dict)
    quantized: list[QuantizedTensor] = field(default_factory=list)
    weight_elements: int = 0
    int8_weight_elements: int = 0

    @property
    def int8_weight_share(self) -> float | None:
        """Share of the weight elements stored in 8 bits or fewer.

        Weights are constants of two or more dimensions that are floats or codes.
        """
        return self.int8_weight_elements / self.weight_elements if self.weight_elements else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"schema": 1, **asdict(self), "int8_weight_share": self.int8_weight_share}


def inspect_model(path: str | Path) -> Inspection:
    """Look into an ONNX file; nothing is run.

    Raises
    ------
    ModelError
        When it is no ONNX model, its external data is missing, or a scale in it is not finite and > 0; names the
        file and the node.
    """
    path = Path(path)
    proto, reader = read_proto(path)
    found = Inspection(
        path=str(path),
        bytes=path.stat().st_size,
        external={str(name): size for name, size in external_files(proto, reader).items()},
        ir_version=proto.ir_version,
        opsets={item.domain or "ai.onnx": item.version for item in proto.opset_import},
        producer=" ".join(part for part in (proto.producer_name, proto.producer_version) if part),
        metadata={item.key: item.value for item in proto.metadata_props},
        inputs={item.name: _type_of(item) for item in _real_inputs(proto.graph)},
        outputs={item.name: _type_of(item) for item in proto.graph.output},
    )
    walker = _Walker(str(path), reader)
    walker.graph(proto.graph, {})
    for function in proto.functions:
        walker.nodes(function.node, {})
    _count_storage(proto.graph, found, walker.scales)
    found.operators = dict(sorted(walker.operators.items(), key=lambda item: (-item[1], item[0])))
    found.quantized = list(walker.quantized.values())
    found.form = _form(walker)
    return found


def _real_inputs(graph: Any) -> list[Any]:
    stored = {tensor.name for tensor in graph.initializer}
    return [item for item in graph.input if item.name not in stored]


def _type_name(kind: int) -> str:
    from onnx import TensorProto

    return str(TensorProto.DataType.Name(kind)).lower()


def _type_of(item: Any) -> str:
    kind = item.type.WhichOneof("value")
    if kind != "tensor_type":
        return (kind or "unknown type").removesuffix("_type")
    from onnx import helper

    tensor = item.type.tensor_type
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(dim.dim_value or dim.dim_param or None for dim in tensor.shape.dim)
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    except (KeyError, TypeError):
        return _type_name(tensor.elem_type)
    return str(InputSpec(item.name, dtype, shape))


def _count_storage(graph: Any, found: Inspection, scales: Set[str]) -> None:
    """Count what is stored; `scales` are no weights, whatever their rank."""
    for tensor in all_tensors(graph):
        kind = _type_name(tensor.data_type)
        elements = prod(tensor.dims)
        row = found.stored.setdefault(kind, StoredTensors())
        row.tensors += 1
        row.elements += elements
        row.bytes += -(-elements * _bits(kind) // 8)
        if (
            len(tensor.dims) >= 2
            and tensor.name not in scales
            and (kind in _FLOATS or kind in _CODE_RANGES)
            and kind != "int32"
        ):
            found.weight_elements += elements
            if _bits(kind) <= 8:
                found.int8_weight_elements += elements


def _bits(kind: str) -> int:
    from onnx import TensorProto, helper

    if kind in _BITS:
        return _BITS[kind]
    try:
        return 8 * np.dtype(helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(kind.upper()))).itemsize
    except (KeyError, TypeError, ValueError):
        return 8


class _Walker:
    """Goes through all nodes, bodies included, and collects operators and quantization parameters."""

    def __init__(self, where: str, reader: Any) -> None:
        self.where, self.reader = where, reader
        self.operators: Counter[str] = Counter()
        self.quantized: dict[str, QuantizedTensor] = {}
        self.quantizes_activations = self.dequantizes_weights = False
        self._cast: dict[str, str] = {}  # what a Cast makes -> the stored codes
        self.scales: set[str] = set()  # of those
        self._codes: dict[str, str] = {}  # what a QuantizeLinear makes -> what it reads

    def graph(self, graph: Any, outer: Mapping[str, Any]) -> None:
        constants = {**outer, **{tensor.name: tensor for tensor in graph.initializer}}
        self.nodes(graph.node, constants)

    def nodes(self, nodes: Any, outer: Mapping[str, Any]) -> None:
        constants = dict(outer)
        for node in nodes:
            if node.op_type == "Constant":
                constants.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
            elif node.op_type == "QuantizeLinear":
                self._codes[node.output[0]] = node.input[0]
        for node in nodes:
            self.operators[f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type] += 1
            for operand in self._operands(node):
                self._add(node, operand, constants)
            self._follow_cast(node, constants)
            for attribute in node.attribute:
                for body in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                    self.graph(body, constants)

    def _follow_cast(self, node: Any, constants: Mapping[str, Any]) -> None:
        """See a Cast of stored codes and the Mul behind it as what dequantizes a weight."""
        if node.op_type == "Cast" and (stored := constants.get(node.input[0])) is not None:
            if stored.data_type in CODE_TYPES and len(stored.dims) > 1:
                self._cast[node.output[0]] = node.input[0]
        elif node.op_type == "Mul" and len(node.input) == 2:
            for place in (0, 1):
                codes = self._cast.get(node.input[place])
                if codes is not None and node.input[1 - place] in constants:
                    self._add(node, Operand(place, 1 - place, len(node.input)), constants, codes)

    def _operands(self, node: Any) -> Iterator[Operand]:
        if node.op_type == "QLinearConcat":
            yield Operand(None, 0, 1)
            yield from (Operand(i, i + 1, i + 2) for i in range(2, len(node.input) - 2, 3))
        else:
            yield from OPERAND_SCALES.get(node.op_type, ())

    def _add(self, node: Any, operand: Operand, constants: Mapping[str, Any], codes: str = "") -> None:
        def name_at(place: int | None) -> str:
            return node.input[place] if place is not None and place < len(node.input) else ""

        scale_name, zero_name = name_at(operand.scale), name_at(operand.zero_point)
        tensor = codes or (name_at(operand.tensor) if operand.tensor is not None else node.output[0])
        tensor = self._codes.get(tensor, tensor)  # named as the model names the real values
        stored = constants.get(tensor)
        if node.op_type == "QuantizeLinear":
            self.quantizes_activations |= stored is None
        if node.op_type == "DequantizeLinear" or codes:
            self.dequantizes_weights |= stored is not None
        if not tensor or scale_name not in constants:
            return  # found at run time
        title = node.name or (node.output[0] if node.output else "")
        where = f"{self.where}: scale {scale_name!r} of {node.op_type} {title!r}"
        raw = np.asarray(self.reader.array(constants[scale_name]))
        try:
            scale = np.atleast_1d(as_scale(raw.ravel() if raw.ndim > 1 else raw, where))
        except InvalidQParams as error:
            raise ModelError(str(error)) from None
        if not scale.size:
            raise ModelError(f"{where} is empty")
        zero_point, dtype = self._zero_point(constants.get(zero_name), stored, scale.size)
        if dtype not in _CODE_RANGES:
            return
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1) if raw.size > 1 else None
        if codes:
            wide = [i for i, length in enumerate(raw.shape) if length > 1]
            axis = wide[0] if len(wide) == 1 else None
            self.scales.add(scale_name)
        lowest, highest = _CODE_RANGES[dtype]
        kind = "activation" if stored is None else "bias" if dtype == "int32" else "weight"
        self.quantized.setdefault(
            tensor,
            QuantizedTensor(
                tensor,
                kind,
                dtype,
                int(raw.size),
                axis,
                (float(scale.min()), float(scale.max())),
                (int(zero_point.min()), int(zero_point.max())),
                float(((lowest - zero_point) * scale).min()),
                float(((highest - zero_point) * scale).max()),
            ),
        )

    def _zero_point(self, tensor: Any, stored: Any, count: int) -> tuple[NDArray[Any], str]:
        if tensor is not None:
            values = np.asarray(self.reader.array(tensor)).ravel().astype(np.int64)
            return (values if values.size else np.zeros(1, np.int64)), _type_name(tensor.data_type)
        return np.zeros(count, np.int64), "uint8" if stored is None else _type_name(stored.data_type)


def _form(walker: _Walker) -> list[str]:
    names = {name.rpartition(".")[2] for name in walker.operators}
    form = []
    if walker.quantizes_activations and "DequantizeLinear" in names:
        form.append("qdq")
    if any(is_qoperator(name) for name in names):
        form.append("qoperator")
    if names & DYNAMIC_OPS:
        form.append("dynamic")
    if names & WEIGHT_ONLY_OPS or walker.scales or (walker.dequantizes_weights and not form):
        form.append("weight_only")
    return form
