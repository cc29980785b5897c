"""Moving between devices: the same three calls on storages, arrays and tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quantkit.storage.dtypes import device_index

if TYPE_CHECKING:
    from typing import Self


class Movable:
    """Bytes that can be had on another device."""

    __slots__ = ()

    def to(self, device: Any) -> Self:
        """Return the same on a device ("cpu", "cuda:0"): self where it is there already, else a contiguous copy.

        Onto a GPU the copy is made in the order of its current stream, and this returns when the source has been read;
        to the CPU it is waited for.

        Raises
        ------
        InvalidArgument, CudaUnavailable, OutOfMemory
            For another device; where there is no such GPU; where it has no memory left.
        """
        index = device_index(device)
        if index is None:
            return self
        from quantkit.storage.cuda import moved

        made: Self = moved(self, index)
        return made

    def cpu(self) -> Self:
        """Return the same on the CPU: self where it is there, else a copy that is waited for."""
        return self.to("cpu")

    def cuda(self, device: Any = "cuda") -> Self:
        """Return the same on a GPU, by default the current one; `device` may be its number."""
        return self.to(f"cuda:{device}" if isinstance(device, int) else device)
