"""Where the operators of ONNX and of com.microsoft keep scales and zero points."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from onnx import TensorProto

if TYPE_CHECKING:
    from quantkit.graph.ir import Graph
    from quantkit.graph.node import Node


class Operand(NamedTuple):
    """Places of a tensor, its scale and its zero point among a node's inputs; tensor None: the first output."""

    tensor: int | None
    scale: int
    zero_point: int


_UNARY = (Operand(0, 1, 2), Operand(None, 3, 4))
_BINARY = (Operand(0, 1, 2), Operand(3, 4, 5), Operand(None, 6, 7))

OPERAND_SCALES: dict[str, tuple[Operand, ...]] = {
    "QuantizeLinear": (Operand(None, 1, 2),),
    "DequantizeLinear": (Operand(0, 1, 2),),
    "QLinearConv": _BINARY,
    "QLinearMatMul": _BINARY,
    "QLinearAdd": _BINARY,
    "QLinearMul": _BINARY,
    "QGemm": (Operand(0, 1, 2), Operand(3, 4, 5), Operand(None, 7, 8)),
    "QLinearSigmoid": _UNARY,
    "QLinearLeakyRelu": _UNARY,
    "QLinearSoftmax": _UNARY,
    "QLinearAveragePool": _UNARY,
    "QLinearGlobalAveragePool": _UNARY,
    "QLinearReduceMean": _UNARY,
}

DYNAMIC_OPS = {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "MatMulIntegerToFloat"}
INTEGER_OPS = {"MatMulInteger", "ConvInteger"}
WEIGHT_ONLY_OPS = {"MatMulNBits", "GatherBlockQuantized", "MatMulBnb4"}


def is_quantized(op_type: str) -> bool:
    """Whether a model with this operator has been quantized, whoever did it."""
    return op_type in OPERAND_SCALES.keys() | DYNAMIC_OPS | INTEGER_OPS | WEIGHT_ONLY_OPS or is_qoperator(op_type)


def is_qoperator(op_type: str) -> bool:
    """Whether an operator computes codes from codes with scales of its own."""
    return op_type in {"QGemm", "QAttention"} or op_type.startswith("QLinear")


def computes_int8(op_type: str) -> bool:
    """Whether an operator multiplies int8 operands, whatever it makes of the sums."""
    products = INTEGER_OPS | DYNAMIC_OPS - {"DynamicQuantizeLinear"} | {"MatMulNBits"}
    return op_type in products or is_qoperator(op_type)


# Types of codes that a Cast turns into floats, where a Mul by the scale follows.
CODE_TYPES = frozenset({TensorProto.INT8, TensorProto.UINT8})


def is_cast_weight(graph: Graph, node: Node) -> bool:
    """Whether `node` is the Cast of a stored int8 weight that is multiplied by its scale next."""
    if not node.is_op("Cast") or not graph.is_constant(node.inputs[0]):
        return False
    scope = graph.scope_of(node.inputs[0])
    reader = graph.only_consumer(node.outputs[0])
    if scope is None or node.inputs[0] not in scope.initializers or reader is None:
        return False
    stored = scope.initializers[node.inputs[0]]
    others = [name for name in reader.inputs if name != node.outputs[0]]
    scaled = reader.is_op("Mul", "Sub") and len(others) == 1 and graph.is_constant(others[0])
    return stored.data_type in CODE_TYPES and len(stored.dims) > 1 and scaled
