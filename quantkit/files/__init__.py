"""Writing files so that a crash leaves the old one or none, and the one layout for files of tensors."""

from quantkit.files.atomic import atomic_write, check_output
from quantkit.files.qtensors import load, save
from quantkit.files.tensors import TensorFile, TensorWriter, create_tensors, open_tensors, save_tensors

__all__ = [
    "TensorFile",
    "TensorWriter",
    "atomic_write",
    "check_output",
    "create_tensors",
    "load",
    "open_tensors",
    "save",
    "save_tensors",
]
