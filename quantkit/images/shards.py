"""One shard: a fixed number of images with what belongs to them, written at once and mapped."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from quantkit.errors import FormatError, OutputError
from quantkit.files import atomic_write, open_tensors, save_tensors
from quantkit.images.manifest import decode, encode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from quantkit.images.recipe import Recipe

FORMATS = ("safetensors", "npy")
_ALIGNMENT = 64
_MANIFESTS = "manifest"


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
        self.root, self.form, self.recipe = root, form, recipe

    def path(self, number: int) -> str:
        """Return the file of the images of a shard."""
        return os.path.join(self.root, f"shard-{number:06d}.{self.form}")

    def _side_path(self, number: int) -> str:
        return os.path.join(self.root, f"shard-{number:06d}.json")

    def manifest_path(self, number: int) -> str:
        """Return the file of the manifest lines of a shard."""
        return os.path.join(self.root, _MANIFESTS, f"shard-{number:06d}.jsonl")

    def prepare(self) -> None:
        """Make the folders."""
        try:
            os.makedirs(os.path.join(self.root, _MANIFESTS), exist_ok=True)
        except OSError as e:
            raise OutputError(f"cannot write {self.root}: {e.strerror}") from e

    def numbers(self) -> list[int]:
        """Return the numbers of the shards that are there."""
        return sorted(n for name in _names(self.root) if (n := _number(name, self.form)) is not None)

    def remove(self, number: int) -> None:
        """Remove a shard; the file of its images goes first."""
        paths = [self.path(number), self.manifest_path(number)]
        if self.form == "npy":
            paths.insert(1, self._side_path(number))
        for path in paths:
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            except OSError as e:
                raise OutputError(f"cannot remove {path}: {e.strerror}") from e

    def write(self, number: int, shard: Shard, lines: list[dict[str, Any]]) -> None:
        """Write a shard and its manifest lines, each atomically.

        Raises
        ------
        OutputError
            When the disk is full or the folder cannot be written.
        """
        if os.path.exists(self.path(number)):
            self.remove(number)
        with atomic_write(self.manifest_path(number)) as file:
            file.write(encode(lines))
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
        save_tensors(self.path(number), tensors, {"recipe": self.recipe.to_json(), "recipe_hash": self.recipe.hash})

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
        with atomic_write(self._side_path(number)) as file:
            file.write(json.dumps(side).encode() + b"\n")
        with atomic_write(self.path(number)) as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": shard.images.shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.write(shard.images.data)

    def read(self, number: int) -> Shard:
        """Map a shard.

        Raises
        ------
        FormatError
            Naming the file, when it cannot be read or holds something else.
        """
        path = self.path(number)
        if self.form == "npy":
            found, recipe_hash = self._read_npy(number, path)
        else:
            file = open_tensors(path)
            missing = {"images", "label", "row"} - set(file)
            if missing:
                raise FormatError(f"{path}: is no shard of images: it has no tensor {sorted(missing)[0]!r}")
            found, recipe_hash = Shard(file["images"], file["label"], file["row"]), file.metadata.get("recipe_hash")
        if recipe_hash != self.recipe.hash:
            raise FormatError(f"{path}: was made by another recipe than the index says")
        images, n = found.images, len(found.rows)
        if images.ndim != 4 or images.dtype != np.uint8 or len(images) != n or found.labels.shape != (n,):
            raise FormatError(f"{path}: its images, labels and rows do not fit each other")
        return found

    def _read_npy(self, number: int, path: str) -> tuple[Shard, Any]:
        try:
            images = np.load(path, mmap_mode="r", allow_pickle=False) if _has_rows(path) else np.load(path)
            with open(self._side_path(number), "rb") as file:
                side = json.loads(file.read())
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
        path = self.manifest_path(number)
        return decode(self.manifest_bytes(number), path)

    def manifest_bytes(self, number: int) -> bytes:
        """Return the manifest lines of a shard as they are in their file."""
        path = self.manifest_path(number)
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as e:
            raise FormatError(f"{path}: cannot be read: {e.strerror}") from e


def _has_rows(path: str) -> bool:
    """Whether an .npy file has elements: an empty one cannot be mapped."""
    with open(path, "rb") as file:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"wanted version 1.0 of the .npy format, got {version}")
        return 0 not in np.lib.format.read_array_header_1_0(file)[0]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as e:
        raise FormatError(f"{folder}: cannot be listed: {e.strerror}") from e


def _number(name: str, form: str) -> int | None:
    stem, dot, suffix = name.partition(".")
    digits = stem.removeprefix("shard-")
    return int(digits) if dot and suffix == form and digits != stem and digits.isdecimal() else None
