"""Which frames of an animated or multi-page file are images of their own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from quantkit.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

_EVERY = re.compile(r"every:([1-9]\d*)")


def check_frames(value: str | int) -> str | int:
    """Return `Recipe.frames` in the one form that it is kept in.

    Raises
    ------
    InvalidArgument
        When it is none of "first", "all", a number from 1 on, or "every:k".
    """
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, str) and value in {"first", "all", "every:1"}:
        return "all" if value == "every:1" else value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if isinstance(value, str) and _EVERY.fullmatch(value):
        return value
    raise InvalidArgument(
        f"recipe: frames must be first, all, a number of frames spread over the file, or every:k, got {value!r}"
    )


def chosen(count: int, frames: str | int) -> Iterable[int]:
    """Return which of `count` frames are taken, in order.

    A number n takes n of them spread evenly, the first among them, and all where there are not so many.
    """
    if frames == "first":
        return range(1)
    if isinstance(frames, int):
        n = min(frames, count)
        return (i * count // n for i in range(n))
    every = _EVERY.fullmatch(frames)
    return range(0, count, int(every[1]) if every else 1)
