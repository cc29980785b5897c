"""Beginning and resuming an output folder: the lock, the index, and which shards still hold."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Any

from quantkit.errors import FormatError, OutputError
from quantkit.files import is_temporary
from quantkit.images.index import NAME, Index, check_folder, is_output, read_index, write_index
from quantkit.images.manifest import NAME as MANIFEST
from quantkit.images.places import open_place
from quantkit.images.shards import FOLDERS, FORMATS, ShardFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quantkit.images.listing import Entry, Group
    from quantkit.images.source_files import SourceFiles


@contextlib.contextmanager
def locked(root: str, *, shared: bool) -> Iterator[None]:
    """Keep other runs out of an output folder, which is made where it is missing; `shared`: but those of other shards.

    Raises
    ------
    OutputError
        When another run is writing there, or the folder cannot be written.
    """
    made = check_folder(root)
    if not open_place(root).is_local:  # there are no locks behind a URL
        yield
        return
    descriptor = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(f"cannot write {root}: another process is writing there now") from None
        except OSError:
            pass  # a file system without locks on folders
        else:
            if not shared:
                sweep(root)
        yield
    finally:
        os.close(descriptor)
        if made:
            with contextlib.suppress(OSError):
                os.rmdir(root)  # still empty: nothing came of it


def sweep(root: str) -> None:
    """Remove the temporary files that killed runs and workers left; nobody may be writing there."""
    place = open_place(root)
    if not place.is_local:
        return
    for folder in FOLDERS:
        for name in place.names(folder):
            if is_temporary(name):
                place.remove(os.path.join(folder, name))


def begin(
    root: str,
    shape: Callable[[], tuple[int, int, int]],
    make: Callable[[tuple[int, int, int]], Index],
    *,
    resume: bool,
) -> Index:
    """Return the index to work by: that of the run that goes on, or a new one. Nothing is written yet.

    Parameters
    ----------
    root : str
        A folder that is empty or holds shards.
    shape : callable
        The shape of the images, asked for where no run before knows it.
    make : callable
        The index for a shape.
    resume : bool
        False: whatever is there does not count.

    Raises
    ------
    InvalidArgument
        When the folder holds shards of another recipe, source, format or size.
    """
    if not (resume and is_output(root)):
        return make(shape())
    before = read_index(root)
    index = make(before.shape)
    before.check_same(index, root)
    return index


def start(root: str, index: Index, *, resume: bool) -> None:
    """Declare the output incomplete, before the first shard is written or removed."""
    if not resume:
        _clear(root, index)
    write_index(root, index)
    index.folder(root).prepare()


def _clear(root: str, index: Index) -> None:
    for form in FORMATS:
        folder = ShardFolder(root, form, index.recipe)
        for number in folder.numbers():
            folder.remove(number)
    for name in (MANIFEST, NAME):
        open_place(root).remove(name)


def finished_lines(folder: ShardFolder, files: SourceFiles, group: Group) -> list[dict[str, Any]] | None:
    """Return the manifest lines of a shard that is there and whose files are as they were, else None."""
    if not folder.place.exists(folder.name(group.number)):
        return None
    try:
        lines = folder.lines(group.number)
    except FormatError:
        return None
    good = sum(item["status"] == "ok" for item in lines)
    if len(lines) != len(group.entries) or not folder.holds(group.number, good):
        return None
    if all(_same(item, entry, files) for item, entry in zip(lines, group.entries, strict=True)):
        return lines
    return None


def _same(item: dict[str, Any], entry: Entry, files: SourceFiles) -> bool:
    if item["path"] != os.fsdecode(entry.path) or item.get("frame") != entry.frame:
        return False
    if entry.skipped is not None or item["status"] == "skipped":
        return item["status"] == "skipped" and bool(item["error"] == entry.skipped)
    stamp = files.stamp(entry.path, entry.stamp)
    return bool(item["label"] == entry.label and (item["bytes"], item["mtime_ns"]) == stamp)
