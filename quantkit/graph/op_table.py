"""The op table: for each ONNX operator, what quantization can do with it.

One row an operator. Everything that depends on the operator alone is decided here and nowhere else: which inputs carry
activations, which ones are weights and along which of their axes the output channels lie, and how the int8 form relates
to the float one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from quantkit.graph.node import Node


class Kind(Enum):
    """How an operator takes part in an int8 graph."""

    WEIGHTED = "weighted"  # the arithmetic that int8 is for: Conv, Gemm, MatMul
    ARITHMETIC = "arithmetic"  # has an int8 form of its own, worth it only between int8 neighbours
    FACTOR = "factor"  # int8 only where it multiplies by a positive constant
    PASS = "pass"  # moves or selects values: output shares scale and zero point with its input
    CLAMP = "clamp"  # a bound that the quantized range itself can express
    FLOAT = "float"  # computed in float


@dataclass(frozen=True)
class OpRow:
    """One row of the table.

    Attributes
    ----------
    kind : Kind
    data : tuple of int or None
        Positions of activation inputs; None = all inputs.
    """

    kind: Kind
    data: tuple[int, ...] | None = (0,)


_PASS = OpRow(Kind.PASS)

TABLE: dict[str, OpRow] = {
    "Conv": OpRow(Kind.WEIGHTED),
    "ConvTranspose": OpRow(Kind.WEIGHTED),
    "Gemm": OpRow(Kind.WEIGHTED),
    "MatMul": OpRow(Kind.WEIGHTED, data=(0, 1)),
    "Add": OpRow(Kind.ARITHMETIC, data=(0, 1)),
    "Mul": OpRow(Kind.ARITHMETIC, data=(0, 1)),
    "Div": OpRow(Kind.FACTOR, data=(0, 1)),
    "Concat": OpRow(Kind.ARITHMETIC, data=None),
    "GlobalAveragePool": OpRow(Kind.ARITHMETIC),
    "AveragePool": OpRow(Kind.ARITHMETIC),
    "Sigmoid": OpRow(Kind.ARITHMETIC),
    "LeakyRelu": OpRow(Kind.ARITHMETIC),
    "HardSigmoid": OpRow(Kind.ARITHMETIC),
    "Relu": OpRow(Kind.CLAMP),
    "Clip": OpRow(Kind.CLAMP),
    "MaxPool": _PASS,
    "Reshape": _PASS,
    "Transpose": _PASS,
    "Flatten": _PASS,
    "Squeeze": _PASS,
    "Unsqueeze": _PASS,
    "Slice": _PASS,
    "Split": _PASS,
    "Resize": _PASS,
    "DepthToSpace": _PASS,
    "SpaceToDepth": _PASS,
}

_FLOAT = OpRow(Kind.FLOAT, data=None)

# Operators whose constant tensors are weights of the model, for the account of a model's weights.
WEIGHT_OPS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Gather", "LSTM", "GRU", "RNN"})
_WEIGHT_INPUTS = {
    "Conv": (1,),
    "ConvTranspose": (1,),
    "Gemm": (0, 1),
    "MatMul": (0, 1),
    "Gather": (0,),
    "LSTM": (1, 2),
    "GRU": (1, 2),
    "RNN": (1, 2),
}


def row(node: Node) -> OpRow:
    """Return the table's row for `node`."""
    return TABLE.get(node.op_type, _FLOAT) if node.domain == "" else _FLOAT


def weight_inputs(node: Node) -> tuple[int, ...]:
    """Return the positions at which a constant input of `node` counts as a weight."""
    return _WEIGHT_INPUTS.get(node.op_type, ()) if node.domain == "" else ()


def data_inputs(node: Node) -> tuple[int, ...]:
    """Return the positions of the activation inputs of `node`."""
    positions = row(node).data
    return tuple(range(len(node.inputs))) if positions is None else positions


def weight_axis(node: Node, position: int, rank: int) -> int | None:
    """Return the axis of the weight at input `position` along which the output channels of `node` lie.

    None where each output mixes all of it: a 1-d MatMul operand. A ConvTranspose weight is ``[C_in, C_out / group,
    ...]``: with groups, one index of axis 1 stands for one channel of every group.
    """
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    if node.op_type == "Gemm":
        if position == 0:
            return 1 if node.get("transA", 0) else 0
        return 0 if node.get("transB", 0) else 1
    if node.op_type == "MatMul":
        if rank < 2:
            return None
        return rank - 1 if position == 1 else rank - 2
    if node.op_type == "Gather":
        return 0
    if node.op_type in ("LSTM", "GRU", "RNN"):
        return 1
    return None


def is_pass_through(node: Node) -> bool:
    """Whether `node` moves uint8 codes exactly as it moves the floats they stand for."""
    if row(node).kind is not Kind.PASS:
        return False
    if node.op_type == "Resize":
        return node.get("mode", "nearest") in ("nearest", "linear") and not node.get("antialias", 0)
    if node.op_type == "MaxPool":
        return len(node.outputs) == 1  # the indices of ties differ
    return True
