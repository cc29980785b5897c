"""What the small models are made with: nodes and constants one call each, and a register of them all."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

MODELS: dict[str, Callable[[], "Built"]] = {}


@dataclass
class Built:
    proto: onnx.ModelProto
    shape: tuple[int, ...] = (1, 3, 16, 16)
    int8_ops: tuple[str, ...] = ()  # operators that onnxruntime must run once quantized statically
    least_db: float = 25.0
    names: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtype: type = np.float32

    def __post_init__(self):
        """Give the outputs the ranks that they turn out to have."""
        options = ort.SessionOptions()
        options.log_severity_level = 4
        results = ort.InferenceSession(self.proto.SerializeToString(), options).run(None, self.feeds(1)[0])
        for value, result in zip(self.proto.graph.output, results, strict=True):
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            shape.SetInParent()
            for i in range(result.ndim):
                shape.dim.add(dim_param=f"{value.name}_{i}")

    def feeds(self, count: int, seed: int = 0):
        rng = np.random.default_rng(seed)
        shapes = self.names or {"x": self.shape}
        return [{k: rng.normal(size=s).astype(self.dtype) for k, s in shapes.items()} for _ in range(count)]


class Builder:
    """Nodes and constants, one call each."""

    def __init__(self, seed: int = 0, constants: str = "initializer"):
        self.rng, self.constants = np.random.default_rng(seed), constants
        self.nodes, self.initializers, self.count = [], [], 0

    def name(self, hint):
        self.count += 1
        return f"{hint}_{self.count}"

    def const(self, values, hint="c"):
        values = np.asarray(values)
        name = self.name(hint)
        tensor = numpy_helper.from_array(values, name)
        if self.constants == "node":
            self.nodes.append(helper.make_node("Constant", [], [name], name=f"make_{name}", value=tensor))
        else:
            self.initializers.append(tensor)
        return name

    def weight(self, *shape, scale=None):
        fan = np.prod(shape[1:]) if len(shape) > 1 else 1
        return self.const((self.rng.normal(size=shape) * (scale or fan**-0.5)).astype(np.float32), "w")

    def op(self, op_type, *inputs, outputs=1, domain="", **attributes):
        names = [self.name(op_type.lower()) for _ in range(outputs)]
        self.nodes.append(
            helper.make_node(op_type, inputs, names, name=f"{op_type}_{self.count}", domain=domain, **attributes)
        )
        return names[0] if outputs == 1 else names

    def conv(self, x, cin, cout, kernel=3, bias=True, group=1, rank=2, **attributes):
        inputs = [x, self.weight(cout, cin // group, *[kernel] * rank)]
        if bias:
            inputs.append(self.const(self.rng.normal(size=cout).astype(np.float32) * 0.1, "b"))
        attributes.setdefault("pads", [kernel // 2] * 2 * rank)
        return self.op("Conv", *inputs, group=group, **attributes)

    def bn(self, x, channels):
        r = self.rng
        stats = [r.uniform(0.5, 2, channels), r.normal(size=channels), r.normal(size=channels) * 0.1]
        stats.append(r.uniform(0.5, 2, channels))
        return self.op("BatchNormalization", x, *[self.const(s.astype(np.float32), "bn") for s in stats])

    def model(self, outputs, inputs=None, opset=13, ir=None, elem=TensorProto.FLOAT, domains=()):
        outputs = [outputs] if isinstance(outputs, str) else outputs
        graph = helper.make_graph(
            self.nodes,
            "corpus",
            inputs or [helper.make_tensor_value_info("x", elem, ["n", 3, None, None])],
            [helper.make_tensor_value_info(name, elem, None) for name in outputs],
            self.initializers,
        )
        imports = [helper.make_opsetid("", opset), *[helper.make_opsetid(d, 1) for d in domains]]
        proto = helper.make_model(graph, opset_imports=imports, ir_version=ir or max(4, min(10, opset - 5)))
        return proto


def vector(name, *shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def entry(function):
    MODELS[function.__name__] = function
    return function
