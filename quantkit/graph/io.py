"""Load and save ONNX models.

Saving is atomic: everything is written beside the target under another name, and the rename of the ``.onnx`` file is
the commit. A data file carries the hash of its content in its name, so a new model never overwrites the data that an
older ``.onnx`` file still points to.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError, EncodeError
from onnx import GraphProto, ModelProto, TensorProto

from quantkit.errors import ModelError
from quantkit.files import atomic_write, file_problem
from quantkit.graph.ir import Model
from quantkit.graph.tensors import TensorReader, is_external, is_spilled

ModelSource = str | os.PathLike[str] | bytes | ModelProto

# Protobuf refuses messages of 2 GiB; a margin for the graph itself.
MAX_INLINE_BYTES = 2**31 - 2**24
# Spilled tensors beyond this stay outside: bringing them in would take their size in memory, twice.
MAX_SPILLED_BYTES = 2**27
# Smaller tensors stay in the .onnx file: shape inference reads them there.
MIN_EXTERNAL_BYTES = 1024
_ALIGNMENT = 4096


def read_proto(source: ModelSource) -> tuple[ModelProto, TensorReader]:
    """Return the parsed model, external data left on disk, and the reader of its tensors.

    A `ModelProto` is copied, never changed.

    Raises
    ------
    ModelError
        When `source` is no ONNX model, is truncated, or its external data is missing or lies outside its folder.
    """
    if isinstance(source, ModelProto):
        proto = ModelProto()
        proto.CopyFrom(source)
        reader = TensorReader(None, "the model given as a ModelProto")
    else:
        proto = ModelProto()
        if isinstance(source, bytes | bytearray | memoryview):
            where, folder, data = "the model given as bytes", None, bytes(source)
        else:
            path = Path(source)
            where = str(path)
            problem = file_problem(path)
            if problem is not None:
                raise ModelError(f"{where}: {problem}")
            folder = path.resolve().parent
            try:
                data = path.read_bytes()
            except OSError as error:
                raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
        if not data:
            raise ModelError(f"{where}: is empty, wanted an ONNX model")
        try:
            proto.ParseFromString(data)
        except DecodeError:
            raise ModelError(f"{where}: is no ONNX model, or is truncated") from None
        reader = TensorReader(folder, where)
    if not proto.HasField("graph") or not proto.opset_import:
        raise ModelError(f"{reader.where}: is no ONNX model: it has no graph or no opset")
    for tensor in all_tensors(proto.graph):
        if is_external(tensor):
            reader.span(tensor)
    return proto, reader


def load_structure(model: ModelSource) -> ModelProto:
    """Return the ModelProto of a path, bytes or ModelProto; its external data stays on disk.

    Raises
    ------
    ModelError
        Naming the file, when it is missing or no ONNX model.
    """
    return model if isinstance(model, ModelProto) else read_proto(model)[0]


def load_model(source: ModelSource) -> Model:
    """Load a model in editable form; local functions are inlined.

    Raises
    ------
    ModelError
        As `read_proto` does.
    """
    proto, reader = read_proto(source)
    newest = onnx.defs.onnx_opset_version()
    for item in proto.opset_import:
        if item.domain in ("", "ai.onnx") and item.version > newest:
            raise ModelError(
                f"{reader.where}: is of opset {item.version}; "
                f"the installed onnx {onnx.__version__} knows up to {newest}"
            )
    if proto.functions:
        from onnx import inliner

        try:
            proto = inliner.inline_local_functions(proto)
        except Exception as error:
            raise ModelError(f"{reader.where}: its local functions cannot be inlined: {error}") from None
    return Model(proto, reader)


def all_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield every tensor that a graph stores: initializers and attributes, bodies included."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("g"):
                yield from all_tensors(attribute.g)
            for body in attribute.graphs:
                yield from all_tensors(body)


def _nbytes(tensor: TensorProto) -> int:
    if is_external(tensor):
        return next((int(e.value) for e in tensor.external_data if e.key == "length"), 0)
    return len(tensor.raw_data) or tensor.ByteSize()


def tensor_bytes(proto: ModelProto) -> int:
    """Return how many bytes the tensors of a model take, external ones included."""
    return sum(_nbytes(tensor) for tensor in all_tensors(proto.graph))


def stored_bytes(model: Model) -> int:
    """Return how many bytes the initializers of an editable model take, bodies included, external ones too."""
    return sum(_nbytes(tensor) for graph in model.graph.walk() for tensor in graph.initializers.values())


def save_model(model: Model, path: str | os.PathLike[str], *, check: Callable[[Path], Any] | None = None) -> Path:
    """Write `model` to `path`.

    Data goes into a file of its own when it does not fit into one protobuf message, when it lay outside before, or when
    there is so much of it that it was spilled to disk on the way.

    Parameters
    ----------
    check : callable, optional
        Called with the temporary file, data in place, before the commit; whatever it raises cancels the save.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    OutputError
        When the files cannot be written; nothing is left behind.
    """
    target = Path(path)
    proto = model.to_proto()
    tensors = list(all_tensors(proto.graph))
    outside = any(is_external(t) and not is_spilled(t) for t in tensors)
    spilled = sum(_nbytes(t) for t in tensors if is_spilled(t))
    external = outside or spilled > MAX_SPILLED_BYTES or sum(map(_nbytes, tensors)) > MAX_INLINE_BYTES
    if not external:
        _take_in(tensors, model.tensors)
    data_path, is_new = _write_data(tensors, model.tensors, target) if external else (None, False)
    try:
        try:
            blob = proto.SerializeToString(deterministic=True)
        except (EncodeError, ValueError) as error:
            raise ModelError(f"{target}: the graph itself is too large for an ONNX file: {error}") from None
        with atomic_write(target) as file:
            file.write(blob)
            if check is not None:
                check(Path(file.temporary))
    except BaseException:
        if data_path is not None and is_new:
            with suppress(OSError):
                data_path.unlink()
        raise
    return target


def model_bytes(model: Model) -> bytes:
    """Return `model` as the bytes of one file, external data included; the same model gives the same bytes.

    Raises
    ------
    ModelError
        When that exceeds what protobuf can hold.
    """
    proto = model.to_proto()
    _take_in(all_tensors(proto.graph), model.tensors)
    try:
        return bytes(proto.SerializeToString(deterministic=True))
    except (EncodeError, ValueError):
        raise ModelError(f"{model.tensors.where}: exceeds 2 GB and needs an output path") from None


def _take_in(tensors: Iterable[TensorProto], reader: TensorReader) -> None:
    """Bring external data into the tensors."""
    for tensor in tensors:
        if is_external(tensor):
            raw = bytes(_raw(tensor, reader))
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = raw


def _write_data(tensors: list[TensorProto], reader: TensorReader, target: Path) -> tuple[Path, bool]:
    """Write the larger tensors into one data file, point them to it, and tell whether that file is new."""
    large = [t for t in tensors if is_external(t) or len(t.raw_data) >= MIN_EXTERNAL_BYTES]
    digest = hashlib.sha256()
    spans = []
    position = 0
    for tensor in large:
        pad = -position % _ALIGNMENT
        raw = _raw(tensor, reader)
        digest.update(bytes(pad))
        digest.update(raw)
        spans.append((position + pad, len(raw)))
        position += pad + len(raw)
    name = f"{target.stem}-{digest.hexdigest()[:16]}.data"
    path = target.parent / name
    is_new = not path.exists()
    with atomic_write(path) as file:
        written = 0
        for tensor, (offset, length) in zip(large, spans, strict=True):
            file.write(bytes(offset - written))
            file.write(_raw(tensor, reader))
            written = offset + length
    for tensor, (offset, length) in zip(large, spans, strict=True):
        tensor.ClearField("raw_data")
        del tensor.external_data[:]
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", name), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
    return path, is_new


def _raw(tensor: TensorProto, reader: TensorReader) -> bytes | memoryview:
    if not is_external(tensor):
        return tensor.raw_data
    mapped, offset, length = reader.span(tensor)
    return memoryview(mapped)[offset : offset + length]
