"""What must hold before work starts and before a result is kept: the output's place, and onnx.checker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx

from quantkit.errors import InvalidArgument, ModelError
from quantkit.files.atomic import check_output
from quantkit.graph import read_proto
from quantkit.graph.io import ModelSource
from quantkit.graph.sizes import external_files


def checks_passed(source: ModelSource) -> tuple[bool, ...]:
    """Return which checks the float model passes, plain and full: the int8 model must pass the same."""
    passed = []
    for full in (False, True):
        try:
            check_model(source, full)
        except ModelError:
            continue
        passed.append(full)
    return tuple(passed)


def check_model(source: ModelSource, full: bool, title: str = "the model") -> None:
    """Run onnx.checker, with errors about `title`; a model too large for one message is checked by its path."""
    given: Any = str(source) if isinstance(source, (str, os.PathLike)) else source
    try:
        onnx.checker.check_model(given, full_check=full)
    except Exception as error:
        text = str(error).strip()
        raise ModelError(f"{title} is refused by onnx.checker: {text.splitlines()[0] if text else error!r}") from None


def check_target(output: str | os.PathLike[str], source: ModelSource) -> None:
    """Check, before any work, that the output can be written and is no part of the float model."""
    real = Path(check_output(output))
    if not isinstance(source, (str, os.PathLike)) or not real.exists():
        return
    parts = [Path(source)]
    if Path(source).is_file():
        parts += external_files(*read_proto(source))
    for part in parts:
        if part.exists() and part.samefile(real):
            raise InvalidArgument(f"output {os.fspath(output)} is {part}, a file of the model that is to be quantized")
