"""Paths that are URLs (s3://, gs://, memory://, whatever fsspec has a filesystem for), beside those of this machine."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from quantkit.errors import FormatError, InvalidArgument, MissingDependency, OutputError, QuantkitError
from quantkit.files.shortage import raise_shortage

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+::)*[A-Za-z][A-Za-z0-9+.\-]+://")
_LOCAL = re.compile(r"(file|local)://(localhost(?=/))?")


def is_url(path: Any) -> bool:
    """Whether a path is the URL of a filesystem that is not this machine's."""
    return isinstance(path, str) and _SCHEME.match(path) is not None and _LOCAL.match(path) is None


def plain_path(path: str | os.PathLike[str]) -> str:
    """Return a path as text; ``file://`` URLs become the path that they stand for."""
    text = os.fspath(path)
    found = _LOCAL.match(text)
    return unquote(text[found.end() :]) if found else text


def filesystem(url: str) -> tuple[Any, str]:
    """Return fsspec's filesystem for a URL, and the path within it without a slash at its end.

    Raises
    ------
    MissingDependency
        Naming what to install.
    InvalidArgument
        For a scheme that nobody serves.
    """
    try:
        from fsspec.core import url_to_fs
    except ModuleNotFoundError:
        raise MissingDependency(
            f"{url}: URLs need fsspec, which is not installed: pip install quantkit[cluster]"
        ) from None
    try:
        system, path = url_to_fs(url)
    except ImportError as e:  # fsspec says which package serves the scheme
        raise MissingDependency(f"{url}: {_line(e)} (pip install quantkit[cluster] brings s3fs)") from e
    except Exception as e:
        raise InvalidArgument(f"{url}: {_line(e)}") from e
    return system, path.rstrip("/")


def why(error: BaseException) -> str:
    """Return what a filesystem says went wrong, as the end of a sentence of one line."""
    if isinstance(error, OSError) and error.strerror:
        return str(error.strerror)
    if isinstance(error, FileNotFoundError):
        return "No such file or directory"
    return _line(error)


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if text and isinstance(error, (OSError, ImportError)):
        return text
    return f"{type(error).__name__}: {text}".rstrip(": ")


@contextmanager
def reading(url: str, *passing: type[Exception]) -> Iterator[None]:
    """Turn the errors of a filesystem, whose clients raise all there is, into one `FormatError`; let `passing` pass."""
    try:
        yield
    except QuantkitError:
        raise
    except passing:
        raise
    except Exception as e:
        raise_shortage(url, e)
        raise FormatError(f"{url}: cannot be read: {why(e)}") from e


@contextmanager
def writing(url: str) -> Iterator[None]:
    """Turn the errors of a filesystem that is written to into one `OutputError` that names the URL."""
    try:
        yield
    except QuantkitError:
        raise
    except Exception as e:
        raise OutputError(f"cannot write {url}: {why(e)}") from e
