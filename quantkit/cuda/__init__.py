"""GPUs: whether they can be used here, and the kernels that run on them.

Nothing of CUDA is imported or asked before it is needed. `quantkit.ByteStorage`, `quantkit.QTensor`, `quantkit.ops` and
`quantkit.Stream` take ``device="cuda:0"``; docs/cuda.md shows how.
"""

from __future__ import annotations

from quantkit.cuda import driver as _driver

__all__ = ["device_count", "device_name", "is_available", "memory_info", "why_not"]


def is_available() -> bool:
    """Return whether a GPU can be used here. Never raises, and waits for at most 30 s, the first time."""
    return _driver.why_not() is None


def why_not() -> str | None:
    """Return why no GPU can be used here, and what to install where that helps; None where one can."""
    return _driver.why_not()


def device_count() -> int:
    """Return how many GPUs there are; 0 where CUDA cannot be used."""
    return _driver.device_count()


def device_name(index: int = 0) -> str:
    """Return what the maker calls a GPU.

    Raises
    ------
    CudaUnavailable
        When there is no such GPU.
    """
    return _driver.device(index).name


def memory_info(index: int = 0) -> tuple[int, int]:
    """Return the bytes of a GPU's memory that are free, and all of them; `CudaUnavailable` when there is none."""
    device = _driver.device(index)
    with device:
        return device.memory()
