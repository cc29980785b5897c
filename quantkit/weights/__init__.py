"""Weight files of any size to 8 bits: safetensors, npz, pth and onnx in, one safetensors file out."""

from quantkit.weights.export import dequantize_weights
from quantkit.weights.opened import Weights, open_weights
from quantkit.weights.quantizer import quantize_weights
from quantkit.weights.result import TensorRow, WeightsBatch, WeightsResult
from quantkit.weights.stored import StoredWeight

__all__ = [
    "StoredWeight",
    "TensorRow",
    "Weights",
    "WeightsBatch",
    "WeightsResult",
    "dequantize_weights",
    "open_weights",
    "quantize_weights",
]
