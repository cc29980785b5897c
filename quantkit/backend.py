"""quantkit as an ONNX backend (`onnx.backend.base.Backend`): models of operators that `quantkit.ops` has verbs for.

It exists to be held against ONNX's own node tests, and to run a few nodes without a runtime; whole models belong to
`quantkit.Session`.

Examples
--------
>>> import quantkit.backend
>>> y = quantkit.backend.run_node(node, [x, scale, zero_point])[0]  # doctest: +SKIP
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.backend import base

from quantkit import ops
from quantkit.errors import InvalidArgument, ModelError, ShapeMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

_CODES = (onnx.TensorProto.UINT8, onnx.TensorProto.INT8)


def _axis(attributes: Mapping[str, Any], scale: NDArray[Any]) -> int | None:
    if attributes.get("block_size"):
        raise ModelError("quantkit has scales for tensors and for channels; block_size asks for one a block")
    return int(attributes.get("axis", 1)) if scale.size > 1 else None


def _zero_point(inputs: Sequence[Any], at: int) -> Any:
    """Return the optional zero point, None or of any shape with one value as a scalar."""
    value = inputs[at] if len(inputs) > at else None
    return None if value is None else (value.reshape(()) if value.size == 1 else value)


def _quantize(attributes: Mapping[str, Any], x: Any, scale: Any, *rest: Any) -> tuple[Any, ...]:
    zero_point = _zero_point(rest, 0)
    wanted = attributes.get("output_dtype") or onnx.TensorProto.UINT8
    dtype = zero_point.dtype if zero_point is not None else helper.tensor_dtype_to_np_dtype(wanted)
    axis = _axis(attributes, scale)
    return (ops.quantize_linear(x, scale, 0 if zero_point is None else zero_point, axis=axis, dtype=dtype),)


def _dequantize(attributes: Mapping[str, Any], q: Any, scale: Any, *rest: Any) -> tuple[Any, ...]:
    zero_point = _zero_point(rest, 0)
    axis = _axis(attributes, scale)
    return (ops.dequantize_linear(q, scale, 0 if zero_point is None else zero_point, axis=axis),)


def _dynamic_quantize(attributes: Mapping[str, Any], x: Any) -> tuple[Any, ...]:
    return tuple(np.asarray(v) for v in ops.dynamic_quantize_linear(x))


def _matmul_integer(attributes: Mapping[str, Any], a: Any, b: Any, *zeros: Any) -> tuple[Any, ...]:
    given = [0 if z is None else z for z in zeros]
    return (ops.matmul_integer(a, b, *given),)


def _qlinear_matmul(attributes: Mapping[str, Any], *inputs: Any) -> tuple[Any, ...]:
    return (ops.qlinear_matmul(*inputs),)


def _conv_attributes(attributes: Mapping[str, Any], w: Any) -> dict[str, Any]:
    kernel = attributes.get("kernel_shape")
    if kernel is not None and tuple(kernel) != w.shape[2:]:
        raise ShapeMismatch(f"kernel_shape {tuple(kernel)} does not fit weights of shape {w.shape}")
    known = ("strides", "pads", "dilations", "group", "auto_pad")
    return {name: attributes[name] for name in known if name in attributes}


def _conv_integer(attributes: Mapping[str, Any], x: Any, w: Any, *zeros: Any) -> tuple[Any, ...]:
    given = [0 if z is None else z for z in zeros]
    return (ops.conv_integer(x, w, *given, **_conv_attributes(attributes, w)),)


def _qlinear_conv(attributes: Mapping[str, Any], *inputs: Any) -> tuple[Any, ...]:
    return (ops.qlinear_conv(*inputs, **_conv_attributes(attributes, inputs[3])),)


def _recurrent(verb: Callable[..., tuple[Any, ...]], attributes: Mapping[str, Any], *inputs: Any) -> tuple[Any, ...]:
    given = dict(attributes)
    if "activations" in given:
        given["activations"] = [name.decode() for name in given["activations"]]
    return verb(*inputs, **given)


_OPERATORS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "GRU": functools.partial(_recurrent, ops.gru),
    "LSTM": functools.partial(_recurrent, ops.lstm),
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize,
    "RNN": functools.partial(_recurrent, ops.rnn),
}
_RECURRENT = {"GRU", "LSTM", "RNN"}


def _reason_against(node: Any) -> str | None:
    """Say why no verb serves `node`; None where one does."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in _OPERATORS:
        return f"quantkit's backend runs {', '.join(_OPERATORS)}, not {node.op_type}"
    for attribute in node.attribute:
        if node.op_type in _RECURRENT and attribute.name == "output_sequence":
            return "output_sequence belongs to the first version of RNN, LSTM and GRU; quantkit runs versions 7 to 22"
        if attribute.name == "block_size" and attribute.i:
            return "quantkit has scales for tensors and for channels, not for blocks"
        if (
            attribute.name == "output_dtype"
            and attribute.i
            and node.op_type == "QuantizeLinear"
            and attribute.i not in _CODES
        ):
            return f"quantkit's codes are uint8 and int8, not {onnx.TensorProto.DataType.Name(attribute.i).lower()}"
    return None


class QuantkitBackendRep(base.BackendRep):
    """A model that is ready to run, as often as wanted."""

    def __init__(self, model: Any) -> None:
        self._graph = model.graph
        self._constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self._inputs = [v.name for v in model.graph.input if v.name not in self._constants]

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the outputs for `inputs`: a sequence in the order of the graph's, or a mapping by name.

        Raises
        ------
        InvalidArgument
            When inputs are missing or too many; errors of the verbs name what does not fit.
        """
        given = dict(inputs) if hasattr(inputs, "keys") else dict(zip(self._inputs, inputs, strict=False))
        if set(given) != set(self._inputs) or len(inputs) != len(self._inputs):
            raise InvalidArgument(f"wanted the inputs {self._inputs}, got {len(inputs)}: {sorted(given)}")
        values = {**self._constants, **{name: np.asarray(value) for name, value in given.items()}}
        for node in self._graph.node:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
            results = _OPERATORS[node.op_type](attributes, *[values[name] if name else None for name in node.input])
            values.update(zip(node.output, results, strict=False))
        return tuple(values[v.name] for v in self._graph.output)


class QuantkitBackend(base.Backend):
    """ONNX's interface to a runtime, over the verbs of `quantkit.ops`."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether `device` is the CPU."""
        return device.partition(":")[0] == "CPU"

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether every node of `model` has a verb."""
        return cls.supports_device(device) and not any(_reason_against(node) for node in model.graph.node)

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> QuantkitBackendRep:
        """Check `model` and return what runs it.

        Raises
        ------
        ModelError
            When the model is invalid, or a node has no verb; names it.
        InvalidArgument
            For a device other than the CPU.
        """
        if not cls.supports_device(device):
            raise InvalidArgument(f"quantkit's backend runs on CPU, got device {device!r}")
        try:
            onnx.checker.check_model(model)
        except onnx.checker.ValidationError as error:
            raise ModelError(f"not a valid model: {error}") from error
        for node in model.graph.node:
            if reason := _reason_against(node):
                raise ModelError(f"node {node.name or node.output[0]!r}: {reason}")
        return QuantkitBackendRep(model)

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Prepare `model` and run it once."""
        return cls.prepare(model, device).run(inputs)

    @classmethod
    def run_node(
        cls, node: Any, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Run one node on the inputs that it names, in order; optional ones that are left out have no name."""
        names = [name for name in node.input if name]
        arrays = [np.asarray(v) for v in inputs]
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for name, v in zip(names, arrays, strict=True)
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
        graph = helper.make_graph([node], "node", infos, outputs)
        for v in graph.output:
            v.type.tensor_type.elem_type = onnx.TensorProto.FLOAT  # the checker wants a type; nothing here reads it
            v.type.tensor_type.shape.SetInParent()
        opset = helper.make_opsetid("", kwargs.get("opset_version", onnx.defs.onnx_opset_version()))
        return cls.prepare(helper.make_model(graph, opset_imports=[opset]), device).run(arrays)


is_compatible = QuantkitBackend.is_compatible
prepare = QuantkitBackend.prepare
run_model = QuantkitBackend.run_model
run_node = QuantkitBackend.run_node
supports_device = QuantkitBackend.supports_device
