"""`ImageFolder`: the images below a folder, or in a list, as a model's inputs."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit.errors import FormatError, InvalidArgument
from quantkit.images.decode import shown
from quantkit.images.index import check_index
from quantkit.images.listing import Listing
from quantkit.images.path_table import PathTable
from quantkit.images.pipeline import read_codes, read_values
from quantkit.images.presets import get_recipe
from quantkit.images.source_files import open_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from quantkit.images.recipe import Recipe


class ImageFolder:
    """The images below a folder, or of a list of files, through one recipe.

    Parameters
    ----------
    source : path-like, URL, or iterable of such
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
        listing = Listing(source, self.recipe.frames)
        self.paths = PathTable(listing.root)
        labels, frames = array("i"), array("I")
        skipped: Counter[str] = Counter()
        for entry in listing:
            if entry.skipped is not None:
                skipped[entry.skipped] += 1
                continue
            labels.append(entry.label)
            frames.append(entry.frame or 0)
            self.paths.append(entry.path)
        self.skipped = dict(skipped)
        if not self.paths and not listing.root:
            raise FormatError("wanted images, got an empty list of files")
        if not self.paths:
            check_index(listing.root)
            why = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
            raise FormatError(f"{shown(listing.root)}: holds no image{f' (skipped: {why})' if why else ''}")
        self.labels: NDArray[np.int32] = np.frombuffer(labels, np.int32)
        self._frames = frames if any(frames) else None
        if (self.labels >= 0).any():
            self.classes = listing.classes

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
        return read_values(open_file(self.paths[index]), self.recipe, frame=self._frame(index))

    def read_codes(self, index: int) -> NDArray[np.uint8]:
        """Return the pixels of image `index`, uint8 of shape (channels, height, width).

        Raises
        ------
        FormatError
            Naming the file, when it cannot be decoded.
        """
        return read_codes(open_file(self.paths[index]), self.recipe, frame=self._frame(index))

    def _frame(self, index: int) -> int:
        return self._frames[index] if self._frames is not None else 0

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
