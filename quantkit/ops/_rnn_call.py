"""What rnn, lstm and gru do alike: check the operands, find or make the plan, and walk through the sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit import _kernels
from quantkit._kernels import KeptCall, RnnPlan
from quantkit.errors import InvalidArgument, InvalidDType, ShapeMismatch
from quantkit.ops._operands import as_array, as_number, empty
from quantkit.ops._rnn_activations import parse_activations
from quantkit.ops._rnn_weights import PackedRnn, packed_rnn
from quantkit.streams.queue import current, queued
from quantkit.text import told

if TYPE_CHECKING:
    from numpy.typing import NDArray

GATES = {"rnn": 1, "lstm": 4, "gru": 3}
_REVERSE = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_F32 = np.dtype(np.float32)


def _flag(verb: str, name: str, value: Any) -> int:
    if isinstance(value, (bool, int, np.bool_, np.integer)) and value in (0, 1):
        return int(value)
    raise InvalidArgument(f"{verb}: {name} must be 0 or 1, got {told(value)}")


def _floats(verb: str, name: str, value: Any, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return a parameter of that shape, contiguous."""
    array = as_array(value, verb, name)
    if array.dtype != _F32:
        raise InvalidDType(f"{verb}: {name} must be float32, got {array.dtype}")
    if array.shape != shape:
        raise ShapeMismatch(f"{verb}: wanted {name} of shape {shape}, got {array.shape}")
    return np.ascontiguousarray(array) if array.flags.aligned else array.copy()


def _make_plan(
    verb: str,
    w: PackedRnn,
    r: PackedRnn,
    b: Any,
    p: Any,
    direction: Any,
    activations: Any,
    alpha: Any,
    beta: Any,
    clip: Any,
    hidden_size: Any,
    linear_before_reset: Any,
    input_forget: Any,
) -> Any:
    gates, (directions, rows, hidden) = GATES[verb], r.shape
    reverse = _REVERSE.get(direction) if isinstance(direction, str) else None
    if reverse is None:
        raise InvalidArgument(f"{verb}: direction must be one of {', '.join(_REVERSE)}, got {told(direction)}")
    if directions != len(reverse) or rows != gates * hidden or hidden == 0:
        wanted = f"({len(reverse)}, {gates} * hidden, hidden)"
        raise ShapeMismatch(f"{verb}: wanted r of shape {wanted} for direction={direction!r}, got {r.shape}")
    if w.shape[:2] != r.shape[:2]:
        raise ShapeMismatch(f"{verb}: wanted w of shape ({directions}, {rows}, input) beside this r, got {w.shape}")
    if hidden_size is not None and hidden_size != hidden:
        raise ShapeMismatch(f"{verb}: hidden_size is {told(hidden_size)}, but r of shape {r.shape} has {hidden}")
    functions = parse_activations(verb, activations, alpha, beta, directions)
    most = np.inf if clip is None else as_number(clip, verb, "clip")
    if not most > 0:
        raise InvalidArgument(f"{verb}: clip must be > 0, got {told(clip)}")
    before_reset = _flag(verb, "linear_before_reset", linear_before_reset)
    both = np.zeros((directions, 2, rows), np.float32)
    if b is not None:
        both = _floats(verb, "b", b, (directions, 2 * rows)).reshape(directions, 2, rows)
    with np.errstate(all="ignore"):
        bias = both[:, 0] + both[:, 1]
    if before_reset:
        bias[:, 2 * hidden :] = both[:, 0, 2 * hidden :]
    bias_h = np.ascontiguousarray(both[:, 1, -hidden:]).reshape(-1)
    peephole = None if p is None else _floats(verb, "p", p, (directions, 3 * hidden)).reshape(-1)
    return RnnPlan(
        verb,
        reverse,
        w.parts,
        r.parts,
        bias.reshape(-1),
        bias_h,
        peephole,
        functions,
        most,
        bool(before_reset),
        bool(_flag(verb, "input_forget", input_forget)),
    )


def _text(value: Any) -> Any:
    """Return a list as what a kept call compares."""
    return value if value is None or type(value) in (int, float, str) else repr(value)


def _plan(verb: str, w: PackedRnn, r: PackedRnn, arguments: tuple[Any, ...]) -> Any:
    """Return the plan that the last call with this `w` and `r` kept, where its arguments were the same."""
    b, p, direction, activations, alpha, beta, clip, *flags = arguments
    key = (verb, b, p, direction, _text(activations), _text(alpha), _text(beta), _text(clip), *map(_text, flags))
    kept = r.kept
    if kept is not None and kept[0] is w and kept[1].holds(key):
        return kept[1].made
    made = _make_plan(verb, w, r, *arguments)
    r.kept = (w, KeptCall(key, made))
    return made


def _operand(verb: str, name: str, value: Any) -> NDArray[np.float32]:
    array = as_array(value, verb, name)
    if array.dtype != _F32:
        raise InvalidDType(f"{verb}: {name} must be float32, got {array.dtype}")
    return array if array.flags.aligned else array.copy()


def _walk(
    x: Any, initial_h: Any, initial_c: Any, verb: str, plan: Any, sizes: tuple[int, ...], lengths: Any, layout: int
) -> tuple[NDArray[np.float32], ...]:
    """Run a plan. On a stream the operands may have no values yet: their shapes and dtypes alone are looked at."""
    directions, width, hidden = sizes
    x = _operand(verb, "x", x)
    order = "batch, seq" if layout else "seq, batch"
    if x.ndim != 3 or x.shape[2] != width:
        raise ShapeMismatch(f"{verb}: wanted x of shape ({order}, {width}), got {x.shape}")
    if layout:
        x = x.transpose(1, 0, 2)
    seq, batch = x.shape[:2]
    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    states: list[Any] = []
    for name, given in (("initial_h", initial_h), ("initial_c", initial_c)):
        if given is None:
            states.append(None)
            continue
        value = _operand(verb, name, given)
        if value.shape != state:
            raise ShapeMismatch(f"{verb}: wanted {name} of shape {state} beside this x and r, got {value.shape}")
        if value.strides[2] != 4 and hidden > 1:
            rows = np.empty(state, _F32)
            _kernels.copy(value, rows)
            value = rows
        states.append(value.transpose(1, 0, 2) if layout else value)
    if lengths is not None and lengths.shape != (batch,):
        raise ShapeMismatch(f"{verb}: wanted sequence_lens of shape ({batch},), got {lengths.shape}")
    if lengths is not None and batch and (lengths.min() < 0 or lengths.max() > seq):
        row = int(np.flatnonzero((lengths < 0) | (lengths > seq))[0])
        raise InvalidArgument(f"{verb}: sequence_lens must lie in [0, {seq}], got {lengths[row]} for row {row}")
    y = empty(verb, (batch, seq, directions, hidden) if layout else (seq, directions, batch, hidden), _F32)
    results = [y, *(empty(verb, state, _F32) for _ in range(2 if verb == "lstm" else 1))]
    if batch:
        views = [y.transpose(1, 2, 0, 3) if layout else y]
        views += [v.transpose(1, 0, 2) if layout else v for v in results[1:]]
        plan.run(x, states[0], states[1], lengths, *views, *(() if verb == "lstm" else (None,)))
    return tuple(results)


def _rnn(*walked: Any) -> Any:
    return _walk(*walked)


def _lstm(*walked: Any) -> Any:
    return _walk(*walked)


def _gru(*walked: Any) -> Any:
    return _walk(*walked)


_NAMED = {"rnn": _rnn, "lstm": _lstm, "gru": _gru}  # what errors on streams and traces call a verb


def layer(
    verb: str,
    operands: tuple[Any, Any, Any],
    weights: tuple[Any, Any],
    quantized: tuple[Any, Any, Any, Any],
    arguments: tuple[Any, ...],
    sequence_lens: Any,
    layout: Any,
) -> Any:
    """Return Y, Y_h and, of an LSTM, Y_c. `quantized`: scale and zero point of w, then of r."""
    w = packed_rnn(verb, "w", weights[0], *quantized[:2])
    r = packed_rnn(verb, "r", weights[1], *quantized[2:])
    plan = _plan(verb, w, r, arguments)
    lengths = None
    if sequence_lens is not None:
        lengths = as_array(sequence_lens, verb, "sequence_lens")
        if lengths.dtype.kind not in "iu":
            raise InvalidDType(f"{verb}: sequence_lens must be int32, got {lengths.dtype}")
        lengths = np.ascontiguousarray(np.clip(lengths.astype(np.int64), -1, 2**31 - 1), np.int32)
    parameters: tuple[Any, ...] = (
        verb,
        plan,
        (r.shape[0], w.shape[2], r.shape[2]),
        lengths,
        _flag(verb, "layout", layout),
    )
    if (stream := current()) is not None:
        return queued(stream, _NAMED[verb], operands, parameters, None)
    return _walk(*operands, *parameters)
