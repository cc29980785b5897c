"""The index of an output folder: what its shards are, and how they were made."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantkit.errors import FormatError, InvalidArgument, OutputError, QuantkitError
from quantkit.files import is_temporary
from quantkit.images.manifest import NAME as MANIFEST
from quantkit.images.places import Place, open_place
from quantkit.images.recipe import Recipe
from quantkit.images.shards import FORMATS, ShardFolder

NAME = "index.json"
_KEY, _VERSION = "quantkit.images", 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """What `index.json` says.

    Attributes
    ----------
    complete : bool
        Whether every shard is there.
    source : str
        The real path of the folder, or that it was a list of files.
    form : {"safetensors", "npy"}
    shard_size : int
        Image files of a shard; the last one may have fewer.
    recipe : Recipe
    shape : (channels, height, width)
    classes : tuple of str
    images, failed, skipped : int
        Files of the whole source by outcome; 0 until complete.
    shards : tuple of int
        Images of each shard; empty until complete.
    """

    complete: bool
    source: str
    form: str
    shard_size: int
    recipe: Recipe
    shape: tuple[int, int, int]
    classes: tuple[str, ...] = ()
    images: int = 0
    failed: int = 0
    skipped: int = 0
    shards: tuple[int, ...] = ()

    def folder(self, root: str) -> ShardFolder:
        """Return the shards of this index below `root`."""
        return ShardFolder(root, self.form, self.recipe)

    def check_same(self, other: Index, root: str) -> None:
        """Check that shards made by `other` go on where those of `self` stopped.

        Raises
        ------
        InvalidArgument
            Saying what is different.
        """
        for what, mine, theirs in (
            ("recipe", self.recipe.hash[:12], other.recipe.hash[:12]),
            ("source", self.source, other.source),
            ("format", self.form, other.form),
            ("shard size", self.shard_size, other.shard_size),
        ):
            if mine != theirs:
                raise InvalidArgument(
                    f"{root} holds shards of another {what} ({mine} there, {theirs} wanted); give another folder, or "
                    "begin again with resume=False (--restart)"
                )


def is_output(root: str | os.PathLike[str]) -> bool:
    """Whether a folder holds shards of images."""
    try:
        return f'"{_KEY}"'.encode() in open_place(root).read(NAME)[:64]
    except (FileNotFoundError, FormatError):
        return False


def check_index(root: str) -> None:
    """Raise what is wrong with the `index.json` of a folder that holds no image, if it has one."""
    if NAME in open_place(root).names():
        read_index(root)


def write_index(root: str, index: Index) -> None:
    """Write `index.json` atomically."""
    qparams = index.recipe.qparams()
    folder = index.folder(root)
    content = {
        _KEY: _VERSION,
        "complete": index.complete,
        "source": index.source,
        "format": index.form,
        "shard_size": index.shard_size,
        "shape": list(index.shape),
        "scale": np.atleast_1d(qparams.scale).tolist(),
        "zero_point": np.atleast_1d(qparams.zero_point).tolist(),
        "recipe": index.recipe.to_dict(),
        "recipe_hash": index.recipe.hash,
        "classes": list(index.classes),
        "images": index.images,
        "failed": index.failed,
        "skipped": index.skipped,
        "shards": [{"file": folder.name(number), "images": count} for number, count in enumerate(index.shards)],
    }
    folder.place.write(NAME, [json.dumps(content, indent=1).encode() + b"\n"])


def read_index(root: str) -> Index:
    """Read `index.json`.

    Raises
    ------
    FormatError
        When there is none, or it is damaged; names the file.
    """
    place = open_place(root)
    path = place.path(NAME)
    try:
        content: dict[str, Any] = json.loads(place.read(NAME))
        if content[_KEY] != _VERSION:
            raise InvalidArgument(f"version {content[_KEY]!r} is not known")
        channels, height, width = (int(n) for n in content["shape"])
        index = Index(
            complete=bool(content["complete"]),
            source=str(content["source"]),
            form=str(content["format"]),
            shard_size=int(content["shard_size"]),
            recipe=Recipe.from_json(content["recipe"]),
            shape=(channels, height, width),
            classes=tuple(map(str, content["classes"])),
            images=int(content["images"]),
            failed=int(content["failed"]),
            skipped=int(content["skipped"]),
            shards=tuple(int(shard["images"]) for shard in content["shards"]),
        )
    except FileNotFoundError:
        raise FormatError(f"{root}: holds no shards of images: there is no {NAME}") from None
    except FormatError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        why = str(e) if isinstance(e, QuantkitError) else f"{type(e).__name__}: {e}"
        raise FormatError(f"{path}: is no index of shards: {why}") from None
    if index.form not in FORMATS or index.shard_size < 1 or index.images != sum(index.shards):
        raise FormatError(f"{path}: is no index of shards: its numbers do not fit each other")
    return index


def write_manifest(folder: ShardFolder, count: int) -> None:
    """Join the lines of all shards into `manifest.jsonl`."""
    folder.place.write(MANIFEST, (folder.manifest_bytes(number) for number in range(count)))


def check_folder(root: str) -> bool:
    """Check that shards can be written to `root`, and make the folder where it is missing; return whether it was.

    Raises
    ------
    OutputError
        When it is no folder, not writable, or holds something else.
    """
    place = open_place(root)
    made = place.is_local and _make(root)
    if not made:
        _check_content(place)
    return made


def _make(root: str) -> bool:
    try:
        os.mkdir(root)
        return True
    except FileExistsError:
        if not os.path.isdir(root):
            raise OutputError(f"cannot write {root}: it is not a folder") from None
        if not os.access(root, os.W_OK | os.X_OK):
            raise OutputError(f"cannot write {root}: the folder is not writable") from None
        return False
    except (OSError, ValueError) as e:
        raise OutputError(f"cannot write {root}: {e.strerror if isinstance(e, OSError) else e}") from e


def _check_content(place: Place) -> None:
    others = [name for name in place.names() if not is_temporary(name)]
    if others and not is_output(place.root):
        raise OutputError(
            f"cannot write {place.root}: the folder holds something else than shards ({sorted(others)[0]})"
        )
