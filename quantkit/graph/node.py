"""One operator call of the editable form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from onnx import AttributeProto, NodeProto, helper

if TYPE_CHECKING:
    from quantkit.graph.ir import Graph
    from quantkit.graph.tensors import TensorReader

DEFAULT_DOMAIN = ""


class Node:
    """One operator call.

    Attributes
    ----------
    inputs, outputs : list of str
        Tensor names; an empty name is an absent optional.
    attributes : dict of str to AttributeProto
        All but the bodies.
    bodies : dict of str to Graph
        Nested graphs by attribute name; a list attribute gives ``name[0]``, ``name[1]``, ...
    """

    __slots__ = ("attributes", "bodies", "domain", "inputs", "name", "op_type", "order", "outputs", "proto")

    def __init__(
        self,
        op_type: str,
        inputs: Iterable[str],
        outputs: Iterable[str],
        *,
        name: str = "",
        domain: str = DEFAULT_DOMAIN,
        **attributes: Any,
    ) -> None:
        self.op_type, self.name = op_type, name
        self.domain = DEFAULT_DOMAIN if domain == "ai.onnx" else domain
        self.inputs, self.outputs = list(inputs), list(outputs)
        self.attributes = {key: helper.make_attribute(key, value) for key, value in attributes.items()}
        self.bodies: dict[str, Graph] = {}
        self.proto: NodeProto | None = None
        self.order = 0.0

    def __repr__(self) -> str:
        return f"{self.op_type} node {self.name!r}"

    @property
    def title(self) -> str:
        """What messages and reports call it: its name, else that of its first output."""
        return self.name or next((name for name in self.outputs if name), "")

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of attribute `name`, or `default`."""
        attribute = self.attributes.get(name)
        if attribute is None:
            return default
        value = helper.get_attribute_value(attribute)
        return value.decode() if isinstance(value, bytes) else value

    def set(self, name: str, value: Any) -> None:
        """Set attribute `name`; None removes it."""
        if value is None:
            self.attributes.pop(name, None)
        else:
            self.attributes[name] = helper.make_attribute(name, value)

    def input(self, index: int) -> str:
        """Return the name of input `index`, empty when it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def is_op(self, *op_types: str) -> bool:
        """Whether this is a standard ONNX operator of one of these types."""
        return self.domain == DEFAULT_DOMAIN and self.op_type in op_types

    def to_proto(self, tensors: TensorReader) -> NodeProto:
        """Return the protobuf form."""
        proto = NodeProto(op_type=self.op_type)
        for field in ("name", "domain"):
            if getattr(self, field):
                setattr(proto, field, getattr(self, field))
        if self.proto is not None:
            proto.metadata_props.extend(self.proto.metadata_props)
            for field in ("doc_string", "overload"):
                if self.proto.HasField(field):
                    setattr(proto, field, getattr(self.proto, field))
        proto.input.extend(self.inputs)
        proto.output.extend(self.outputs)
        proto.attribute.extend(self.attributes.values())
        lists: dict[str, AttributeProto] = {}
        for key, body in self.bodies.items():
            name, _, index = key.partition("[")
            if not index:
                attribute = proto.attribute.add(name=name, type=AttributeProto.GRAPH)
                attribute.g.CopyFrom(body.to_proto(tensors))
                continue
            if name not in lists:
                lists[name] = proto.attribute.add(name=name, type=AttributeProto.GRAPHS)
            lists[name].graphs.append(body.to_proto(tensors))
        return proto
