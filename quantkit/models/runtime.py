"""Models in onnxruntime, as verification and inspection run them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit.cpu import usable_cpus
from quantkit.errors import InvalidArgument, ModelError
from quantkit.files import file_problem
from quantkit.models.inputs import Feed, InputSpec

if TYPE_CHECKING:
    from onnx import ModelProto

    from quantkit.graph.io import ModelSource
    from quantkit.graph.tensors import TensorReader

MAX_THREADS = 256
_FOLDER_KEY = "session.model_external_initializers_file_folder_path"
_LARGE_BYTES = 1 << 30
# A larger file holds its weights itself.
_GRAPH_BYTES = 8 << 20

_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .*? failed:)?")
_SOURCES = re.compile(r"\S*onnxruntime_src\S*?:\d+ [^()]*\([^()]*\) (const )?")

_DTYPES = {
    "float": "float32",
    "double": "float64",
    "float16": "float16",
    **{kind: kind for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")},
    "string": "object",
}


class Session:
    """One model loaded in onnxruntime.

    Attributes
    ----------
    title : str
        What errors call it.
    inputs : list of InputSpec
    outputs : list of str
    output_shapes : list
        As the model declares them; free dimensions are names or None.
    output_types : list of str
        As onnxruntime writes them: ``tensor(float)``.
    """

    def __init__(self, raw: Any, title: str, kept: Sequence[Any] = ()) -> None:
        self._raw, self.title, self._kept = raw, title, kept
        self.inputs = [_spec(item, title) for item in raw.get_inputs()]
        self.outputs = [item.name for item in raw.get_outputs()]
        self.output_shapes = [item.shape for item in raw.get_outputs()]
        self.output_types = [item.type for item in raw.get_outputs()]

    def run(self, feed: Feed, outputs: list[str] | None = None) -> list[Any]:
        """Run on one feed and return every output in order, or only `outputs`.

        Raises
        ------
        ModelError
            When onnxruntime refuses; the message says why.
        """
        try:
            return list(self._raw.run(self.outputs if outputs is None else outputs, feed))
        except Exception as error:
            raise ModelError(f"{self.title} does not run in onnxruntime: {one_line(error)}") from None

    def end_profiling(self) -> str:
        """Stop profiling and return the path of the file that holds the events."""
        return str(self._raw.end_profiling())


def _spec(item: Any, title: str) -> InputSpec:
    kind = item.type.removeprefix("tensor(").removesuffix(")")
    if not item.type.startswith("tensor(") or kind not in _DTYPES:
        raise ModelError(f"{title}: input {item.name!r} is a {item.type}, which cannot be fed")
    return InputSpec(item.name, np.dtype(_DTYPES[kind]), tuple(item.shape))


def one_line(error: BaseException, most: int = 300) -> str:
    """Return the message of a foreign error in one line, without the places in onnxruntime's sources."""
    text = _PREFIX.sub("", _SOURCES.sub("", " ".join(str(error).split())))
    return (text[: most - 3] + "..." if len(text) > most else text) or type(error).__name__


def describe_model(model: ModelSource) -> str:
    """Name a model for messages: its path, or what kind of object it is."""
    return str(model) if isinstance(model, (str, os.PathLike)) else "the given model"


def check_threads(threads: int) -> None:
    """Raise `InvalidArgument` unless `threads` can be a number of threads; each takes a stack and some a CPU."""
    if not 0 <= threads <= MAX_THREADS:
        raise InvalidArgument(f"threads (--threads): wanted 0 to {MAX_THREADS}, got {threads}")


def open_session(
    model: ModelSource,
    title: str | None = None,
    *,
    threads: int = 0,
    tensors: TensorReader | None = None,
    configure: Callable[[Any], None] | None = None,
) -> Session:
    """Load a model in onnxruntime on the CPU with its default optimizations.

    Parameters
    ----------
    model : path, bytes or ModelProto
    title : str, optional
        What errors call it; the path by default.
    threads : int, default 0
        0 lets onnxruntime decide. More than four for each usable CPU are not made.
    tensors : TensorReader, optional
        Where the external data of a ModelProto lies; it is mapped, not copied.
    configure : callable, optional
        Given onnxruntime's SessionOptions before the model is loaded.

    Raises
    ------
    ModelError
        When it does not load.
    InvalidArgument
        When `threads` is none of 0 to 256.
    """
    check_threads(threads)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # its warnings about unused initializers and the like are not for our users
    if threads:
        options.intra_op_num_threads = options.inter_op_num_threads = min(threads, 4 * usable_cpus())
    if _is_large(model):
        # Repacked weights would take the model's size once more.
        options.add_session_config_entry("session.disable_prepacking", "1")
    if configure is not None:
        configure(options)
    kept: list[Any] = []
    if isinstance(model, (str, os.PathLike)):
        name = title or str(model)
        problem = file_problem(model)
        if problem is not None:
            raise ModelError(f"{model}: {problem}")
        given: Any = str(model)
    else:
        name = title or "the given model"
        if tensors is not None and not isinstance(model, (bytes, bytearray)):
            kept = _lend_external(model, tensors, options)
        given = model if isinstance(model, (bytes, bytearray)) else _bytes(model, name)
    try:
        raw = onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"{name} does not load in onnxruntime: {one_line(error)}") from None
    return Session(raw, name, kept)


def _is_large(model: ModelSource) -> bool:
    from quantkit.graph.io import read_proto, tensor_bytes

    if isinstance(model, (bytes, bytearray)):
        return len(model) > _LARGE_BYTES
    if isinstance(model, (str, os.PathLike)):
        if file_problem(model) is not None:
            return False
        if (size := os.stat(model).st_size) > _GRAPH_BYTES:
            return size > _LARGE_BYTES
        try:
            return tensor_bytes(read_proto(model)[0]) > _LARGE_BYTES
        except ModelError:
            return False  # onnxruntime has the word on what it cannot load
    return tensor_bytes(model) > _LARGE_BYTES


def _lend_external(model: ModelProto, tensors: TensorReader, options: Any) -> list[Any]:
    """Let onnxruntime read the external data of `model`; return what must live as long as the session.

    It maps files itself, if it is told in which folder they lie; an array that it is given it copies.
    """
    import onnxruntime

    from quantkit.graph.tensors import is_external, is_spilled

    if tensors.folder is not None:
        options.add_session_config_entry(_FOLDER_KEY, str(tensors.folder))
    external = [
        tensor
        for tensor in model.graph.initializer
        if is_external(tensor) and (is_spilled(tensor) or tensors.folder is None)
    ]
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(tensors.array(tensor)) for tensor in external]
    if values:
        options.add_external_initializers([tensor.name for tensor in external], values)
    return values


def _bytes(model: ModelProto, name: str) -> bytes:
    try:
        return bytes(model.SerializeToString())
    except Exception as error:  # beyond 2 GB
        raise ModelError(f"{name} is too large to be held in one piece; give its path: {one_line(error)}") from None
