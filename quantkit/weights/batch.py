"""Several weight files at once: which ones, and where each result goes."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Callable, Sequence

from quantkit.errors import FormatError, InvalidArgument, OutputError, QuantkitError
from quantkit.weights.result import WeightsBatch, WeightsResult

PathLike = str | os.PathLike[str]
SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".onnx")
INDEX = ".safetensors.index.json"


def find_batch(source: PathLike | Sequence[PathLike]) -> list[str] | None:
    """Return the files of a folder, a glob or a sequence; None when `source` is one file.

    In a folder, an index stands for its shards: they are no files of their own.
    """
    if not isinstance(source, str | os.PathLike):
        files = [os.fspath(path) for path in source]
        if not files:
            raise InvalidArgument("wanted weight files, got none")
        return list(dict.fromkeys(files))
    path = os.fspath(source)
    if os.path.isdir(path):
        files = _weight_files([os.path.join(path, name) for name in sorted(os.listdir(path))])
        if not files:
            raise FormatError(f"{path}: the folder has no {', '.join(SUFFIXES)} files")
        return files
    if os.path.exists(path) or not glob.has_magic(path):
        return None
    files = _weight_files(sorted(glob.glob(path, recursive=True)))
    if not files:
        raise FormatError(f"{path}: matches no weight files")
    return files


def _weight_files(paths: Sequence[str]) -> list[str]:
    found = [p for p in paths if p.lower().endswith((*SUFFIXES, INDEX)) and os.path.isfile(p)]
    # The shards of model.safetensors.index.json are model-00001-of-00002.safetensors and so on.
    stems = [p[: -len(INDEX)] + "-" for p in found if p.lower().endswith(INDEX)]
    return [p for p in found if p.lower().endswith(INDEX) or not any(_is_shard(p, stem) for stem in stems)]


def _is_shard(path: str, stem: str) -> bool:
    rest = path.removeprefix(stem).removesuffix(".safetensors")
    first, _, last = rest.partition("-of-")
    return path.startswith(stem) and first.isdigit() and last.isdigit()


def result_name(path: str) -> str:
    """Return the name of the result for a source."""
    name = os.path.basename(path)
    if name.lower().endswith(INDEX):
        return name[: -len(INDEX)] + ".safetensors"
    return os.path.splitext(name)[0] + ".safetensors"


def quantize_batch(files: Sequence[str], folder: PathLike, one: Callable[[str, str], WeightsResult]) -> WeightsBatch:
    """Quantize each file into `folder`; one that fails does not stop the others.

    Raises
    ------
    InvalidArgument, OutputError
        Before anything is written: two sources with one name, or a folder that cannot be made.
    QuantkitError
        Of the first source, when every source failed.
    """
    where = os.fspath(folder)
    names: dict[str, str] = {}
    for path in files:
        name = result_name(path)
        if name in names:
            raise InvalidArgument(f"{names[name]} and {path} would both become {name}; quantize them into two folders")
        names[name] = path
    made = not os.path.isdir(where)
    try:
        os.makedirs(where, exist_ok=True)
    except OSError as e:
        raise OutputError(f"cannot make the folder {where}: {e.strerror or e}") from None
    results, failed = [], dict[str, QuantkitError]()
    for name, path in names.items():
        try:
            results.append(one(path, os.path.join(where, name)))
        except QuantkitError as error:
            failed[path] = error
    if not results:
        if made:
            _remove_empty(where)
        if len(failed) == 1:
            raise next(iter(failed.values()))
    return WeightsBatch(tuple(results), failed)


def _remove_empty(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder)
