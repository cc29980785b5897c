"""Where tensors come from: shapes, buffers, arrays of other libraries, and real values.

Every factory returns a `QTensor` for ``dtype=quint8`` and ``qint8``, and an `Array` for every other dtype.
"""

from __future__ import annotations

import math
import operator
import sys
from typing import Any

import numpy as np

from quantkit import ops
from quantkit.errors import InvalidArgument, InvalidDType, StorageError
from quantkit.ops._operands import as_array
from quantkit.qparams import QDType, QParams, as_qdtype, choose_qparams, quint8
from quantkit.ranges import BINS, Histogram, RangeMethod, can_divide, choose_range
from quantkit.storage import Array, ByteStorage, QUInt8Storage
from quantkit.storage.bytestorage import contiguous_bytes
from quantkit.storage.dtypes import as_shape, device_index, element_type
from quantkit.streams.queue import current
from quantkit.tensor.qtensor import DEFAULT, QTensor, real
from quantkit.text import told


def _kind(dtype: Any) -> QDType | None:
    if isinstance(dtype, QDType):
        return dtype
    return as_qdtype(dtype) if isinstance(dtype, str) and dtype in {"quint8", "qint8"} else None


def _container(kind: QDType | None) -> type[Array]:
    return QUInt8Storage if kind is quint8 else Array


def _new(kind: QDType | None, shape: tuple[int, ...], etype: Any, device: Any) -> Array:
    """Return an Array of unspecified content on a device."""
    if (index := device_index(device)) is None:
        return _container(kind)._empty(shape, etype)
    from quantkit.storage.cuda import empty_array

    made: Array = empty_array(index, _container(kind), shape, etype)
    return made


def _finish(array: Array, kind: QDType | None, scale: Any = None, zero_point: Any = None, axis: Any = None) -> Any:
    if scale is None and zero_point is None:
        return array if kind is None else QTensor._make(array, DEFAULT)
    if kind is None:
        raise InvalidDType(f"scale and zero_point belong to quint8 and qint8, got dtype {array.dtype}")
    return QTensor(array, QParams(1.0 if scale is None else scale, 0 if zero_point is None else zero_point, axis))


def empty(*size: Any, dtype: Any = quint8, device: Any = "cpu") -> Any:
    """Return a tensor of unspecified content.

    Parameters
    ----------
    *size : int
        Sizes of the dimensions, or one tuple of them.
    dtype : QDType or dtype-like, default quint8
    device : str, default "cpu"
        Or "cuda:0", a GPU.

    Returns
    -------
    QTensor or Array
        A QTensor with scale 1 and zero point 0 for quint8 and qint8.

    Raises
    ------
    InvalidArgument, InvalidDType, OutOfMemory
        For a negative size or another device; for a dtype that an Array cannot hold; for a size that cannot be had.
    """
    kind = _kind(dtype)
    return _finish(_new(kind, as_shape(size), element_type(kind or dtype), device), kind)


def full(size: Any, fill_value: Any, *, dtype: Any = quint8, device: Any = "cpu") -> Any:
    """Return a tensor of one value, `fill_value`: a real value for quint8 and qint8, where it saturates."""
    return empty(size, dtype=dtype, device=device).fill_(fill_value)


def randint(
    low: Any, high: Any = None, size: Any = None, *, dtype: Any = quint8, device: Any = "cpu", seed: Any = None
) -> Any:
    """Return a tensor of random integers, uniform over ``[low, high)``.

    Called as ``randint(low, high, size)``, ``randint(high, size)``, or ``randint(size)`` for all integers that a dtype
    of 8 bits holds.

    Parameters
    ----------
    low, high : int
        Codes for quint8 and qint8.
    size : int or tuple of int
    seed : int, sequence of int or numpy.random.Generator, optional

    Raises
    ------
    InvalidArgument
        When the dtype does not hold the range, or it is empty.
    """
    kind = _kind(dtype)
    etype = element_type(kind or dtype)
    info = None if etype.wire.kind not in "iu" else np.iinfo(etype.wire)
    if isinstance(low, tuple | list) and high is None and size is None:
        if info is None or etype.itemsize != 1:
            raise InvalidArgument(f"randint(size) wants a dtype of 8 bits, got {etype.name}; give low and high")
        low, high, size = int(info.min), int(info.max) + 1, low
    elif size is None or high is None:
        low, high, size = 0, low, high if size is None else size
    for name, value in (("low", low), ("high", high)):
        if not isinstance(value, int | np.integer):
            raise InvalidDType(f"randint wants an integer for {name}, got {told(value)}")
    if size is None or not low < high:
        raise InvalidArgument(f"randint wants low < high and a size, got low {low}, high {high}, size {told(size)}")
    if info is not None and not info.min <= low < high <= int(info.max) + 1:
        raise InvalidArgument(f"{etype.name} holds {info.min} to {info.max}, got low {low} and high {high}")
    made = empty(size, dtype=dtype, device=device)
    drawn_as = etype.wire if info is not None else np.int64
    array = made.storage() if kind else made
    array[...] = np.random.default_rng(seed).integers(low, high, made.shape, drawn_as)
    return made


def from_buffer(
    buffer: Any,
    dtype: Any = quint8,
    device: Any = "cpu",
    *,
    count: int = -1,
    offset: int = 0,
    scale: Any = None,
    zero_point: Any = None,
) -> Any:
    """Return a 1-d tensor over the bytes of `buffer`, without a copy; a read-only source stays read-only.

    Parameters
    ----------
    buffer : object with the buffer protocol
    count : int, default -1
        Number of elements; -1 for all that fit.
    offset : int, default 0
        First element, in bytes.

    Raises
    ------
    InvalidDType, InvalidArgument, StorageError
        When `buffer` has no buffer protocol; when offset or count reach outside; when it is not contiguous.
    """
    kind = _kind(dtype)
    etype = element_type(kind or dtype)
    nbytes = contiguous_bytes(buffer).nbytes
    if not 0 <= offset <= nbytes:
        raise InvalidArgument(f"offset {offset} reaches outside a buffer of {nbytes} bytes")
    count = (nbytes - offset) // etype.itemsize if count == -1 else count
    (count,) = as_shape(count)
    if count * etype.itemsize > nbytes - offset:
        raise InvalidArgument(f"{count} elements of {etype.name} at offset {offset} do not fit {nbytes} bytes")
    storage = ByteStorage.from_buffer(buffer, device=device, offset=offset, count=count * etype.itemsize)
    return _finish(_container(kind)._make(storage, etype, (count,)), kind, scale, zero_point)


def from_numpy(array: Any, *, scale: Any = None, zero_point: Any = None, axis: int | None = None) -> Any:
    """Return a tensor that shares the memory of an ndarray, with its shape and strides.

    uint8 is taken as codes of quint8, int8 as codes of qint8; every other dtype gives an Array.
    """
    if not isinstance(array, np.ndarray):
        raise InvalidDType(f"from_numpy wants an ndarray, got {type(array).__name__}; use as_tensor")
    etype = element_type(array.dtype)
    kind = {"uint8": quint8, "int8": as_qdtype("qint8")}.get(etype.name)
    made = _container(kind)._over(array.view(etype.wire), etype, exclusive=False)
    return _finish(made, kind, scale, zero_point, axis)


def _from_gpu(source: Any, scale: Any = None, zero_point: Any = None, axis: int | None = None) -> Any:
    """Share an array of torch, CuPy or anybody on a GPU; dtypes as `from_numpy`."""
    from quantkit.storage.cuda_layout import from_other

    array = from_other(source)
    kind = {"uint8": quint8, "int8": as_qdtype("qint8")}.get(array._type.name)
    if kind is quint8:
        array = QUInt8Storage._make(array.storage(), array._type, array.shape, array._offset, array.strides)
    return _finish(array, kind, scale, zero_point, axis)


def _is_on_gpu(source: Any) -> bool:
    ask = getattr(source, "__dlpack_device__", None)
    return ask()[0] in (2, 13) if ask else hasattr(source, "__cuda_array_interface__")


def from_dlpack(source: Any, *, scale: Any = None, zero_point: Any = None, axis: int | None = None) -> Any:
    """Return a tensor that shares memory with any array with ``__dlpack__``, on CPU or GPU; dtypes as `from_numpy`."""
    if _is_on_gpu(source):
        return _from_gpu(source, scale, zero_point, axis)
    try:
        array = np.from_dlpack(source)
    except (AttributeError, BufferError, RuntimeError, TypeError) as error:
        raise StorageError(f"cannot share the memory of a {type(source).__name__} through DLPack: {error}") from error
    return from_numpy(array, scale=scale, zero_point=zero_point, axis=axis)


def _from_torch(tensor: Any) -> Any:
    """Share a torch tensor on the CPU; a quantized one keeps its parameters."""
    torch = sys.modules["torch"]
    if tensor.device.type not in {"cpu", "cuda"}:
        raise InvalidArgument(f"as_tensor shares memory on the CPU and CUDA, got a torch tensor on {tensor.device}")
    tensor = tensor.detach()
    if tensor.device.type == "cuda" and not tensor.is_quantized:
        return _from_gpu(tensor)
    if not tensor.is_quantized:
        if tensor.dtype is torch.bfloat16:
            return from_numpy(tensor.view(torch.int16).numpy().view(element_type("bfloat16").dtype))
        return from_numpy(tensor.numpy())
    codes = {torch.quint8: torch.uint8, torch.qint8: torch.int8}.get(tensor.dtype)
    if codes is None:
        raise InvalidDType(f"as_tensor takes torch.quint8 and torch.qint8, got {tensor.dtype}")
    # int_repr() would copy: look at the same bytes through the dtype of the codes.
    plain = torch.empty(0, dtype=codes).set_(
        tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
    )
    if tensor.qscheme() in {torch.per_tensor_affine, torch.per_tensor_symmetric}:
        return from_numpy(plain.numpy(), scale=tensor.q_scale(), zero_point=tensor.q_zero_point())
    scale, zero_point = tensor.q_per_channel_scales().numpy(), tensor.q_per_channel_zero_points().numpy()
    return from_numpy(plain.numpy(), scale=scale, zero_point=zero_point, axis=tensor.q_per_channel_axis())


def as_tensor(
    data: Any,
    dtype: Any = None,
    device: Any = None,
    *,
    scale: Any = None,
    zero_point: Any = None,
    axis: int | None = None,
) -> Any:
    """Return a tensor on `data`, sharing its memory wherever that is possible.

    Parameters
    ----------
    data : ByteStorage, Array, QTensor, ndarray, torch tensor, object with ``__dlpack__`` or a buffer, nested lists
        uint8 and int8 are taken as codes. torch tensors, also quantized ones, share their memory and keep their
        parameters.
    dtype : QDType or dtype-like, optional
        By default that of `data`. Integers become codes of quint8 or qint8 when they fit; floats need `quantize`.
    device : str, optional
        "cpu" or "cuda:0"; by default where `data` is.
    scale, zero_point, axis : optional
        Parameters of the codes, instead of those that `data` has, or of scale 1 and zero point 0.

    Raises
    ------
    InvalidDType, InvalidArgument
        For floats as codes and other kinds that do not fit `dtype`; for integers out of range.

    Examples
    --------
    >>> import quantkit as qk
    >>> s = qk.ByteStorage([0, 10, 20])
    >>> t = qk.as_tensor(s, scale=0.5)
    >>> s[0] = 4
    >>> t
    QTensor([ 2.,  5., 10.], dtype=quint8, scale=0.5, zero_point=0)
    """
    made = _shared(data)
    if device is not None:
        made = made.to(device)
    kind = None if dtype is None else _kind(dtype)
    qparams, array = (made.qparams, made.storage()) if isinstance(made, QTensor) else (None, made)
    etype = array._type if dtype is None else element_type(kind or dtype)
    if dtype is None:
        kind = made.dtype if isinstance(made, QTensor) else None
    if etype is not array._type:
        if kind and array._type.wire.kind not in "iub":
            raise InvalidDType(f"as_tensor takes codes for {kind.name}, got {array.dtype}; use quantkit.quantize")
        array, qparams = _new(kind, array.shape, etype, array.device).copy_(array), None
    if kind is quint8 and not isinstance(array, QUInt8Storage):
        array = QUInt8Storage._make(array.storage(), etype, array.shape, array._offset, array.strides)
    if kind and qparams is not None and scale is None and zero_point is None:
        return made if array is made.storage() else QTensor._make(array, qparams)
    return _finish(array, kind, scale, zero_point, axis)


def _shared(data: Any) -> Any:
    if isinstance(data, QTensor):
        return data
    if isinstance(data, ByteStorage):
        return QTensor._make(data.new_quint8_storage(), DEFAULT)
    if isinstance(data, QUInt8Storage):
        return QTensor._make(data, DEFAULT)
    if isinstance(data, Array):
        return data
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.Tensor):
        return _from_torch(data)
    if isinstance(data, np.ndarray):
        return from_numpy(data)
    if hasattr(data, "__dlpack__") or hasattr(data, "__cuda_array_interface__"):
        return from_dlpack(data)
    array = as_array(data, "as_tensor", "data")
    return from_numpy(array.astype(array.dtype.newbyteorder("=")) if not array.dtype.isnative else array)


def _range(values: Any, axis: int | None, method: RangeMethod) -> tuple[Any, Any]:
    """Return the range of `values`, or of each index of `axis`; zero where there is no finite value."""
    low, high, _ = ops.finite_range(values, axis=axis)
    low, high = (np.where(np.asarray(low) > np.asarray(high), 0.0, end) for end in (low, high))
    if not method.needs_histogram:
        return low, high
    if axis is None:
        return _histogram_range(values, float(low), float(high), method)
    slices = np.moveaxis(np.asarray(values), axis, 0)
    found = [_histogram_range(*slice_, method) for slice_ in zip(slices, low.tolist(), high.tolist(), strict=True)]
    ends = np.array(found, np.float64).reshape(-1, 2)
    return ends[:, 0], ends[:, 1]


def _histogram_range(values: Any, low: float, high: float, method: RangeMethod) -> tuple[float, float]:
    if not can_divide(low, high):
        return low, high
    return choose_range(Histogram(ops.histogram(values, low, high, BINS), low, high), method)


def quantize(
    x: Any,
    scale: Any = None,
    zero_point: Any = None,
    *,
    dtype: Any = quint8,
    axis: int | None = None,
    method: str = "minmax",
    symmetric: bool = False,
) -> QTensor:
    """Quantize real values.

    Parameters
    ----------
    x : array_like, Array, torch tensor or QTensor
        float16, bfloat16, float32, float64 or integers.
    scale, zero_point : optional
        Parameters, 1-d with `axis`. Without `scale` they are chosen from the finite values of `x`; `zero_point`
        without `scale` is an error; `scale` without `zero_point` means 0.
    dtype : quint8 or qint8
    axis : int, optional
        One scale and zero point for each index of this axis.
    method : {"minmax", "percentile", "mse", "entropy"}
        How to choose the range: all of it; 99.99 percent of the values; what loses least in the square, or of the
        distribution. See `quantkit.ranges`.
    symmetric : bool, default False
        Choose zero point 0 for qint8 and 128 for quint8.

    Returns
    -------
    QTensor
        With codes ``saturate(round_half_even(x / scale) + zero_point)``, 64-byte aligned and contiguous.

    Raises
    ------
    InvalidQParams, InvalidArgument, InvalidDType

    Examples
    --------
    >>> import quantkit as qk
    >>> qk.quantize([-1.0, 0.0, 1.5])
    QTensor([-1. ,  0. ,  1.5], dtype=quint8, scale=0.009803922, zero_point=102)
    """
    kind = as_qdtype(dtype)
    values = x if scale is not None and _may_be_pending(x) else _values(x)
    if axis is not None:
        try:
            axis = operator.index(axis)
        except TypeError:
            raise InvalidDType(f"quantize: axis must be an integer or None, got {told(axis)}") from None
        if not -values.ndim <= axis < values.ndim:
            raise InvalidArgument(f"axis {axis} does not fit shape {values.shape}")
        axis += values.ndim if axis < 0 else 0
    if scale is not None:
        qparams = QParams(scale, 0 if zero_point is None else zero_point, axis)
    elif zero_point is not None:
        raise InvalidArgument("quantize: zero_point was given without scale")
    else:
        qparams = choose_qparams(*_range(values, axis, RangeMethod(method)), kind, symmetric=symmetric, axis=axis)
    codes = _new(kind, values.shape, element_type(kind), values.device if isinstance(values, Array) else None)
    made = QTensor(codes, qparams)
    if math.prod(values.shape):
        ops.quantize_linear(values, qparams.scale, qparams.zero_point, axis=axis, out=codes._in_turn())
    return made


def _may_be_pending(x: Any) -> bool:
    """Whether `x` is an Array of real values on a stream, where it is read in its turn."""
    return current() is not None and isinstance(x, Array) and (x.dtype.kind == "f" or x.dtype.name == "bfloat16")


def _values(x: Any) -> Any:
    if isinstance(x, QTensor):
        return x.dequantize()
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _values(as_tensor(x))
    if _is_on_gpu(x):
        found = x if isinstance(x, Array) else as_tensor(x)
        return (
            found
            if isinstance(found, Array) and found.dtype.kind != "i"
            else found.cpu().astype(np.float32).to(x.device)
        )
    array = as_array(x, "quantize", "x")
    if array.dtype.kind == "f" and array.dtype.itemsize <= 8:
        return array
    return array if array.dtype.name == "bfloat16" else real(array)
