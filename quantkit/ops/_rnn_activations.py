"""The activation functions of recurrent layers: ONNX's names, and which of them take alpha and beta."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quantkit.errors import InvalidArgument, InvalidDType
from quantkit.ops._operands import as_number
from quantkit.text import told

if TYPE_CHECKING:
    from collections.abc import Sequence

# In the order of qk_activation_kind; alpha and beta where a function has them, and what they are by default.
_FUNCTIONS: dict[str, tuple[float | None, float | None]] = {
    "Relu": (None, None),
    "Tanh": (None, None),
    "Sigmoid": (None, None),
    "Affine": (1.0, 0.0),
    "LeakyRelu": (0.01, None),
    "ThresholdedRelu": (1.0, None),
    "ScaledTanh": (1.0, 1.0),
    "HardSigmoid": (0.2, 0.5),
    "Elu": (1.0, None),
    "Softsign": (None, None),
    "Softplus": (None, None),
}
_KIND = {name.lower(): kind for kind, name in enumerate(_FUNCTIONS)}
DEFAULTS = {"rnn": ("Tanh",), "lstm": ("Sigmoid", "Tanh", "Tanh"), "gru": ("Sigmoid", "Tanh")}


def _listed(verb: str, name: str, values: Any) -> list[Any]:
    if values is None:
        return []
    try:
        return [values] if isinstance(values, (str, int, float)) else list(values)
    except TypeError:
        raise InvalidDType(f"{verb}: {name} must be a list, got {told(values)}") from None


def _taken(verb: str, name: str, given: Any, defaults: Sequence[float | None]) -> list[float]:
    """Return one number a function: from `given`, in turn, for those that take one; defaults when it is used up."""
    values = [as_number(v, verb, name) for v in _listed(verb, name, given)]
    wanted = sum(default is not None for default in defaults)
    if len(values) > wanted:
        came = f"got {len(values)}"
        raise InvalidArgument(f"{verb}: wanted at most {wanted} values of {name} for these activations, {came}")
    turn = iter(values)
    return [0.0 if default is None else next(turn, default) for default in defaults]


def parse_activations(
    verb: str, names: Any, alpha: Any, beta: Any, directions: int
) -> tuple[tuple[int, float, float], ...]:
    """Return (kind, alpha, beta) of every function of `verb`, one direction after the other."""
    each = DEFAULTS[verb]
    chosen = _listed(verb, "activations", names) or list(each) * directions
    if len(chosen) != len(each) * directions:
        raise InvalidArgument(
            f"{verb}: wanted {len(each) * directions} activations ({len(each)} a direction), got {len(chosen)}"
        )
    kinds = []
    for name in chosen:
        kind = _KIND.get(name.lower()) if isinstance(name, str) else None
        if kind is None:
            raise InvalidArgument(f"{verb}: wanted an activation of {', '.join(_FUNCTIONS)}, got {told(name)}")
        kinds.append(kind)
    defaults = list(_FUNCTIONS.values())
    alphas = _taken(verb, "activation_alpha", alpha, [defaults[k][0] for k in kinds])
    betas = _taken(verb, "activation_beta", beta, [defaults[k][1] for k in kinds])
    return tuple(zip(kinds, alphas, betas, strict=True))
