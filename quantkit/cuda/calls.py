"""The structs that kernels take, as ctypes; their fields are those of the .cu files, in order."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int, c_int64, c_uint32, c_void_p
from typing import Any

_3 = c_int64 * 3
_8 = c_int64 * 8


def _fields(**groups: str) -> list[tuple[str, Any]]:
    types: dict[str, Any] = {"pointers": c_void_p, "longs": c_int64, "triples": _3}
    types |= {"ints": c_int, "floats": c_float, "words": c_uint32}
    return [(name, types[kind.rstrip("0123456789")]) for kind, names in groups.items() for name in names.split()]


class Affine(Structure):
    """quantize and dequantize."""

    _fields_ = _fields(
        pointers="x y",
        longs="count channels inner",
        pointers1="scale zero zero_f",
        floats="scale_value zero_f_value",
        ints="zero_value float_zero low high",
    )


class Lookup(Structure):
    """lookup."""

    _fields_ = _fields(pointers="x y", longs="count channels inner", pointers1="tables")


class Copy(Structure):
    """copy, of up to 8 dimensions; strides in bytes."""

    _fields_ = [
        *_fields(pointers="x y", longs="count itemsize ndim flip"),
        *[(n, _8) for n in ("shape", "x_strides", "y_strides")],
    ]


class Ranges(Structure):
    """ranges and dynamic_parameters."""

    _fields_ = _fields(
        pointers="x", longs="outer channels inner", pointers1="low high nonfinite scale zero", longs1="blocks"
    )


class Histogram(Structure):
    """histogram."""

    _fields_ = _fields(pointers="x", longs="count bins", pointers1="counts", floats="low per_unit")


class Product(Structure):
    """Matrix products, convolutions and depthwise ones."""

    _fields_ = _fields(
        pointers="a b y outside",
        longs="m n k b_pitch a_stride a_step b_step y_step column_step y_rows y_image y_row y_column channels",
        triples="size out kernel stride dilation pad",
        longs1="a_image",
        triples1="a_pixel",
        pointers1="column_sum row_sum a_zero b_zero bias scale bias_f table residual",
        words="flip",
        ints="a_zero_value b_zero_value kind zero low high own_zero residual_zero residual_signed y_signed",
        floats="own_ratio residual_ratio",
    )


class RowSums(Structure):
    """row_sums and window_sums."""

    _fields_ = [("of", Product), *_fields(pointers="sums", ints="flip addend")]


# What every kernel takes.
ARGUMENTS: dict[str, type[Structure]] = {
    **{f"quantize_{x}": Affine for x in ("float32", "float16", "bfloat16", "float64")},
    **{
        f"dequantize_{x}_{y}": Affine
        for x in ("uint8", "int8", "int32")
        for y in ("float32", "float16", "bfloat16", "float64")
    },
    "lookup": Lookup,
    "copy": Copy,
    **{f"ranges_{x}": Ranges for x in ("float32", "float16", "bfloat16", "float64")},
    "dynamic_parameters": Ranges,
    **{f"histogram_{x}": Histogram for x in ("float32", "float16", "bfloat16", "float64")},
    **dict.fromkeys(("product_rows", "product_windows", "depthwise1", "depthwise4"), Product),
    **dict.fromkeys(("row_sums", "window_sums"), RowSums),
}
