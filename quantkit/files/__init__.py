"""Writing files so that a crash leaves the old one or none, and the one layout for files of tensors."""

from quantkit.files.atomic import atomic_write, check_output, is_temporary
from quantkit.files.layout import DTYPES, TensorLayout, dtype_name, plan_tensors
from quantkit.files.qtensors import load, save
from quantkit.files.regular import file_problem
from quantkit.files.resumable import ResumableFile, resumable_write
from quantkit.files.tensors import TensorFile, TensorWriter, create_tensors, open_tensors, save_tensors

__all__ = [
    "DTYPES",
    "ResumableFile",
    "TensorFile",
    "TensorLayout",
    "TensorWriter",
    "atomic_write",
    "check_output",
    "create_tensors",
    "dtype_name",
    "file_problem",
    "is_temporary",
    "load",
    "open_tensors",
    "plan_tensors",
    "resumable_write",
    "save",
    "save_tensors",
]
