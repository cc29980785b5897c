"""How a verb puts itself on the current stream.

``if (stream := current()) is not None: return queued(stream, verb, operands, parameters, out, **rest)`` stands at the
begin of every verb; docs/kernels.md has the rest.
"""

from quantkit._kernels._core import current, pending_arrays, queued, recording
from quantkit.storage.array import Array
from quantkit.storage.bytestorage import ByteStorage
from quantkit.storage.dtypes import element_type

__all__ = ["current", "queued", "recording"]

pending_arrays(Array, ByteStorage, element_type)
