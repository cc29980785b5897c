"""Matrix products and convolutions on a GPU: the same rules and the same numbers as on the CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quantkit.cuda.calls import Product, RowSums
from quantkit.errors import InvalidArgument, ShapeMismatch
from quantkit.ops import cuda_operands as on
from quantkit.ops._depth import check_depth
from quantkit.ops._operands import multiplier, whole_bias, zero_points
from quantkit.ops.conv_geometry import geometry
from quantkit.ops.cuda_packed import PackedConv, PackedMatmul, pack_conv, pack_matmul
from quantkit.qparams import as_qdtype
from quantkit.storage.cuda_layout import strided_copy

__all__ = [
    "conv_integer",
    "matmul_integer",
    "matmul_to_float",
    "pack_conv",
    "pack_matmul",
    "qlinear_conv",
    "qlinear_matmul",
]

KINDS = {"int32": 0, "uint8": 1, "int8": 1, "float32": 2}


def _finish(call: Product, y: Any, scale: Any, zero: int, bias: Any, bias_f: Any) -> list[Any]:
    """Say what becomes of sums; return what must be kept in order with the call."""
    gpu, name = y._block.index, y._type.name
    call.kind, call.y, call.zero, call.y_signed = KINDS[name], on.address(y), zero, int(name == "int8")
    if call.kind == 1:
        call.low, call.high = as_qdtype(name).qmin, as_qdtype(name).qmax
    kept = []
    for field, values, dtype in (("scale", scale, "float32"), ("bias", bias, "int32"), ("bias_f", bias_f, "float32")):
        if values is not None:
            kept.append(on.constant(gpu, np.ascontiguousarray(values, dtype)))
            setattr(call, field, on.address(kept[-1]))
    return kept


def _zeros(call: Product, a_signed: bool, b_signed: bool, a_zero: Any, b_zero: Any, gpu: int) -> tuple[list[Any], bool]:
    """Set the zero points of the flipped codes; return what is kept, and whether those of b count."""
    kept, any_b = [], False
    for side, zero, shift in (("a", a_zero, 128 * a_signed), ("b", b_zero, -128 * (not b_signed))):
        moved = np.asarray(zero, np.int32) + np.int32(shift)
        if moved.ndim:
            kept.append(on.constant(gpu, np.ascontiguousarray(moved, np.int32)))
            setattr(call, f"{side}_zero", on.address(kept[-1]))
        else:
            setattr(call, f"{side}_zero_value", int(moved))
        any_b = any_b or (side == "b" and bool(moved.any()))
    call.flip = 0x80808080 if a_signed else 0
    return kept, any_b


def _launch(
    call: Product,
    windows: bool,
    groups: int,
    a: Any,
    b: PackedMatmul | PackedConv,
    y: Any,
    kept: list[Any],
    any_b: bool,
    outside: int = 0,
) -> None:
    kept = [*kept, on.constant(a._block.index, np.full(16, outside & 0xFF, np.uint8))]
    call.outside = on.address(kept[-1])
    call.a, call.b, call.column_sum = on.address(a), on.address(b.codes), on.address(b.sums)
    call.b_pitch, call.b_step = b.pitch, b.outputs * b.pitch
    reads = [a, b.codes, b.sums, *kept]
    if any_b:
        sums = on.new(a, (groups * call.m,), "int32")
        rows = RowSums(of=call, sums=on.address(sums), flip=call.flip & 0xFF)
        with on.work(reads, [sums]) as work:
            work.launch("window_sums" if windows else "row_sums", (-(-call.m // 4), 1, groups), 128, rows)
        call.row_sum = on.address(sums)
        reads.append(sums)
    grid = (-(-call.m // 128), -(-call.n // 128), groups)
    with on.work(reads, [y]) as work:
        work.launch("product_windows" if windows else "product_rows", grid, 128, call)


def _matmul(
    verb: str, a: Any, b: Any, dtype: Any, out: Any, zeros: Any, scales: Any = None, y_zero: Any = 0, bias: Any = None
) -> Any:
    """Multiply as NumPy's matmul does, batches and 1-d operands included."""
    whole = b if isinstance(b, PackedMatmul) else None
    a, right, out = on.operands(verb, {"b": PackedMatmul}, a=a, b=b, out=out)
    on.codes_of(verb, "a", a)
    if whole is None:
        on.codes_of(verb, "b", right)
    b_shape = whole.shape if whole is not None else right.shape
    if not a.ndim or not b_shape:
        raise ShapeMismatch(f"{verb}: a and b must have at least one dimension, got shapes {a.shape} and {b_shape}")
    left = a if a.ndim > 1 else a[None, :]
    if whole is None and right.ndim == 1:
        right = right[:, None]
    m, k, n = left.shape[-2], left.shape[-1], b_shape[-1] if len(b_shape) > 1 else 1
    if (b_shape[-2] if len(b_shape) > 1 else b_shape[0]) != k:
        raise ShapeMismatch(f"{verb}: a of shape {a.shape} and b of shape {b_shape} do not fit")
    try:
        batch = np.broadcast_shapes(left.shape[:-2], b_shape[:-2])
    except ValueError:
        raise ShapeMismatch(f"{verb}: batches of a {a.shape} and b {b_shape} do not broadcast") from None
    signed = on.is_signed(a), whole.is_signed if whole else on.is_signed(right)
    a_zero = zero_points(verb, "a_zero_point", zeros[0], signed[0], m if dtype == "int32" else 1, -2)
    b_zero = zero_points(verb, "b_zero_point", zeros[1], signed[1], n, -1)
    if dtype is None:
        given = getattr(getattr(y_zero, "dtype", None), "name", None) if out is None else out._type.name
        dtype = given if given in ("uint8", "int8") else a._type.name
    if dtype != "int32":
        check_depth(verb, k, (signed[0], a_zero), (signed[1], b_zero))
    scale = None
    if scales is not None:
        y_scale = ("y_scale", scales[2], 1) if len(scales) > 2 else None
        scale = multiplier(verb, n, (("a_scale", scales[0], 1), ("b_scale", scales[1], n)), y_scale)
    zero = zero_points(verb, "y_zero_point", y_zero, dtype == "int8") if KINDS[dtype] == 1 else 0
    bias_f = None
    if bias is not None and KINDS[dtype] == 2 and np.asarray(bias).dtype != np.int32:
        bias_f, bias = np.ascontiguousarray(bias, np.float32), None
        if bias_f.shape != (n,):
            raise ShapeMismatch(f"{verb}: wanted {n} values of bias, got shape {bias_f.shape}")
    elif bias is not None:
        if len(b_shape) != 2:
            raise ShapeMismatch(f"{verb}: wanted a bias of {n} values and one matrix b, got shape {b_shape}")
        bias = whole_bias(verb, bias, n)
    shape = (*batch, *((m,) if a.ndim > 1 else ()), *((n,) if len(b_shape) > 1 else ()))
    if out is not None:
        on.check_out(verb, out, shape, dtype)
    direct = out is not None and out.is_contiguous() and out._bytes not in (a._bytes, getattr(right, "_bytes", None))
    y = out if direct else on.new(a, shape, dtype)
    if y.size:
        one_b = whole or (PackedMatmul(right, right.T[None]) if right.ndim == 2 else None)
        for rows, packed, index in _products(left, right, one_b, batch):
            call = Product(m=rows.shape[0], n=n, k=k, a_stride=rows.strides[0], column_step=n, y_row=n, y_column=1)
            call.y_rows = rows.shape[0]
            tiled = a_zero if isinstance(a_zero, int) else np.tile(a_zero, rows.shape[0] // m)
            kept, any_b = _zeros(call, *signed, tiled, b_zero, a._block.index)
            kept += _finish(call, y, scale, zero, bias, bias_f)
            call.y += index * m * n * y.itemsize
            _launch(call, False, 1, rows, packed, y, kept, any_b)
    return y if out is None or direct else on.deliver(y, out)


def _products(left: Any, right: Any, one_b: PackedMatmul | None, batch: tuple[int, ...]) -> Any:
    """Give (rows of a, packed b, number of the first product): all at once where there is one b."""
    k = left.shape[-1]
    if one_b is not None:
        rows = left if left.ndim == 2 and (left.strides[1] == 1 or k == 1) else left.contiguous()
        yield rows.reshape(-1, k) if rows.ndim > 2 else rows, one_b, 0
        return
    for number, index in enumerate(np.ndindex(batch)):
        own = []
        for x in (left, right):
            lead = x.ndim - 2
            at = [0 if n == 1 else i for n, i in zip(x.shape[:lead], index[len(index) - lead :], strict=True)]
            own.append(x[tuple(at)] if at else x)
        rows = own[0] if own[0].strides[1] == 1 or k == 1 else own[0].contiguous()
        yield rows, PackedMatmul(own[1], own[1].T[None]), number


def matmul_integer(a: Any, b: Any, a_zero_point: Any, b_zero_point: Any, out: Any) -> Any:
    """`quantkit.ops.matmul_integer`."""
    return _matmul("matmul_integer", a, b, "int32", out, (a_zero_point, b_zero_point))


def matmul_to_float(a: Any, b: Any, a_scale: Any, b_scale: Any, a_zero: Any, b_zero: Any, bias: Any, out: Any) -> Any:
    """`quantkit.ops.matmul_integer_to_float`."""
    zeros, scales = (a_zero, b_zero), (a_scale, b_scale)
    return _matmul("matmul_integer_to_float", a, b, "float32", out, zeros, scales, bias=bias)


def qlinear_matmul(a: Any, b: Any, parameters: tuple[Any, ...], bias: Any, out: Any) -> Any:
    """`quantkit.ops.qlinear_matmul`."""
    a_scale, a_zero, b_scale, b_zero, y_scale, y_zero = parameters
    return _matmul("qlinear_matmul", a, b, None, out, (a_zero, b_zero), (a_scale, b_scale, y_scale), y_zero, bias)


# ---- convolutions --------------------------------------------------------------------------------------------------


def _channels_last(x: Any) -> tuple[Any, bool]:
    """Return x (N, C, ...) with its channels side by side, a copy where they are not; and whether they were."""
    was = (
        x.shape[1] > 1
        and x.strides[1] == 1
        and all(s >= x.shape[1] for s, n in zip(x.strides[2:], x.shape[2:], strict=True) if n > 1)
        and any(n > 1 for n in x.shape[2:])
    )
    if was or (x.shape[1] == 1 and all(s >= 0 for s in x.strides)):
        return x, was
    dims = x.ndim - 2
    made = on.new(x, (x.shape[0], *x.shape[2:], x.shape[1]), x._type.name).permute(0, dims + 1, *range(1, dims + 1))
    strided_copy(x, made)
    return made, False


def _three(values: Any, fill: int) -> list[int]:
    return [fill] * (3 - len(values)) + [int(v) for v in values]


def _conv(
    verb: str, x: Any, w: Any, dtype: Any, attributes: tuple[Any, ...], group: Any, out: Any, x_zero: Any, w_zero: Any,
    scales: Any = None, y_zero: Any = 0, bias: Any = None,
) -> Any:  # fmt: skip
    whole = w if isinstance(w, PackedConv) else None
    x, right, out = on.operands(verb, {"w": PackedConv}, x=x, w=w, out=out)
    on.codes_of(verb, "x", x)
    packed = whole or pack_conv(right, group, verb)
    if whole is not None and group not in (whole.group, 1):
        raise InvalidArgument(f"{verb}: w was packed with group={whole.group}, got group={group}")
    outputs, channels, kernel = packed.shape[0], packed.shape[1] * packed.group, packed.shape[2:]
    if x.ndim != len(packed.shape) or x.shape[1] != channels:
        raise ShapeMismatch(
            f"{verb}: w of shape {packed.shape} with group={packed.group} wants x (N, {channels}, ...) of "
            f"{len(packed.shape)} dimensions, got shape {x.shape}"
        )
    at = geometry(verb, x.shape[2:], kernel, *attributes)
    signed = on.is_signed(x), packed.is_signed
    x_zero = zero_points(verb, "x_zero_point", x_zero, signed[0])
    w_zero = zero_points(verb, "w_zero_point", w_zero, signed[1], outputs)
    if dtype is None:
        given = getattr(getattr(y_zero, "dtype", None), "name", None) if out is None else out._type.name
        dtype = given if given in ("uint8", "int8") else x._type.name
    scale, zero = None, 0
    if dtype != "int32":
        check_depth(verb, math.prod(packed.shape[1:]), (signed[0], x_zero), (signed[1], w_zero))
        given_scales = (("x_scale", scales[0], 1), ("w_scale", scales[1], outputs))
        scale = multiplier(verb, outputs, given_scales, ("y_scale", scales[2], 1))
        zero = zero_points(verb, "y_zero_point", y_zero, dtype == "int8")
        bias = None if bias is None else whole_bias(verb, bias, outputs)
    shape = (x.shape[0], outputs, *at.out)
    if out is not None:
        on.check_out(verb, out, shape, dtype)
    source, last = _channels_last(x)
    y, rest = out, None
    if out is None or out._bytes is x._bytes or not _pixels_in_line(out):
        rest = out
        y = on.new(x, (shape[0], *at.out, outputs), dtype).permute(0, len(shape) - 1, *range(1, len(shape) - 1)) \
            if last else on.new(x, shape, dtype)  # fmt: skip
    if y.size:
        call = Product(m=shape[0] * math.prod(at.out), n=outputs // packed.group, k=math.prod(packed.shape[1:]))
        call.channels = packed.shape[1]
        for field, values, fill in (
            ("size", x.shape[2:], 1), ("out", at.out, 1), ("kernel", kernel, 1), ("stride", at.strides, 1),
            ("dilation", at.dilations, 1), ("pad", at.begins, 0), ("a_pixel", source.strides[2:], 0),
        ):  # fmt: skip
            getattr(call, field)[:] = _three(values, fill)
        call.a_image, call.a_step = source.strides[0], packed.shape[1]
        size = y.itemsize
        call.y_rows, call.y_image, call.y_row = math.prod(at.out), y.strides[0] // size, _pixel_step(y) // size
        call.y_column, call.column_step = y.strides[1] // size, call.n
        call.y_step = call.n * call.y_column
        kept, any_b = _zeros(call, *signed, x_zero, w_zero, x._block.index)
        kept += _finish(call, y, scale, zero, bias, None)
        if packed.shape[1] == 1 and packed.group > 1:
            _depthwise(call, packed, source, y, kept)
        else:
            _launch(call, True, packed.group, source, packed, y, kept, any_b, x_zero)
    return on.deliver(y, rest)


def _pixel_step(y: Any) -> int:
    """Return bytes from one pixel of y (N, C, ...) to the next."""
    return int(next((s for s, n in zip(reversed(y.strides[2:]), reversed(y.shape[2:]), strict=True) if n > 1), 0))


def _pixels_in_line(y: Any) -> bool:
    """Return whether one step leads from each pixel of an image to the next."""
    step = _pixel_step(y)
    for s, n in zip(reversed(y.strides[2:]), reversed(y.shape[2:]), strict=True):
        if n > 1 and s != step:
            return False
        step *= n
    return True


def _depthwise(call: Product, packed: PackedConv, x: Any, y: Any, kept: list[Any]) -> None:
    outputs = packed.shape[0]
    each = outputs // packed.group
    call.n, call.column_step, call.a_step, call.y_step = outputs, each, 0, 0
    call.a, call.b = on.address(x), on.address(packed.codes)
    aligned = all(v % 4 == 0 for v in (call.a, call.b, call.a_image, *call.a_pixel, outputs))
    width = 4 if each == 1 and aligned else 1
    with on.work([x, packed.codes, *kept], [y]) as work:
        work.launch(f"depthwise{width}", (-(-call.m * (outputs // width) // 256), 1, 1), 256, call)


def conv_integer(x: Any, w: Any, x_zero: Any, w_zero: Any, attributes: tuple[Any, ...], group: Any, out: Any) -> Any:
    """`quantkit.ops.conv_integer`."""
    return _conv("conv_integer", x, w, "int32", attributes, group, out, x_zero, w_zero)


def qlinear_conv(x: Any, w: Any, given: tuple[Any, ...], attributes: tuple[Any, ...], group: Any, out: Any) -> Any:
    """`quantkit.ops.qlinear_conv`."""
    x_scale, x_zero, w_scale, w_zero, y_scale, y_zero, bias = given
    scales = (x_scale, w_scale, y_scale)
    return _conv("qlinear_conv", x, w, None, attributes, group, out, x_zero, w_zero, scales, y_zero, bias)
