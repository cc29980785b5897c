"""Which device a verb runs on: that of its operands."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

_PLAIN = (np.ndarray, float, int, type(None), list, tuple)


def on_gpu(*operands: Any) -> bool:
    """Return whether an operand is on a GPU: an Array or QTensor of quantkit's there, a torch tensor, a CuPy array."""
    return any(type(x) not in _PLAIN and "cuda" in str(getattr(x, "device", "")).lower() for x in operands)


class _There:
    """The verbs on a GPU: a module that is imported when one of them is called."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, verb: str) -> Any:
        return getattr(import_module(self._module), verb)


cuda_elements = _There("quantkit.ops.cuda_elements")
cuda_products = _There("quantkit.ops.cuda_products")
