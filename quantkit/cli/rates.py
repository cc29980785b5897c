"""How fast files go by: one line that changes on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quantkit.cli.console import note


@contextmanager
def rates(what: str) -> Iterator[Callable[[int, int, int], None]]:
    """Give a callable that takes how many are done, how many of them failed, and bytes read."""
    live, every = sys.stderr.isatty(), 0.2 if sys.stderr.isatty() else 10.0
    started = last = time.monotonic()
    width = 0

    def tell(done: int, failed: int, count: int) -> None:
        nonlocal last, width
        now = time.monotonic()
        if now - last < every:
            return
        last = now
        seconds = now - started
        line = f"{done:,} {what}, {done / seconds:,.0f}/s, {count / 1e6 / seconds:,.1f} MB/s, {failed:,} failed"
        if live:
            print(f"\r{line:<{width}}", end="", file=sys.stderr, flush=True)
            width = len(line)
        else:
            note(line)

    try:
        yield tell
    finally:
        if live and width:
            print("\r" + " " * width + "\r", end="", file=sys.stderr, flush=True)
