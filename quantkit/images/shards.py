"""One shard: a fixed number of images with what belongs to them, written at once and mapped."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from quantkit.errors import FormatError
from quantkit.files import atomic_write, open_tensors, save_tensors
from quantkit.images.manifest import decode, encode
from quantkit.images.places import open_place

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from quantkit.images.recipe import Recipe

FORMATS = ("safetensors", "npy")
_ALIGNMENT = 64
_MANIFESTS = "manifest"
FOLDERS = ("", _MANIFESTS)  # below the output, that hold its files
_NAME = re.compile(r"shard-(\d{6,})\.(\w+)")


class Shard(NamedTuple):
    """The arrays of a shard.

    Attributes
    ----------
    images : ndarray of uint8, shape (n, channels, height, width)
        Read-only, on the pages of the file.
    labels : ndarray of int32, shape (n,)
    rows : ndarray of int64, shape (n,)
        The number of each image among the image files of the source.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int32]
    rows: NDArray[np.int64]


class ShardFolder:
    """Where the shards of one output lie: ``shard-000000.safetensors`` and its lines ``manifest/shard-000000.jsonl``.

    With the format "npy" the images are ``shard-000000.npy`` and the rest is ``shard-000000.json``.

    The file of the images is written last and so is the commit: a shard whose file is there is whole. Before a shard
    is made anew that file is removed.
    """

    def __init__(self, root: str, form: str, recipe: Recipe) -> None:
        self.place, self.form, self.recipe = open_place(root), form, recipe

    def name(self, number: int) -> str:
        """Return the name of the file of a shard's images."""
        return f"shard-{number:06d}.{self.form}"

    def path(self, number: int) -> str:
        """Return the path or URL of the file of a shard's images."""
        return self.place.path(self.name(number))

    def _side(self, number: int) -> str:
        return f"shard-{number:06d}.json"

    def _manifest(self, number: int) -> str:
        return f"{_MANIFESTS}/shard-{number:06d}.jsonl"

    def prepare(self) -> None:
        """Make the folders."""
        self.place.prepare(_MANIFESTS)

    def numbers(self) -> list[int]:
        """Return the numbers of the shards that are there."""
        found = (_NAME.fullmatch(name) for name in self.place.names())
        return sorted(int(match[1]) for match in found if match is not None and match[2] == self.form)

    def remove(self, number: int) -> None:
        """Remove a shard; the file of its images goes first."""
        names = [self.name(number), self._manifest(number)]
        if self.form == "npy":
            names.insert(1, self._side(number))
        for name in names:
            self.place.remove(name)

    def write(self, number: int, shard: Shard, lines: list[dict[str, Any]]) -> None:
        """Write a shard and its manifest lines, each atomically.

        Raises
        ------
        OutputError
            When the disk is full or the folder cannot be written.
        """
        if self.place.exists(self.name(number)):
            self.remove(number)
        self.place.write(self._manifest(number), [encode(lines)])
        if self.form == "npy":
            self._write_npy(number, shard)
        else:
            self._write_safetensors(number, shard)

    def _write_safetensors(self, number: int, shard: Shard) -> None:
        qparams = self.recipe.qparams()
        zero_point = np.asarray(qparams.zero_point)
        tensors: dict[str, Any] = {
            "row": shard.rows,
            "label": shard.labels,
            "scale": np.atleast_1d(np.asarray(qparams.scale, np.float32)),
            "zero_point": np.atleast_1d(zero_point.astype(np.float32 if zero_point.dtype.kind == "f" else np.int32)),
            "images": shard.images,
        }
        if shard.images.nbytes % _ALIGNMENT:
            # The images then follow the tensors whose sizes are no multiples of 64 either; a filler aligns them.
            before = sum(t.nbytes for name, t in tensors.items() if name != "images" and t.nbytes % _ALIGNMENT)
            if before % _ALIGNMENT:
                filler = np.zeros(-before % _ALIGNMENT, np.uint8)
                tensors = {"filler": filler, **tensors}
        metadata = {"recipe": self.recipe.to_json(), "recipe_hash": self.recipe.hash}
        with self.place.made(self.name(number)) as path:
            save_tensors(path, tensors, metadata)

    def _write_npy(self, number: int, shard: Shard) -> None:
        qparams = self.recipe.qparams()
        side = {
            "scale": np.atleast_1d(qparams.scale).tolist(),
            "zero_point": np.atleast_1d(qparams.zero_point).tolist(),
            "label": shard.labels.tolist(),
            "row": shard.rows.tolist(),
            "recipe": self.recipe.to_dict(),
            "recipe_hash": self.recipe.hash,
        }
        self.place.write(self._side(number), [json.dumps(side).encode() + b"\n"])
        with self.place.made(self.name(number)) as path, atomic_write(path) as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": shard.images.shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.write(shard.images.data)

    def holds(self, number: int, images: int) -> bool:
        """Whether a shard is there, of that many images and by this recipe.

        Behind a URL it is not fetched for that: what is there is whole.
        """
        if not self.place.exists(self.name(number)):
            return False
        if not self.place.is_local:
            return True
        try:
            return len(self.read(number).images) == images
        except FormatError:
            return False

    def read(self, number: int) -> Shard:
        """Map a shard.

        Raises
        ------
        FormatError
            Naming the file, when it cannot be read or holds something else.
        """
        with self.place.fetched(self.name(number)) as path:
            found, recipe_hash = self._read_npy(number, path) if self.form == "npy" else self._read_safetensors(path)
        path = self.path(number)
        if recipe_hash != self.recipe.hash:
            raise FormatError(f"{path}: was made by another recipe than the index says")
        images, n = found.images, len(found.rows)
        if images.ndim != 4 or images.dtype != np.uint8 or len(images) != n or found.labels.shape != (n,):
            raise FormatError(f"{path}: its images, labels and rows do not fit each other")
        return found

    def _read_safetensors(self, path: str) -> tuple[Shard, Any]:
        file = open_tensors(path)
        missing = {"images", "label", "row"} - set(file)
        if missing:
            raise FormatError(f"{path}: is no shard of images: it has no tensor {sorted(missing)[0]!r}")
        return Shard(file["images"], file["label"], file["row"]), file.metadata.get("recipe_hash")

    def _read_npy(self, number: int, path: str) -> tuple[Shard, Any]:
        try:
            images = np.load(path, mmap_mode="r", allow_pickle=False) if _has_rows(path) else np.load(path)
            side = json.loads(self.place.read(self._side(number)))
            labels, rows = np.array(side["label"], np.int32), np.array(side["row"], np.int64)
            return Shard(np.asarray(images), labels, rows), side["recipe_hash"]
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise FormatError(f"{path}: cannot be read: {e}") from e

    def lines(self, number: int) -> list[dict[str, Any]]:
        """Return the manifest lines of a shard.

        Raises
        ------
        FormatError
            When they cannot be read.
        """
        return decode(self.manifest_bytes(number), self.place.path(self._manifest(number)))

    def manifest_bytes(self, number: int) -> bytes:
        """Return the manifest lines of a shard as they are in their file."""
        name = self._manifest(number)
        try:
            return self.place.read(name)
        except FileNotFoundError:
            raise FormatError(f"{self.place.path(name)}: cannot be read: No such file or directory") from None


def _has_rows(path: str) -> bool:
    """Whether an .npy file has elements: an empty one cannot be mapped."""
    with open(path, "rb") as file:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"wanted version 1.0 of the .npy format, got {version}")
        return 0 not in np.lib.format.read_array_header_1_0(file)[0]
