"""Which device a verb runs on: that of its operands."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from quantkit._kernels import PackedMatmul

# What never is on a GPU, and is told from the type alone: a small product takes a microsecond.
PLAIN = frozenset({np.ndarray, float, int, type(None), list, tuple, PackedMatmul})


def on_gpu(a: Any, b: Any = None, c: Any = None) -> bool:
    """Return whether an operand is on a GPU: an Array or QTensor of quantkit's there, a torch tensor, a CuPy array."""
    if type(a) in PLAIN and type(b) in PLAIN and type(c) in PLAIN:
        return False
    return any("cuda" in str(getattr(x, "device", "")).lower() for x in (a, b, c) if type(x) not in PLAIN)


class _There:
    """The verbs on a GPU: a module that is imported when one of them is called."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, verb: str) -> Any:
        return getattr(import_module(self._module), verb)


cuda_elements = _There("quantkit.ops.cuda_elements")
cuda_products = _There("quantkit.ops.cuda_products")
