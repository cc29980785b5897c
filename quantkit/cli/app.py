"""The group of commands, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import click

from quantkit._version import own_version
from quantkit.cli.bench import bench
from quantkit.cli.compare import compare
from quantkit.cli.console import fail, flush, stdout
from quantkit.cli.doctor import PACKAGES, doctor
from quantkit.cli.images import images
from quantkit.cli.inspect import inspect
from quantkit.cli.quantize import quantize
from quantkit.cli.run import run as run_model
from quantkit.cli.weights import weights
from quantkit.errors import QuantkitError

INTERRUPTED = 130
_NO_ARGUMENTS = getattr(click.exceptions, "NoArgsIsHelpError", ())  # click 8.1 prints the help itself
_ENDING = (signal.SIGTERM, signal.SIGHUP)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(own_version(), prog_name="quantkit")
def group() -> None:
    """8-bit quantization of ONNX models, measured beside the float model, and of weight files.

    Exit codes: 0 done and verified; 1 finished, but the measured agreement or some inputs fell short (listed), or
    the result could not be printed; 2 wrong usage or bad input, nothing written. Modes dynamic and weight_only
    without data end with 0 and the line "not verified".
    """


for _command in (quantize, compare, images, run_model, weights, inspect, bench, doctor):
    group.add_command(_command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; never raises, never prints a traceback unless ``QUANTKIT_TRACEBACK=1``."""
    previous: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        # So that a run that is ended, or loses its terminal, removes its temporary files, as an interrupted one does.
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup asked for that
                previous[number] = signal.signal(number, _terminate)
    try:
        with warnings.catch_warnings():
            if not sys.warnoptions:  # warnings speak to who writes code, as -W asks for
                warnings.simplefilter("ignore")
            return _run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Terminated(BaseException):
    """A signal that ends the run; its number is the argument."""


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _Terminated(number)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        given = None if arguments is None else list(arguments)
        with stdout():  # click writes help itself
            result = group.main(given, prog_name="quantkit", standalone_mode=False)
        flush()
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        return _usage(error)
    except (KeyboardInterrupt, click.Abort):
        fail("interrupted, nothing half-written", prefix="quantkit: ")
        return INTERRUPTED
    except _Terminated as signalled:
        number: int = signalled.args[0]
        what = "hung up" if number == signal.SIGHUP else "terminated"
        fail(f"{what}, nothing half-written", prefix="quantkit: ")
        return 128 + number
    except QuantkitError as error:
        _trace()
        fail(str(error))
        return 2
    except ModuleNotFoundError as error:
        _trace()
        package = PACKAGES.get((error.name or "").partition(".")[0])
        if package is None:
            fail(f"unexpected {error}; the installation of quantkit is damaged")
        else:
            fail(f"this needs {package}, which is not installed: pip install {package}")
        return 2
    except MemoryError as error:
        _trace()
        fail(f"out of memory{f': {error}' if str(error) else ''}")
        return 2
    except Exception as error:
        _trace()
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            fail("too many open files: this needs more file descriptors than the limit allows (see ulimit -n)")
            return 2
        return _unexpected(error)


def _unexpected(error: Exception) -> int:
    text = " ".join(str(error).split())
    fail(
        f"unexpected {type(error).__name__}{f': {text}' if text else ''} "
        "(set QUANTKIT_TRACEBACK=1 to see where; please report it)"
    )
    return 2


def _usage(error: click.ClickException) -> int:
    if isinstance(error, _NO_ARGUMENTS):  # the message is the help
        with suppress(OSError, ValueError):
            print(error.format_message(), file=sys.stderr)
        return 2
    message = error.format_message().rstrip(".").replace("\n", " ")
    message = message[:1].lower() + message[1:]
    context = getattr(error, "ctx", None)
    hint = f"; see {context.command_path} --help" if isinstance(error, click.UsageError) and context else ""
    fail(f"{message}{hint}")
    return 2


def _trace() -> None:
    if os.environ.get("QUANTKIT_TRACEBACK", "0") not in ("", "0"):
        traceback.print_exc(file=sys.stderr)
