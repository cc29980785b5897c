"""What NumPy's own functions do with a QTensor: move its codes, compute on its real values, or say no."""

from __future__ import annotations

from typing import Any

import numpy as np

from quantkit import ops
from quantkit.errors import InvalidDType
from quantkit.ops._depth import longest_depth
from quantkit.qparams import qint8
from quantkit.storage import Array
from quantkit.storage.dtypes import element_type
from quantkit.tensor import channels
from quantkit.tensor.qtensor import QTensor, real

_COMPARE = {np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal}
_COMPUTE = {np.add, np.subtract, np.multiply, np.true_divide, np.matmul, np.negative} | _COMPARE
_REDUCE = {np.sum: "sum", np.mean: "mean", np.max: "max", np.amax: "max", np.min: "min", np.amin: "min"}
_ASK = {np.shape, np.ndim, np.size}
_MOVE_NAMES = """
    concatenate stack vstack hstack dstack column_stack split array_split hsplit vsplit dsplit unstack
    reshape ravel transpose permute_dims matrix_transpose moveaxis rollaxis swapaxes squeeze expand_dims
    atleast_1d atleast_2d atleast_3d broadcast_to flip fliplr flipud rot90 roll take take_along_axis compress
    delete tile repeat copy diagonal
"""
_MOVE = {getattr(np, name) for name in _MOVE_NAMES.split() if hasattr(np, name)}


def apply_ufunc(ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute `ufunc` on real values in float32; raise `InvalidDType` for one that is not offered."""
    out = kwargs.get("out", ())
    if any(isinstance(v, QTensor) for v in out):
        raise InvalidDType(
            f"np.{ufunc.__name__} computes float32 and cannot write it into a QTensor; assign it: t[...] = ..., "
            "which quantizes"
        )
    if method != "__call__" or ufunc not in _COMPUTE:
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        raise InvalidDType(f"np.{name} does not take a QTensor; dequantize() it, or take its codes by np.asarray")
    if ufunc in _COMPARE and len(inputs) == 2 and all(isinstance(v, QTensor) for v in inputs):
        a, b = inputs
        if a.axis is None and a.dtype is b.dtype and a.qparams == b.qparams:
            return ufunc(a.int_repr(), b.int_repr(), **kwargs)
    if ufunc is np.matmul and not kwargs and all(isinstance(v, QTensor) for v in inputs):
        a, b = inputs
        if _multiplies_as_integers(a, b):
            return ops.matmul_integer_to_float(a.int_repr(), b.int_repr(), a.scale, b.scale, a.zero_point, b.zero_point)
    return ufunc(*[real(v) for v in inputs], **kwargs)


def _multiplies_as_integers(a: QTensor, b: QTensor) -> bool:
    """Whether ``a @ b`` is a product of codes: exact sums, each scaled once."""
    if not a.ndim or not b.ndim or a.axis is not None or not (b.axis is None or b.axis == b.ndim - 1 > 0):
        return False
    if a.qparams.has_float_zero_point or b.qparams.has_float_zero_point or not b.size:
        return False
    return a.shape[-1] <= longest_depth(*((v.dtype is qint8, v.zero_point) for v in (a, b)))


def apply_function(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one of NumPy's functions that move data, ask for a shape or reduce; `InvalidDType` for every other."""
    if func in _REDUCE and isinstance(args[0] if args else None, QTensor):
        return getattr(args[0], _REDUCE[func])(*args[1:], **kwargs)
    if func in _MOVE:
        return _move(func, args, kwargs)
    if func in _ASK:
        return func(*[v.int_repr() if isinstance(v, QTensor) else v for v in args], **kwargs)
    if func is np.array_equal and len(args) == 2:
        a, b = (real(v) for v in args)
        return bool(a.shape == b.shape and (a == b).all())
    raise InvalidDType(f"np.{func.__name__} does not take a QTensor; dequantize() it, or take its codes by np.asarray")


def _move(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors: list[QTensor] = []

    def find(value: Any) -> None:
        if isinstance(value, QTensor):
            tensors.append(value)
        elif isinstance(value, list | tuple) and any(isinstance(v, QTensor) for v in value):
            for v in value:
                if not isinstance(v, QTensor):
                    raise InvalidDType(f"np.{func.__name__} of a QTensor and a {type(v).__name__}; quantize it first")
                tensors.append(v)

    for value in args:
        find(value)
    if (kwargs.keys() & {"out", "dtype", "casting"}) or not tensors:
        raise InvalidDType(f"np.{func.__name__} takes QTensors as positional arguments, without out= and dtype=")
    first = tensors[0]
    if any(t.dtype is not first.dtype for t in tensors):
        raise InvalidDType(f"np.{func.__name__} of quint8 and qint8 together; requantize one")

    def run(arrays: list[Any]) -> Any:
        left = iter(arrays)
        return func(*[_replace(value, left) for value in args], **kwargs)

    moved = run([t.int_repr() for t in tensors])
    qparams, numbers = first.qparams, None
    if any(t.axis is not None or t.qparams != qparams for t in tensors):
        qparams, rows = channels.merge([(t.shape, t.qparams) for t in tensors])
        numbers = run(rows)

    def wrap(codes: Any, number: Any) -> Any:
        if isinstance(codes, list | tuple):
            return type(codes)(
                [wrap(c, None if number is None else n) for c, n in zip(codes, number or codes, strict=True)]
            )
        views = (t.storage()._view(codes) for t in tensors)
        array = next((v for v in views if v is not None), None)
        if array is None:
            array = type(first.storage())._over(np.asarray(codes), element_type(codes.dtype), exclusive=True)
        return QTensor._make(array, qparams if number is None else channels.follow(qparams, number))

    return wrap(moved, numbers)


def _replace(value: Any, left: Any) -> Any:
    if isinstance(value, QTensor):
        return next(left)
    if isinstance(value, list | tuple) and any(isinstance(v, QTensor) for v in value):
        return [next(left) for _ in value]
    return np.asarray(value) if isinstance(value, Array) else value


def represent(tensor: QTensor) -> str:
    """Return the repr: values as NumPy prints them, of a large tensor only those that are printed."""
    where, tensor = tensor.device, tensor.cpu()
    options = np.get_printoptions()
    edge, threshold = options["edgeitems"], options["threshold"]
    if tensor.size > threshold:
        for k, n in enumerate(tensor.shape):
            if n > 2 * edge:
                # One more than what is printed, so that NumPy puts its dots there.
                kept = [*range(edge + 1), *range(n - edge, n)]
                tensor = _move(np.take, (tensor, kept), {"axis": k})
        threshold = 0
    text = np.array2string(tensor.dequantize(), separator=", ", prefix="QTensor(", threshold=threshold)
    if tensor.axis is None:
        zero_point = tensor.zero_point
        shown = zero_point if isinstance(zero_point, int) else np.float32(zero_point)
        params = f"scale={np.float32(tensor.scale)!s}, zero_point={shown!s}"
    else:
        scale, zeros = (np.array2string(v, separator=", ", threshold=8) for v in (tensor.scale, tensor.zero_point))
        params = f"scale={scale}, zero_point={zeros}, axis={tensor.axis}"
    device = "" if where == "cpu" else f", device={where!r}"
    return f"QTensor({text}, dtype={tensor.dtype.name}, {params}{device})"
