"""The verbs on arrays, in ONNX terms."""

from quantkit.ops._conv_weights import pack_conv
from quantkit.ops._rnn_weights import pack_rnn
from quantkit.ops.conv import conv_integer, qlinear_conv
from quantkit.ops.conv_transpose import conv_transpose_integer, pack_conv_transpose, qlinear_conv_transpose
from quantkit.ops.copy import copy
from quantkit.ops.lookup import lookup, requantize
from quantkit.ops.matmul import matmul_integer, matmul_integer_to_float, pack_matmul, qlinear_matmul
from quantkit.ops.quantize import dequantize_linear, dynamic_quantize_linear, quantize_linear
from quantkit.ops.rnn import gru, lstm, rnn
from quantkit.ops.statistics import finite_range, histogram

__all__ = [
    "conv_integer",
    "conv_transpose_integer",
    "copy",
    "dequantize_linear",
    "dynamic_quantize_linear",
    "finite_range",
    "gru",
    "histogram",
    "lookup",
    "lstm",
    "matmul_integer",
    "matmul_integer_to_float",
    "pack_conv",
    "pack_conv_transpose",
    "pack_matmul",
    "pack_rnn",
    "qlinear_conv",
    "qlinear_conv_transpose",
    "qlinear_matmul",
    "quantize_linear",
    "requantize",
    "rnn",
]
