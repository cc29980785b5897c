"""ONNX graphs: load and save, the editable form, folding, opsets, and the op table."""

from quantkit.graph.fold import fold_constants
from quantkit.graph.io import all_tensors, load_model, read_proto, save_model
from quantkit.graph.ir import FLOAT_TYPES, Graph, Model, element_type
from quantkit.graph.node import Node
from quantkit.graph.opset import raise_opset

__all__ = [
    "FLOAT_TYPES",
    "Graph",
    "Model",
    "Node",
    "all_tensors",
    "element_type",
    "fold_constants",
    "load_model",
    "raise_opset",
    "read_proto",
    "save_model",
]
