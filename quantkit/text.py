"""Numbers and names in words, and tables of them as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = tuple[str, ...]


def printable(text: str) -> str:
    """Return `text` with what would break a line or steer a terminal escaped: names come from files."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def told(value: Any) -> str:
    """Return what came, for an error: a short repr, or of an array its dtype and shape."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape and hasattr(value, "dtype"):
        return f"an array of {value.dtype} {shape}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:60]}... ({type(value).__name__})"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: 1 node, 2 nodes, 2 classes."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def size(count: float) -> str:
    """Return a number of bytes as text: 35.2 kB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share of 1 as text; never rounds up to 100 % or down to 0 %."""
    if share is None:
        return "-"
    text = f"{100 * share:.{digits}f}"
    step = 10.0**-digits
    if float(text) >= 100 and share < 1:
        text = f"{100 - step:.{digits}f}"
    elif float(text) <= 0 < share:
        text = f"{step:.{digits}f}"
    return f"{text} %"


def number(value: float | None) -> str:
    """Return a real number with four significant digits."""
    return "-" if value is None else f"{value:.4g}"


def table(rows: Sequence[Row], columns: Row, left: Sequence[int] = (0,)) -> list[str]:
    """Lay out rows as aligned plain text; the columns numbered in `left` to the left, the others to the right."""
    cells = [columns, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    lines = []
    for row in cells:
        parts = [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(parts).rstrip())
    return lines
