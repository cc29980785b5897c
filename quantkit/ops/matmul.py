"""Products of 8-bit matrices: matmul_integer, matmul_integer_to_float, qlinear_matmul and pack_matmul.

docs/kernels.md numbers the equations and shows how a product flows from packing to epilogue.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit import _kernels
from quantkit._kernels import KeptPlans, MatmulPlan, PackedMatmul
from quantkit.errors import InvalidDType, ShapeMismatch
from quantkit.ops._depth import check_depth
from quantkit.ops._devices import PLAIN, cuda_products, on_gpu
from quantkit.ops._operands import as_array, empty, multiplier, whole_bias, zero_points
from quantkit.qparams import as_qdtype
from quantkit.storage import Array
from quantkit.streams.queue import current, queued, recording

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CODES = (np.dtype(np.uint8), np.dtype(np.int8))
_INT32 = np.dtype(np.int32)


def pack_matmul(b: Any) -> Any:
    """Pack a right operand once, for any number of products.

    Parameters
    ----------
    b : array of uint8 or int8, shape (K, N)
        Any strides. It is copied: later changes to `b` are not seen.

    Returns
    -------
    PackedMatmul
        Accepted wherever `b` is; has ``shape``, ``is_signed`` and ``nbytes``.

    Raises
    ------
    InvalidDType
        For another dtype or number of dimensions.
    """
    if on_gpu(b):
        return cuda_products.pack_matmul(b)
    b = as_array(b, "pack_matmul", "b")
    if b.dtype not in _CODES:
        raise InvalidDType(f"pack_matmul: wanted a 2-d uint8 or int8 matrix to pack, got {b.dtype} {b.shape}")
    return PackedMatmul(b)


def _operands(verb: str, a: Any, b: Any) -> tuple[NDArray[Any], Any]:
    a = as_array(a, verb, "a")
    if not isinstance(b, PackedMatmul):
        b = as_array(b, verb, "b")
    for name, x in (("a", a), ("b", b)):
        if isinstance(x, PackedMatmul):
            continue
        if x.dtype not in _CODES:
            raise InvalidDType(f"{verb}: {name} must be uint8 or int8, got {x.dtype}")
        if x.ndim == 0:
            raise ShapeMismatch(f"{verb}: {name} must have at least one dimension, got a scalar")
    return a, b


# Types of parameters under which a plan is kept: numbers, which compare by value.
_NUMBERS = frozenset({int, float, np.float32, np.uint8, np.int8})
_BATCH_PLANS = KeptPlans()


def _run_kept(a: Any, b: Any, parameters: tuple[Any, ...], dtype: Any, out: Any) -> Any:
    """Return the product by a plan that a call with the same parameters kept, or None.

    Plans over a packed operand are kept with it; those that pack on the way (batches) serve any operand of a shape.
    """
    if type(a) is not np.ndarray:
        return None
    if type(b) is PackedMatmul:
        if a.ndim != 2:
            return None
        y = np.empty((a.shape[0], b.shape[1]), dtype) if out is None else out
        return y if b.plans.run(parameters, a, y) else None
    if type(b) is not np.ndarray or b.ndim < 3 or a.ndim != b.ndim or a.shape[:-2] != b.shape[:-2]:
        return None
    plan = _BATCH_PLANS.find(_batch_key(a, b, parameters, dtype))
    if plan is None:
        return None
    shape = (*a.shape[:-1], b.shape[-1])
    if out is None:
        out = np.empty(shape, dtype)
    elif not _is_place_for(out, shape, dtype, a, b):
        return None
    plan.run_batch(a, b, out)
    return out


def _is_place_for(out: Any, shape: tuple[int, ...], dtype: Any, a: Any, b: Any) -> bool:
    """Whether a kernel can write to `out` as it is."""
    if type(out) is not np.ndarray or out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous:
        return False
    return not (np.may_share_memory(out, a) or np.may_share_memory(out, b))


def _batch_key(a: NDArray[Any], b: NDArray[Any], parameters: tuple[Any, ...], dtype: Any) -> tuple[Any, ...]:
    return (a.shape[-1], *b.shape[-2:], a.dtype, b.dtype, dtype, *parameters)


def _product(
    verb: str,
    a: NDArray[Any],
    b: Any,
    dtype: np.dtype[Any],
    out: Any,
    plan: tuple[Any, ...],
    a_zero: Any,
    parameters: tuple[Any, ...],
) -> NDArray[Any]:
    """Multiply as NumPy's matmul does, batches and 1-d operands included; keep the plan under `parameters`, if any.

    `plan`: the arguments of `MatmulPlan` after the packed operand. `a_zero`: zero points of the rows, or None.
    """
    packed = isinstance(b, PackedMatmul)
    left = a[None, :] if a.ndim == 1 else a
    right = b if packed else (b[:, None] if b.ndim == 1 else b)
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    if right.shape[-2] != k:
        raise ShapeMismatch(
            f"{verb}: a of shape {a.shape} and b of shape {b.shape} do not fit: K is {k} and {right.shape[-2]}"
        )
    try:
        batch = np.broadcast_shapes(left.shape[:-2], () if packed else right.shape[:-2])
    except ValueError:
        raise ShapeMismatch(f"{verb}: batches of a {a.shape} and b {b.shape} do not broadcast") from None
    given = out
    if isinstance(out, Array):
        out = np.asarray(out)
    shape = batch + ((m,) if a.ndim > 1 else ()) + ((n,) if packed or b.ndim > 1 else ())
    if out is not None and (not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != dtype):
        what = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise ShapeMismatch(f"{verb}: wanted out of {dtype} {shape}, got {what}")
    result: Any = out
    shared = out is not None and (np.may_share_memory(out, a) or (not packed and np.may_share_memory(out, b)))
    if out is None or not out.flags.c_contiguous or shared:
        result = empty(verb, shape, dtype)
    y = result.reshape((*batch, m, n))
    keeps = bool(parameters) and _NUMBERS.issuperset(map(type, parameters))
    if not packed and recording():  # there may be nothing to pack yet: it is done on the way
        left, right = np.broadcast_to(left, (*batch, m, k))[None], np.broadcast_to(right, (*batch, k, n))[None]
        MatmulPlan(PackedMatmul.to_come(k, n, right.dtype == np.int8), *plan).run_batch(left, right, y[None], a_zero)
    elif packed or right.ndim == 2:
        made = MatmulPlan(right if packed else PackedMatmul(right), *plan)
        if packed and keeps:
            right.plans.add(parameters, made)
        if math.prod(left.shape[:-2]) != math.prod(batch) or not left.flags.c_contiguous:
            left = np.broadcast_to(left, (*batch, m, k))
        if left.flags.c_contiguous:  # one tall product
            zeros = None if a_zero is None else np.tile(a_zero, math.prod(batch))
            tall = m * math.prod(batch)
            made.run(left.reshape(tall, k), y.reshape(tall, n), zeros)
        else:
            for index in np.ndindex(batch):
                made.run(left[index], y[index], a_zero)
    else:
        left, right = np.broadcast_to(left, (*batch, m, k)), np.broadcast_to(right, (*batch, k, n))
        key = _batch_key(left, right, parameters, dtype)
        found = _BATCH_PLANS.find(key) if keeps else None
        made = MatmulPlan(PackedMatmul.to_come(k, n, right.dtype == np.int8), *plan) if found is None else found
        if keeps and found is None:
            _BATCH_PLANS.add(key, made)
        made.run_batch(left, right, y, a_zero)
    if out is not None and result is not out:
        _kernels.copy(result, out)
    filled: NDArray[Any] = result if out is None else given
    return filled


def matmul_integer(a: Any, b: Any, a_zero_point: Any = 0, b_zero_point: Any = 0, *, out: Any = None) -> Any:
    """Multiply matrices of codes exactly: ``sum_k (a - a_zero_point) * (b - b_zero_point)`` (ONNX MatMulInteger).

    Parameters
    ----------
    a : array of uint8 or int8, shape (..., M, K) or (K,)
        Any strides.
    b : array of uint8 or int8, shape (..., K, N) or (K,), or PackedMatmul
        Batches broadcast as in NumPy's matmul.
    a_zero_point : int, or array of M
        One for all, or one a row of `a`.
    b_zero_point : int, or array of N
        One for all, or one a column of `b`.
    out : int32 array, optional

    Returns
    -------
    ndarray of int32
        Sums beyond int32 wrap, as in onnxruntime: not before K = 33,026, where 255 * 255 * K leaves it.

    Raises
    ------
    InvalidDType, ShapeMismatch, InvalidQParams
        Naming what was wanted and what came.
    """
    parameters = (a_zero_point, b_zero_point)
    # First what takes no longer than a small product.
    if (stream := current()) is None and (done := _run_kept(a, b, parameters, _INT32, out)) is not None:
        return done
    if (type(a) is not np.ndarray or type(b) not in PLAIN) and on_gpu(a, b, out):
        return cuda_products.matmul_integer(a, b, a_zero_point, b_zero_point, out)
    if stream is not None:
        return queued(stream, matmul_integer, (a, b), parameters, out)
    verb = "matmul_integer"
    a, b = _operands(verb, a, b)
    b_signed = b.is_signed if isinstance(b, PackedMatmul) else b.dtype == np.int8
    columns = b.shape[-1] if isinstance(b, PackedMatmul) or b.ndim > 1 else 1
    rows = a.shape[-2] if a.ndim > 1 else 1
    a_zero = zero_points(verb, "a_zero_point", a_zero_point, a.dtype == np.int8, rows, -2)
    b_zero = zero_points(verb, "b_zero_point", b_zero_point, b_signed, columns, -1)
    per_row = not isinstance(a_zero, int)
    plan = (a.dtype == np.int8, 0 if per_row else a_zero, b_zero, None, "int32", None)
    return _product(verb, a, b, _INT32, out, plan, a_zero if per_row else None, parameters)


def matmul_integer_to_float(
    a: Any,
    b: Any,
    a_scale: Any,
    b_scale: Any,
    a_zero_point: Any = 0,
    b_zero_point: Any = 0,
    bias: Any = None,
    *,
    out: Any = None,
) -> NDArray[np.float32]:
    """Multiply matrices of codes exactly and return the real values: ``float32(sum) * (a_scale * b_scale) + bias``.

    Parameters
    ----------
    a : array of uint8 or int8, shape (..., M, K) or (K,)
    b : array of uint8 or int8, shape (..., K, N) or (K,), or PackedMatmul
    a_scale, a_zero_point : float, int
    b_scale, b_zero_point : float, int, or arrays of N
        One for all, or one a column of `b`.
    bias : array of N, optional
        Of int32: added to the sums. Of real numbers: added in float32 to the scaled sums.
    out : float32 array, optional

    Returns
    -------
    ndarray of float32
        Every step is rounded once; the int32 product never goes to memory.

    Raises
    ------
    InvalidArgument
        Where K is so long that sums could leave int32 with these zero points.
    InvalidDType, ShapeMismatch, InvalidQParams
        Naming what was wanted and what came.
    """
    if (type(a) is not np.ndarray or type(b) not in PLAIN) and on_gpu(a, b, out):
        there: NDArray[np.float32]
        there = cuda_products.matmul_to_float(a, b, a_scale, b_scale, a_zero_point, b_zero_point, bias, out)
        return there
    if (stream := current()) is not None:
        values = (a_scale, b_scale, a_zero_point, b_zero_point, bias)
        made: NDArray[np.float32] = queued(stream, matmul_integer_to_float, (a, _packed_for(b, bias)), values, out)
        return made
    verb = "matmul_integer_to_float"
    a, b = _operands(verb, a, b)
    columns = b.shape[-1] if isinstance(b, PackedMatmul) or b.ndim > 1 else 1
    a_zero = zero_points(verb, "a_zero_point", a_zero_point, a.dtype == np.int8, 1, -2)
    b_signed = b.is_signed if isinstance(b, PackedMatmul) else b.dtype == np.int8
    b_zero = zero_points(verb, "b_zero_point", b_zero_point, b_signed, columns, -1)
    check_depth(verb, a.shape[-1], (a.dtype == np.int8, a_zero), (b_signed, b_zero))
    scales = multiplier(verb, columns, (("a_scale", a_scale, 1), ("b_scale", b_scale, columns)))
    if bias is not None and np.asarray(bias).dtype == np.int32:
        bias = _bias(verb, bias, b, columns)
    elif bias is not None:
        bias = np.ascontiguousarray(bias, np.float32)
        if bias.shape != (columns,):
            raise ShapeMismatch(f"{verb}: wanted {columns} values of bias, got shape {bias.shape}")
    plan = (a.dtype == np.int8, a_zero, b_zero, bias, "float32", scales)
    return _product(verb, a, b, np.dtype(np.float32), out, plan, None, ())


def _packed_for(b: Any, bias: Any) -> Any:
    """Return `b` for a stream: packed at the call where there is a bias, for which packing on the way has no place."""
    return b if bias is None or isinstance(b, PackedMatmul) else pack_matmul(b)


def _bias(verb: str, bias: Any, b: Any, columns: int) -> NDArray[np.int32]:
    """Batches of `b`, which are packed on the way, have no place for a bias where sums begin."""
    if not (isinstance(b, PackedMatmul) or b.ndim == 2):
        raise ShapeMismatch(f"{verb}: wanted a bias of {columns} values and one matrix b, got shape {b.shape}")
    return whole_bias(verb, bias, columns)


def qlinear_matmul(
    a: Any,
    a_scale: Any,
    a_zero_point: Any,
    b: Any,
    b_scale: Any,
    b_zero_point: Any,
    y_scale: Any,
    y_zero_point: Any,
    *,
    bias: Any = None,
    out: Any = None,
) -> Any:
    """Multiply matrices of codes and quantize the result (ONNX QLinearMatMul).

    ``y = saturate(round_half_even(sum * (a_scale * b_scale / y_scale)) + y_zero_point)`` where `sum` is that of
    `matmul_integer`; the multiplier is evaluated in float32, the int32 product never goes to memory.

    Parameters
    ----------
    a : array of uint8 or int8, shape (..., M, K) or (K,)
    a_scale, a_zero_point : float, int
    b : array of uint8 or int8, shape (..., K, N) or (K,), or PackedMatmul
    b_scale, b_zero_point : float, int, or arrays of N
        One for all, or one a column of `b`.
    y_scale, y_zero_point : float, int
    bias : array of int32, shape (N,), optional
        Added to the sums; `b` is then one matrix.
    out : array of uint8 or int8, optional

    Returns
    -------
    ndarray
        Of the dtype of `out`, else of `y_zero_point` where that is an array or NumPy scalar, else of `a`.

    Raises
    ------
    InvalidArgument
        When K is above 65,793, or so long that sums could leave int32 with these zero points.
    InvalidDType, ShapeMismatch, InvalidQParams
        Naming what was wanted and what came.
    """
    parameters = (a_scale, a_zero_point, b_scale, b_zero_point, y_scale, y_zero_point)
    if (stream := current()) is None and bias is None:  # first what takes no longer than a small product
        given = getattr(out, "dtype", None) or getattr(y_zero_point, "dtype", None) or getattr(a, "dtype", None)
        if (done := _run_kept(a, b, parameters, given, out)) is not None:
            return done
    if (type(a) is not np.ndarray or type(b) not in PLAIN) and on_gpu(a, b, out):
        return cuda_products.qlinear_matmul(a, b, parameters, bias, out)
    if stream is not None:
        return queued(stream, _qlinear_matmul, (a, _packed_for(b, bias)), parameters, out, bias=bias)
    return _qlinear_matmul(a, b, *parameters, bias=bias, out=out)


def _qlinear_matmul(
    a: Any,
    b: Any,
    a_scale: Any,
    a_zero_point: Any,
    b_scale: Any,
    b_zero_point: Any,
    y_scale: Any,
    y_zero_point: Any,
    *,
    bias: Any = None,
    out: Any = None,
) -> NDArray[Any]:
    verb = "qlinear_matmul"
    given = getattr(out, "dtype", None) or getattr(y_zero_point, "dtype", None) or getattr(a, "dtype", None)
    parameters = (a_scale, a_zero_point, b_scale, b_zero_point, y_scale, y_zero_point)
    if bias is None and (done := _run_kept(a, b, parameters, given, out)) is not None:
        return done  # type: ignore[no-any-return]
    a, b = _operands(verb, a, b)
    packed = isinstance(b, PackedMatmul)
    b_signed = b.is_signed if packed else b.dtype == np.int8
    columns = b.shape[-1] if packed or b.ndim > 1 else 1
    dtype = np.dtype(given) if given in _CODES else a.dtype
    qdtype = as_qdtype(dtype)
    a_zero = zero_points(verb, "a_zero_point", a_zero_point, a.dtype == np.int8, 1, -2)
    b_zero = zero_points(verb, "b_zero_point", b_zero_point, b_signed, columns, -1)
    y_zero = zero_points(verb, "y_zero_point", y_zero_point, dtype == np.int8)
    check_depth(verb, a.shape[-1], (a.dtype == np.int8, a_zero), (b_signed, b_zero))
    scales = multiplier(
        verb, columns, (("a_scale", a_scale, 1), ("b_scale", b_scale, columns)), ("y_scale", y_scale, 1)
    )

    if bias is not None:
        bias = _bias(verb, bias, b, columns)
    signed = a.dtype == np.int8
    plan = (signed, a_zero, b_zero, bias, dtype.name, scales, y_zero, qdtype.qmin, qdtype.qmax)
    return _product(verb, a, b, dtype, out, plan, None, parameters if bias is None else ())
