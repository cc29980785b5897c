"""How long sums of products may be that must stay in int32."""

from __future__ import annotations

from typing import Any

import numpy as np

from quantkit.errors import InvalidArgument

# The longest sum that fused ends take: 255 * 128 * 65,793 < 2^31, the products of uint8 and symmetric int8 codes.
LONGEST_K = 65_793


def longest_depth(a: tuple[bool, Any], b: tuple[bool, Any]) -> int:
    """Return how many products a sum may have without leaving int32; operands are (is_signed, zero point)."""
    reach = 1
    for is_signed, zero_point in (a, b):
        low = -128 if is_signed else 0
        reach *= max(int(np.max(zero_point)) - low, low + 255 - int(np.min(zero_point)))
    return min(LONGEST_K, (2**31 - 1) // reach)


def check_depth(verb: str, depth: int, a: tuple[bool, Any], b: tuple[bool, Any]) -> None:
    """Raise `InvalidArgument` for sums of `depth` products that could leave int32, naming how many may be."""
    if depth > (limit := longest_depth(a, b)):
        raise InvalidArgument(
            f"{verb}: wanted at most {limit} products a sum, which with these zero points stay in int32, got {depth}"
        )
