"""quantkit: 8-bit quantization outside the big frameworks.

Importing it needs NumPy alone. The jobs (`quantize_model` and others) load onnx, onnxruntime and Pillow on first use.
"""

from __future__ import annotations

from typing import Any

from quantkit import cpu, errors, ops
from quantkit.qparams import QDType, QParams, choose_qparams, qint8, quint8
from quantkit.storage import Array, ByteStorage, QUInt8Storage
from quantkit.tensor import (
    QTensor,
    as_tensor,
    conv2d,
    empty,
    from_buffer,
    from_dlpack,
    from_numpy,
    full,
    quantize,
    randint,
)

# Names that load a heavier part of the house on first use: name -> (module, attribute).
_LAZY: dict[str, tuple[str, str]] = {
    "compare_models": ("quantkit.jobs.compare", "compare_models"),
    "inspect_model": ("quantkit.jobs.inspect", "inspect_model"),
    "load": ("quantkit.files", "load"),
    "save": ("quantkit.files", "save"),
    "quantize_model": ("quantkit.models.quantizer", "quantize_model"),
    "quantize_weights": ("quantkit.weights", "quantize_weights"),
    "open_weights": ("quantkit.weights", "open_weights"),
    "dequantize_weights": ("quantkit.weights", "dequantize_weights"),
    "open_images": ("quantkit.images.opened", "open_images"),
    "predict_images": ("quantkit.jobs.predict", "predict_images"),
    "process_images": ("quantkit.images.process", "process_images"),
    "read_image": ("quantkit.images.image_file", "read_image"),
    "write_image": ("quantkit.images.image_file", "write_image"),
}

__all__ = ["Array", "ByteStorage", "QTensor", "QUInt8Storage"]
__all__ += ["as_tensor", "conv2d", "empty", "from_buffer", "from_dlpack", "from_numpy", "full", "quantize", "randint"]
__all__ += ["QDType", "QParams", "choose_qparams", "cpu", "errors", "ops", "qint8", "quint8"]
__all__ += list(_LAZY)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        module, attribute = _LAZY[name]
        value = getattr(import_module(module), attribute)
    elif name == "__version__":
        from importlib.metadata import version

        value = version("quantkit")
    else:
        raise AttributeError(f"module 'quantkit' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
