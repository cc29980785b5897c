"""QTensor: an Array of codes and the QParams that give them meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from quantkit import ops
from quantkit.errors import InvalidDType, InvalidQParams, ShapeMismatch, StorageError
from quantkit.qparams import QDType, QParams, as_qdtype, check_zero_point
from quantkit.storage import Array
from quantkit.storage.dtypes import as_shape
from quantkit.tensor import channels
from quantkit.tensor.codes import Codes
from quantkit.text import told

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from numpy.typing import NDArray

DEFAULT = QParams(1.0, 0)


class TensorHandle(NamedTuple):
    """Where to find the codes of a tensor in another process, and its parameters."""

    codes: Any
    scale: Any
    zero_point: Any
    axis: int | None


def real(value: Any) -> NDArray[np.float32]:
    """Return real values as float32: those of a QTensor dequantized, those of anything else converted.

    Raises
    ------
    InvalidDType
        When `value` does not hold real numbers.
    """
    if isinstance(value, QTensor):
        return value.dequantize()
    array = np.asarray(value)
    if array.dtype.kind not in "iufb" and array.dtype.name != "bfloat16":
        raise InvalidDType(f"wanted real numbers, got {array.dtype}")
    return array.astype(np.float32, copy=False)


class QTensor(Codes, NDArrayOperatorsMixin):
    """A tensor of 8-bit codes that stand for the real values ``(code - zero_point) * scale``.

    ``np.asarray(t)`` and DLPack give the codes, zero-copy and writable; `dequantize` gives the values. Indexing,
    `reshape`, `permute` and `transpose` give views where NumPy would, and the parameters of channels follow. Setting
    elements takes real values; setting elements of ``t.storage()`` takes codes. ``+ - * / @``, comparisons, `sum`,
    `mean`, `max` and `min` compute in float32 on the real values and return ndarrays.

    Parameters
    ----------
    codes : Array
        uint8 (quint8) or int8 (qint8); shared, not copied.
    qparams : QParams, default scale 1 and zero point 0

    Raises
    ------
    InvalidDType, InvalidQParams
        For other codes; when the parameters do not fit the codes or the shape.

    Examples
    --------
    >>> import quantkit as qk
    >>> t = qk.quantize([[0.0, 0.5], [1.0, 12.75]], scale=0.05)
    >>> t.int_repr().tolist()
    [[0, 10], [20, 255]]
    >>> t[0, 1] = 1.0
    >>> t[0]
    QTensor([0., 1.], dtype=quint8, scale=0.05, zero_point=0)
    """

    __slots__ = ("__weakref__", "_qparams")
    _qparams: QParams

    def __new__(cls, codes: Array, qparams: QParams = DEFAULT) -> Self:
        if not isinstance(codes, Array):
            raise InvalidDType(f"wanted an Array of codes, got {type(codes).__name__}; use quantkit.as_tensor")
        if not isinstance(qparams, QParams):
            raise InvalidQParams(f"wanted QParams(scale, zero_point), got {told(qparams)}")
        check_zero_point(np.asarray(qparams.zero_point), as_qdtype(codes._type.dtype))
        if (axis := qparams.axis) is not None:
            count = len(qparams.scale)
            if not -codes.ndim <= axis < codes.ndim or codes.shape[axis] != count:
                raise InvalidQParams(f"{count} channels on axis {axis} do not fit shape {codes.shape}")
            if axis < 0:
                qparams = QParams(qparams.scale, qparams.zero_point, axis + codes.ndim)
        return cls._make(codes, qparams)

    @classmethod
    def _make(cls, codes: Array, qparams: QParams) -> Self:
        made = Codes.__new__(cls, codes)
        made._qparams = qparams
        return made

    @property
    def qparams(self) -> QParams:
        """Scale, zero point and axis."""
        return self._qparams

    @property
    def scale(self) -> Any:
        """Scale: a float, or one float32 per channel (read-only)."""
        return self._qparams.scale

    @property
    def zero_point(self) -> Any:
        """Zero point: an int or float, or one per channel (read-only)."""
        return self._qparams.zero_point

    @property
    def axis(self) -> int | None:
        """The channel axis, or None."""
        return self._qparams.axis

    @property
    def dtype(self) -> QDType:
        """`quantkit.quint8` or `quantkit.qint8`."""
        return as_qdtype(self._codes._type.dtype)

    def storage(self) -> Array:
        """Return the codes, which this tensor and its views share: a `QUInt8Storage`, or an Array of int8."""
        return self._codes

    def int_repr(self) -> NDArray[Any]:
        """Return the codes as an ndarray, zero-copy; while it lives, the bytes cannot move. On a GPU: their Array."""
        codes: NDArray[Any] = self._codes._operand()
        return codes

    def dequantize(self, *, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the real values ``(code - zero_point) * scale`` as float32, or in `out`; on a stream, pending."""
        q = self._qparams
        result: NDArray[Any] = ops.dequantize_linear(
            self._codes._in_turn(), q.scale, q.zero_point, axis=q.axis, out=out
        )
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        codes = self._codes._type.dtype
        if dtype is not None and np.dtype(dtype) != codes:
            raise InvalidDType(
                f"np.asarray(QTensor, {np.dtype(dtype).name}) would turn codes into numbers; use dequantize() for the "
                f"real values, or np.asarray(t) for the codes, which are {codes.name}"
            )
        self._codes._bytes._array_asked()
        return self._codes._wire().copy() if copy else self._codes._wire()

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def __float__(self) -> float:
        return float(self.item())

    def item(self) -> float:
        """Return the real value of the only element."""
        if self.size != 1:
            raise ShapeMismatch(f"item() wants one element, got shape {self.shape}")
        return float(self.cpu().dequantize().reshape(()))

    def tolist(self) -> Any:
        """Return the real values as nested lists."""
        return self.dequantize().tolist()

    def _moved(self, codes: Array, numbers: Any) -> Self:
        return self._make(codes, channels.follow(self._qparams, numbers))

    def _numbers(self) -> NDArray[Any]:
        assert self._qparams.axis is not None
        return channels.numbers(self.shape, self._qparams.axis)

    def __getitem__(self, key: Any) -> Self:
        """Return a view where NumPy gives one, else a copy; one element is a 0-d tensor.

        Raises
        ------
        InvalidQParams
            When a mask or integer arrays pick elements whose channels no longer lie along one axis.
        """
        codes = self._codes[key]
        if not isinstance(codes, Array):
            codes = self._codes[(*key, ...) if isinstance(key, tuple) else (key, ...)]
        if self._qparams.axis is None:
            return self._make(codes, self._qparams)
        return self._moved(codes, self._numbers()[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        """Quantize real values, which broadcast, into the elements."""
        q, values, dtype = self._qparams, real(value), self._codes._type.dtype
        if q.axis is None:
            self._codes[key] = ops.quantize_linear(values, q.scale, q.zero_point, dtype=dtype)
            return
        found = np.asarray(self._numbers()[key])
        try:
            values = np.broadcast_to(values, found.shape)
        except ValueError:
            raise ShapeMismatch(f"values of shape {values.shape} do not fit elements of shape {found.shape}") from None
        codes = np.empty(found.shape, dtype)
        for channel in np.unique(found):
            at = found == channel
            codes[at] = ops.quantize_linear(values[at], q.scale[channel], q.zero_point[channel], dtype=dtype)
        self._codes[key] = codes

    def fill_(self, value: Any) -> Self:
        """Set every element to a real value, which broadcasts; returns self."""
        self[...] = value
        return self

    copy_ = fill_

    def to(self, device: Any) -> Self:
        """Return the same on a device ("cpu", "cuda:0"): self where it is there, else a copy (`ByteStorage.to`)."""
        codes = self._codes.to(device)
        return self if codes is self._codes else self._make(codes, self._qparams)

    def clone(self) -> Self:
        """Return a contiguous copy on the heap, or on the same GPU. On a stream it is made in its turn."""
        return self._make(self._codes.clone(), self._qparams)

    __copy__ = clone

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.clone()

    def contiguous(self) -> Self:
        """Return self when contiguous, else a contiguous copy."""
        return self if self.is_contiguous() else self.clone()

    def _rearranged(self, verb: str, args: tuple[Any, ...]) -> Self:
        codes = getattr(self._codes, verb)(*args)
        if self._qparams.axis is None:
            return self._make(codes, self._qparams)
        numbers = self._numbers()
        if verb in {"reshape", "view"}:
            return self._moved(codes, numbers.reshape(codes.shape))
        if verb == "transpose" and len(args) == 2 and self.ndim != 2:
            return self._moved(codes, numbers.swapaxes(*args))
        return self._moved(codes, numbers.transpose(*args))

    def reshape(self, *shape: Any) -> Self:
        """Return a view in another shape, or a copy where strides do not allow a view.

        Raises
        ------
        InvalidQParams
            When the channels would no longer lie along one axis.
        """
        return self._rearranged("reshape", shape)

    def view(self, *shape: Any) -> Self:
        """Return a view in another shape; `ShapeMismatch` where the strides do not allow one."""
        return self._rearranged("view", shape)

    def permute(self, *axes: Any) -> Self:
        """Return a view with its dimensions in another order."""
        return self._rearranged("permute", axes)

    def transpose(self, *axes: Any) -> Self:
        """Return a view with dimensions reversed (no argument), in the given order, or with two of them swapped."""
        return self._rearranged("transpose", axes)

    @property
    def T(self) -> Self:
        """The view with its dimensions reversed."""
        return self.permute()

    def resize_(self, *shape: Any) -> Self:
        """Change the shape in place (`Array.resize_`); returns self.

        Raises
        ------
        InvalidQParams
            When the number of channels would change.
        """
        sizes, axis = as_shape(shape), self._qparams.axis
        if axis is not None and (axis >= len(sizes) or sizes[axis] != len(self.scale)):
            raise InvalidQParams(f"resize_: {len(self.scale)} channels on axis {axis} do not fit shape {sizes}")
        self._codes.resize_(sizes)
        return self

    def equal(self, other: Any) -> bool:
        """Whether `other` is a QTensor of the same dtype, shape, parameters and codes."""
        return (
            isinstance(other, QTensor)
            and self.dtype is other.dtype
            and self._qparams == other._qparams
            and np.array_equal(self.cpu()._codes._wire(), other.cpu()._codes._wire())
        )

    def sum(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Return the sum of the real values as float32, added up in float64."""
        return np.sum(self.dequantize(), axis, dtype=np.float64, keepdims=keepdims).astype(np.float32)

    def mean(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Return the mean of the real values as float32, added up in float64."""
        return np.mean(self.dequantize(), axis, dtype=np.float64, keepdims=keepdims).astype(np.float32)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Return the largest real value as float32."""
        return self._extreme("max", axis, keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Return the smallest real value as float32."""
        return self._extreme("min", axis, keepdims)

    def _extreme(self, which: str, axis: Any, keepdims: bool) -> Any:
        q = self._qparams
        if q.axis is None:  # codes order as their values do
            found = getattr(self.cpu()._codes._wire(), which)(axis, keepdims=keepdims)
            return ops.dequantize_linear(np.asarray(found), q.scale, q.zero_point)[()]
        return getattr(self.dequantize(), which)(axis, keepdims=keepdims)

    def __eq__(self, other: object) -> Any:
        return NotImplemented if other is None or isinstance(other, str) else np.equal(self, other)  # type: ignore[call-overload]

    def __ne__(self, other: object) -> Any:
        return NotImplemented if other is None or isinstance(other, str) else np.not_equal(self, other)  # type: ignore[call-overload]

    __hash__ = None  # type: ignore[assignment]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        from quantkit.tensor.functions import apply_ufunc

        return apply_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        from quantkit.tensor.functions import apply_function

        return apply_function(func, args, kwargs)

    def handle(self) -> TensorHandle:
        """Return a small tuple from which any process of this user gets this tensor by `from_handle`.

        It holds nothing: the storage must stay alive until they have fetched it. `StorageError` when not shared.
        """
        q = self._qparams
        scale, zero_point = (v if q.axis is None else tuple(v.tolist()) for v in (q.scale, q.zero_point))
        return TensorHandle(self._codes.handle(), scale, zero_point, q.axis)

    @staticmethod
    def from_handle(handle: TensorHandle) -> QTensor:
        """Return the tensor behind a `handle()`; `StorageError` when the process that made it let go of it."""
        try:
            codes, scale, zero_point, axis = handle
        except (TypeError, ValueError):
            raise StorageError(f"wanted a handle of a shared QTensor, got {handle!r}") from None
        return _unpickle(Array.from_handle(codes), scale, zero_point, axis)

    def __reduce__(self) -> tuple[Any, ...]:
        q = self._qparams
        return _unpickle, (self._codes, q.scale, q.zero_point, q.axis)

    def __repr__(self) -> str:
        from quantkit.tensor.functions import represent

        return represent(self)


def _unpickle(codes: Any, scale: Any, zero_point: Any, axis: Any) -> QTensor:
    return QTensor(codes, QParams(scale, zero_point, axis))
