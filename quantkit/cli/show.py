"""Reports on a terminal, in a pipe and in a file."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click

from quantkit.cli.console import fail, on_terminal, say, say_json, show_table, standing
from quantkit.errors import InvalidArgument, OutputError
from quantkit.files import atomic_write, check_output
from quantkit.models.report import text
from quantkit.models.report.report import Report


def check_report(path: Path | None, *others: Path | None) -> None:
    """Check, before any work, that the report can be written and is no other file of this run.

    Raises
    ------
    OutputError, InvalidArgument
        Naming the path.
    """
    if path is None:
        return
    if path.suffix.lower() not in {".html", ".htm", ".json"}:
        raise InvalidArgument(f"--report: wanted a name that ends in .html or .json, got {path}")
    check_output(path)
    for other in others:
        if other is not None and path.resolve() == other.resolve():
            raise InvalidArgument(f"--report: {path} is also the model")


def finish(report: Report, path: Path | None, as_json: bool, written: Path | None = None) -> int:
    """Write the report where that was asked for, print it, and return the exit code; `written` is the work's output."""
    code = 1 if report.shortfalls() else 0
    try:
        if path is not None:
            _write(report, path)
            written = written or path
    except OutputError as error:  # no 2: the work is done, and its output stands
        fail(f"the report was not written: {error}")
        code = 1
    with nullcontext() if written is None else standing(written):
        if as_json:
            say_json(report.to_dict())
        elif on_terminal():
            _show_tables(report)
        else:
            say(text.summary(report))
    return code


def _write(report: Report, path: Path) -> None:
    page = report.to_json() + "\n" if path.suffix.lower() == ".json" else report.to_html()
    with atomic_write(path) as file:
        file.write(page.encode("utf-8", "backslashreplace"))


def _show_tables(report: Report) -> None:
    say(click.style(text.title(report), bold=True))
    rows = text.headline(report)
    if rows:
        show_table(text.HEADLINE_COLUMNS, rows, left=text.HEADLINE_LEFT)
    if report.agreement is not None:
        rows = [text.output_row(output) for output in report.agreement.outputs]
        title = text.agreement_title(report.agreement).capitalize()
        show_table(text.OUTPUT_COLUMNS, rows, left=text.OUTPUT_LEFT, title=title)
    for line in text.tail(report):
        say(click.style(line, fg="red") if line.startswith(text.SHORT) else line)
