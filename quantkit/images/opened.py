"""`open_images`: the shards of an output as one sequence of tensors, mapped and not read."""

from __future__ import annotations

import operator
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from quantkit.errors import FormatError, InvalidArgument
from quantkit.files.urls import is_url, plain_path
from quantkit.images.folder import balanced_sample
from quantkit.images.index import read_index
from quantkit.images.manifest import Manifest
from quantkit.images.pipeline import look_up
from quantkit.tensor import from_numpy
from quantkit.text import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from quantkit.images.shards import Shard
    from quantkit.tensor import QTensor


class ImageShards(Sequence["QTensor"]):
    """The images of an output folder.

    ``images[i]`` is a QTensor of shape (channels, height, width) on the pages of its shard, read-only;
    ``images[[3, 1, 4]]`` and ``images[2:9]`` are one QTensor of shape (n, channels, height, width), a view where the
    images lie side by side in one shard and else a copy. A shard is mapped when its first image is asked for.
    It pickles by its path.

    Attributes
    ----------
    path : str
    recipe : Recipe
    shape : (n, channels, height, width)
    scale, zero_point : float and int, or ndarrays of shape (channels,)
    classes : tuple of str
    failed : int
        Files of the source that could not be decoded.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._index = index = read_index(path)
        if not index.complete:
            raise FormatError(
                f"{path}: is not complete yet: run `quantkit images` (process_images) again, which goes on where it "
                "stopped"
            )
        self._folder = index.folder(path)
        self.recipe, self.classes = index.recipe, index.classes
        self.shape = (index.images, *index.shape)
        self.failed = index.failed
        qparams = self.recipe.qparams()
        self.scale, self.zero_point, self._per_channel = qparams.scale, qparams.zero_point, qparams.axis is not None
        self._starts = np.concatenate([[0], np.cumsum(index.shards, dtype=np.int64)]).astype(np.int64).tolist()
        self._shards: list[Shard | None] = [None] * len(index.shards)
        self._labels: NDArray[np.int32] | None = None
        self._rows: NDArray[np.int64] | None = None
        self._manifest: Manifest | None = None
        self._table: NDArray[np.float32] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageShards, (self.path if is_url(self.path) else os.path.abspath(self.path),)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"ImageShards({self.path!r}, {len(self)} images of shape {self.shape[1:]}, recipe {self.recipe.name!r})"

    # ---------------------------------------------------------------------------------------------- what is there

    @property
    def labels(self) -> NDArray[np.int32]:
        """Index into `classes` of each image, -1 for none; int32 of shape (n,)."""
        if self._labels is None:
            parts = [self._shard(k).labels for k in range(len(self._shards))]
            self._labels = np.concatenate([np.empty(0, np.int32), *parts])
        return self._labels

    @property
    def rows(self) -> NDArray[np.int64]:
        """Number of each image among the image files of the source, failed ones counted; int64 of shape (n,)."""
        if self._rows is None:
            parts = [self._shard(k).rows for k in range(len(self._shards))]
            self._rows = np.concatenate([np.empty(0, np.int64), *parts])
        return self._rows

    @property
    def manifest(self) -> Manifest:
        """One mapping for each file of the source, failed and skipped ones as well."""
        if self._manifest is None:
            self._manifest = Manifest(self._folder.place)
        return self._manifest

    @property
    def paths(self) -> Sequence[str]:
        """The path of each image, below the folder that was the source."""
        return _Paths(self)

    def about(self, index: int) -> dict[str, Any]:
        """Return the manifest's line of the image at `index`.

        Raises
        ------
        FormatError
            When the manifest is damaged; names the file.
        """
        i, manifest = range(len(self))[index], self.manifest
        if manifest.images != len(self):
            raise FormatError(
                f"{manifest.path}: is damaged: it has {counted(manifest.images, 'image')}, the index says {len(self):,}"
            )
        return manifest.of_image(i)

    # ---------------------------------------------------------------------------------------------- tensors

    @overload  # type: ignore[override]
    def __getitem__(self, key: int) -> QTensor: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | NDArray[Any]) -> QTensor: ...
    def __getitem__(self, key: Any) -> QTensor:
        if isinstance(key, slice):
            return self._tensor(self._gather(np.arange(*key.indices(len(self)))), 1)
        if isinstance(key, (Sequence, np.ndarray)):
            indices = np.asarray(key)
            if indices.dtype == bool and indices.shape == (len(self),):
                indices = np.flatnonzero(indices)
            if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
                raise InvalidArgument(f"wanted indices in one dimension, got {indices.dtype} of shape {indices.shape}")
            wrong = indices[(indices < -len(self)) | (indices >= len(self))]
            if wrong.size:
                raise IndexError(f"index {int(wrong[0])} is out of range for {len(self)} images")
            return self._tensor(self._gather(indices.astype(np.int64) % max(1, len(self))), 1)
        i = operator.index(key)
        if not -len(self) <= i < len(self):
            raise IndexError(f"index {i} is out of range for {len(self)} images")
        shard, position = self._place(i % len(self))
        return self._tensor(self._shard(shard).images[position], 0)

    def __iter__(self) -> Iterator[QTensor]:
        return (self[i] for i in range(len(self)))

    @overload
    def batches(
        self, size: int, *, seed: int | None = None, labels: Literal[False] = False, drop_last: bool = False
    ) -> Iterator[QTensor]: ...
    @overload
    def batches(
        self, size: int, *, seed: int | None = None, labels: Literal[True], drop_last: bool = False
    ) -> Iterator[tuple[QTensor, NDArray[np.int32]]]: ...
    def batches(self, size: int, *, seed: int | None = None, labels: bool = False, drop_last: bool = False) -> Any:
        """Iterate over batches of shape (size, channels, height, width).

        Parameters
        ----------
        size : int
            Images of a batch; the last one may have fewer.
        seed : int, optional
            Shuffle, as `order` does. In order, a batch is a view of its shard, unless it reaches into the next one.
        labels : bool, default False
            Yield ``(batch, labels)``.
        drop_last : bool, default False
            Leave out a last batch that is smaller.

        Raises
        ------
        InvalidArgument
            For a size below 1.
        """
        if size < 1:
            raise InvalidArgument(f"a batch has at least 1 image, got {size}")
        order = None if seed is None else self.order(seed)
        end = len(self) - len(self) % size if drop_last else len(self)

        def run() -> Iterator[Any]:
            for start in range(0, end, size):
                stop = min(start + size, end)
                indices = np.arange(start, stop) if order is None else order[start:stop]
                batch = self._tensor(self._gather(indices), 1)
                yield (batch, self.labels[indices]) if labels else batch

        return run()

    def order(self, seed: int) -> NDArray[np.int64]:
        """Return a shuffled order of all images: the same for a seed on every machine and with every NumPy."""
        return np.random.RandomState(seed).permutation(len(self)).astype(np.int64)

    def _tensor(self, codes: NDArray[np.uint8], axis: int) -> QTensor:
        tensor: QTensor = from_numpy(
            codes, scale=self.scale, zero_point=self.zero_point, axis=axis if self._per_channel else None
        )
        return tensor

    # ---------------------------------------------------------------------------------------------- as model inputs

    def as_dataset(self) -> LabelledPixels:
        """Return the pairs (pixels, label), which torch's DataLoader collates as they are."""
        return LabelledPixels(self)

    def read(self, index: int) -> NDArray[np.float32]:
        """Return image `index` as a model's float input, float32 of shape (channels, height, width)."""
        if self._table is None:
            self._table = self.recipe.table()
        return look_up(self.read_codes(index), self._table)

    def read_codes(self, index: int) -> NDArray[np.uint8]:
        """Return the pixels of image `index`, uint8 of shape (channels, height, width), read-only."""
        shard, position = self._place(range(len(self))[index])
        codes: NDArray[np.uint8] = self._shard(shard).images[position]
        return codes

    def sample(self, n: int, seed: int = 0) -> NDArray[np.int64]:
        """Return `n` different indices, sorted, as evenly over the classes as they allow."""
        return balanced_sample(self.labels, n, seed)

    # ---------------------------------------------------------------------------------------------- shards

    def _place(self, i: int) -> tuple[int, int]:
        shard = bisect_right(self._starts, i) - 1
        return shard, i - self._starts[shard]

    def _shard(self, number: int) -> Shard:
        shard = self._shards[number]
        if shard is None:
            shard = self._folder.read(number)
            wanted = (self._index.shards[number], *self._index.shape)
            if shard.images.shape != wanted:
                raise FormatError(
                    f"{self._folder.path(number)}: has images of shape {shard.images.shape}, the index says {wanted}"
                )
            self._shards[number] = shard
        return shard

    def _gather(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        if not len(indices):
            return np.empty((0, *self.shape[1:]), np.uint8)
        shard, position = self._place(int(indices[0]))
        count = len(indices)
        if indices[-1] < self._starts[shard + 1] and (count == 1 or bool(np.all(np.diff(indices) == 1))):
            return self._shard(shard).images[position : position + count]
        made = np.empty((count, *self.shape[1:]), np.uint8)
        for k, i in enumerate(indices.tolist()):
            shard, position = self._place(i)
            made[k] = self._shard(shard).images[position]
        return made


class _Paths(Sequence[str]):
    def __init__(self, images: ImageShards) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        return self._images.about(index)["path"]


class LabelledPixels(Sequence["tuple[NDArray[np.uint8], int]"]):
    """Pairs of pixels, uint8 of shape (channels, height, width), writable, and the label."""

    def __init__(self, images: ImageShards) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    @overload
    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[NDArray[np.uint8], int]]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        # A copy, because torch warns of arrays that cannot be written.
        return self._images.read_codes(index).copy(), int(self._images.labels[index])


def open_images(output: str | os.PathLike[str]) -> ImageShards:
    """Open what `process_images` wrote.

    Parameters
    ----------
    output : path-like or URL
        The folder of the shards. Behind a URL each shard is fetched when its first image is asked for.

    Returns
    -------
    ImageShards

    Raises
    ------
    FormatError
        When it holds no shards, or not all of them yet.
    """
    return ImageShards(plain_path(output))
