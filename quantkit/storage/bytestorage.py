"""ByteStorage: a run of bytes that keeps its identity while the bytes move."""

from __future__ import annotations

import operator
import pickle
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np

from quantkit._kernels._core import Memory, StorageBase
from quantkit.errors import InvalidArgument, InvalidDType, ShapeMismatch, StorageError
from quantkit.storage.devices import Movable
from quantkit.storage.dtypes import BYTE, as_shape, device_index, element_type

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator
    from typing import Self

    from numpy.typing import NDArray

    from quantkit.storage.array import Array
    from quantkit.storage.quint8 import QUInt8Storage
    from quantkit.storage.transport import Handle


def as_byte(value: SupportsIndex) -> int:
    """Return `value` as an integer from 0 to 255, or raise `InvalidDType` or `InvalidArgument`."""
    try:
        byte = operator.index(value)
    except TypeError:
        raise InvalidDType(f"wanted a byte, an integer from 0 to 255, got {value!r}") from None
    if not 0 <= byte <= 255:
        raise InvalidArgument(f"a byte holds 0 to 255, got {byte}")
    return byte


def contiguous_bytes(source: Any) -> memoryview:
    """Return a flat view of the bytes of `source`.

    Raises
    ------
    InvalidDType, StorageError
        When `source` has no buffer; when its elements are not contiguous.
    """
    try:
        view = memoryview(source._on_cpu() if hasattr(source, "_on_cpu") else source)
    except TypeError:
        raise InvalidDType(f"wanted an object with the buffer protocol, got {type(source).__name__}") from None
    if not view.c_contiguous:
        raise StorageError(f"wanted contiguous bytes, got strides {view.strides} for shape {view.shape}")
    # A view with a zero in its shape cannot be cast, and has nothing to show.
    return view.cast("B") if view.nbytes else memoryview(b"")


class ByteStorage(StorageBase, Movable):
    """A run of bytes on the heap, in a foreign buffer, in shared memory or in a mapped file.

    The object stays the same while its bytes move (`resize_`, `share_memory_`), and every Array and QTensor on it
    follows, because they hold the storage and an offset, not an address. Memoryviews, ndarrays and DLPack capsules do
    hold an address: while one is alive the bytes cannot move, and a call that would move them raises `StorageBusy`.

    Parameters
    ----------
    source : int or iterable of int, default 0
        Number of bytes, with unspecified content; or the bytes themselves.

    Examples
    --------
    >>> s = ByteStorage([1, 2, 3, 4])
    >>> s[0] = 9
    >>> s[1:3].fill_(7).tolist()
    [7, 7]
    >>> s.tolist()
    [9, 7, 7, 4]
    """

    __slots__ = ("__weakref__",)

    def __new__(cls, source: SupportsIndex | Iterable[int] = 0) -> Self:
        if hasattr(source, "__index__"):
            return cls.empty(source)  # type: ignore[arg-type]
        try:
            data = bytes([as_byte(v) for v in source])
        except TypeError:
            raise InvalidDType(f"wanted a number of bytes or the bytes, got {type(source).__name__}") from None
        made = cls.empty(len(data))
        memoryview(made)[:] = data
        return made

    @classmethod
    def _of(cls, memory: Memory) -> Self:
        return StorageBase.__new__(cls, memory)

    @classmethod
    def empty(cls, nbytes: SupportsIndex, *, device: Any = "cpu") -> Self:
        """Return `nbytes` bytes of unspecified content on the heap, 64-byte aligned, or on a GPU ("cuda:0").

        Raises
        ------
        InvalidArgument, OutOfMemory, CudaUnavailable
            For a negative size; for one that cannot be had; where there is no such GPU.
        """
        (size,) = as_shape((nbytes,))
        if (index := device_index(device)) is not None:
            from quantkit.storage.cuda import empty

            return empty(index, size)  # type: ignore[return-value]
        return cls._of(Memory.heap(size))

    @classmethod
    def full(cls, nbytes: SupportsIndex, value: SupportsIndex, *, device: Any = "cpu") -> Self:
        """Return `nbytes` bytes of `value` (0 to 255) on the heap, or on a GPU."""
        byte = as_byte(value)
        return cls.empty(nbytes, device=device).fill_(byte)

    @classmethod
    def from_buffer(
        cls, buffer: Any, dtype: Any = np.uint8, device: Any = "cpu", *, offset: int = 0, count: int = -1
    ) -> Self:
        """Return a storage over the bytes of `buffer`, without a copy; a read-only source stays read-only.

        On a GPU it is a copy.

        Parameters
        ----------
        buffer : object with the buffer protocol
            Kept alive, and not resizable, while the storage lives.
        dtype : dtype of one byte, default uint8
            For the familiar call only: a ByteStorage holds bytes. `quantkit.from_buffer` takes every dtype.
        offset, count : int
            First byte, and number of bytes; -1 for all that follow.

        Raises
        ------
        InvalidDType, InvalidArgument, StorageError
            When `buffer` has no buffer protocol; when offset or count reach outside; when it is not contiguous.
        """
        if element_type(dtype).itemsize != 1:
            raise InvalidDType(f"ByteStorage.from_buffer wants a dtype of one byte, got {dtype!r}")
        view = contiguous_bytes(buffer)
        if count == -1:
            count = view.nbytes - offset
        if not 0 <= offset <= view.nbytes or not 0 <= count <= view.nbytes - offset:
            raise InvalidArgument(f"offset {offset} and count {count} reach outside a buffer of {view.nbytes} bytes")
        return cls._of(Memory.borrow(view[offset : offset + count])[0]).to(device)

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        shared: bool = False,
        size: int | None = None,
        *,
        offset: int = 0,
        writable: bool = True,
    ) -> Self:
        """Map a file, or a part of it, without reading it.

        Parameters
        ----------
        path : path
        shared : bool, default False
            True: writes go to the file, and to everyone who maps it; a file that is missing or shorter than
            ``offset + size`` is created or grown, with zeros. False: writes stay here.
        size : int, optional
            Bytes to map; by default all that the file has after `offset` now. A file that grows later is mapped as
            far as it was.
        offset : int, default 0
            First byte; any, not only a multiple of the page size.
        writable : bool, default True
            False: a read-only map; the file is opened for reading only, and must be long enough.

        Raises
        ------
        StorageError
            When the file is missing, too short, not a regular file, or may not be opened so. A file that somebody
            truncates while it is mapped is a StorageError at the next use, not a crash.
        """
        from quantkit.storage.mapped import map_file

        made = cls._of(map_file(path, shared, size, offset, writable))
        if shared:
            from quantkit.storage.transport import register

            register(made)
        return made

    @staticmethod
    def from_handle(handle: Handle) -> ByteStorage:
        """Return the storage behind a `handle()`, mapped once however often it is asked for.

        Raises
        ------
        StorageError
            When the process that made the handle has ended, or no longer holds those bytes.
        """
        from quantkit.storage.transport import attach

        return attach(handle)

    @property
    def device(self) -> str:
        """Where the bytes are: "cpu" or "cuda:N"."""
        return "cpu"

    def nbytes(self) -> int:
        """Number of bytes."""
        return len(self)

    def is_shared(self) -> bool:
        """Whether other processes that hold these bytes see what is written here."""
        return self._memory.shared

    @property
    def readonly(self) -> bool:
        """Whether the bytes may not be written, as those of a `bytes` object or a read-only map."""
        return not self._memory.writable

    def _flat(self) -> Array:
        from quantkit.storage.array import Array

        return Array._make(self, BYTE, (len(self),))

    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> Array: ...
    def __getitem__(self, key: SupportsIndex | slice) -> int | Array:
        """Return one byte, or a slice as a view of these bytes (an Array of uint8)."""
        if isinstance(key, slice):
            part: Array = self._flat()[key]
            return part
        try:
            return self._get(key)
        except TypeError:
            raise InvalidDType(f"a storage is indexed by an integer or a slice, got {key!r}") from None

    def __setitem__(self, key: SupportsIndex | slice, value: Any) -> None:
        if isinstance(key, slice):
            self._flat()[key] = value
        else:
            self._set(key, as_byte(value))

    def __iter__(self) -> Iterator[int]:
        return iter(self.tolist())

    def tolist(self) -> list[int]:
        """Return the bytes as a list of integers."""
        return memoryview(self).tolist()

    def fill_(self, value: SupportsIndex) -> Self:
        """Set every byte to `value` (0 to 255); returns self."""
        self._flat().fill_(as_byte(value))
        return self

    def copy_(self, source: Any) -> Self:
        """Copy the bytes of `source`, of the same number; overlap is safe; returns self.

        Raises
        ------
        ShapeMismatch
            When the numbers of bytes differ.
        """
        view = contiguous_bytes(source)
        if view.nbytes != len(self):
            raise ShapeMismatch(f"copy_: wanted {len(self)} bytes, got {view.nbytes}")
        self._flat().copy_(np.frombuffer(view, np.uint8))
        return self

    def clone(self) -> ByteStorage:
        """Return a copy on the heap."""
        made = ByteStorage.empty(len(self))
        return made.copy_(self)

    __copy__ = clone

    def __deepcopy__(self, memo: dict[int, Any]) -> ByteStorage:
        return self.clone()

    def resize_(self, nbytes: SupportsIndex) -> Self:
        """Change the number of bytes; the common part is kept, new bytes are zero; returns self.

        Raises
        ------
        StorageBusy
            While a memoryview, ndarray or DLPack export of these bytes is alive.
        StorageError
            When the bytes are shared, mapped or borrowed: others hold them at their size.
        """
        (size,) = as_shape((nbytes,))
        while True:
            memory = self._memory
            if size == len(self):
                return self
            if not memory.resizable:
                kind = "shared" if memory.shared else memory.where
                raise StorageError(f"resize_: {kind} bytes keep their size of {len(self)}; work on a clone()")
            self._check_free("resize_")  # before the allocation, which may be large
            if self._move(Memory.heap(size), memory, "resize_"):
                return self

    def share_memory_(self) -> Self:
        """Move the bytes to shared memory, in place and with one copy; returns self.

        From then on the storage, and every Array and QTensor on it, travels to other processes as a handle and is
        the same memory there. Does nothing when the bytes are shared already. A borrowed source is no longer aliased.

        Raises
        ------
        StorageBusy
            While a memoryview, ndarray or DLPack export of these bytes is alive.
        OutOfMemory, StorageError
            When the shared memory, or a file descriptor for it, cannot be had.
        """
        from quantkit.storage.limits import explain
        from quantkit.storage.shared import allocate
        from quantkit.storage.transport import register

        while not (memory := self._memory).shared:
            self._check_free("share_memory_")
            target = allocate(len(self), reserved=False)
            try:
                self._move(target, memory, "share_memory_")
            except OSError as error:
                raise explain(error, "share_memory_") from error
            target.prefault()
        register(self)
        return self

    def handle(self) -> Handle:
        """Return a small tuple from which any process of this user gets these bytes by `from_handle`.

        It may be sent in any way, to any number of processes, any number of times. It holds nothing: this storage
        must stay alive until they have fetched it.

        Raises
        ------
        StorageError
            When the bytes are not shared.
        """
        from quantkit.storage.transport import handle_of

        return handle_of(self)

    def new_quint8_storage(self, *shape: Any) -> QUInt8Storage:
        """Return a QUInt8Storage of `shape` on the first bytes of this storage: a view, not a copy.

        Raises
        ------
        StorageError
            When the storage has too few bytes.
        """
        from quantkit.storage.quint8 import QUInt8Storage

        return QUInt8Storage._make(self, BYTE, as_shape(shape) if shape else (len(self),))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        # NumPy comes here only when the buffer was refused; this says why.
        return self._flat().__array__(dtype, copy)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._flat().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        # A plain pickle carries the bytes. multiprocessing's own pickler asks transport.py first.
        return _unpickle, (pickled_bytes(self, protocol),)

    def __repr__(self) -> str:
        where = "shared" if self.is_shared() else self._memory.where
        head = ", ".join(map(str, self[:16].tolist())) + (", ..." if len(self) > 16 else "")
        return f"ByteStorage([{head}], nbytes={len(self)}, device={self.device!r}, {where})"


def pickled_bytes(source: Any, protocol: SupportsIndex) -> Any:
    """Return contiguous bytes for a pickle: without a copy, and out of band where asked, from protocol 5 on."""
    view = contiguous_bytes(source)
    return pickle.PickleBuffer(view) if operator.index(protocol) >= 5 else bytes(view)


def _unpickle(data: Any) -> ByteStorage:
    view = contiguous_bytes(data)
    return ByteStorage.empty(view.nbytes).copy_(view)
