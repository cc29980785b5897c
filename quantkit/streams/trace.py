"""profile: what ran when on which stream, for Chrome's trace viewer or Perfetto."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkit._kernels import _core
from quantkit.errors import OutputError, StreamError
from quantkit.streams.stream import _streams

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = tuple[str, str, int, int, int, str, str]  # stream, name, queued, started, finished, place, state
_taken: list[list[Row]] = []  # the trace that is being taken, if any


def recorded(stream: str, name: str, queued: int, started: int, finished: int) -> None:
    """Add work that is no task of its own; times in nanoseconds of the monotonic clock."""
    for rows in _taken:
        rows.append((stream, name, queued, started, finished, "", "done"))


@contextlib.contextmanager
def profile(path: str | os.PathLike[str]) -> Iterator[None]:
    """Write a trace of all work on streams inside the ``with`` block.

    Parameters
    ----------
    path : path
        Of the JSON file to write, in Chrome's trace-event format: one row a stream, one bar a verb or callable, with
        the line that queued it and how long it waited. Open it in https://ui.perfetto.dev or chrome://tracing.

    Raises
    ------
    StreamError
        When another trace is being taken.
    OutputError
        When the file cannot be written.
    """
    if _taken:
        raise StreamError("profile: another trace is being taken")
    events: list[Row] = []
    _taken.append(events)
    _core.profile_into(events)
    try:
        yield
        for s in list(_streams):
            s._wait()
    finally:
        _core.profile_into(None)
        _taken.clear()
        _write(Path(path), events)


def _write(path: Path, events: list[Row]) -> None:
    pid = os.getpid()
    rows: dict[str, int] = {}
    trace: list[dict[str, Any]] = []
    for stream, name, queued, started, finished, place, state in sorted(events, key=lambda e: e[3]):
        row = rows.setdefault(stream, len(rows) + 1)
        details = {"queued at": place, "waited": f"{(started - queued) / 1e3:.1f} us", "state": state}
        times = {"ts": started / 1e3, "dur": (finished - started) / 1e3}
        trace.append({"name": name, "cat": "stream", "ph": "X", "pid": pid, "tid": row, **times, "args": details})
    for stream, row in rows.items():
        trace.append({"name": "thread_name", "ph": "M", "pid": pid, "tid": row, "args": {"name": stream}})
    temporary = path.with_name(f".{path.name}.{pid}-{threading.get_ident()}")
    try:
        temporary.write_text(json.dumps({"traceEvents": trace, "displayTimeUnit": "ns"}))
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"profile: cannot write {path}: {error.strerror or error}") from error
