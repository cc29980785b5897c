"""Bytes that live anywhere, and arrays on them.

`ByteStorage` keeps its identity while its bytes move between the heap, shared memory and mapped files; `Array` is a
dtype, a shape and strides on top; `QUInt8Storage` is an Array of quint8 codes.
"""

from quantkit.storage.arena import Arena
from quantkit.storage.array import Array
from quantkit.storage.bytestorage import ByteStorage
from quantkit.storage.quint8 import QUInt8Storage

__all__ = ["Arena", "Array", "ByteStorage", "QUInt8Storage"]
