"""Asking what a path is before it is read: a pipe would block, and a device never end."""

from __future__ import annotations

import os
import stat


def file_problem(path: str | os.PathLike[str]) -> str | None:
    """Return why `path` cannot be read as a file, as the end of a sentence, or None where it is a regular file."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return f"cannot be read: {reason}"
    if stat.S_ISREG(mode):
        return None
    return f"is not a regular file, it is {_kind(mode)}"


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISFIFO(mode):
        return "a pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"
