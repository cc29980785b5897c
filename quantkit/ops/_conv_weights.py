"""Weights of convolutions, packed once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit._kernels import KeptCall, PackedTaps
from quantkit.errors import InvalidDType, ShapeMismatch
from quantkit.ops._devices import cuda_products, on_gpu
from quantkit.ops._operands import as_array
from quantkit.ops.conv_geometry import as_group

if TYPE_CHECKING:
    from numpy.typing import NDArray


def as_weights(verb: str, w: Any, group: Any, axes: tuple[str, str]) -> tuple[NDArray[Any], int]:
    """Return weights as an ndarray and their group as an int; `axes` names what the first two axes count."""
    w = as_array(w, verb, "w")
    if w.dtype not in (np.dtype(np.uint8), np.dtype(np.int8)):
        raise InvalidDType(f"{verb}: w must be uint8 or int8, got {w.dtype}")
    if not 3 <= w.ndim <= 5:
        raise ShapeMismatch(f"{verb}: w must be ({', '.join(axes)}, kernel of 1 to 3 dimensions), got shape {w.shape}")
    if 0 in w.shape:
        raise ShapeMismatch(f"{verb}: w of shape {w.shape} has no elements")
    group = as_group(verb, group)
    if w.shape[0] % group:
        raise ShapeMismatch(f"{verb}: {w.shape[0]} {axes[0]} of w {w.shape} do not fit group={group}")
    return w, group


class PackedConv:
    """Weights of a convolution in the order in which the kernels read them; serves every instruction set.

    Attributes
    ----------
    shape : tuple of int
        (outputs, channels / group, *kernel) of the weights that were packed.
    group : int
    is_signed : bool
        Whether their codes were int8.
    nbytes : int
        Bytes held.
    """

    device = "cpu"
    __slots__ = ("_codes", "_packed", "group", "is_signed", "last", "shape")

    def __init__(self, verb: str, w: Any, group: Any) -> None:
        w, self.group = as_weights(verb, w, group, ("outputs", "channels / group"))
        self.shape: tuple[int, ...] = w.shape
        self.is_signed = w.dtype == np.int8
        self._codes: NDArray[Any] | None = None
        self.last: KeptCall | None = None
        if self.is_depthwise:
            # The difference to the zero points is packed, and they come with the call.
            self._codes = w.astype(np.int16).reshape(w.shape[0], -1).T.copy()
            self._packed = ((), self._depthwise(0 if self.is_signed else 128))
        else:
            self._packed = ((), self._grouped(w))

    @property
    def is_depthwise(self) -> bool:
        """Whether each output reads one channel of several."""
        return self.shape[1] == 1 and self.group > 1

    @property
    def channels(self) -> int:
        """Channels of the input."""
        return self.shape[1] * self.group

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._packed[1].nbytes + (0 if self._codes is None else self._codes.nbytes)

    def __repr__(self) -> str:
        return f"PackedConv(shape={self.shape}, group={self.group}, dtype={'int8' if self.is_signed else 'uint8'})"

    def for_zero_point(self, zero_point: Any) -> tuple[PackedTaps, Any]:
        """Return the packed weights and the zero point that is left to apply, for one (int) or one an output."""
        if self._codes is None:
            return self._packed[1], zero_point
        key = (zero_point,) if isinstance(zero_point, int) else tuple(zero_point.tolist())
        if all(z == (0 if self.is_signed else 128) for z in key):
            key = ()
        if self._packed[0] != key:  # those of the last call are kept: a layer has one zero point
            self._packed = (key, self._depthwise(zero_point if key else (0 if self.is_signed else 128)))
        return self._packed[1], 0

    def _grouped(self, w: NDArray[Any]) -> PackedTaps:
        outputs, channels, kernel = w.shape[0] // self.group, w.shape[1], w.shape[2:]
        taps = math.prod(kernel)
        turned = w.reshape(self.group, outputs, channels, taps).transpose(0, 3, 2, 1)
        # Short pieces lie together: those of a row of the kernel are one.
        few = self.group == 1 and taps > 1 and (channels < 8 or (channels % 4 and channels < 16))
        if few:
            turned = turned.reshape(1, -1, kernel[-1] * channels, outputs)
        pieces, length = turned.shape[1], turned.shape[2]
        if length % 4:
            padded = np.full((self.group, pieces, -(-length // 4) * 4, outputs), 0 if self.is_signed else 128, w.dtype)
            padded[:, :, :length] = turned
            turned = padded
        matrices = turned.reshape(self.group, -1, outputs)
        return PackedTaps(list(matrices), kernel, self.channels, self.group, "lines" if few else "taps")

    def _depthwise(self, zero_point: Any) -> PackedTaps:
        """Pack w - zero_point, of 9 bits, as one to three addends of 8 bits, each with taps of its own."""
        assert self._codes is not None
        kernel, left = self.shape[2:], self._codes - np.asarray(zero_point, np.int16)
        parts: list[NDArray[Any]] = []
        while not parts or left.any():
            parts.append(np.clip(left, -128, 127).astype(np.int8))
            left = left - parts[-1]
        square = kernel[0] if len(parts) == 1 and kernel in ((3, 3), (5, 5)) else 0
        order = list(range(len(left))) * len(parts)
        if square == 3:  # a column each, and a gap
            order = [tap for x in range(3) for tap in (x, 3 + x, 6 + x, -1)]
        elif square == 5:  # the upper four taps of a column each, then the last row
            order = [tap for x in range(5) for tap in (x, 5 + x, 10 + x, 15 + x)] + [20, 21, 22, 23, 24]
        order += [-1] * (-len(order) % 4)
        rows = np.concatenate([*parts, np.zeros((1, left.shape[1]), np.int8)])
        if len(parts) == 1:
            matrix = rows[order]  # -1 is the row of zeros
        else:
            matrix = rows[[*range(len(rows) - 1), *[-1] * (len(order) - len(rows) + 1)]]
        return PackedTaps([matrix], kernel, self.group, self.group, "depthwise", np.asarray(order, np.int32), square)


def pack_conv(w: Any, group: int = 1) -> Any:
    """Pack the weights of a convolution once, for any number of calls.

    Parameters
    ----------
    w : array of uint8 or int8, shape (M, C / group, *kernel), kernel of 1 to 3 dimensions
        Any strides. It is copied: later changes to `w` are not seen.
    group : int, default 1
        Must divide M. With C = group, each output reads one channel (depthwise).

    Returns
    -------
    PackedConv
        Accepted wherever `w` is; has ``shape``, ``group``, ``is_signed`` and ``nbytes``.

    Raises
    ------
    InvalidDType, ShapeMismatch, InvalidArgument
        For another dtype, number of dimensions, or a group that does not fit.
    """
    return cuda_products.pack_conv(w, group) if on_gpu(w) else PackedConv("pack_conv", w, group)
