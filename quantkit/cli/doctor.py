"""``quantkit doctor``: what this machine and this installation offer."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from quantkit import cpu, cuda
from quantkit.cli import options
from quantkit.cli.console import say, say_json
from quantkit.text import table

REQUIRED = ("numpy", "onnx", "onnxruntime", "pillow", "safetensors", "click", "rich")
OPTIONAL = {"ml_dtypes": "bfloat16 arrays"}
_MODULES = {"pillow": "PIL", "cuda-core": "cuda.core"}
PACKAGES = {_MODULES.get(name, name): name for name in (*REQUIRED, *OPTIONAL)}  # module -> what to install

# What each job needs beyond NumPy.
JOBS = {
    "tensors and verbs": (),
    "quantize a model, compare two": ("onnx", "onnxruntime"),
    "calibrate with images": ("onnx", "onnxruntime", "pillow"),
    "inspect a model": ("onnx",),
    "this command line": ("click", "rich"),
}


@click.command(short_help="Show versions, CPU, and what each job lacks here.")
@options.as_json
def doctor(as_json: bool) -> int:
    """Show versions, the CPU and its instruction sets, and what each job lacks here.

    Exit code 1 when a job lacks something.
    """
    found = examine()
    if as_json:
        say_json(found)
    else:
        say("\n".join(describe(found)))
    return 1 if any(job["missing"] for job in found["jobs"].values()) else 0


def examine() -> dict[str, Any]:
    """Return everything `doctor` shows as plain values."""
    versions = {name: _version(name) for name in REQUIRED}
    return {
        "schema": 1,
        "quantkit": _version("quantkit"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": {
            "model": _cpu_model(),
            "instruction_sets": list(cpu.isas()),
            "in_use": cpu.active_isa(),
            "forced": os.environ.get("QUANTKIT_ISA"),
            "usable_cpus": cpu.usable_cpus(),
        },
        "cuda": _gpus(),
        "libraries": versions,
        "optional": {name: {"version": _version(name), "for": use} for name, use in OPTIONAL.items()},
        "jobs": {job: {"missing": [name for name in needs if versions[name] is None]} for job, needs in JOBS.items()},
    }


def _version(name: str) -> str | None:
    """Return the version of a distribution whose module is there, else None. Nothing is imported."""
    module = _MODULES.get(name, name)
    try:
        if module not in sys.modules and find_spec(module) is None:
            return None
    except (ImportError, ValueError):
        return None
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def _gpus() -> dict[str, Any]:
    reason = cuda.why_not()
    names = [cuda.device_name(i) for i in range(cuda.device_count())] if reason is None else []
    return {"gpus": names, "missing": reason, "cuda-core": _version("cuda-core")}


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model"):
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def describe(found: dict[str, Any]) -> list[str]:
    """Return what `doctor` prints."""
    chip = found["cpu"]
    forced = f", forced by QUANTKIT_ISA={chip['forced']}" if chip["forced"] else ""
    rows = [
        ("quantkit", found["quantkit"] or "unknown"),
        ("python", f"{found['python']} ({found['platform']})"),
        ("cpu", f"{chip['model']}, {chip['usable_cpus']} usable"),
        ("kernels", f"{chip['in_use']} in use{forced}; available: {', '.join(chip['instruction_sets'])}"),
    ]
    gpus = found["cuda"]
    rows.append(("gpu", ", ".join(gpus["gpus"]) or f"none: {gpus['missing']}"))
    rows += [(name, found_version or "not installed") for name, found_version in found["libraries"].items()]
    rows += [
        (name, f"{entry['version'] or 'not installed'} (optional, for {entry['for']})")
        for name, entry in found["optional"].items()
    ]
    lines = table(rows, ("", ""), left=(0, 1))[1:]
    lines.append("")
    jobs = []
    for job, entry in found["jobs"].items():
        missing = entry["missing"]
        jobs.append((job, f"missing: pip install {' '.join(missing)}" if missing else "ready"))
    return lines + table(jobs, ("", ""), left=(0, 1))[1:]
