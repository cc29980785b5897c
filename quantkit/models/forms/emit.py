"""The few node patterns that every quantized form is made of."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from onnx import TensorProto

from quantkit.graph import Graph, Node
from quantkit.qparams import QParams


class Emitter:
    """Adds nodes and constants to a graph; equal constants are stored once.

    Parameters
    ----------
    graph : Graph
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._constants: dict[tuple[Any, ...], str] = {}

    def constant(self, values: Any, hint: str) -> str:
        """Return the name of an initializer with these values."""
        array = np.asarray(values)
        key = (array.dtype.str, array.shape, hashlib.sha256(np.ascontiguousarray(array).data).digest())
        if key not in self._constants:
            self._constants[key] = self.graph.add_constant(hint, array)
        return self._constants[key]

    def fresh(self, hint: str) -> str:
        """Return an unused name."""
        return self.graph.model.names.fresh(hint)

    def node(
        self, op_type: str, inputs: list[str], output: str, before: Node, *, domain: str = "", **attributes: Any
    ) -> Node:
        """Add a node that makes `output` and bears its name."""
        name = self.fresh(output)
        added = Node(op_type, inputs, [output], name=name, domain=domain, **attributes)
        return self.graph.add(added, before=before)

    def _parameters(self, params: QParams, dtype: Any) -> list[str]:
        scale = np.asarray(params.scale, np.float32)
        zero_point = np.broadcast_to(np.asarray(params.zero_point), scale.shape).astype(dtype)
        return [self.constant(scale, "scale"), self.constant(zero_point, "zero_point")]

    def _axis(self, params: QParams) -> dict[str, Any]:
        return {"axis": params.axis} if params.per_channel else {}

    def quantize(self, name: str, output: str, params: QParams, before: Node, dtype: Any = np.uint8) -> str:
        """Add a QuantizeLinear."""
        self.node("QuantizeLinear", [name, *self._parameters(params, dtype)], output, before, **self._axis(params))
        return output

    def dequantize(self, codes: str, output: str, params: QParams, before: Node, dtype: Any = np.uint8) -> str:
        """Add a DequantizeLinear."""
        self.node("DequantizeLinear", [codes, *self._parameters(params, dtype)], output, before, **self._axis(params))
        return output

    def dequantize_at_load(self, codes: str, scale: Any, output: str, before: Node) -> str:
        """Add a Cast and a Mul with `scale`, which broadcasts: the constants of a weight, folded when it is loaded."""
        floats = self.fresh(f"{output}_cast")
        self.node("Cast", [codes], floats, before, to=TensorProto.FLOAT)
        self.node("Mul", [floats, self.constant(np.asarray(scale, np.float32), "scale")], output, before)
        return output
