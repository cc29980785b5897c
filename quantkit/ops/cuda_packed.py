"""Right operands of products and convolutions as the kernels on a GPU read them."""

from __future__ import annotations

import math
from typing import Any

from quantkit.cuda.calls import Product, RowSums
from quantkit.errors import InvalidDType, ShapeMismatch
from quantkit.ops import cuda_operands as on
from quantkit.ops.conv_geometry import as_group
from quantkit.storage.cuda_layout import strided_copy


class _Rows(on.Packed):
    """A right operand on a GPU: rows of outputs, their products side by side and padded to 16; accepted wherever it is.

    Attributes
    ----------
    shape : tuple of int
        Of what was packed: (K, N), or (outputs, channels / group, *kernel).
    group : int
    is_signed : bool
        Whether the codes were int8.
    nbytes : int
    device : str
    """

    def __init__(self, source: Any, rows: Any, group: int = 1) -> None:
        """`rows`: a view of the codes of `source` as (groups, outputs, ...products)."""
        self.shape, self.group, self.is_signed, self.device = source.shape, group, on.is_signed(source), source.device
        self.index = source._block.index
        groups, self.outputs = rows.shape[:2]
        self.depth = math.prod(rows.shape[2:])
        self.pitch = -(-self.depth // 16) * 16
        self.codes = on.new(source, (groups, self.outputs, self.pitch), "uint8").fill_(0)
        inside = self.codes[:, :, : self.depth]
        strides = [math.prod(rows.shape[d + 1 :]) for d in range(2, rows.ndim)]
        place = type(inside)._make(
            inside._bytes, inside._type, rows.shape, inside._offset, (*inside.strides[:2], *strides)
        )
        strided_copy(rows, place, 0 if self.is_signed else 0x80)
        self.sums = on.new(source, (groups * self.outputs,), "int32")
        of = Product(m=groups * self.outputs, n=1, k=self.pitch, a_stride=self.pitch, y_rows=1)
        of.a = on.address(self.codes)
        # Bytes are summed as unsigned, 128 too many each.
        call = RowSums(of=of, sums=on.address(self.sums), flip=0x80, addend=-128 * self.pitch)
        with on.work([self.codes], [self.sums]) as work:
            work.launch("row_sums", (-(-of.m // 4), 1, 1), 128, call)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return int(self.codes.nbytes + self.sums.nbytes)

    def __repr__(self) -> str:
        codes = "int8" if self.is_signed else "uint8"
        return f"{type(self).__name__}(shape={self.shape}, group={self.group}, dtype={codes}, device={self.device!r})"


class PackedMatmul(_Rows):
    """The right operand of a product."""


class PackedConv(_Rows):
    """The weights of a convolution."""


def pack_matmul(b: Any) -> PackedMatmul:
    """`quantkit.ops.pack_matmul`."""
    (b,) = on.operands("pack_matmul", b=b)
    on.codes_of("pack_matmul", "b", b)
    if b.ndim != 2:
        raise InvalidDType(f"pack_matmul: wanted a matrix of 2 dimensions, got shape {b.shape}")
    return PackedMatmul(b, b.T[None])


def pack_conv(w: Any, group: Any = 1, verb: str = "pack_conv") -> PackedConv:
    """`quantkit.ops.pack_conv`."""
    (w,) = on.operands(verb, w=w)
    on.codes_of(verb, "w", w)
    if not 3 <= w.ndim <= 5 or 0 in w.shape:
        raise ShapeMismatch(
            f"{verb}: w must be (outputs, channels / group, kernel of 1 to 3 dimensions), got shape {w.shape}"
        )
    group = as_group(verb, group)
    if w.shape[0] % group:
        raise ShapeMismatch(f"{verb}: {w.shape[0]} outputs of w {w.shape} do not fit group={group}")
    rows = (w if w.is_contiguous() else w.clone()).reshape(group, w.shape[0] // group, *w.shape[1:])
    dims = w.ndim - 2
    turned = rows.permute(0, 1, *range(3, 3 + dims), 2)  # channels last
    if w.shape[1] == 1 and group > 1:  # depthwise: tap after tap, outputs together
        packed = PackedConv(w, turned, group)
        taps = math.prod(w.shape[2:])
        own = on.new(w, (taps, w.shape[0]), "uint8")
        strided_copy(packed.codes.reshape(w.shape[0], packed.pitch)[:, :taps].T, own)
        packed.codes = own
        return packed
    return PackedConv(w, turned, group)
