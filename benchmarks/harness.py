"""What the benchmarks here share with ``quantkit bench``, and races that are repeated until they agree."""

from quantkit.jobs.race import machine, pin, race

__all__ = ["machine", "pin", "race", "steady"]


def steady(sides, **how) -> dict[str, float]:
    """The medians of two races that agree within 8 % for every side; after five, those of the last two all the same.

    A machine that others use as well halves a side at times, whichever it is.
    """
    last = race(sides, **how)
    for _ in range(4):
        before, last = last, race(sides, **how)
        if all(max(last[name], before[name]) < 1.08 * min(last[name], before[name]) for name in last):
            break
    return {name: (last[name] + before[name]) / 2 for name in last}
