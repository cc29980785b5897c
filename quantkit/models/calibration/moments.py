"""Second moments of what a weight is multiplied with: how the errors of its columns add up or cancel in the output.

A weight is seen as [groups, outputs, depth]; its moments are those of the rows of inputs, [groups, depth, depth]. A
deep one is cut into blocks along the depth, beyond which errors count as independent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantkit.graph import Graph, Node

Array = np.ndarray[Any, Any]

_LARGEST_BLOCK = 1024
_LARGEST_BYTES = 256 << 20  # of all moments of a graph


@dataclass(frozen=True)
class InputView:
    """How a weighted node reads its input: as rows of values, one row for each output position.

    Attributes
    ----------
    tensor : str
    groups, depth : int
    kernel, strides, dilations, pads : tuple of int
        Of a Conv; kernel empty where the last axis (`channels_last`) or axis 1 is read position by position.
    """

    tensor: str
    groups: int
    depth: int
    kernel: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    channels_last: bool = False

    @property
    def blocks(self) -> int:
        """Into how many equal blocks each group's depth is cut."""
        pieces = -(-self.depth // _LARGEST_BLOCK)
        return next(n for n in range(pieces, self.depth + 1) if self.depth % n == 0)

    def rows(self, values: Array, most: int, rng: np.random.Generator) -> Array:
        """Return at most `most` rows of `values`, float32 of shape [groups, rows, depth]; empty where none fits."""
        if self.channels_last:
            flat = values.reshape(-1, values.shape[-1]) if values.ndim and values.shape[-1] else values.reshape(0, 1)
            if flat.shape[1] != self.depth:
                return np.zeros((self.groups, 0, self.depth), np.float32)
            return np.asarray(flat[_some(len(flat), most, rng)][None], np.float32)
        rank = values.ndim - 2
        if rank < 0 or values.shape[1] % self.groups or (self.kernel and len(self.kernel) != rank):
            return np.zeros((self.groups, 0, self.depth), np.float32)
        values = _windows(values, self) if self.kernel else values.reshape(*values.shape, *[1] * rank)
        positions = (values.shape[0], *values.shape[2 : 2 + rank])
        chosen = np.unravel_index(_some(int(np.prod(positions)), most, rng), positions)
        # Fancy indices apart from each other put the rows first: [rows, channels, *kernel].
        place: Any = (chosen[0], slice(None), *chosen[1:])
        rows = values[place].reshape(len(chosen[0]), self.groups, -1)
        if rows.shape[2] != self.depth:
            return np.zeros((self.groups, 0, self.depth), np.float32)
        return np.ascontiguousarray(rows.transpose(1, 0, 2), np.float32)


def _some(count: int, most: int, rng: np.random.Generator) -> Array:
    return np.arange(count) if count <= most else np.sort(rng.choice(count, most, replace=False))


def _windows(values: Array, view: InputView) -> Array:
    """Return a view [batch, channels, *positions, *kernel] of padded `values`."""
    rank = len(view.kernel)
    width = [(0, 0), (0, 0), *zip(view.pads[:rank], view.pads[rank:], strict=True)]
    padded = np.pad(values, width) if any(view.pads) else values
    reach = [d * (k - 1) + 1 for d, k in zip(view.dilations, view.kernel, strict=True)]
    if any(length < r for length, r in zip(padded.shape[2:], reach, strict=True)):
        return np.zeros((0, *values.shape[1:2], *[0] * rank, *view.kernel), values.dtype)
    found = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=tuple(range(2, 2 + rank)))
    step = tuple(slice(None, None, s) for s in view.strides), tuple(slice(None, None, d) for d in view.dilations)
    return found[(slice(None), slice(None), *step[0], *step[1])]


def input_view(graph: Graph, node: Node) -> InputView | None:
    """Return how `node` reads its first input, where a constant at its second is what that is multiplied with."""
    if not node.is_op("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN"):
        return None
    if len(node.inputs) < 2 or graph.is_constant(node.inputs[0]):
        return None
    shape = graph.shape_of_constant(node.inputs[1])
    if shape is None or not all(shape):
        return None
    name, groups = node.inputs[0], node.get("group", 1)
    if node.is_op("ConvTranspose"):
        # Each tap makes outputs of its own from one position.
        return InputView(name, groups, shape[0] // groups) if len(shape) > 2 else None
    if not node.is_op("Conv"):
        if (node.is_op("Gemm") and node.get("transA", 0)) or (node.is_op("MatMul") and len(shape) != 2):
            return None
        across = node.is_op("MatMul") or (node.is_op("Gemm") and not node.get("transB", 0))
        return InputView(name, 1, shape[0] if across else shape[-1], channels_last=True)
    rank = len(shape) - 2
    if rank < 1 or node.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    ones = [1] * rank
    return InputView(
        name,
        groups,
        int(np.prod(shape[1:])),
        tuple(shape[2:]),
        tuple(node.get("strides") or ones),
        tuple(node.get("dilations") or ones),
        tuple(node.get("pads") or [0] * 2 * rank),
    )


def input_views(graph: Graph, excluded: Collection[Node]) -> tuple[InputView, ...]:
    """Return the views of all nodes of `graph` that are not `excluded`, each once, as far as memory allows."""
    found: dict[InputView, None] = {}
    size = 0
    for node in graph.sorted_nodes():
        view = None if node in excluded else input_view(graph, node)
        if view is not None and view not in found:
            size += 4 * view.groups * view.depth**2 // view.blocks
            if size > _LARGEST_BYTES:
                break
            found[view] = None
    return tuple(found)


class Moments:
    """Sums over rows of inputs.

    Attributes
    ----------
    second : ndarray of float32, shape (groups * blocks, depth / blocks, depth / blocks)
    sums : ndarray of float64, shape (groups * blocks, depth / blocks)
    count : int
    """

    def __init__(self, view: InputView) -> None:
        size = view.depth // view.blocks
        self.view, self.count = view, 0
        self.second = np.zeros((view.groups * view.blocks, size, size), np.float32)
        self.sums = np.zeros(self.second.shape[:2])
        self.rounded: dict[bytes, Array | None] = {}  # what came of it, by what went in: candidates share most
        self._by: Array | None = None

    def update(self, rows: Array) -> None:
        """Take in rows [groups, rows, depth]."""
        groups, count, depth = rows.shape
        blocks = self.view.blocks
        cut = (
            rows.reshape(groups, count, blocks, depth // blocks)
            .transpose(0, 2, 1, 3)
            .reshape(-1, count, depth // blocks)
        )
        self.second += cut.transpose(0, 2, 1) @ cut
        self.sums += cut.sum(axis=1, dtype=np.float64)
        self.count += count

    def divided(self, factors: Array) -> Moments:
        """Return these moments for an input whose channels are divided by `factors`; the sums are shared."""
        found = Moments.__new__(Moments)
        found.view, found.count, found.second, found.sums = self.view, self.count, self.second, self.sums
        found.rounded = self.rounded
        taps = self.view.groups * self.view.depth // len(factors)
        by = np.repeat(factors, taps).reshape(self.sums.shape)
        found._by = by if self._by is None else self._by * by
        return found

    def key(self, *parts: Array | bytes) -> bytes:
        """Return a key for `rounded`."""
        digest = hashlib.sha256(b"" if self._by is None else self._by.tobytes())
        for part in parts:
            digest.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).data)
        return digest.digest()

    def mean(self) -> Array:
        """Return the mean row, float64 of shape (groups, depth)."""
        mean = self.sums / max(self.count, 1)
        mean = mean if self._by is None else mean / self._by
        return mean.reshape(self.view.groups, self.view.depth)

    def matrix(self, *, centered: bool) -> Array:
        """Return mean products, float64; about the mean row where `centered`."""
        found = self.second.astype(np.float64) / max(self.count, 1)
        if centered:
            mean = self.sums / max(self.count, 1)
            found -= mean[:, :, None] * mean[:, None, :]
        return found if self._by is None else found / (self._by[:, :, None] * self._by[:, None, :])

    def __deepcopy__(self, memo: Any) -> Moments:
        return self  # nothing changes one once calibration is done
