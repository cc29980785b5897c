"""The verbs on arrays, in ONNX terms."""

from quantkit.ops.matmul import matmul_integer, pack_matmul, qlinear_matmul
from quantkit.ops.quantize import dequantize_linear, dynamic_quantize_linear, quantize_linear
from quantkit.ops.statistics import finite_range, histogram

__all__ = [
    "dequantize_linear",
    "dynamic_quantize_linear",
    "finite_range",
    "histogram",
    "matmul_integer",
    "pack_matmul",
    "qlinear_matmul",
    "quantize_linear",
]
