"""Samples in .npz and .npy files and in mappings of arrays, one sample in memory at a time.

An .npz member is read as a stream, sample by sample, compressed or not; an .npy file is mapped.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from quantkit.errors import CalibrationError
from quantkit.models.inputs import (
    LABELS,
    Feed,
    InputSpec,
    add_note,
    check_dtype,
    check_names,
    check_shape,
    convert,
    is_batch,
    note_nonfinite,
)

Labels = NDArray[np.int32] | None


@dataclass
class _Part:
    """The samples of one input: an array in memory or mapped, or a member of an .npz file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    array: NDArray[Any] | None = None
    member: str = ""
    fortran: bool = False
    per_sample: bool = False  # whether axis 0 counts samples

    def reader(self, path: Path, stack: ExitStack) -> Any:
        """Return a function that reads sample `i`, or the whole where axis 0 does not count samples."""
        array = self.array
        if array is None and (self.fortran or not self.per_sample):
            with zipfile.ZipFile(path) as archive, archive.open(self.member) as stream:
                array = np.lib.format.read_array(cast(Any, stream), allow_pickle=False)
        if array is not None:
            whole = array.reshape(self.shape)
            return (lambda i: whole[i]) if self.per_sample else (lambda i: whole)
        stream = stack.enter_context(stack.enter_context(zipfile.ZipFile(path)).open(self.member))
        _read_header(stream)
        start, shape, dtype = stream.tell(), self.shape[1:], self.dtype
        size = prod(shape) * dtype.itemsize

        def read(i: int) -> NDArray[Any]:
            stream.seek(start + i * size)
            data = stream.read(size)
            if len(data) != size:
                raise EOFError(f"{self.member} ends early")
            return np.frombuffer(data, dtype).reshape(shape)

        return read


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(cast(Any, stream))
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(cast(Any, stream))
    return np.lib.format.read_array_header_2_0(cast(Any, stream))


_BAD_FILE = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, KeyError, NotImplementedError)


def _bad(where: str, error: BaseException) -> CalibrationError:
    return CalibrationError(f"{where}: cannot be read as NumPy data: {str(error) or type(error).__name__}")


def is_array_file(path: Path) -> bool:
    """Whether the name of `path` says that it holds NumPy arrays."""
    return path.suffix.lower() in {".npz", ".npy"}


class ArrayStore:
    """Samples held as one array an input, from one file or one mapping.

    Attributes
    ----------
    where : str
        What errors call the source.
    count : int
        Number of samples.
    notes : list of str
        What the user should hear: conversions, keys left out.
    """

    def __init__(
        self, where: str, path: Path, parts: dict[str, _Part], inputs: Mapping[str, InputSpec], *, alone: bool = True
    ) -> None:
        self.where, self.notes = where, list[str]()
        self.skipped: dict[str, str] = {}
        self._path, self._inputs, self._alone = path, inputs, alone
        check_names(inputs, list(parts), where, self.notes)
        self._parts = {name: parts[name] for name in inputs}
        self._labels = parts.get(LABELS) if LABELS not in inputs else None
        self.count = self._count()
        if self._labels is not None:
            self._check_labels(self._labels)

    @classmethod
    def from_file(cls, path: Path, inputs: Mapping[str, InputSpec], *, alone: bool = True) -> ArrayStore:
        """Open an .npz file, or an .npy file for a model of one input, reading headers only.

        A file that is `alone`, not one of many, may hold its samples as the rows of one batch.
        """
        where = str(path)
        try:
            with path.open("rb") as stream:
                magic = stream.read(6)
            if magic == b"\x93NUMPY":
                if len(inputs) != 1:
                    names = ", ".join(map(repr, inputs))
                    raise CalibrationError(
                        f"{where}: an .npy file feeds one input, but the model has {len(inputs)} ({names}); use .npz"
                    )
                array = np.load(path, mmap_mode="r", allow_pickle=False)
                return cls(
                    where, path, {next(iter(inputs)): _Part(array.shape, array.dtype, array)}, inputs, alone=alone
                )
            if not magic.startswith(b"PK"):
                raise CalibrationError(f"{where}: is neither an .npz nor an .npy file")
            parts = {}
            with zipfile.ZipFile(path) as archive:
                for member in archive.namelist():
                    if member.endswith(".npy"):
                        with archive.open(member) as stream:
                            shape, fortran, dtype = _read_header(stream)
                        parts[member[:-4]] = _Part(shape, dtype, member=member, fortran=fortran)
        except CalibrationError:
            raise
        except _BAD_FILE as error:
            raise _bad(where, error) from None
        for key, part in parts.items():
            if part.dtype.hasobject and (key in inputs or key == LABELS):
                raise CalibrationError(f"{where}: {key!r} holds pickled Python objects, which are not loaded")
        return cls(where, path, parts, inputs, alone=alone)

    @classmethod
    def from_mapping(cls, arrays: Mapping[str, Any], inputs: Mapping[str, InputSpec], where: str) -> ArrayStore:
        """Take ``{input: array}`` with the samples along axis 0, as an .npz file holds them."""
        parts = {}
        for key, value in arrays.items():
            array = np.asarray(value)
            parts[str(key)] = _Part(array.shape, array.dtype, array)
        return cls(where, Path(), parts, inputs)

    def _count(self) -> int:
        counts: dict[str, int] = {}
        for name, spec in self._inputs.items():
            part = self._parts[name]
            part.per_sample = spec.rank is not None and len(part.shape) == spec.rank + 1
            if part.per_sample:
                counts[name] = part.shape[0]
        for name, spec in self._inputs.items():
            # An input of unknown rank has samples in front exactly when that fits every other input.
            part = self._parts[name]
            if spec.rank is None and part.shape and {part.shape[0]} == set(counts.values()):
                part.per_sample = True
            note = check_dtype(spec, part.dtype, part.shape, self.where)
            add_note(self.notes, note)
            check_shape(spec, part.dtype, part.shape[1:] if part.per_sample else part.shape, self.where)
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name!r} has {n}" for name, n in counts.items())
            raise CalibrationError(f"{self.where}: the inputs differ in their number of samples: {listed}")
        if not counts and self._alone:
            counts = self._split_rows()
        count = next(iter(counts.values()), 1)
        if count == 0:
            raise CalibrationError(f"{self.where}: holds no samples (axis 0 has length 0)")
        return count

    def _split_rows(self) -> dict[str, int]:
        """Take the rows of a single sample as samples, where the model leaves its batch open; return their number."""
        parts, specs = self._parts, self._inputs
        if not all(part.shape and specs[name].rank == len(part.shape) for name, part in parts.items()):
            return {}
        lengths = {part.shape[0] for part in parts.values()}
        batch = {shape[0] for name in parts if (shape := specs[name].shape)}
        if len(lengths) > 1 or min(lengths) < 2 or len(batch) != 1 or not is_batch(batch.pop(), len(parts)):
            return {}
        (length,) = lengths
        for part in parts.values():
            part.per_sample, part.shape = True, (length, 1, *part.shape[1:])
        names = ", ".join(map(repr, parts))
        add_note(
            self.notes,
            f"{self.where}: {names}: the {length} rows along axis 0 were taken as {length} samples, because the model "
            f"leaves that axis open; for one sample of {length} rows, add a dimension in front: (1, {length}, ...)",
        )
        return dict.fromkeys(parts, length)

    def _check_labels(self, part: _Part) -> None:
        rows = [self._parts[name].per_sample for name in self._parts]
        part.per_sample = any(rows)
        lengths = part.shape[:1] if part.per_sample else (1,)
        if part.dtype.kind not in "iu" or lengths != (self.count,):
            self._labels = None
            wanted = f"{self.count} integer{'s' if self.count > 1 else ''}"
            add_note(
                self.notes,
                f"{self.where}: {LABELS!r} was left out: wanted {wanted}, got {part.dtype.name}{list(part.shape)}",
            )

    @property
    def has_labels(self) -> bool:
        """Whether samples come with their true class."""
        return self._labels is not None

    def pick(self, count: int, seed: int) -> NDArray[np.int64]:
        """Return `count` sorted sample numbers, chosen by `seed`."""
        return np.sort(np.random.default_rng(seed).choice(self.count, count, replace=False))

    def feeds(self, indices: Sequence[int]) -> Iterator[tuple[Feed, Labels]]:
        """Yield the samples of the given ascending numbers, with their labels."""
        with ExitStack() as stack:
            try:
                readers = {name: part.reader(self._path, stack) for name, part in self._parts.items()}
                labels = self._labels.reader(self._path, stack) if self._labels is not None else None
            except _BAD_FILE as error:
                raise _bad(self.where, error) from None
            for i in indices:
                where = f"{self.where}, sample {i}"
                try:
                    arrays = {name: np.asarray(read(int(i))) for name, read in readers.items()}
                    truth = None if labels is None else np.atleast_1d(labels(int(i))).ravel().astype(np.int32)
                except _BAD_FILE as error:
                    raise _bad(where, error) from None
                feed = {name: convert(self._inputs[name], array, where) for name, array in arrays.items()}
                for name, array in feed.items():
                    note_nonfinite(self._inputs[name], array, where, self.notes)
                yield feed, truth


class ArrayFolder:
    """The samples of every .npz and .npy file in one folder, in the order of their names."""

    def __init__(self, folder: Path, files: Sequence[Path], inputs: Mapping[str, InputSpec]) -> None:
        self.where = str(folder)
        self.skipped: dict[str, str] = {}
        self._stores = [ArrayStore.from_file(path, inputs, alone=False) for path in files]
        self._starts = np.cumsum([0] + [store.count for store in self._stores])
        self.count = int(self._starts[-1])
        self.has_labels = all(store.has_labels for store in self._stores)

    @property
    def notes(self) -> list[str]:
        """Notes of all files, each once."""
        return list(dict.fromkeys(note for store in self._stores for note in store.notes))

    def pick(self, count: int, seed: int) -> NDArray[np.int64]:
        """Return `count` sorted sample numbers, chosen by `seed`."""
        return np.sort(np.random.default_rng(seed).choice(self.count, count, replace=False))

    def feeds(self, indices: Sequence[int]) -> Iterator[tuple[Feed, Labels]]:
        """Yield the samples of the given ascending numbers, with their labels."""
        wanted = np.asarray(indices, dtype=np.int64)
        for store, start, stop in zip(self._stores, self._starts[:-1], self._starts[1:], strict=True):
            mine = wanted[(wanted >= start) & (wanted < stop)] - start
            if mine.size:
                yield from store.feeds(mine.tolist())
