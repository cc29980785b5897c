"""Signal over quantization noise, in decibels."""

from __future__ import annotations

from math import inf, log10

SQNR_LIMIT = 200.0  # an exact match has no noise, and JSON has no infinity


def sqnr_db(signal: float, noise: float, limit: float = SQNR_LIMIT) -> float:
    """Return 10 log10(signal / noise) from two energies, within +-`limit`; `limit` where there is no noise."""
    if noise == 0:
        return limit
    if signal == 0 or noise == inf:
        return -limit
    return min(max(10 * (log10(signal) - log10(noise)), -limit), limit)
