"""Array: bytes with a dtype, a shape and strides. All indexing of the package lives here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from quantkit._kernels import _core
from quantkit._kernels._core import ArrayBase, ElementType, Memory, Wire
from quantkit.errors import InvalidDType, QuantkitError, ShapeMismatch, StorageError
from quantkit.storage.bytestorage import ByteStorage, contiguous_bytes, pickled_bytes
from quantkit.storage.devices import Movable
from quantkit.storage.dtypes import as_shape, as_wire, element_type

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from numpy.typing import NDArray

    from quantkit.storage.transport import ArrayHandle


class Array(ArrayBase, Movable, NDArrayOperatorsMixin):
    """Elements of one dtype on a `ByteStorage`, seen through a shape and strides.

    Indexing, `reshape`, `permute` and `transpose` give views wherever NumPy would; masks and integer arrays copy.
    ``np.asarray(a)`` is zero-copy and writable, and so are the buffer protocol and DLPack. Arithmetic and NumPy's
    functions take an Array as they take any array, and return ndarrays.

    Parameters
    ----------
    storage : ByteStorage
    shape : int or tuple of int
    dtype : dtype-like
        uint8, int8, int32, int64, float16, bfloat16 (with ml_dtypes installed), float32, float64 or bool.
    offset : int, default 0
        First element, in bytes from the start of the storage.
    strides : tuple of int, optional
        In bytes; C-contiguous by default.

    Raises
    ------
    InvalidDType, StorageError
        For another dtype; when an element would lie outside the storage.
    """

    __slots__ = ("__weakref__",)
    _bytes: ByteStorage

    def __new__(
        cls,
        storage: ByteStorage,
        shape: int | tuple[int, ...],
        dtype: Any,
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> Self:
        if not isinstance(storage, ByteStorage):
            raise InvalidDType(f"wanted a ByteStorage, got {type(storage).__name__}")
        return cls._make(storage, element_type(dtype), as_shape(shape), offset, strides)

    @classmethod
    def _empty(cls, shape: tuple[int, ...], etype: ElementType) -> Self:
        return cls._make(ByteStorage._of(Memory.heap(math.prod(shape) * etype.itemsize)), etype, shape)

    @classmethod
    def _over(cls, array: NDArray[Any], etype: ElementType, *, exclusive: bool) -> Self:
        """Return an Array over the elements of `array`, which has the wire dtype of `etype`."""
        memory, offset = Memory.borrow(array, exclusive)
        return cls._make(ByteStorage._of(memory), etype, array.shape, offset, array.strides)

    def _wire(self) -> NDArray[Any]:
        """Every read and write of elements from Python goes through this ndarray, which counts as an export.

        Never bound to a name: it must be gone when the call ends, also when it ends with an error.
        """
        # Through a memoryview, because NumPy itself would hide why an export was refused.
        return np.asarray(memoryview(self if self._type.dtype is self._type.wire else Wire(self)))

    def _operand(self) -> Any:
        """Return what verbs take: an ndarray, zero-copy; on a GPU the Array itself."""
        return self._wire()

    def _in_turn(self) -> Any:
        """Return what verbs take that may be queued: on a stream the Array itself, which is not waited for."""
        return self._operand() if _core.current() is None else self

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements."""
        dtype: np.dtype[Any] = self._type.dtype
        return dtype

    @property
    def device(self) -> str:
        """Where the bytes are: "cpu" or "cuda:N"."""
        return "cpu"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._type.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self._type.itemsize

    @property
    def readonly(self) -> bool:
        """Whether the elements may not be written."""
        return self._bytes.readonly

    @property
    def data(self) -> memoryview:
        """A memoryview of the elements; while it lives, the bytes cannot move."""
        return memoryview(self)

    def stride(self) -> tuple[int, ...]:
        """Elements from one to the next along each dimension, as PyTorch counts them."""
        return tuple([s // self._type.itemsize for s in self.strides])

    def is_contiguous(self) -> bool:
        """Whether the elements lie in C order without gaps."""
        return self._contiguous

    def storage(self) -> ByteStorage:
        """Return the bytes, which this Array and its views share."""
        return self._bytes

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        self._bytes._array_asked()
        array: NDArray[Any] = self._wire().view(self._type.dtype)
        if copy or (dtype is not None and np.dtype(dtype) != array.dtype):
            if copy is False:
                raise ValueError(f"np.asarray(copy=False): {self._type.name} cannot be seen as {dtype} without a copy")
            array = array.astype(self._type.dtype if dtype is None else dtype)
        return array

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        plain = [np.asarray(v) if isinstance(v, Array) else v for v in inputs]
        if out is not None:
            kwargs["out"] = tuple([np.asarray(v) if isinstance(v, Array) else v for v in out])
        result = getattr(ufunc, method)(*plain, **kwargs)
        return out[0] if out is not None and len(out) == 1 else result

    def __dlpack__(self, **kwargs: Any) -> Any:
        if self._type.dtype is not self._type.wire:
            raise BufferError(f"NumPy's DLPack has no {self._type.name}; send its bytes by .storage()")
        return self._wire().__dlpack__(**{k: v for k, v in kwargs.items() if v is not None})

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"len() of a 0-d {type(self).__name__}")
        return self.shape[0]

    def __bool__(self) -> bool:
        return bool(np.asarray(self))

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        """Return one element as a Python number, a view where NumPy gives a view, or a copy."""
        part = self._wire()[key]
        if not isinstance(part, np.ndarray):
            return part.view(self._type.dtype).item()
        return self._moved(part)

    def _check_writable(self) -> None:
        if self.readonly:
            raise StorageError(
                "these elements are read-only (their bytes are borrowed or mapped so); write to a clone()"
            )

    def __setitem__(self, key: Any, value: Any) -> None:
        self._check_writable()
        values = as_wire(value, self._type)
        try:
            self._wire()[key] = values
        except QuantkitError:
            raise
        except ValueError as error:
            raise ShapeMismatch(f"cannot set these elements of shape {self.shape}: {error}") from None

    def item(self) -> Any:
        """Return the only element as a Python number."""
        if self.size != 1:
            raise ShapeMismatch(f"item() wants one element, got shape {self.shape}")
        return self._wire().view(self._type.dtype).item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return self._wire().view(self._type.dtype).tolist()

    def fill_(self, value: Any) -> Self:
        """Set every element; `value` broadcasts; returns self."""
        self[...] = value
        return self

    def copy_(self, source: Any) -> Self:
        """Copy the elements of `source`, which broadcasts; overlap is safe; returns self."""
        self[...] = source
        return self

    def clone(self) -> Self:
        """Return a contiguous copy on the heap. On a stream it is made in its turn, as verbs are."""
        made = self._empty(self.shape, self._type)
        if (stream := _core.current()) is not None:
            _core.queued(stream, _clone, (self,), (), made)
        else:
            np.copyto(made._wire(), self._wire())
        return made

    __copy__ = clone

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.clone()

    def contiguous(self) -> Self:
        """Return self when contiguous, else a contiguous copy."""
        return self if self._contiguous else self.clone()

    def astype(self, dtype: Any) -> Array:
        """Return the elements converted to another dtype, as NumPy converts them, in a new Array."""
        etype = element_type(dtype)
        return Array._over(np.asarray(self).astype(etype.dtype).view(etype.wire), etype, exclusive=True)

    def _moved(self, part: NDArray[Any]) -> Self:
        """Return the view over `part`, or an Array that owns `part` where NumPy had to copy."""
        view = self._view(part)
        return type(self)._over(part, self._type, exclusive=True) if view is None else view

    def reshape(self, *shape: Any) -> Self:
        """Return a view in another shape, one size of which may be -1; a copy where strides do not allow a view."""
        return self._moved(self._wire().reshape(*shape))

    def view(self, *shape: Any) -> Self:
        """Return a view in another shape, one size of which may be -1.

        Raises
        ------
        ShapeMismatch
            When the strides do not allow a view; `reshape` copies then.
        """
        got = self._view(self._wire().reshape(*shape))
        if got is None:
            raise ShapeMismatch(f"strides {self.strides} of shape {self.shape} give no view as {shape}; use reshape")
        return got

    def permute(self, *axes: Any) -> Self:
        """Return a view with its dimensions in another order."""
        return self._moved(self._wire().transpose(*axes))

    def transpose(self, *axes: Any) -> Self:
        """Return a view with dimensions reversed (no argument), in the given order, or with two of them swapped."""
        if len(axes) == 2 and self.ndim != 2:
            return self._moved(self._wire().swapaxes(*axes))
        return self.permute(*axes)

    @property
    def T(self) -> Self:
        """The view with its dimensions reversed."""
        return self.permute()

    def resize_(self, *shape: Any) -> Self:
        """Change the shape in place, growing the storage where it must; returns self.

        Elements keep their order, new ones are zero; the storage never shrinks. Views made before keep their shape.

        Raises
        ------
        StorageBusy
            While a memoryview, ndarray or DLPack export of the bytes is alive.
        StorageError
            When the Array is not contiguous, or shared, mapped or borrowed bytes would have to grow.
        """
        sizes = as_shape(shape)
        if not self._contiguous:
            raise StorageError(f"resize_: wanted contiguous elements, got strides {self.strides}; work on a clone()")
        self._bytes._check_free("resize_")
        end = self._offset + math.prod(sizes) * self._type.itemsize
        if end > len(self._bytes):
            self._bytes.resize_(end)
        self._reshape_in_place(sizes)
        return self

    def share_memory_(self) -> Self:
        """Move the whole storage to shared memory (`ByteStorage.share_memory_`); returns self."""
        self._bytes.share_memory_()
        return self

    def is_shared(self) -> bool:
        """Whether other processes that hold these bytes see what is written here."""
        return self._bytes.is_shared()

    def handle(self) -> ArrayHandle:
        """Return a small tuple from which any process of this user gets this array by `from_handle`.

        It holds nothing: the storage must stay alive until they have fetched it. `StorageError` when not shared.
        """
        from quantkit.storage.transport import array_handle_of

        return array_handle_of(self)

    @staticmethod
    def from_handle(handle: ArrayHandle) -> Array:
        """Return the array behind a `handle()`; `StorageError` when the process that made it let go of it."""
        from quantkit.storage.transport import attach_array

        return attach_array(handle)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        # A plain pickle carries these elements only, not the storage around them.
        data = pickled_bytes(Wire(self.contiguous()), protocol)
        return _unpickle, (type(self), self._type.name, self.shape, data)

    def __repr__(self) -> str:
        name = type(self).__name__
        text = np.array2string(np.asarray(self), separator=", ", prefix=f"{name}(")
        suffix = "" if name == "QUInt8Storage" else f", dtype={self._type.name}"
        return f"{name}({text}{suffix})"


def _clone(x: NDArray[Any], *, out: NDArray[Any]) -> NDArray[Any]:
    bits = f"u{x.dtype.itemsize}"
    _core.copy(x.view(bits), out.view(bits))
    return out


def _unpickle(cls: Any, dtype: Any, shape: Any, data: Any) -> Array:
    etype, sizes, view = element_type(dtype), as_shape(shape), contiguous_bytes(data)
    if not (isinstance(cls, type) and issubclass(cls, Array)) or view.nbytes != math.prod(sizes) * etype.itemsize:
        raise StorageError(f"a pickle with {view.nbytes} bytes for shape {sizes} of {etype.name} in {cls!r} is damaged")
    return cls._make(ByteStorage.empty(view.nbytes).copy_(view), etype, sizes)
