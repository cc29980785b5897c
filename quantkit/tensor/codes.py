"""What a tensor says about its codes, before they mean anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quantkit._kernels._core import CodesBase
from quantkit.storage.devices import Movable

if TYPE_CHECKING:
    from typing import Self

    from quantkit.storage import Array


class Codes(CodesBase, Movable):
    """Shape, place and exports of the codes of a `QTensor`; its `storage()` has the rest."""

    __slots__ = ()
    _codes: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return self._codes.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes, and so elements, from one code to the next along each dimension."""
        return self._codes.strides

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._codes.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._codes.size

    @property
    def nbytes(self) -> int:
        """Bytes of the codes."""
        return self._codes.size

    @property
    def device(self) -> str:
        """Where the codes are: "cpu" or "cuda:N"."""
        return self._codes.device

    def stride(self) -> tuple[int, ...]:
        """Elements from one to the next along each dimension, as PyTorch counts them."""
        return self._codes.strides

    def data_ptr(self) -> int:
        """Address of the first code; it holds until the bytes move."""
        return self._codes.data_ptr()

    def is_contiguous(self) -> bool:
        """Whether the codes lie in C order without gaps."""
        return self._codes.is_contiguous()

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._codes.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._codes.__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        # On the CPU there is none: an AttributeError.
        found: dict[str, Any] = getattr(self._codes, "__cuda_array_interface__")  # noqa: B009
        return found

    def __bytes__(self) -> bytes:
        return self._codes.cpu()._wire().tobytes()

    def __len__(self) -> int:
        return len(self._codes)

    def share_memory_(self) -> Self:
        """Move the whole storage to shared memory (`ByteStorage.share_memory_`); returns self."""
        self._codes.share_memory_()
        return self

    def is_shared(self) -> bool:
        """Whether other processes that hold these codes see what is written here."""
        return self._codes.is_shared()
