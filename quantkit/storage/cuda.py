"""Bytes on a GPU. Storages and Arrays of them are classes of their own, so that those of the CPU need not ask."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from quantkit._kernels._core import ElementType, Memory
from quantkit.cuda import memory as gpu
from quantkit.errors import InvalidDType, ShapeMismatch, StorageError
from quantkit.storage.array import Array
from quantkit.storage.bytestorage import ByteStorage, as_byte, contiguous_bytes
from quantkit.storage.cuda_layout import TYPE_CODES, basic_key, ghost, interface, strided_copy
from quantkit.storage.devices import Movable
from quantkit.storage.dtypes import BYTE, as_shape, as_wire, device_index
from quantkit.storage.quint8 import QUInt8Storage

if TYPE_CHECKING:
    from typing import Self

    from quantkit.cuda.memory import Block


def empty(index: int, nbytes: int) -> CudaStorage:
    """Return bytes of unspecified content on a GPU."""
    return CudaStorage._of(Memory.on_device(gpu.allocate(index, nbytes)))


def empty_array(index: int, cls: type[Array], shape: tuple[int, ...], etype: ElementType) -> Any:
    """Return an Array of unspecified content on a GPU."""
    return cls._make(empty(index, math.prod(shape) * etype.itemsize), etype, shape)


def moved(source: Any, index: int) -> Any:
    """Return a copy of a storage or an Array of the CPU on a GPU."""
    if isinstance(source, ByteStorage):
        made = empty(index, len(source))
        return made.copy_(source)
    array = np.ascontiguousarray(source._wire())
    made_array = empty_array(index, type(source), source.shape, source._type)
    if array.nbytes:
        gpu.upload(made_array._block, made_array._offset, array.ctypes.data, array.nbytes)
    return made_array


class CudaStorage(ByteStorage):
    """A run of bytes on a GPU: a `ByteStorage` that lives there.

    Single bytes and slices are read and set as on the CPU, by copies that are waited for where values come back.
    """

    __slots__ = ()

    @property
    def _block(self) -> Block:
        block: Block = self._memory.block
        return block

    @property
    def device(self) -> str:
        """Where the bytes are: "cuda:N"."""
        return self._block.device

    def to(self, device: Any) -> Any:
        """Return the same on a device (`ByteStorage.to`)."""
        index = device_index(device)
        if index == self._block.index:
            return self
        if index is not None:
            return empty(index, len(self)).copy_(self)
        made = ByteStorage.empty(len(self))
        if len(self):
            gpu.download(self._block, 0, made.data_ptr(), len(self))
        return made

    def _on_cpu(self) -> ByteStorage:
        made: ByteStorage = self.cpu()
        return made

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, slice) and not hasattr(key, "__index__"):
            raise InvalidDType(f"a storage is indexed by an integer or a slice, got {key!r}")
        return self._flat()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._flat()[key] = value if isinstance(key, slice) else as_byte(value)

    def tolist(self) -> list[int]:
        """Return the bytes as a list of integers."""
        return self._on_cpu().tolist()

    def copy_(self, source: Any) -> Self:
        """Copy the bytes of `source`, of the same number, from anywhere; returns self, with the copy on its way."""
        if isinstance(source, CudaArray):
            source = source.contiguous()._flat_bytes()
        if isinstance(source, CudaStorage | CudaArray):
            if source.nbytes != len(self) if isinstance(source, CudaArray) else len(source) != len(self):
                raise ShapeMismatch(f"copy_: wanted {len(self)} bytes, got {len(source)}")
            self._flat().copy_(source if isinstance(source, CudaArray) else source._flat())
            return self
        view = contiguous_bytes(source)
        if view.nbytes != len(self):
            raise ShapeMismatch(f"copy_: wanted {len(self)} bytes, got {view.nbytes}")
        if self.readonly:
            raise StorageError("these bytes are read-only")
        if view.nbytes:
            gpu.upload(self._block, 0, np.frombuffer(view, np.uint8).ctypes.data, view.nbytes)
        return self

    def clone(self) -> CudaStorage:
        """Return a copy on the same GPU."""
        return empty(self._block.index, len(self)).copy_(self)

    __copy__ = clone

    def resize_(self, nbytes: SupportsIndex) -> Self:
        """Change the number of bytes; the common part is kept, new bytes are zero; returns self."""
        (size,) = as_shape((nbytes,))
        source = self._memory
        if size == len(self):
            return self
        if self._block.shared or not self._block.resizable:
            kind = "shared" if self._block.shared else "borrowed"
            raise StorageError(f"resize_: {kind} bytes keep their size of {len(self)}; work on a clone()")
        self._check_free("resize_")
        made, common = gpu.allocate(self._block.index, size), min(size, len(self))
        if common:
            gpu.copy(made, 0, self._block, 0, common)
        if size > common:
            gpu.fill(made, common, 0, size - common)
        if not self._exchange(Memory.on_device(made), source, "resize_"):
            raise StorageError("resize_: another thread moved these bytes meanwhile")
        return self

    def share_memory_(self) -> Self:
        """Move the bytes to memory of the GPU that other processes may open (CUDA IPC); returns self."""
        from quantkit.storage.cuda_sharing import share

        share(self)
        return self

    def handle(self) -> Any:
        """Return a tuple from which any process of this user gets these bytes by `from_handle`."""
        from quantkit.storage.cuda_sharing import handle_of

        return handle_of(self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return interface(self._flat())  # type: ignore[arg-type]

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._flat().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self._block.index)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        # A plain pickle carries the bytes and the name of the device.
        return _unpickle, (self._on_cpu(), self.device)

    def __repr__(self) -> str:
        head = ", ".join(map(str, self[:16].tolist())) + (", ..." if len(self) > 16 else "")
        return f"ByteStorage([{head}], nbytes={len(self)}, device={self.device!r})"


class CudaArray(Array):
    """Elements on a GPU: an `Array` that lives there. Views are made without the GPU; elements travel by copies.

    NumPy cannot read it; ``a.cpu()`` can be read. torch and CuPy can, by DLPack or ``__cuda_array_interface__``.
    """

    __slots__ = ()

    @property
    def _block(self) -> Block:
        block: Block = self._bytes._memory.block
        return block

    @property
    def device(self) -> str:
        """Where the bytes are: "cuda:N"."""
        return self._block.device

    def to(self, device: Any) -> Any:
        """Return the same on a device (`Array.to`)."""
        index = device_index(device)
        if index == self._block.index:
            return self
        own = self.contiguous()
        if index is not None:
            made = empty_array(index, type(self), self.shape, self._type)
            if self.size:
                gpu.copy(made._block, made._offset, own._block, own._offset, self.nbytes)
            return made
        cls = QUInt8Storage if isinstance(self, QUInt8Storage) else Array
        on_cpu = cls._empty(self.shape, self._type)
        if self.size:
            gpu.download(own._block, own._offset, on_cpu.data_ptr(), self.nbytes)
        return on_cpu

    def _on_cpu(self) -> Array:
        made: Array = self.cpu()
        return made

    def _operand(self) -> Any:
        return self

    def _flat_bytes(self) -> Array:
        return Array._make(self._bytes, BYTE, (self.nbytes,), self._offset)

    def _like(self, shape: tuple[int, ...]) -> Self:
        made: Self = empty_array(self._block.index, type(self), shape, self._type)
        return made

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise StorageError(f"NumPy cannot read an Array on {self.device}; copy it by .cpu()")

    def __bool__(self) -> bool:
        return bool(self._on_cpu())

    def __getitem__(self, key: Any) -> Any:
        """Return one element as a Python number, a view, or, for masks and integer arrays, a copy made on the CPU."""
        if not basic_key(key):
            part = self._on_cpu()[key._on_cpu() if hasattr(key, "_on_cpu") else key]
            return part.to(self.device) if isinstance(part, Array) else part
        keys = key if isinstance(key, tuple) else (key,)
        whole = any(k is Ellipsis for k in keys)
        view = self._moved(ghost(self)[keys if whole else (*keys, ...)])
        return view if whole or view.ndim or None in keys else view.item()

    def __setitem__(self, key: Any, value: Any) -> None:
        self._check_writable()
        if basic_key(key):
            keys = key if isinstance(key, tuple) else (key,)
            view = ghost(self)[keys if any(k is Ellipsis for k in keys) else (*keys, ...)]
            self._moved(view)._assign(value)
            return
        on_cpu = self._on_cpu()
        on_cpu[key] = value
        self._assign(on_cpu)

    def _assign(self, value: Any) -> None:
        if isinstance(value, CudaArray) and value._type is self._type:
            value = value.to(self.device)
            if value._bytes is self._bytes:
                value = value.clone()  # they may overlap
        else:
            array = np.asarray(as_wire(value, self._type), self._type.wire, order="C")
            if array.size == 1 and self._type.itemsize == 1 and self._contiguous:
                if self.size:
                    gpu.fill(self._block, self._offset, array.view(np.uint8).item(), self.size)
                return
            value = moved(Array._over(array, self._type, exclusive=True), self._block.index)
        strided_copy(value, self)

    def item(self) -> Any:
        """Return the only element as a Python number."""
        return self._on_cpu().item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return self._on_cpu().tolist()

    def clone(self) -> Self:
        """Return a contiguous copy on the same GPU."""
        made = self._like(self.shape)
        strided_copy(self, made)
        return made

    __copy__ = clone

    def astype(self, dtype: Any) -> Any:
        """Return the elements converted to another dtype, which the CPU does, in a new Array on the same GPU."""
        return self._on_cpu().astype(dtype).to(self.device)

    def _moved(self, part: Any) -> Self:
        view = self._view(part)
        assert view is not None
        return view

    def reshape(self, *shape: Any) -> Self:
        """Return a view in another shape, one size of which may be -1; a copy where this one is not contiguous."""
        own = self.contiguous()
        return own._moved(ghost(own).reshape(*shape))

    def view(self, *shape: Any) -> Self:
        """Return a view in another shape; `ShapeMismatch` where this one is not contiguous: `reshape` copies then."""
        if not self._contiguous:
            raise ShapeMismatch(f"strides {self.strides} of shape {self.shape} give no view as {shape}; use reshape")
        return self.reshape(*shape)

    def permute(self, *axes: Any) -> Self:
        """Return a view with its dimensions in another order."""
        return self._moved(ghost(self).transpose(*axes))

    def transpose(self, *axes: Any) -> Self:
        """Return a view with dimensions reversed (no argument), in the given order, or with two of them swapped."""
        if len(axes) == 2 and self.ndim != 2:
            return self._moved(ghost(self).swapaxes(*axes))
        return self.permute(*axes)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return interface(self)

    def __dlpack__(self, *, stream: Any = None, **kwargs: Any) -> Any:
        from quantkit._kernels._core import device_capsule
        from quantkit.storage.cuda_layout import ready_for

        ready_for(self._block, stream)
        return device_capsule(self, self._block.index, TYPE_CODES[self._type.name])

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self._block.index)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return _unpickle, (self._on_cpu(), self.device)

    def handle(self) -> Any:
        """Return a tuple from which any process of this user gets this array by `from_handle`."""
        from quantkit.storage.cuda_sharing import array_handle_of

        return array_handle_of(self)

    def __repr__(self) -> str:
        return f"{repr(self._on_cpu())[:-1]}, device={self.device!r})"


class CudaQUInt8Storage(CudaArray, QUInt8Storage):
    """Codes of a quint8 tensor on a GPU."""

    __slots__ = ()


CudaArray._device_class = Array._device_class = CudaArray  # type: ignore[attr-defined]
CudaQUInt8Storage._device_class = QUInt8Storage._device_class = CudaQUInt8Storage  # type: ignore[attr-defined]


def _unpickle(on_cpu: Movable, device: str) -> Any:
    return on_cpu.to(device)
