"""`ImageFolder`: the images below a folder, or in a list, as a model's inputs."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit.errors import FormatError, InvalidArgument
from quantkit.images.decode import shown
from quantkit.images.pipeline import read_codes, read_values
from quantkit.images.presets import get_recipe
from quantkit.images.walk import PathTable, is_hidden, walk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from quantkit.images.recipe import Recipe


class ImageFolder:
    """The images below a folder, or of a list of files, through one recipe.

    Parameters
    ----------
    source : path-like, or iterable of path-like
        A folder is walked in the order of `walk`; the folders right below it are classes. A file, or each file of
        an iterable, is taken as it stands, without a class.
    recipe : Recipe, str or path-like
        As `get_recipe` takes it.

    Attributes
    ----------
    paths : sequence of str
    classes : tuple of str
        Names of the folders right below `source`, bytewise; also of those that hold no image. Empty where no image
        lies in one.
    labels : ndarray of int32, shape (len,)
        Index into `classes`; -1 for images that lie in none.
    skipped : dict of str to int
        How many entries were left out, by reason.

    Raises
    ------
    FormatError
        When the folder cannot be listed or holds no image.
    InvalidArgument
        When `source` is neither a path nor an iterable of paths, or the recipe is unknown.
    """

    def __init__(self, source: Any, recipe: Recipe | str | os.PathLike[str]) -> None:
        self.recipe = get_recipe(recipe)
        self.classes: tuple[str, ...] = ()
        self.skipped: dict[str, int] = {}
        if isinstance(source, (str, os.PathLike)):
            if os.path.isfile(source):
                self._take([source])
            else:
                self._walk(os.fspath(source))
        elif isinstance(source, Iterable) and not isinstance(source, (bytes, bytearray, dict)):
            self._take(source)
        else:
            raise InvalidArgument(f"wanted a folder, a file or a list of files, got {type(source).__name__}")

    def _take(self, files: Iterable[Any]) -> None:
        self.paths = PathTable()
        for file in files:
            if not isinstance(file, (str, os.PathLike)):
                raise InvalidArgument(f"wanted a list of paths, got one with {type(file).__name__}")
            try:
                self.paths.append(os.fsencode(file))
            except UnicodeEncodeError:
                raise InvalidArgument(f"{file!r} cannot be the name of a file") from None
        if not self.paths:
            raise FormatError("wanted images, got an empty list of files")
        self.labels: NDArray[np.int32] = np.full(len(self.paths), -1, np.int32)

    def _walk(self, root: str) -> None:
        self.paths = PathTable(root)
        tops: dict[bytes, int] = {}
        labels = array("i")
        skipped: Counter[str] = Counter()
        for found in walk(root):
            if found.skipped is not None:
                skipped[found.skipped] += 1
                continue
            top, slash, _ = found.path.partition(b"/")
            labels.append(tops.setdefault(top, len(tops)) if slash else -1)
            self.paths.append(found.path)
        self.skipped = dict(skipped)
        if not self.paths:
            why = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
            raise FormatError(f"{shown(root)}: holds no image{f' (skipped: {why})' if why else ''}")
        self.labels = np.frombuffer(labels, np.int32)
        if tops:
            # Every folder is a class, so that an empty one does not shift the others.
            names = sorted({*tops, *_folders(root)})
            index = {name: i for i, name in enumerate(names)}
            to_class = np.array([index[top] for top in tops] + [-1], np.int32)  # the last entry serves label -1
            self.labels = to_class[self.labels]
            self.classes = tuple(map(os.fsdecode, names))

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"ImageFolder({len(self)} images, {len(self.classes)} classes, recipe {self.recipe.name!r})"

    def read(self, index: int) -> NDArray[np.float32]:
        """Return image `index` as a model's float input, float32 of shape (channels, height, width).

        Raises
        ------
        FormatError
            Naming the file, when it cannot be decoded.
        """
        return read_values(self.paths[index], self.recipe)

    def read_codes(self, index: int) -> NDArray[np.uint8]:
        """Return the pixels of image `index`, uint8 of shape (channels, height, width).

        Raises
        ------
        FormatError
            Naming the file, when it cannot be decoded.
        """
        return read_codes(self.paths[index], self.recipe)

    def sample(self, n: int, seed: int = 0) -> NDArray[np.int64]:
        """Return `n` different indices, sorted, as evenly over the classes as they allow; all of them where n is more.

        The same on every machine and with every version of NumPy.
        """
        return balanced_sample(self.labels, n, seed)


def balanced_sample(labels: NDArray[np.int32], n: int, seed: int) -> NDArray[np.int64]:
    """Return `n` different indices into `labels`, sorted, as evenly over the classes as they allow.

    Raises
    ------
    InvalidArgument
        For a negative `n`.
    """
    if n < 0:
        raise InvalidArgument(f"wanted n >= 0, got {n}")
    # RandomState and not a Generator: its stream is frozen.
    order = np.random.RandomState(seed).permutation(len(labels))
    # Rank of each image within its class, in that order: the lowest ranks are the most even sample.
    labels = labels[order]
    by_class = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[by_class], return_index=True, return_counts=True)
    rank = np.empty(len(labels), np.int64)
    rank[by_class] = np.arange(len(labels)) - np.repeat(starts, counts)
    return np.sort(order[np.argsort(rank, kind="stable")[:n]]).astype(np.int64)


def class_folders(root: str) -> list[bytes]:
    """Return the names of the folders right below `root` that are classes, bytewise sorted."""
    return sorted(_folders(root))


def _folders(root: str) -> list[bytes]:
    with os.scandir(os.fsencode(root)) as entries:
        return [e.name for e in entries if e.is_dir() and not is_hidden(e.name)]
