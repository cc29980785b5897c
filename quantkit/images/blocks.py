"""Pillow's memory for pixels, kept from one image for the next while many are decoded.

Returned to the system after each image, every page of the next one is a fault: half of the time of large images, and a
lock that the threads of a process share.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCKS = 2  # a thread: an image, and what is made of it
_core: Any = vars(Image)["core"]
_lock = threading.Lock()
_runs: list[int] = []  # what Pillow had before the first run of this process that goes on, then what each run wants


@contextlib.contextmanager
def kept_blocks(streams: int) -> Iterator[None]:
    """Have Pillow keep 2 blocks of memory, of at most 16 MiB, for each of so many threads."""
    wanted = _BLOCKS * streams
    with _lock:
        if not _runs:
            _runs.append(_core.get_blocks_max())
        _runs.append(wanted)
        _core.set_blocks_max(max(_runs[0], sum(_runs[1:])))
    try:
        yield
    finally:
        with _lock:
            del _runs[len(_runs) - 1 - _runs[:0:-1].index(wanted)]
            _core.set_blocks_max(max(_runs[0], sum(_runs[1:])))
            if len(_runs) == 1:
                _runs.clear()
