"""Where predictions go: .csv and .jsonl hold the best classes, .npz every output."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantkit.errors import InvalidArgument, ModelError, OutputError
from quantkit.files import atomic_write

FORMATS = (".csv", ".jsonl", ".npz")
_OWN = (
    "path",
    "label",
    "classes",
    "errors",
)  # members of an .npz file; an output of that name gets "output." before it


class Row(NamedTuple):
    """An image: its path, the class of its folder (-1: none), and why it could not be read."""

    path: str
    label: int
    error: str | None


class Writer(ABC):
    """Takes rows and the outputs for those without an error, batch by batch.

    Attributes
    ----------
    correct, labelled : int
    rows : list of dict
    """

    def __init__(self) -> None:
        self.correct = self.labelled = 0
        self.rows: list[dict[str, Any]] = []

    @abstractmethod
    def write(self, rows: Sequence[Row], outputs: Sequence[NDArray[Any]]) -> None:
        """Take a batch."""


class Scores:
    """The best classes of each image, by the first output."""

    def __init__(self, output: str, classes: Sequence[str], names: Sequence[str] | None, top: int) -> None:
        self._output, self.classes, self._given, self._top = output, classes, names, top
        self._names: Sequence[str] | None = None
        self._judged = False

    def columns(self) -> int:
        """Return how many classes a row has."""
        return self._top

    def check(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Return scores as (n, classes); the first call fixes the number of classes.

        Raises
        ------
        InvalidArgument
            When they are no class scores, or the names are too few or too many.
        """
        flat = scores.reshape(scores.shape[0], -1)
        if scores.dtype.kind not in "fiu" or flat.shape[1] != max(scores.shape[1:], default=0) or flat.shape[1] < 2:
            raise InvalidArgument(
                f"output {self._output!r} is {scores.dtype} of shape {list(scores.shape)}, which is no score for each "
                "class; write an .npz file, which holds outputs of every kind"
            )
        count = flat.shape[1]
        if self._names is None:
            if self._given is not None and len(self._given) != count:
                raise InvalidArgument(f"the model has {count} classes, but {len(self._given)} names were given")
            self._judged = len(self.classes) == count
            fallback = self.classes if self._judged else [str(i) for i in range(count)]
            self._names = self._given or fallback
            self._top = min(self._top, count)
        return flat

    def best(self, scores: NDArray[Any]) -> list[dict[str, Any]]:
        """Return the best classes of one row, the lower number first where scores are equal."""
        names = self._names or []
        order = np.argsort(-scores.astype(np.float64), kind="stable")[: self._top]
        return [{"class": names[i], "index": int(i), "score": float(scores[i])} for i in order]

    def judge(self, writer: Writer, rows: Sequence[Row], flat: NDArray[Any]) -> None:
        """Count decisions that agree with the folders, where the folders are the model's classes."""
        if not self._judged:
            return
        for row, scores in zip(rows, flat, strict=True):
            if row.label >= 0:
                writer.labelled += 1
                writer.correct += int(np.argmax(scores)) == row.label


class _Ranked(Writer):
    """One line or mapping a row."""

    def __init__(self, scores: Scores, file: Any, form: str) -> None:
        super().__init__()
        self._scores, self._file, self._form = scores, file, form
        self._waiting: list[Row] = []  # failures before the first output tells how many classes there are
        self._begun = False

    def write(self, rows: Sequence[Row], outputs: Sequence[NDArray[Any]]) -> None:
        flat = self._scores.check(outputs[0]) if outputs else np.empty((0, 0))
        self._scores.judge(self, [row for row in rows if row.error is None], flat)
        if not outputs and not self._begun:
            self._waiting += rows
            return
        rows, self._waiting = [*self._waiting, *rows], []
        found = iter(flat)
        self._emit([(row, [] if row.error is not None else self._scores.best(next(found))) for row in rows])

    def finish(self) -> None:
        """Write what is left when no image could be read."""
        self._emit([(row, []) for row in self._waiting])

    def _label(self, row: Row) -> str | None:
        return self._scores.classes[row.label] if row.label >= 0 else None

    def _emit(self, rows: list[tuple[Row, list[dict[str, Any]]]]) -> None:
        text = io.StringIO()
        if self._form == ".csv":
            lines = csv.writer(text, lineterminator="\n")
            width = self._scores.columns()
            if not self._begun:
                ranks = [name for k in range(1, width + 1) for name in (f"class_{k}", f"score_{k}")]
                lines.writerow(["path", "label", "error", *ranks])
            for row, best in rows:
                cells = [cell for item in best for cell in (item["class"], f"{item['score']:.9g}")]
                cells += [""] * (2 * width - len(cells))
                lines.writerow([row.path, self._label(row) or "", row.error or "", *cells])
        else:
            made = [
                {"path": row.path, "label": self._label(row), "error": row.error, "top": best} for row, best in rows
            ]
            if self._file is None:
                self.rows += made
            else:
                text.writelines(json.dumps(item) + "\n" for item in made)
        self._begun = True
        if self._file is not None:
            # Names that are not UTF-8 go into a .csv file as the bytes that they are.
            self._file.write(text.getvalue().encode("utf-8", "surrogateescape"))


class _Archive(Writer):
    """Every output whole: spooled to temporary files, so that memory does not grow with the images."""

    def __init__(
        self, names: Sequence[str], classes: Sequence[str], scores: Scores, spools: Sequence[IO[bytes]]
    ) -> None:
        super().__init__()
        self._names, self._classes, self._scores = names, classes, scores
        self._paths: list[str] = []
        self._labels: list[int] = []
        self._errors: list[str] = []
        self._spools = spools
        self._shapes: list[tuple[int, ...] | None] = [None] * len(names)
        self._dtypes: list[np.dtype[Any]] = [np.dtype(np.float32)] * len(names)

    def write(self, rows: Sequence[Row], outputs: Sequence[NDArray[Any]]) -> None:
        good = [row for row in rows if row.error is None]
        self._paths += [row.path for row in good]
        self._labels += [row.label for row in good]
        self._errors += [f"{row.path}: {row.error}" for row in rows if row.error is not None]
        for k, value in enumerate(outputs):
            if self._shapes[k] is None:
                if value.dtype.hasobject:
                    raise ModelError(f"output {self._names[k]!r} holds text, which an .npz file does not")
                self._shapes[k], self._dtypes[k] = value.shape[1:], value.dtype
            if value.shape[1:] != self._shapes[k]:
                raise ModelError(
                    f"output {self._names[k]!r} has another shape for {good[0].path}: {list(value.shape[1:])} instead "
                    f"of {list(self._shapes[k] or ())}; an .npz file holds one"
                )
            try:
                self._spools[k].write(np.ascontiguousarray(value).data)
            except OSError as e:
                raise OutputError(f"cannot write the outputs to a temporary file: {e.strerror}") from e
        if outputs:
            try:
                flat = self._scores.check(outputs[0])
            except InvalidArgument:
                return  # no class scores: nothing to judge
            self._scores.judge(self, good, flat)

    def finish(self, file: Any) -> None:
        """Write the archive."""
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            texts = (self._paths, self._classes, self._errors)
            paths, classes, errors = (np.array(part, dtype=np.str_) for part in texts)
            own = (paths, np.array(self._labels, np.int32), classes, errors)
            for name, array in zip(_OWN, own, strict=True):
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
            for name, spool, shape, dtype in zip(self._names, self._spools, self._shapes, self._dtypes, strict=True):
                member_name = f"output.{name}" if name in _OWN else name
                with archive.open(f"{member_name}.npy", "w", force_zip64=True) as member:
                    header = {
                        "descr": np.lib.format.dtype_to_descr(dtype),
                        "fortran_order": False,
                        "shape": (len(self._paths), *(shape or ())),
                    }
                    np.lib.format.write_array_header_1_0(member, header)
                    spool.seek(0)
                    while block := spool.read(1 << 20):
                        member.write(block)


@contextmanager
def open_writer(
    path: str | None, outputs: Sequence[str], classes: Sequence[str], names: Sequence[str] | None, top: int
) -> Iterator[Writer]:
    """Open the writer for a file by its suffix; None keeps the rows. The file appears when the block ends.

    Parameters
    ----------
    path : str or None
    outputs : sequence of str
        Names of the model's outputs.
    classes : sequence of str
        Of the folder.
    names : sequence of str, optional
        Of the model's classes.
    top : int

    Raises
    ------
    OutputError
        When the file cannot be written.
    """
    scores = Scores(outputs[0], classes, names, top)
    if path is None:
        writer = _Ranked(scores, None, "")
        yield writer
        writer.finish()
        return
    form = os.path.splitext(path)[1].lower()
    with ExitStack() as stack:
        file = stack.enter_context(atomic_write(path))
        if form == ".npz":
            folder = os.path.dirname(os.path.realpath(path))
            spools = [stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in outputs]
            archive = _Archive(outputs, classes, scores, spools)
            yield archive
            archive.finish(file)
        else:
            writer = _Ranked(scores, file, form)
            yield writer
            writer.finish()
