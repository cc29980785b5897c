"""Round a weight so that its errors cancel in the output.

To the nearest code is best for each weight alone, not for their sum: inputs are correlated, so the error of one column
can be made good by those that are rounded after it. That is the least-squares rounding of Optimal Brain Quantization
and GPTQ: columns are rounded one after the other, each error spread over the columns still open, as the second moments
of the inputs (`Moments`) say. It is in closed form and involves no chance.

A weight that is zero stays zero: zeros are structure. A filter bank of a spectrum, say, reads a few bins each, and
what is strong elsewhere must not leak into a weak band, whatever the calibration samples had there.
"""

from __future__ import annotations

import numpy as np

from quantkit.graph import Node
from quantkit.models.calibration.moments import Moments
from quantkit.models.forms.weights import QMAX, Array, QuantizedWeight

# Of the mean power of the inputs: how little moments are trusted, the less the fewer rows they come from.
_DAMPING = 0.1
_LEAST_DAMPING = 0.01
_COLUMNS = 64  # rounded before the rest of the row hears of their errors


def round_weight(
    node: Node, position: int, values: Array, found: QuantizedWeight, moments: Moments, *, centered: bool
) -> None:
    """Round `values`, the weight at `position` of `node`, again under the scales of `found`; change its codes.

    Parameters
    ----------
    node : Node
        A Conv, ConvTranspose, Gemm, MatMul or recurrent layer, before it is rewritten.
    moments : Moments
        Of the input that the weight is multiplied with.
    centered : bool
        Whether a bias makes good what the error is on average.
    """
    rows, scale = as_rows(node, values), found.scale
    if node.is_op("ConvTranspose"):
        scale = np.repeat(np.broadcast_to(scale, values.shape[1]), values[0, 0].size)
    codes = round_rows(
        rows, np.broadcast_to(scale.reshape(-1, rows.shape[1]), rows.shape[:2]), moments, centered=centered
    )
    if codes is not None:
        found.codes = from_rows(node, codes, values.shape)


def as_rows(node: Node, values: Array) -> Array:
    """Return a weight as [groups, outputs, depth]."""
    groups = node.get("group", 1)
    if node.is_op("Conv"):
        return values.reshape(groups, values.shape[0] // groups, -1)
    if node.is_op("ConvTranspose"):
        return values.reshape(groups, values.shape[0] // groups, -1).transpose(0, 2, 1)
    if node.is_op("MatMul") or (node.is_op("Gemm") and not node.get("transB", 0)):
        return values.T[None]
    return values.reshape(1, -1, values.shape[-1])


def from_rows(node: Node, rows: Array, shape: tuple[int, ...]) -> Array:
    """Undo `as_rows`."""
    if node.is_op("ConvTranspose"):
        rows = rows.transpose(0, 2, 1)
    elif node.is_op("MatMul") or (node.is_op("Gemm") and not node.get("transB", 0)):
        rows = rows[0].T
    return np.ascontiguousarray(rows).reshape(shape)


def round_rows(rows: Array, scale: Array, moments: Moments, *, centered: bool) -> Array | None:
    """Return int8 codes of `rows`, [groups, outputs, depth], under `scale`, [groups, outputs].

    None where the moments say nothing: no row seen, or values that are not finite.

    Parameters
    ----------
    moments : Moments
    centered : bool
        Whether a bias makes good what the error is on average.
    """
    if not moments.count:
        return None
    key = moments.key(rows, scale, bytes([centered]))
    if key not in moments.rounded:
        moments.rounded[key] = _round_blocks(rows, scale, moments, centered)
    return moments.rounded[key]


def _round_blocks(rows: Array, scale: Array, moments: Moments, centered: bool) -> Array | None:
    groups, outputs, depth = rows.shape
    blocks = moments.view.blocks
    trust = moments.second.shape[-1] / moments.count
    damping = _DAMPING * min(1.0, max(_LEAST_DAMPING / _DAMPING, trust))
    factor = _factor(moments.matrix(centered=centered), damping)
    if factor is None:
        return None
    order, upper = factor
    cut = rows.reshape(groups, outputs, blocks, depth // blocks).transpose(0, 2, 1, 3)
    wide: Array = cut.reshape(groups * blocks, outputs, depth // blocks).astype(np.float64)
    steps = np.repeat(scale.astype(np.float64), blocks, axis=0)
    codes = _round(np.take_along_axis(wide, order[:, None, :], axis=2), steps, upper)
    found = np.empty(codes.shape, np.int8)
    np.put_along_axis(found, order[:, None, :], codes, axis=2)
    return found.reshape(groups, blocks, outputs, -1).transpose(0, 2, 1, 3).reshape(rows.shape)


def _factor(matrix: Array, damping: float) -> tuple[Array, Array] | None:
    """Return the order of the columns, the strongest first, and the upper factor of the inverse in that order."""
    if not np.all(np.isfinite(matrix)):
        return None
    diagonal = np.einsum("bii->bi", matrix)
    mean = diagonal.mean(axis=1, keepdims=True)
    diagonal += np.where(mean > 0, damping * mean, 1.0)
    order = np.argsort(-diagonal, axis=1, kind="stable")
    matrix = np.take_along_axis(np.take_along_axis(matrix, order[:, :, None], axis=1), order[:, None, :], axis=2)
    try:
        upper: Array = np.linalg.cholesky(np.linalg.inv(matrix)).transpose(0, 2, 1)
    except np.linalg.LinAlgError:
        return None
    return (order, upper) if np.all(np.isfinite(upper)) else None


def _round(values: Array, steps: Array, upper: Array) -> Array:
    """Round [blocks, outputs, columns] in the order of the columns; `values` is used up."""
    depth = values.shape[2]
    empty = values == 0
    codes = np.empty(values.shape, np.int8)
    for start in range(0, depth, _COLUMNS):
        end = min(start + _COLUMNS, depth)
        here = np.ascontiguousarray(values[:, :, start:end].transpose(2, 0, 1))
        errors = np.empty(here.shape)
        for j in range(end - start):
            rounded = np.clip(np.rint(here[j] / steps), -QMAX, QMAX)
            rounded[empty[:, :, start + j]] = 0
            codes[:, :, start + j] = rounded
            row = upper[:, start + j, start + j : end]
            errors[j] = (here[j] - rounded * steps) / row[:, :1]
            here[j + 1 :] -= errors[j] * row[:, 1:].T[:, :, None]
        if end < depth:
            values[:, :, end:] -= errors.transpose(1, 2, 0) @ upper[:, start:end, end:]
    return codes
