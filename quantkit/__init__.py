"""quantkit: 8-bit quantization outside the big frameworks.

Every name loads its part of the house on first use: tensors and verbs need NumPy alone, the jobs (`quantize_model` and
others) onnx, onnxruntime and Pillow.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would be most of the time of this import
    from quantkit import cpu, cuda, errors, ops
    from quantkit.files import load, save
    from quantkit.images.image_file import read_image, write_image
    from quantkit.images.opened import open_images
    from quantkit.images.process import process_images
    from quantkit.jobs.compare import compare_models
    from quantkit.jobs.inspect import inspect_model
    from quantkit.jobs.predict import predict_images
    from quantkit.models.quantizer import quantize_model
    from quantkit.qparams import QDType, QParams, choose_qparams, qint8, quint8
    from quantkit.storage import Array, ByteStorage, QUInt8Storage
    from quantkit.streams import (
        Event,
        Stream,
        StreamContext,
        StreamPool,
        current_stream,
        default_stream,
        profile,
        stream,
    )
    from quantkit.tensor import (
        QTensor,
        as_tensor,
        conv2d,
        conv_transpose2d,
        empty,
        from_buffer,
        from_dlpack,
        from_numpy,
        full,
        matmul,
        quantize,
        randint,
    )
    from quantkit.weights import dequantize_weights, open_weights, quantize_weights

    __version__: str

# The same names at run time. Nothing is imported before it is used, so that the command line can answer an
# interruption, or an environment that the kernels refuse, with one line. Name -> module that has it.
_LAZY = {
    "Array": "quantkit.storage",
    "ByteStorage": "quantkit.storage",
    "Event": "quantkit.streams",
    "QDType": "quantkit.qparams",
    "QParams": "quantkit.qparams",
    "QTensor": "quantkit.tensor",
    "QUInt8Storage": "quantkit.storage",
    "Stream": "quantkit.streams",
    "StreamContext": "quantkit.streams",
    "StreamPool": "quantkit.streams",
    "as_tensor": "quantkit.tensor",
    "choose_qparams": "quantkit.qparams",
    "compare_models": "quantkit.jobs.compare",
    "conv2d": "quantkit.tensor",
    "conv_transpose2d": "quantkit.tensor",
    "cpu": "quantkit",
    "cuda": "quantkit",
    "current_stream": "quantkit.streams",
    "default_stream": "quantkit.streams",
    "dequantize_weights": "quantkit.weights",
    "empty": "quantkit.tensor",
    "errors": "quantkit",
    "from_buffer": "quantkit.tensor",
    "from_dlpack": "quantkit.tensor",
    "from_numpy": "quantkit.tensor",
    "full": "quantkit.tensor",
    "inspect_model": "quantkit.jobs.inspect",
    "load": "quantkit.files",
    "matmul": "quantkit.tensor",
    "open_images": "quantkit.images.opened",
    "open_weights": "quantkit.weights",
    "ops": "quantkit",
    "predict_images": "quantkit.jobs.predict",
    "process_images": "quantkit.images.process",
    "profile": "quantkit.streams",
    "qint8": "quantkit.qparams",
    "quantize": "quantkit.tensor",
    "quantize_model": "quantkit.models.quantizer",
    "quantize_weights": "quantkit.weights",
    "quint8": "quantkit.qparams",
    "randint": "quantkit.tensor",
    "read_image": "quantkit.images.image_file",
    "save": "quantkit.files",
    "stream": "quantkit.streams",
    "write_image": "quantkit.images.image_file",
}

__all__ = [
    "Array",
    "ByteStorage",
    "Event",
    "QDType",
    "QParams",
    "QTensor",
    "QUInt8Storage",
    "Stream",
    "StreamContext",
    "StreamPool",
    "as_tensor",
    "choose_qparams",
    "compare_models",
    "conv2d",
    "conv_transpose2d",
    "cpu",
    "cuda",
    "current_stream",
    "default_stream",
    "dequantize_weights",
    "empty",
    "errors",
    "from_buffer",
    "from_dlpack",
    "from_numpy",
    "full",
    "inspect_model",
    "load",
    "matmul",
    "open_images",
    "open_weights",
    "ops",
    "predict_images",
    "process_images",
    "profile",
    "qint8",
    "quantize",
    "quantize_model",
    "quantize_weights",
    "quint8",
    "randint",
    "read_image",
    "save",
    "stream",
    "write_image",
]

if not TYPE_CHECKING:  # a checker must not take every name for granted

    def __getattr__(name: str) -> object:
        if name in _LAZY:
            from importlib import import_module

            # A part of this package is a module itself; asking the package for it would end up here again.
            home = _LAZY[name]
            value = import_module(f"{home}.{name}") if home == __name__ else getattr(import_module(home), name)
        elif name == "__version__":
            from quantkit._version import own_version

            value = own_version()
        else:
            raise AttributeError(f"module 'quantkit' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
