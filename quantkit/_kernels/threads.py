"""How many threads the pool gets: what the scheduler and the container grant, or what the environment says."""

from __future__ import annotations

import math
import os
from pathlib import Path

from quantkit.errors import InvalidArgument

VARIABLE = "QUANTKIT_NUM_THREADS"
CGROUP = Path("/sys/fs/cgroup")


def cgroup_cpus(root: Path = CGROUP) -> float:
    """CPUs' worth of time that the control group allows (version 2, else version 1); inf where it sets no limit."""
    try:
        quota, period = (root / "cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        try:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return math.inf
    try:
        limit = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return math.inf
    return limit if limit > 0 else math.inf


def usable_cpus() -> int:
    """CPUs that this process may run on, by affinity and control group; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, math.ceil(min(cgroup_cpus(), 1 << 20))))


def from_environment() -> int:
    """Return the number that the environment asks for, else the usable CPUs.

    Raises
    ------
    InvalidArgument
        When the variable is not a whole number from 1 to 256.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return min(usable_cpus(), 256)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 256:
        raise InvalidArgument(f"{VARIABLE}: wanted a whole number from 1 to 256, got {text!r}")
    return int(text)
