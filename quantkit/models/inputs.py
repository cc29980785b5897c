"""What a model's input accepts, and fitting an array to it.

The rules for dtypes, in one place:

- float to float of any width (float64 to float32, float32 to float16): converted, and said once in the notes;
- integer to a wider integer that holds every value: converted;
- anything else is refused. Integers for a float input are nearly always pixels that nobody normalised, floats for an
  integer input are nearly always in the wrong input: both would calibrate to garbage without a word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.errors import CalibrationError

_MOST_NAMED = 3

Feed = dict[str, NDArray[Any]]
Dim = int | str | None


@dataclass(frozen=True)
class InputSpec:
    """One input of a model.

    Attributes
    ----------
    name : str
    dtype : numpy.dtype
        ``object`` for strings.
    shape : tuple of (int, str or None), or None
        A positive int is fixed; a name, None or an int <= 0 is free. None as a whole: not even the rank is known.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[Dim, ...] | None

    def __str__(self) -> str:
        return _show(self.dtype, self.shape)

    @property
    def rank(self) -> int | None:
        """Number of dimensions, or None where the model does not say."""
        return None if self.shape is None else len(self.shape)

    def fixed(self, axis: int) -> int | None:
        """Length of `axis` where the model fixes it, else None."""
        dim = self.shape[axis] if self.shape is not None else None
        return dim if isinstance(dim, int) and dim > 0 else None


def _show(dtype: np.dtype[Any], shape: tuple[Dim, ...] | None) -> str:
    kind = "string" if dtype.kind in "OUST" else dtype.name
    if shape is None:
        return f"{kind} of any shape"
    return f"{kind}[{', '.join('?' if d is None or d in (0, -1) else str(d) for d in shape)}]"


# Names of axes whose rows belong together.
_NO_BATCH = re.compile(r"seq|time|frame|step|len|token|points|^[tls]$", re.IGNORECASE)


def is_batch(dim: Dim, inputs: int) -> bool:
    """Whether a first dimension is free and its rows may be samples; inputs that share it must say so by its name."""
    if isinstance(dim, int) and dim > 0:
        return False
    if not isinstance(dim, str):
        return inputs == 1
    return not _NO_BATCH.search(dim)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether `dtype` holds real numbers; counts bfloat16, which NumPy files under no kind."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def _mismatch(spec: InputSpec, dtype: np.dtype[Any], shape: tuple[int, ...], where: str, why: str) -> CalibrationError:
    return CalibrationError(f"{where}: input {spec.name!r} wants {spec}, got {_show(dtype, shape)}: {why}")


def check_dtype(spec: InputSpec, dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> str | None:
    """Check that an array of `dtype` may be fed to `spec`.

    Returns
    -------
    str or None
        What is to be said about the conversion, if anything.

    Raises
    ------
    CalibrationError
        Naming the input, what was wanted and what came; `shape` is only for that message.
    """
    wanted = spec.dtype
    if wanted.kind == "O":
        if dtype.kind in "OUST":
            return None
        raise _mismatch(spec, dtype, shape, where, "only strings can be fed to it")
    if dtype == wanted:
        return None
    if is_float(dtype) and is_float(wanted):
        if dtype.itemsize == wanted.itemsize and dtype.name == wanted.name:
            return None  # another byte order
        return f"input {spec.name!r} came as {dtype.name} and was converted to {wanted.name}"
    if dtype.kind in "biu" and wanted.kind in "iu" and np.can_cast(dtype, wanted, "safe"):
        return None
    if dtype.kind in "biu" and is_float(wanted):
        why = "integers are not converted; if they are pixels, normalise them as the model expects, then feed floats"
    elif dtype.kind in "biu" and wanted.kind in "iu":
        why = f"{dtype.name} does not fit into {wanted.name}"
    else:
        why = f"{dtype.name} is not converted to {wanted.name}"
    raise _mismatch(spec, dtype, shape, where, why)


def check_shape(spec: InputSpec, dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> None:
    """Check the shape of one sample.

    Raises
    ------
    CalibrationError
        Naming the input, what was wanted and what came.
    """
    if spec.shape is None:
        return
    if len(shape) != len(spec.shape):
        why = f"{len(shape)} dimensions instead of {len(spec.shape)}"
        raise _mismatch(spec, dtype, shape, where, why)
    for axis, length in enumerate(shape):
        wanted = spec.fixed(axis)
        if wanted is not None and wanted != length:
            why = f"dimension {axis} is {length} instead of {wanted}"
            if axis == 0 and all(spec.fixed(a) in (None, shape[a]) for a in range(1, len(shape))):
                why += f"; many samples go along one more dimension in front, here ({length // wanted}, {wanted}, ...)"
            raise _mismatch(spec, dtype, shape, where, why)


def convert(spec: InputSpec, array: NDArray[Any], where: str) -> NDArray[Any]:
    """Return `array`, whose dtype passed `check_dtype`, as a contiguous array of the input's own dtype.

    Raises
    ------
    CalibrationError
        When a finite value does not fit into the narrower float type.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        fitted = np.ascontiguousarray(array, dtype=spec.dtype).reshape(array.shape)
    if is_float(spec.dtype) and array.dtype.itemsize > spec.dtype.itemsize:
        lost = np.isinf(fitted) & np.isfinite(array)
        if lost.any():
            raise CalibrationError(
                f"{where}: input {spec.name!r} has the value {float(array[lost].flat[0])!r}, "
                f"which is beyond {spec.dtype.name}"
            )
    return fitted


def note_nonfinite(spec: InputSpec, array: NDArray[Any], where: str, notes: list[str]) -> None:
    """Note a sample that holds NaN or infinite values; the first few of a source are enough to find out why."""
    if not is_float(spec.dtype) or np.isfinite(array).all():
        return
    text = f"input {spec.name!r} holds NaN or infinite values, which calibration leaves out"
    if sum(note.endswith(text) for note in notes) < _MOST_NAMED:
        add_note(notes, f"{where}: {text}")


def fit_feed(feed: Any, inputs: Mapping[str, InputSpec], where: str, notes: list[str]) -> Feed:
    """Fit one feed, a mapping of input name to array, to the model's inputs.

    Keys that are no input of the model are left out and noted. The arrays come back contiguous and in the dtype of
    their input.

    Raises
    ------
    CalibrationError
        Naming the input, what was wanted and what came.
    """
    if not isinstance(feed, Mapping):
        raise CalibrationError(f"{where}: wanted a mapping of input name to array, got {type(feed).__name__}")
    check_names(inputs, list(feed), where, notes)
    fitted: Feed = {}
    for name, spec in inputs.items():
        try:
            array = np.asarray(feed[name])
        except ValueError as error:
            raise CalibrationError(f"{where}: input {name!r} wants {spec}, got no array: {error}") from None
        note = check_dtype(spec, array.dtype, array.shape, where)
        check_shape(spec, array.dtype, array.shape, where)
        fitted[name] = convert(spec, array, where)
        note_nonfinite(spec, fitted[name], where, notes)
        add_note(notes, note)
    return fitted


def check_names(inputs: Mapping[str, InputSpec], keys: list[Any], where: str, notes: list[str]) -> None:
    """Check that every input has data; keys that are no input are noted."""
    missing = [name for name in inputs if name not in keys]
    if missing:
        names = ", ".join(f"{name!r} ({inputs[name]})" for name in missing)
        got = ", ".join(repr(key) for key in keys) or "nothing"
        raise CalibrationError(f"{where}: no data for input {names}; got {got}")
    extra = [key for key in keys if key not in inputs and key != LABELS]
    if extra:
        add_note(notes, f"{where}: ignored {', '.join(map(repr, extra))}: no input of the model has that name")


def add_note(notes: list[str], note: str | None) -> None:
    """Add `note` unless it is None or there already."""
    if note is not None and note not in notes:
        notes.append(note)


LABELS = "labels"  # the key under which feeds and .npz files may carry the true classes
