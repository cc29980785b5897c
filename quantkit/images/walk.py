"""Find the images below a folder, in one order on every machine, without ever holding the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantkit.files.urls import is_url
from quantkit.images.tree import Found, is_hidden
from quantkit.images.walk_path import folders_in, walk_path
from quantkit.images.walk_url import folders_at, walk_url

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator


def walk(root: str | os.PathLike[str]) -> Iterator[Found]:
    """Yield every file below a path or URL, depth first, each folder's entries in the bytewise order of their names.

    Hidden entries and the litter of other systems are skipped, links are followed, and no folder is entered twice.
    Work can begin with the first file: one folder is listed at a time.

    Raises
    ------
    FormatError
        When `root` itself cannot be listed.
    """
    return walk_url(str(root)) if is_url(root) else walk_path(root)


def class_folders(root: str) -> list[bytes]:
    """Return the names of the folders right below `root`, a path or URL, that are classes, bytewise sorted.

    Raises
    ------
    FormatError
        When it cannot be listed.
    """
    return [name for name in (folders_at(root) if is_url(root) else folders_in(root)) if not is_hidden(name)]
