"""Weights and biases in int8 and int32, exact about what fits.

A weight is symmetric int8 in [-127, 127], one scale an output channel. A bias is int32 at the scale of the products it
is added to, x_scale * weight_scale. Where that scale is so small that the bias would overflow int32 (a tiny weight, a
large bias, a dead channel), the channel's weight scale is enlarged until it fits: the weight then loses precision it
could not have shown beside its bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from quantkit import ops
from quantkit.graph import Node
from quantkit.ops.conv_geometry import same_pads
from quantkit.qparams import QParams

QMAX = 127
INT32_MAX = 2**31 - 1
_TINY = float(np.finfo(np.float32).tiny)
# Scales of products stay normal float32 numbers.
_SMALLEST_PRODUCT = _TINY * 16

Array = np.ndarray[Any, Any]


@dataclass
class QuantizedWeight:
    """A weight's codes, one scale for each index of `axis` (a single one where `axis` is None)."""

    codes: Array
    scale: Array
    axis: int | None

    @property
    def qparams(self) -> QParams:
        """The parameters that the codes stand under."""
        return QParams(self.scale if self.axis is not None else float(self.scale), 0, self.axis)


def channel_reach(values: Array, axis: int | None) -> Array:
    """Return the largest magnitude of each channel, in float64."""
    if not values.size:
        return np.zeros(() if axis is None else values.shape[axis])
    low, high = values.min(axis=_others(values, axis)), values.max(axis=_others(values, axis))
    reach: Array = np.maximum(np.abs(np.asarray(low, np.float64)), np.abs(np.asarray(high, np.float64)))
    return reach


def _others(values: Array, axis: int | None) -> tuple[int, ...] | None:
    return None if axis is None else tuple(i for i in range(values.ndim) if i != axis % values.ndim)


def bias_limit(depth: int) -> float:
    """Return how large an int32 bias may be when `depth` products of uint8 and int8 are added to it."""
    return float(max(INT32_MAX - 2 * depth * 255 * QMAX, 2**24))


def least_scale(bias: Array | None, x_scale: float, depth: int, channels: Array) -> Array:
    """Return the least weight scale a channel under which `bias` fits into int32."""
    floor = np.full(channels.shape, _SMALLEST_PRODUCT / min(x_scale, 1.0))
    if bias is None:
        return floor
    # A hair above the limit's quotient, so that rounding the scale to float32 cannot undo it.
    needed = np.abs(bias.astype(np.float64)) / (x_scale * bias_limit(depth)) * (1 + 1e-6)
    least: Array = np.maximum(floor, needed.reshape(channels.shape))
    return least


def quantize_weight(values: Array, axis: int | None, least: Array | float = 0.0) -> QuantizedWeight:
    """Quantize `values` to symmetric int8, with scales of at least `least`.

    A channel of only zeros gets its least scale, or 1 where nothing asks for one.
    """
    reach = channel_reach(values, axis)
    wanted = np.maximum(reach / QMAX, least)
    scale = np.where(wanted > 0, np.maximum(wanted, _TINY), 1.0).astype(np.float32)
    scale = np.where((reach == 0) & (np.asarray(least) <= _SMALLEST_PRODUCT * 2), np.float32(1), scale)
    floats = values if values.dtype == np.float32 else values.astype(np.float32)
    codes = ops.quantize_linear(floats, scale, 0, axis=axis, dtype=np.int8)
    # float32 rounding of the scale could push the largest value to -128.
    np.maximum(codes, np.int8(-QMAX), out=codes)
    return QuantizedWeight(codes, scale, axis)


def quantize_bias(bias: Array, x_scale: float, weight_scale: Array) -> tuple[Array, Array] | None:
    """Return the int32 codes of `bias` and their scales, or None where one does not fit."""
    scale = (np.float32(x_scale) * weight_scale.astype(np.float32)).astype(np.float32)
    scale = np.broadcast_to(scale, bias.shape)
    if np.any(scale < _TINY):
        return None
    codes = np.rint(bias.astype(np.float64) / scale.astype(np.float64))
    if np.any(np.abs(codes) > INT32_MAX):
        return None
    return codes.astype(np.int64).astype(np.int32), scale


def tap_use(node: Node, shape: tuple[int, ...], kernel: tuple[int, ...]) -> Array:
    """Return, for each tap of a Conv's kernel, the share of output positions at which it reads no padding.

    Short inputs read much of it. 1 everywhere where the spatial `shape` is not known.
    """
    rank = len(kernel)
    use = np.ones(kernel)
    if len(shape) != rank + 2:
        return use
    strides, dilations = node.get("strides") or [1] * rank, node.get("dilations") or [1] * rank
    pads = node.get("pads") or [0] * 2 * rank
    auto = node.get("auto_pad", "NOTSET")
    for axis in range(rank):
        length, stride, reach = shape[axis + 2], strides[axis], dilations[axis] * (kernel[axis] - 1)
        before, after = pads[axis], pads[axis + rank]
        if auto.startswith("SAME"):
            before, after = same_pads(length, stride, reach + 1, auto)
        count = (length + before + after - reach - 1) // stride + 1
        if count < 1:
            return np.ones(kernel)
        first = np.arange(count) * stride - before
        reads = first[:, None] + dilations[axis] * np.arange(kernel[axis])
        inside = ((reads >= 0) & (reads < length)).mean(axis=0)
        use = use * inside.reshape([-1 if i == axis else 1 for i in range(rank)])
    return use
