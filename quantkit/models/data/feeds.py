"""Calibration and validation data: whatever the user has, as one stream of feeds.

Sources: a folder of images or of shards of them (a path, a URL or opened), an .npz or .npy file or a folder of them, a
mapping ``{input: array}`` with samples along axis 0, and any sequence, iterable or callable of ``{input: array}``. One
batch is alive at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantkit.errors import CalibrationError
from quantkit.files import file_problem
from quantkit.files.urls import is_url, plain_path
from quantkit.models.data.array_files import ArrayFolder, ArrayStore, Labels, is_array_file
from quantkit.models.data.spool import SequenceStore, SpoolStore
from quantkit.models.inputs import Feed, InputSpec

if TYPE_CHECKING:
    from quantkit.images import Recipe

__all__ = ["Feed", "FeedSource", "InputSpec", "open_data"]


class Store(Protocol):
    """Samples that can be read by number, in ascending order."""

    where: str
    count: int
    skipped: dict[str, str]

    @property
    def has_labels(self) -> bool: ...
    @property
    def notes(self) -> list[str]: ...
    def pick(self, count: int, seed: int) -> NDArray[np.int64]: ...
    def feeds(self, indices: Sequence[int]) -> Iterator[tuple[Feed, Labels]]: ...


class FeedSource:
    """A re-iterable stream of feeds that fit the model, one alive at a time.

    ``len()`` is the number of samples; images are batched where the model fixes its batch size, so that there can be
    fewer feeds than samples.
    """

    def __init__(self, store: Store, indices: ArrayLike, seed: int = 0, notes: Sequence[str] = ()) -> None:
        self._store, self._seed, self._notes = store, seed, list(notes)
        self._indices = np.asarray(indices, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The numbers of the samples in the whole source, int64."""
        return self._indices

    def __iter__(self) -> Iterator[Feed]:
        return (feed for feed, _ in self.labelled())

    def labelled(self) -> Iterator[tuple[Feed, Labels]]:
        """Yield each feed with the true classes of its rows (int32, -1 = unknown), or None where there are none."""
        return self._store.feeds(self._indices.tolist())

    def take(self, indices: ArrayLike) -> FeedSource:
        """Return the source of some of the samples, by their numbers in this one."""
        return FeedSource(self._store, self._indices[np.asarray(indices, dtype=np.int64)], self._seed)

    @property
    def where(self) -> str:
        """What errors call this source: a path, or what kind of Python object it is."""
        return self._store.where

    @property
    def batch(self) -> int:
        """How many samples a feed has, where images are batched."""
        return getattr(self._store, "batch", 1)

    @property
    def recipe(self) -> Recipe | None:
        """How images were prepared; None where there are none."""
        return getattr(self._store, "recipe", None)

    @property
    def has_labels(self) -> bool:
        """Whether the samples come with their true class."""
        return self._store.has_labels

    @property
    def class_count(self) -> int | None:
        """How many class folders there are; None where classes come as numbers or not at all."""
        return getattr(self._store, "class_count", None)

    @property
    def notes(self) -> list[str]:
        """What the user should hear about the data: conversions, keys left out."""
        return [*self._store.notes, *self._notes]

    @property
    def skipped(self) -> dict[str, str]:
        """Files of the whole source that could not be read so far, and why."""
        return self._store.skipped

    def split(
        self, held_out_fraction: float = 0.25, at_least: int = 8, at_most: int = 256
    ) -> tuple[FeedSource, FeedSource]:
        """Split into samples to calibrate with and samples held out for verification only.

        A quarter is held out, from 8 to 256, but never more than half. The choice depends on the number of samples
        and the seed alone; image folders are held out evenly over their classes. A single sample serves for both,
        with a note.

        Returns
        -------
        calibration, held_out : FeedSource
        """
        n = len(self)
        if n == 1:
            note = "there is a single sample: agreement is measured on the sample that calibrated the ranges"
            return self, FeedSource(self._store, self._indices, self._seed, [note])
        held = min(max(round(n * held_out_fraction), at_least), at_most, n // 2)
        if n == self._store.count:
            chosen = self._store.pick(held, self._seed)
        else:
            chosen = np.sort(np.random.default_rng(self._seed).choice(self._indices, held, replace=False))
        rest = np.setdiff1d(self._indices, chosen)
        return FeedSource(self._store, rest, self._seed), FeedSource(self._store, chosen, self._seed)


def open_data(
    source: Any,
    inputs: Sequence[InputSpec],
    *,
    recipe: Recipe | str | None = None,
    limit: int | None = None,
    seed: int = 0,
    model: str = "the model",
) -> FeedSource:
    """Open calibration or validation data for a model with the given inputs.

    Parameters
    ----------
    source : path, mapping, sequence, iterable or callable
        - a folder of images (read with `recipe`) or the shards that `process_images` made of one, as a path, a URL,
          or opened (`ImageFolder`, `open_images`); a folder of .npz and .npy files;
        - an .npz file (key = input name) or an .npy file (models of one input). One dimension more than the input:
          samples along axis 0, each fed as it is; as many dimensions as the input: one sample, or where the model
          leaves its batch open and the file is alone, a sample for each row. The key ``labels`` may hold the true
          classes;
        - a mapping ``{input: array}``, read as an .npz file;
        - a sequence of ``{input: array}``; any other iterable of them, a callable that returns one, or an object with
          ``get_next()``, each read once into a temporary file.
    inputs : sequence of InputSpec
    recipe : Recipe or str, optional
        How to prepare images: a recipe, or the name of a preset.
    limit : int, optional
        Use at most this many samples, chosen by `seed`, evenly over the classes of an image folder; of an iterable,
        the first ones.
    seed : int, default 0
    model : str
        What errors call the model.

    Returns
    -------
    FeedSource

    Raises
    ------
    CalibrationError
        Naming the source, the input, what was wanted and what came.
    """
    if not inputs:
        raise CalibrationError(f"{model} has no inputs, so there is nothing to feed")
    if limit is not None and limit < 1:
        raise CalibrationError(f"at least 1 sample is needed, got a limit of {limit}")
    by_name = {spec.name: spec for spec in inputs}
    if isinstance(source, (str, os.PathLike)):
        place = plain_path(source)
        store: Store = _open_url(place, by_name, recipe) if is_url(place) else _open_path(Path(place), by_name, recipe)
    else:
        store = _open_python(source, by_name, recipe, limit)
    notes = _preset_notes(recipe) if getattr(store, "recipe", None) is None else []
    if limit is not None and limit < store.count:
        return FeedSource(store, store.pick(limit, seed), seed, notes)
    return FeedSource(store, np.arange(store.count), seed, notes)


def _preset_notes(recipe: Recipe | str | None) -> list[str]:
    """Say that a preset that was asked for by name prepares nothing here; an unknown name is an error all the same."""
    if not isinstance(recipe, str):
        return []
    from quantkit.images import get_recipe

    get_recipe(recipe)
    return [f"preset {recipe!r} was not used: it prepares images, and the data are arrays"]


def _open_url(url: str, inputs: Mapping[str, InputSpec], recipe: Recipe | str | None) -> Store:
    from quantkit.models.data.image_data import ImageStore

    if is_array_file(Path(url)):
        raise CalibrationError(f"{url}: arrays are read from this machine; copy the file here")
    return ImageStore(url, inputs, recipe)


def _open_path(path: Path, inputs: Mapping[str, InputSpec], recipe: Recipe | str | None) -> Store:
    if path.is_file():
        if is_array_file(path):
            return ArrayStore.from_file(path, inputs)
        raise CalibrationError(f"{path}: is neither a folder nor an .npz or .npy file")
    if not path.is_dir():
        problem = file_problem(path) if path.exists() else "no such file or folder"
        raise CalibrationError(f"{path}: {problem}")
    try:
        entries = sorted(path.iterdir())
    except OSError as error:
        raise CalibrationError(f"{path}: cannot be listed: {error.strerror or error}") from None
    if not entries:
        raise CalibrationError(f"{path}: the folder is empty")
    from quantkit.models.data.image_data import ImageStore, holds_shards

    if holds_shards(path):  # asked first, because shards can be .npy files
        return ImageStore(path, inputs, recipe)
    arrays = [entry for entry in entries if is_array_file(entry) and entry.is_file()]
    if arrays:
        return ArrayFolder(path, arrays, inputs)
    return ImageStore(path, inputs, recipe)


def _open_python(source: Any, inputs: Mapping[str, InputSpec], recipe: Recipe | str | None, limit: int | None) -> Store:
    from quantkit.models.data.image_data import ImageStore, opened_images

    kind = type(source).__name__
    images = opened_images(source)
    if images is not None:
        return ImageStore(images, inputs, recipe)
    if isinstance(source, Mapping):
        return ArrayStore.from_mapping(source, inputs, kind)
    if isinstance(source, np.ndarray):
        if len(inputs) != 1:
            raise CalibrationError(f"an array feeds one input, but the model has {', '.join(map(repr, inputs))}")
        return ArrayStore.from_mapping({next(iter(inputs)): source}, inputs, "array")
    if isinstance(source, Sequence) and not isinstance(source, (str, bytes, bytearray)):
        return SequenceStore(source, inputs, kind)
    if callable(getattr(source, "get_next", None)):
        return SpoolStore(_until_none(source.get_next), inputs, kind, limit, once=True)
    if callable(source) and not isinstance(source, Iterable):
        source = source()
    if not isinstance(source, Iterable) or isinstance(source, (str, bytes, bytearray)):
        raise CalibrationError(
            f"wanted a path, a mapping, or an iterable or callable of {{input: array}}, got {type(source).__name__}"
        )
    return SpoolStore(source, inputs, kind, limit, once=isinstance(source, Iterator))


def _until_none(get_next: Callable[[], Any]) -> Iterator[Any]:
    while (feed := get_next()) is not None:
        yield feed
