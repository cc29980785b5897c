"""What commands print: results to stdout, progress and errors to stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from click.exceptions import Exit
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from quantkit.errors import OutputError, QuantkitError
from quantkit.models.progress import Progress
from quantkit.text import counted, printable


class StdoutError(OutputError):
    """Standard output cannot be written."""


def fail(message: str, prefix: str = "quantkit: error: ") -> None:
    """Print one line to stderr, whatever the message holds."""
    line = " ".join(part for part in (prefix + message).splitlines() if part).rstrip()
    with suppress(OSError, ValueError):
        print(printable(line), file=sys.stderr, flush=True)


def flush() -> None:
    """Flush stdout; a reader that went away is no error.

    Raises
    ------
    StdoutError
        When it cannot be written.
    """
    with stdout():
        sys.stdout.flush()


@contextmanager
def stdout() -> Iterator[None]:
    """Turn what goes wrong on standard output into `StdoutError`; a reader that went away is no error.

    Errors of files that are written have become `OutputError` before they come here.
    """
    try:
        yield
    except BrokenPipeError:
        _discard_stdout()
    except QuantkitError:
        raise
    except OSError as error:
        if error.filename is not None:
            raise
        _discard_stdout()
        raise StdoutError(f"cannot write to standard output: {error.strerror or error}") from None


def _discard_stdout() -> None:
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Print text to stdout; a reader that went away is no error."""
    encoding = sys.stdout.encoding or "ascii"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    with stdout():
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()


def say_lines(lines: Iterable[str]) -> None:
    """Print lines to stdout, each of them one, whatever the names of files in it hold."""
    say("\n".join(map(printable, lines)))


def say_json(value: dict[str, Any]) -> None:
    """Print exactly one JSON object."""
    say(json.dumps(value, indent=2, allow_nan=False))


def note(text: str) -> None:
    """Print a line to stderr."""
    fail(text, prefix="")


def on_terminal() -> bool:
    """Whether results go to a terminal, and so may have colour and lines."""
    return sys.stdout.isatty()


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[int], title: str = "") -> None:
    """Print a table to a terminal."""
    table = Table(title=title or None, title_justify="left", title_style="bold", header_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(escape(printable(cell)) for cell in row))
    with stdout():
        Console(file=sys.stdout).print(table)
        sys.stdout.flush()


@contextmanager
def standing(what: object) -> Iterator[None]:
    """Print what was done, with `what` written already: that nobody can be told does not undo it.

    Raises
    ------
    click.exceptions.Exit
        With code 1, after a line on stderr, when standard output cannot be written.
    """
    try:
        yield
    except StdoutError as error:
        fail(f"{error}; {what} is written")
        raise Exit(1) from None


@contextmanager
def progress(unit: str = "samples") -> Iterator[Progress]:
    """Show how far long work is: a bar on a terminal, a plain line at least every ten seconds elsewhere."""
    if not sys.stderr.isatty():
        yield _Lines(unit)
        return
    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )
    task = bars.add_task("", total=None)
    shown = ""

    def tell(stage: str, done: int, total: int | None) -> None:
        nonlocal shown
        if stage != shown:
            bars.reset(task, description=stage, total=total)
            shown = stage
        bars.update(task, completed=done, total=total)

    with bars:
        yield tell


class _Lines:
    def __init__(self, unit: str) -> None:
        self._unit, self._stage, self._last = unit, "", 0.0

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if stage == self._stage and now - self._last < 10 and done != total:
            return
        if stage != self._stage and done != total:
            note(f"{stage} ..." if total is None else f"{stage}: {counted(total, self._unit.removesuffix('s'))}")
        else:
            note(f"{stage}: {done} of {total if total is not None else 'an unknown number'}")
        self._stage, self._last = stage, now
