"""What the benchmarks here share with ``quantkit bench``."""

from quantkit.jobs.race import machine, pin, race

__all__ = ["machine", "pin", "race"]
