"""QUInt8Storage: an Array of quint8 codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quantkit._kernels._core import Memory
from quantkit.qparams import QDType, quint8
from quantkit.storage.array import Array
from quantkit.storage.bytestorage import ByteStorage
from quantkit.storage.dtypes import BYTE, as_shape

if TYPE_CHECKING:
    from typing import Self


class QUInt8Storage(Array):
    """Codes of a quint8 tensor: bytes with a shape, set and read as integers from 0 to 255.

    Parameters
    ----------
    *shape : int
        Sizes of the dimensions; the codes are 0.

    Examples
    --------
    >>> s = QUInt8Storage(2, 3)
    >>> s[0, 0] = 100
    >>> s[1, :] = 255
    >>> s
    QUInt8Storage([[100,   0,   0],
                   [255, 255, 255]])
    """

    __slots__ = ()

    def __new__(cls, *shape: Any) -> Self:
        sizes = as_shape(shape)
        nbytes = 1
        for n in sizes:
            nbytes *= n
        return cls._make(ByteStorage._of(Memory.heap(nbytes, True)), BYTE, sizes)

    @property
    def dtype(self) -> QDType:  # type: ignore[override]
        """`quantkit.quint8`; as an ndarray the codes are uint8."""
        return quint8
