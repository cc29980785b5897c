"""How the parameters of channels follow their elements.

One idea serves indexing, permuting, reshaping and every NumPy function that moves data: whatever happens to the codes
is done to an array of channel numbers of the same shape as well, and the channel axis is read off the result. That
array costs nothing until a function copies, because it is one row of numbers seen through strides of zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit.errors import InvalidQParams
from quantkit.qparams import QParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def pick(qparams: QParams, channel: Any, axis: int | None) -> QParams:
    """Return the parameters of some channels of `qparams` along another axis; already checked, so it is cheap."""
    scale, zero_point = qparams.scale[channel], qparams.zero_point[channel]
    if axis is None:
        scale, zero_point = float(scale), zero_point.item()
    else:
        scale.flags.writeable = zero_point.flags.writeable = False
    made = object.__new__(QParams)
    for name, value in (("scale", scale), ("zero_point", zero_point), ("axis", axis)):
        object.__setattr__(made, name, value)
    return made


def _spread(row: NDArray[Any], shape: tuple[int, ...], axis: int) -> NDArray[Any]:
    strides = [0] * len(shape)
    strides[axis] = row.itemsize
    return np.ndarray(shape, row.dtype, row, strides=strides)


def numbers(shape: tuple[int, ...], axis: int) -> NDArray[Any]:
    """Return the channel number of every element of a tensor, without memory of its own beyond one row."""
    return _spread(np.arange(shape[axis], dtype=np.min_scalar_type(shape[axis])), shape, axis)


def read_axis(found: Any) -> tuple[Any, int | None]:
    """Return the channels along the one axis on which `found` varies, and that axis; (channel, None) if on none.

    An axis seen through the only stride that is not zero is the channel axis even where its length is 1.

    Raises
    ------
    InvalidQParams
        When channels vary along several axes.
    """
    array = np.asarray(found)
    if array.size == 0:
        return 0, None  # no element is left that could tell channels apart
    moving = [k for k, step in enumerate(array.strides) if step]
    if len(moving) > 1 and (array == array.flat[0]).all():
        moving = []
    if not moving:
        return array.flat[0], None
    for axis in moving:
        line = array[tuple([slice(None) if k == axis else slice(0, 1) for k in range(array.ndim)])]
        if len(moving) == 1 or (array == line).all():
            return line.ravel(), axis
    raise InvalidQParams("the result mixes channels along several axes; dequantize() first")


def follow(qparams: QParams, found: Any) -> QParams:
    """Return the parameters of a result whose elements have the channel numbers `found`."""
    channel, axis = read_axis(found)
    if not len(qparams.scale):
        return QParams(1.0, 0)
    return pick(qparams, channel, axis)


def merge(parts: Sequence[tuple[tuple[int, ...], QParams]]) -> tuple[QParams, list[NDArray[Any]]]:
    """Return one table of the different channels of several tensors, and for each tensor its numbers in the table."""
    scales = [np.atleast_1d(np.float32(q.scale)) for _, q in parts]
    zeros = [np.atleast_1d(np.asarray(q.zero_point)) for _, q in parts]
    if len({z.dtype.kind for z in zeros}) > 1:
        raise InvalidQParams("tensors with integer and with float zero points do not go together; requantize one")
    both = np.stack([np.concatenate(scales).astype(np.float64), np.concatenate(zeros).astype(np.float64)], axis=1)
    table, number = np.unique(both, axis=0, return_inverse=True)
    number = number.reshape(-1).astype(np.min_scalar_type(len(table)))
    zero_point = table[:, 1].astype(np.float32 if zeros[0].dtype.kind == "f" else np.int32)
    rows = np.split(number, np.cumsum([len(s) for s in scales])[:-1])
    return QParams(table[:, 0].astype(np.float32), zero_point, 0), [
        np.broadcast_to(row[0], shape) if q.axis is None else _spread(np.ascontiguousarray(row), shape, q.axis)
        for row, (shape, q) in zip(rows, parts, strict=True)
    ]
