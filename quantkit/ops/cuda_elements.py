"""quantize, dequantize, lookup, copy and statistics on a GPU: the same rules and the same numbers as on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from quantkit.cuda.calls import Affine, Histogram, Lookup, Ranges
from quantkit.errors import InvalidArgument, InvalidDType, ShapeMismatch
from quantkit.ops import cuda_operands as on
from quantkit.ops._operands import normalize_axis, parameters
from quantkit.qparams import as_qdtype
from quantkit.storage.cuda_layout import strided_copy

_REALS = ("float16", "bfloat16", "float32", "float64")


def _channels(x: on.Flat, index: int) -> dict[str, int]:
    """Return how the channels of an axis lie in memory."""
    if index < 0:
        return {"channels": 1, "inner": 1}
    return {"channels": x.array.shape[index], "inner": max(x.array.strides[index] // x.array.itemsize, 1)}


def _affine(kernel: str, x: on.Flat, y: Any, scale: Any, zero: Any, index: int, low: int = 0, high: int = 0) -> None:
    if not y.size:
        return
    gpu = y._block.index
    call = Affine(count=y.size, low=low, high=high, **_channels(x, index))
    call.x, call.y = on.address(x.array), on.address(y)
    reads = [x.array]
    call.float_zero = np.asarray(zero).dtype.kind == "f"
    if isinstance(scale, np.ndarray) and call.channels != 1:
        reads += [on.constant(gpu, scale), on.constant(gpu, zero)]
        call.scale = on.address(reads[1])
        setattr(call, "zero_f" if call.float_zero else "zero", on.address(reads[2]))
    else:
        call.scale_value = np.asarray(scale).reshape(-1)[0]
        value = np.asarray(zero).reshape(-1)[0].item()
        setattr(call, "zero_f_value" if call.float_zero else "zero_value", value)
    with on.work(reads, [y]) as work:
        work.launch(kernel, (-(-y.size // 4096), 1, 1), 256, call)


def _floats(verb: str, x: Any) -> Any:
    if x._type.name not in _REALS:
        raise InvalidDType(f"{verb}: x must be float16, bfloat16, float32 or float64, got {x._type.name}")
    return x


def quantize_linear(x: Any, scale: Any, zero_point: Any, axis: Any, dtype: Any, out: Any) -> Any:
    """`quantkit.ops.quantize_linear`."""
    verb = "quantize_linear"
    x, out = on.operands(verb, x=x, out=out)
    _floats(verb, x)
    if dtype is None:
        dtype = out._type.name if out is not None else getattr(zero_point, "dtype", None) == np.int8 and "int8"
        dtype = dtype if dtype in ("uint8", "int8") else "uint8"
    qdtype = as_qdtype(dtype)
    scale, zero_point, index = parameters(verb, x.shape, scale, zero_point, axis, qdtype)
    source = on.flat(x)
    y, rest = on.result(verb, source, qdtype.codes.name, out)
    _affine(f"quantize_{x._type.name}", source, y, scale, zero_point, index, qdtype.qmin, qdtype.qmax)
    return on.deliver(y, rest)


def dequantize_linear(q: Any, scale: Any, zero_point: Any, axis: Any, out: Any) -> Any:
    """`quantkit.ops.dequantize_linear`."""
    verb = "dequantize_linear"
    q, out = on.operands(verb, q=q, out=out)
    name = q._type.name
    if name not in ("uint8", "int8", "int32"):
        raise InvalidDType(f"{verb}: q must be uint8, int8 or int32, got {name}")
    real = getattr(getattr(scale, "dtype", None), "name", "float32")
    real = real if real in ("float16", "bfloat16") else "float32"
    if out is not None:
        real = out._type.name
        if real not in _REALS:
            raise InvalidDType(f"{verb}: wanted out of float16, bfloat16, float32 or float64, got {real}")
    qdtype = None if name == "int32" else as_qdtype(name)
    scale, zero_point, index = parameters(verb, q.shape, scale, zero_point, axis, qdtype)
    source = on.flat(q)
    y, rest = on.result(verb, source, real, out)
    _affine(f"dequantize_{name}_{real}", source, y, scale, zero_point, index)
    return on.deliver(y, rest)


def _ranges(x: Any, axis: int) -> tuple[Ranges, list[Any], on.Flat]:
    """Find the ranges of one axis (or of all, -1): one a block and channel."""
    source = on.flat(x)
    each = _channels(source, axis)
    outer = x.size // max(each["channels"] * each["inner"], 1)
    if axis < 0:
        each, outer = {"channels": 1, "inner": x.size}, 1
    count = outer * each["inner"]
    if each["channels"] > 65535:
        raise ShapeMismatch(f"finite_range: wanted at most 65,535 channels on a GPU, got {each['channels']}")
    wanted = 4 * _processors(x)
    blocks = max(1, min(-(-count // 2048), wanted // min(each["channels"], wanted)))
    found = [on.new(x, (blocks, each["channels"]), t) for t in ("float64", "float64", "int64")]
    call = Ranges(outer=outer, blocks=blocks, **each)
    call.x, call.low, call.high, call.nonfinite = (on.address(a) for a in (source.array, *found))
    with on.work([source.array], found) as work:
        work.launch(f"ranges_{x._type.name}", (blocks, each["channels"], 1), 256, call)
    return call, found, source


def _processors(x: Any) -> int:
    from quantkit.cuda.driver import device

    return device(x._block.index).processors


def finite_range(x: Any, axis: Any) -> tuple[Any, Any, Any]:
    """`quantkit.ops.finite_range`; waits, since the ranges come to the host."""
    (x,) = on.operands("finite_range", x=x)
    _floats("finite_range", x)
    index = -1 if axis is None else normalize_axis(axis, x.ndim, "finite_range")
    channels = 1 if axis is None else x.shape[index]
    if x.size:
        _, found, _ = _ranges(x, index)
        low, high, odd = (np.asarray(a.cpu()) for a in found)
        low, high, nonfinite = low.min(0), high.max(0), int(odd.sum())
    else:
        low, high, nonfinite = np.full(channels, np.inf), np.full(channels, -np.inf), 0
    return (low.item(), high.item(), nonfinite) if axis is None else (low, high, nonfinite)


def dynamic_quantize_linear(x: Any) -> Any:
    """`quantkit.ops.dynamic_quantize_linear`; waits, since scale and zero point come to the host."""
    verb = "dynamic_quantize_linear"
    (x,) = on.operands(verb, x=x)
    _floats(verb, x)
    if not x.size:
        return on.new_like(on.flat(x), "uint8"), np.float32(1), np.uint8(0)
    call, found, source = _ranges(x, -1)
    scale, zero = on.new(x, (1,), "float32"), on.new(x, (1,), "int32")
    call.scale, call.zero = on.address(scale), on.address(zero)
    with on.work(found[:2], [found[2], scale, zero]) as work:
        work.launch("dynamic_parameters", (1, 1, 1), 32, call)
    y = on.new_like(source, "uint8")
    affine = Affine(count=x.size, channels=1, inner=1, low=0, high=255)
    affine.x, affine.y, affine.scale, affine.zero = (on.address(a) for a in (source.array, y, scale, zero))
    with on.work([source.array, scale, zero], [y]) as work:
        work.launch(f"quantize_{x._type.name}", (-(-x.size // 4096), 1, 1), 256, affine)
    nonfinite = found[2].reshape(-1)[0]
    if nonfinite:
        raise InvalidArgument(f"{verb}: wanted finite values, got {nonfinite} that are NaN or infinite")
    return y, np.float32(scale.item()), np.uint8(zero.item())


def histogram(x: Any, low32: Any, per_unit: Any, bins: int, counts: Any) -> Any:
    """`quantkit.ops.histogram`, of checked arguments; `counts` of the CPU are added to, so that it waits for them."""
    (x,) = on.operands("histogram", x=x)
    _floats("histogram", x)
    found = on.new(x, (bins,), "int64").fill_(0)
    if x.size:
        source = on.flat(x)
        call = Histogram(count=x.size, bins=bins, low=low32, per_unit=per_unit)
        call.x, call.counts = on.address(source.array), on.address(found)
        with on.work([source.array], [found]) as work:
            blocks = max(1, min(-(-x.size // 2048), 4 * _processors(x)))
            work.launch(f"histogram_{x._type.name}", (blocks, 1, 1), 256, call)
    counts += np.asarray(found.cpu())
    return counts


def _look_up(x: on.Flat, y: Any, tables: np.ndarray[Any, Any], index: int) -> None:
    if not y.size:
        return
    table = on.constant(y._block.index, np.ascontiguousarray(tables).view(np.uint8).reshape(-1))
    call = Lookup(count=y.size, **_channels(x, index))
    call.x, call.y, call.tables = on.address(x.array), on.address(y), on.address(table)
    with on.work([x.array, table], [y]) as work:
        work.launch("lookup", (-(-y.size // 16384), 1, 1), 256, call)


def lookup(q: Any, table: Any, out: Any) -> Any:
    """`quantkit.ops.lookup`; the table comes from the CPU."""
    verb = "lookup"
    table = np.asarray(table.cpu() if hasattr(table, "cpu") else table)
    q, out = on.operands(verb, q=q, out=out)
    on.codes_of(verb, "q", q)
    if table.dtype.name not in ("uint8", "int8"):
        raise InvalidDType(f"{verb}: table must be uint8 or int8, got {table.dtype}")
    if table.shape != (256,):
        raise ShapeMismatch(f"{verb}: wanted a table of 256 codes, got shape {table.shape}")
    source = on.flat(q)
    y, rest = on.result(verb, source, table.dtype.name, out)
    _look_up(source, y, table, -1)
    return on.deliver(y, rest)


def requantize(q: Any, values: tuple[Any, ...], axis: Any, dtype: Any, out: Any) -> Any:
    """`quantkit.ops.requantize`; the tables are made on the CPU, where the numbers are the same."""
    from quantkit.ops.lookup import requantize as on_cpu

    verb = "requantize"
    q, out = on.operands(verb, q=q, out=out)
    name = q._type.name
    if name not in ("uint8", "int8", "int32"):
        raise InvalidDType(f"{verb}: q must be uint8, int8 or int32, got {name}")
    if dtype is None:
        given = (out and out._type.name, getattr(getattr(values[3], "dtype", None), "name", None), name, "uint8")
        dtype = next(d for d in given if d in ("uint8", "int8"))
    codes = as_qdtype(dtype).codes
    parameters(verb, q.shape, values[0], values[1], axis, None if name == "int32" else as_qdtype(name))
    index = parameters(verb, q.shape, values[2], values[3], axis, as_qdtype(dtype), "new_")[2]
    if name == "int32":
        real = dequantize_linear(q, values[0], values[1], axis, None)
        return quantize_linear(real, values[2], values[3], axis, codes, out)
    channels = 1 if index < 0 else q.shape[index]
    rows = np.broadcast_to(np.arange(256, dtype=np.uint8).view(name), (channels, 256))
    tables = on_cpu(rows, *values, axis=None if index < 0 else 0, dtype=codes)
    source = on.flat(q)
    y, rest = on.result(verb, source, codes.name, out)
    _look_up(source, y, tables, index)
    return on.deliver(y, rest)


def copy(x: Any, out: Any) -> Any:
    """`quantkit.ops.copy`."""
    x, out = on.operands("copy", x=x, out=out)
    if out is None:
        return x.clone()
    on.check_out("copy", out, x.shape, x._type.name)
    strided_copy(x.clone() if x._bytes is out._bytes else x, out)
    return out
