"""The command ``quantkit``: one file a command."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # and not by importing typing: nothing stands before an early interruption is answered
    from collections.abc import Sequence
    from types import FrameType

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
    _open_standard_streams()
    # An interrupted import can turn into any error; until there is something to clean up, the process just ends.
    quick = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if quick:
        try:
            signal.signal(signal.SIGINT, _leave)
        except ValueError:  # not the main thread, which signals do not interrupt
            quick = False
    try:
        import click  # noqa: F401 - asked for here, so that its absence is one clear line
        import rich  # noqa: F401

        from quantkit.cli.app import run
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name == "quantkit":
            return _refuse(str(error))
        return _refuse(f"the command line needs {name}, which is not installed: pip install {name}")
    except Exception as error:
        from quantkit.errors import QuantkitError

        if not isinstance(error, QuantkitError | ImportError):
            raise
        return _refuse(" ".join(str(error).split()))
    finally:
        if quick:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    return run(arguments)


def _refuse(message: str) -> int:
    print(f"quantkit: error: {message}", file=sys.stderr)
    return 2


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"quantkit: interrupted, nothing half-written\n")
    os._exit(130)


def _open_standard_streams() -> None:
    """Where standard streams were closed, open the null device, or the first file that is opened takes their number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115 - lives on
