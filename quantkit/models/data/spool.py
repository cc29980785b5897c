"""Feeds that come from Python: sequences, and iterables that can be read only once.

A sequence is indexed whenever a sample is wanted. Everything else (a generator, a loader that shuffles, a calibration
data reader) is read exactly once, into an unnamed temporary file, so that calibration and verification see the same
samples in every pass and memory holds one of them at a time.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from quantkit.errors import CalibrationError, OutputError
from quantkit.models.data.array_files import Labels
from quantkit.models.inputs import LABELS, Feed, InputSpec, add_note, fit_feed


def _pick(available: int, count: int, seed: int) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng(seed).choice(available, count, replace=False))


def _labels(feed: Any, inputs: Mapping[str, InputSpec], where: str) -> Labels:
    if not isinstance(feed, Mapping) or LABELS in inputs or feed.get(LABELS) is None:
        return None
    labels = np.atleast_1d(np.asarray(feed[LABELS])).ravel()
    if labels.dtype.kind not in "iu":
        raise CalibrationError(f"{where}: {LABELS!r} must be integers, got {labels.dtype.name}")
    return labels.astype(np.int32)


class SequenceStore:
    """A sequence of feeds, indexed anew in every pass."""

    def __init__(self, feeds: Sequence[Any], inputs: Mapping[str, InputSpec], where: str) -> None:
        self.where, self.count = where, len(feeds)
        self.notes: list[str] = []
        self.skipped: dict[str, str] = {}
        self._feeds, self._inputs = feeds, inputs
        if not self.count:
            raise CalibrationError(f"{where}: holds no samples")
        # The first sample is checked now, so that a wrong name or shape is known before any work.
        first = feeds[0]
        fit_feed(first, inputs, f"{where}, sample 0", self.notes)
        self.has_labels = _labels(first, inputs, where) is not None

    def pick(self, count: int, seed: int) -> NDArray[np.int64]:
        """Return `count` sorted sample numbers, chosen by `seed`."""
        return _pick(self.count, count, seed)

    def feeds(self, indices: Sequence[int]) -> Iterator[tuple[Feed, Labels]]:
        """Yield the samples of the given numbers, with their labels."""
        for i in indices:
            where = f"{self.where}, sample {i}"
            feed = self._feeds[i]
            yield fit_feed(feed, self._inputs, where, self.notes), _labels(feed, self._inputs, where)


class SpoolStore:
    """Feeds of an iterable, read once into an unnamed temporary file.

    Parameters
    ----------
    feeds : iterable of {input: array}
    inputs : mapping of str to InputSpec
    where : str
        What errors call the source.
    limit : int, optional
        Read no more than this many, so that an endless generator is fine.
    once : bool
        Whether the iterable could not have been read a second time; noted.

    Raises
    ------
    CalibrationError
        For an iterable that yields nothing, or a feed that does not fit.
    OutputError
        When the temporary file cannot be written.
    """

    def __init__(
        self, feeds: Iterable[Any], inputs: Mapping[str, InputSpec], where: str, limit: int | None, once: bool
    ) -> None:
        self.where = where
        self.notes: list[str] = []
        self.skipped: dict[str, str] = {}
        self._inputs = inputs
        self._offsets: list[int] = []
        self._labels: list[Labels] = []
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="quantkit-")  # noqa: SIM115 - lives as long as the store
        weakref.finalize(self, self._file.close)
        if limit is None or limit > 0:
            for i, feed in enumerate(feeds):
                self._append(feed, f"{where}, sample {i}")
                if i + 1 == limit:
                    break
        self.count = len(self._offsets)
        if not self.count:
            raise CalibrationError(f"{where}: yielded no samples")
        self.has_labels = all(labels is not None for labels in self._labels)
        if once:
            add_note(
                self.notes,
                f"{where} can be read only once: its {self.count} samples were kept in a temporary file "
                f"({self._file.tell() / 1e6:.1f} MB)",
            )

    def _append(self, feed: Any, where: str) -> None:
        fitted = fit_feed(feed, self._inputs, where, self.notes)
        self._labels.append(_labels(feed, self._inputs, where))
        try:
            self._offsets.append(self._file.tell())
            for array in fitted.values():
                # Strings are kept with a fixed width: object arrays would need pickle. bfloat16 as its bits.
                plain = array.astype(np.str_) if array.dtype.kind == "O" else array
                plain = plain.view(np.uint16) if plain.dtype.name == "bfloat16" else plain
                np.lib.format.write_array(self._file, plain, allow_pickle=False)
        except OSError as error:
            raise OutputError(
                f"{tempfile.gettempdir()}: cannot keep the samples of {self.where} in a temporary file: "
                f"{error.strerror or error}; set TMPDIR to a folder with room"
            ) from None

    def pick(self, count: int, seed: int) -> NDArray[np.int64]:
        """Return `count` sorted sample numbers, chosen by `seed`."""
        return _pick(self.count, count, seed)

    def feeds(self, indices: Sequence[int]) -> Iterator[tuple[Feed, Labels]]:
        """Yield the samples of the given numbers, with their labels."""
        for i in indices:
            self._file.seek(self._offsets[i])
            feed: Feed = {}
            for name, spec in self._inputs.items():
                array = np.lib.format.read_array(self._file, allow_pickle=False)
                feed[name] = array.view(spec.dtype) if spec.dtype.name == "bfloat16" else array.astype(spec.dtype)
            yield feed, self._labels[i]
