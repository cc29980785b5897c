"""Quantization parameters: the quantized dtypes, `QParams`, and how to choose them from a range.

The formula of the whole package (ONNX QuantizeLinear and DequantizeLinear)::

    q = saturate(round_half_even(x / scale) + zero_point)        x = (q - zero_point) * scale
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit.errors import InvalidDType, InvalidQParams

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class QDType:
    """A quantized dtype: codes of one byte that stand for real values through a scale and a zero point.

    Attributes
    ----------
    name : str
        ``"quint8"`` or ``"qint8"``.
    codes : numpy.dtype
        dtype of the stored codes.
    qmin, qmax : int
        Lowest and highest code.
    """

    name: str
    codes: np.dtype[Any]
    qmin: int
    qmax: int

    def __repr__(self) -> str:
        return f"quantkit.{self.name}"

    def __reduce__(self) -> str:
        return self.name  # a singleton: pickles by reference


quint8 = QDType("quint8", np.dtype(np.uint8), 0, 255)
qint8 = QDType("qint8", np.dtype(np.int8), -128, 127)
_BY_CODES = {quint8.codes: quint8, qint8.codes: qint8}
_BY_NAME = {quint8.name: quint8, qint8.name: qint8}


def as_qdtype(dtype: Any) -> QDType:
    """Return the quantized dtype for a `QDType`, its name, or the dtype of its codes.

    Raises
    ------
    InvalidDType
        For anything else.
    """
    if isinstance(dtype, QDType):
        return dtype
    if isinstance(dtype, str) and dtype in _BY_NAME:
        return _BY_NAME[dtype]
    try:
        return _BY_CODES[np.dtype(dtype)]
    except (TypeError, ValueError, KeyError):
        raise InvalidDType(f"wanted quint8 (uint8 codes) or qint8 (int8 codes), got {dtype!r}") from None


def _first_bad(mask: NDArray[np.bool_]) -> str:
    return "" if mask.ndim == 0 else f" at channel {int(np.flatnonzero(mask)[0])}"


def check_zero_point(zero_point: NDArray[Any], dtype: QDType, where: str = "zero_point") -> None:
    """Raise `InvalidQParams`, naming the channel, unless every zero point suits the codes of `dtype`.

    An integer zero point must be a code; a float one must be finite.
    """
    if zero_point.dtype.kind == "f":
        bad, wanted = ~np.isfinite(zero_point), "finite"
    else:
        bad, wanted = (zero_point < dtype.qmin) | (zero_point > dtype.qmax), f"in [{dtype.qmin}, {dtype.qmax}]"
    if bad.any():
        value = zero_point if zero_point.ndim == 0 else zero_point[bad][0]
        raise InvalidQParams(f"{where} must be {wanted} for {dtype.name}, got {value.item()}{_first_bad(bad)}")


def as_scale(scale: ArrayLike, where: str = "scale") -> NDArray[np.float32]:
    """Return `scale` as a checked float32 array, 0-d (per tensor) or 1-d (per channel).

    A value that is positive in its own type but not in float32 (1e-60, say) is an error as well.
    """
    try:
        array = np.asarray(scale)
        if array.dtype.kind not in "iuf" and array.dtype.name != "bfloat16":
            raise TypeError
        with np.errstate(over="ignore", under="ignore"):
            floats: NDArray[np.float32] = array.astype(np.float32)
    except (TypeError, ValueError):
        raise InvalidQParams(f"{where} must be a real number or an array of them, got {scale!r}") from None
    if floats.ndim > 1:
        raise InvalidQParams(f"{where} must be 0-d or 1-d, got shape {floats.shape}")
    bad = ~((floats > 0) & np.isfinite(floats))
    if bad.any():
        given, rounded = (float(v if v.ndim == 0 else v[bad][0]) for v in (array, floats))
        note = "" if given == rounded or np.isnan(given) else f" ({rounded} in float32)"
        raise InvalidQParams(f"{where} must be finite and > 0, got {given}{note}{_first_bad(bad)}")
    return floats


def as_zero_point(zero_point: ArrayLike, where: str = "zero_point") -> NDArray[Any]:
    """Return `zero_point` as an int32 array, or float32 where it came as floats; 0-d or 1-d."""
    try:
        array = np.asarray(zero_point)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.ndim > 1:
        raise InvalidQParams(f"{where} must be 0-d or 1-d, got shape {array.shape}")
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            floats: NDArray[np.float32] = array.astype(np.float32)
        return floats
    if array.dtype.kind in "iu":
        info = np.iinfo(np.int32)
        codes: NDArray[np.int32] = np.clip(array, info.min, info.max).astype(np.int32)
        return codes  # a clipped one is far outside any code, and refused once its dtype is known
    raise InvalidQParams(f"{where} must be an integer, a float, or an array of them, got {zero_point!r}")


@dataclass(frozen=True, slots=True, eq=False)
class QParams:
    """Scale, zero point and axis of a quantized tensor.

    Parameters
    ----------
    scale : float or array_like of shape (channels,)
        Kept in float32; finite and > 0.
    zero_point : int, float, or array_like of shape (channels,), default 0
        Integers are kernel-ready. Floats are kept as float32 (``q = round(x / scale + zero_point)``).
    axis : int, optional
        The quantized axis; required exactly when `scale` or `zero_point` is 1-d.

    Raises
    ------
    InvalidQParams
        Naming the channel where one is at fault.
    """

    scale: Any
    zero_point: Any = 0
    axis: int | None = None

    def __post_init__(self) -> None:
        scale, zero_point = as_scale(self.scale), as_zero_point(self.zero_point)
        axis = self.axis
        if zero_point.dtype.kind == "f" and not np.isfinite(zero_point).all():
            raise InvalidQParams(f"zero_point must be finite, got {self.zero_point!r}")
        if axis is None:
            if scale.ndim or zero_point.ndim:
                raise InvalidQParams(f"per-channel parameters of shape {scale.shape or zero_point.shape} need an axis")
            object.__setattr__(self, "scale", float(scale))
            object.__setattr__(self, "zero_point", zero_point.item())
            return
        try:
            axis = operator.index(axis)
        except TypeError:
            raise InvalidQParams(f"axis must be an integer, got {axis!r}") from None
        try:
            scale, zero_point = (np.array(a) for a in np.broadcast_arrays(np.atleast_1d(scale), zero_point))
        except ValueError:
            raise InvalidQParams(
                f"scale and zero_point differ in length: {scale.shape[0]} and {zero_point.shape[0]}"
            ) from None
        scale.flags.writeable = zero_point.flags.writeable = False
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "zero_point", zero_point)
        object.__setattr__(self, "axis", axis)

    @property
    def per_channel(self) -> bool:
        """Whether there is one scale and zero point for each index of `axis`."""
        return self.axis is not None

    @property
    def has_float_zero_point(self) -> bool:
        """Whether the zero point is a float, which only indexing, dequantize, requantize and lookup take."""
        return np.asarray(self.zero_point).dtype.kind == "f"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QParams):
            return NotImplemented
        return (
            self.axis == other.axis
            and self.has_float_zero_point == other.has_float_zero_point
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )

    def __hash__(self) -> int:
        return hash((np.asarray(self.scale).tobytes(), np.asarray(self.zero_point).tobytes(), self.axis))


_TINY = float(np.finfo(np.float32).tiny)
_HUGE = float(np.finfo(np.float32).max)


def choose_qparams(
    low: ArrayLike, high: ArrayLike, dtype: Any = quint8, *, symmetric: bool = False, axis: int | None = None
) -> QParams:
    """Choose scale and zero point so that [low, high], widened to hold 0, maps onto the codes of `dtype`.

    Parameters
    ----------
    low, high : float or array_like of shape (channels,)
        Range of the real values; finite. Zero is always representable exactly: the range is widened to hold it.
    dtype : QDType or dtype-like, default quint8
    symmetric : bool, default False
        ``qint8``: zero point 0 and codes [-127, 127]. ``quint8``: zero point 128.
    axis : int, optional
        Required exactly when `low` and `high` are 1-d.

    Returns
    -------
    QParams
        With ``scale = (high - low) / (qmax - qmin)`` and ``zero_point = saturate(rint(qmin - low / scale))``, in
        float32 as ONNX DynamicQuantizeLinear states them; symmetric: ``scale = max(|low|, |high|) / 127``. A range
        of only zero gets scale 1. A scale below the smallest normal float32 is raised to it.

    Raises
    ------
    InvalidQParams
        When a bound is not finite, or low > high; names the channel.
    """
    qdtype = as_qdtype(dtype)
    try:
        given = [np.asarray(v) for v in (low, high)]
        if any(v.dtype.kind in "cSUMm" for v in given):
            raise TypeError
        lo, hi = np.broadcast_arrays(*(v.astype(np.float64) for v in given))
    except (TypeError, ValueError):
        raise InvalidQParams(f"wanted two real numbers or two arrays of one length, got {low!r} and {high!r}") from None
    bad = ~(np.isfinite(lo) & np.isfinite(hi) & (lo <= hi))
    if np.any(bad):
        lo_bad, hi_bad = (v[bad].flat[0] for v in (lo, hi))
        raise InvalidQParams(f"wanted a finite range with low <= high, got [{lo_bad}, {hi_bad}]{_first_bad(bad)}")
    low32, high32 = (np.clip(v, -_HUGE, _HUGE).astype(np.float32) for v in (np.minimum(lo, 0), np.maximum(hi, 0)))
    if symmetric:
        scale = np.maximum(-low32, high32) / np.float32(127)
    else:
        with np.errstate(over="ignore"):
            width = high32 - low32
        steps = np.float32(qdtype.qmax - qdtype.qmin)
        # Divided first where the width itself would overflow float32.
        scale = np.where(np.isfinite(width), width / steps, high32 / steps - low32 / steps)
    nothing = (low32 == 0) & (high32 == 0)
    scale = np.where(nothing, np.float32(1), np.maximum(scale, np.float32(_TINY))).astype(np.float32)
    if symmetric:
        zero_point = np.full(scale.shape, 128 if qdtype is quint8 else 0, np.int32)
    else:
        zero_point = np.clip(np.rint(qdtype.qmin - low32 / scale), qdtype.qmin, qdtype.qmax).astype(np.int32)
    # Where the width nearly fills float32, rounding the zero point must not carry the lowest or highest code beyond it.
    farthest = np.maximum(zero_point - qdtype.qmin, qdtype.qmax - zero_point).astype(np.float32)
    with np.errstate(over="ignore"):
        scale = np.where(
            np.isfinite(scale * farthest), scale, np.nextafter(np.float32(_HUGE) / farthest, np.float32(0))
        )
    return QParams(scale.astype(np.float32), zero_point, axis)
