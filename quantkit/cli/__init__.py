"""The command ``quantkit``: one file a command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        ``sys.argv[1:]`` by default.

    Returns
    -------
    int
        0 done and verified; 1 finished, but the agreement or some inputs fell short; 2 wrong usage or bad input,
        nothing written; 130 interrupted.
    """
    try:
        import click  # noqa: F401 - asked for here, so that its absence is one clear line
        import rich  # noqa: F401
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        print(
            f"quantkit: error: the command line needs {name}, which is not installed: pip install {name}",
            file=sys.stderr,
        )
        return 2
    from quantkit.cli.app import run

    return run(arguments)
