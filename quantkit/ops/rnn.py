"""Recurrent layers: rnn, lstm and gru, with float32 or 8-bit weights.

docs/rnn.md numbers the equations and shows how a step flows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quantkit.ops._rnn_call import layer

if TYPE_CHECKING:
    from numpy.typing import NDArray


def rnn(
    x: Any,
    w: Any,
    r: Any,
    b: Any = None,
    sequence_lens: Any = None,
    initial_h: Any = None,
    *,
    w_scale: Any = None,
    w_zero_point: Any = 0,
    r_scale: Any = None,
    r_zero_point: Any = 0,
    direction: str = "forward",
    activations: Any = None,
    activation_alpha: Any = None,
    activation_beta: Any = None,
    clip: float | None = None,
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Run a simple recurrent layer over sequences (ONNX RNN): ``h = f(x W + h R + b)``.

    Parameters
    ----------
    x : array of float32, shape (seq, batch, input)
        Any strides.
    w : array of float32, uint8 or int8, QTensor or PackedRnn, shape (directions, hidden, input)
    r : the same, shape (directions, hidden, hidden)
        Arrays are packed at every call; `pack_rnn` does it once.
    b : array of float32, shape (directions, 2 * hidden), optional
        That of `w`, then that of `r`.
    sequence_lens : array of int, shape (batch,), optional
        How many steps each row has, 0 to seq. Results beyond are zero.
    initial_h : array of float32, shape (directions, batch, hidden), optional
    w_scale, r_scale : float or array_like of float32, optional
        Of codes alone: one for all, or of shape (hidden,), (directions, 1) or (directions, hidden).
        What codes are multiplied with is quantized row by row and step by step, as DynamicQuantizeLinear does.
    w_zero_point, r_zero_point : int or array_like, default 0
        Of the same shapes.
    direction : "forward", "reverse" or "bidirectional"
    activations : list of str, optional
        One a direction, of ONNX's: Relu, Tanh (the default), Sigmoid, Affine, LeakyRelu, ThresholdedRelu, ScaledTanh,
        HardSigmoid, Elu, Softsign, Softplus.
    activation_alpha, activation_beta : list of float, optional
        For those functions that take one, in turn.
    clip : float, optional
        What enters an activation is clipped to [-clip, clip].
    hidden_size : int, optional
        Checked against `r`.
    layout : 0 or 1
        1: x and y begin with (batch, seq), states with (batch, directions).

    Returns
    -------
    y : ndarray of float32, shape (seq, directions, batch, hidden)
    y_h : ndarray of float32, shape (directions, batch, hidden)
        The state after the last step of each row.

    Raises
    ------
    InvalidArgument, InvalidDType, InvalidQParams, ShapeMismatch
        Naming what was wanted and what came. With weights of codes, values that are NaN or infinite are refused.
    """
    arguments = (b, None, direction, activations, activation_alpha, activation_beta, clip, hidden_size, 0, 0)
    quantized = (w_scale, w_zero_point, r_scale, r_zero_point)
    made: tuple[NDArray[Any], NDArray[Any]]
    made = layer("rnn", (x, initial_h, None), (w, r), quantized, arguments, sequence_lens, layout)
    return made


def lstm(
    x: Any,
    w: Any,
    r: Any,
    b: Any = None,
    sequence_lens: Any = None,
    initial_h: Any = None,
    initial_c: Any = None,
    p: Any = None,
    *,
    w_scale: Any = None,
    w_zero_point: Any = 0,
    r_scale: Any = None,
    r_zero_point: Any = 0,
    direction: str = "forward",
    activations: Any = None,
    activation_alpha: Any = None,
    activation_beta: Any = None,
    clip: float | None = None,
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Run a long short-term memory over sequences (ONNX LSTM).

    Parameters
    ----------
    x : array of float32, shape (seq, batch, input)
        Any strides.
    w : array of float32, uint8 or int8, QTensor or PackedRnn, shape (directions, 4 * hidden, input)
        Gates in the order i, o, f, c.
    r : the same, shape (directions, 4 * hidden, hidden)
        Arrays are packed at every call; `pack_rnn` does it once.
    b : array of float32, shape (directions, 8 * hidden), optional
        That of `w`, then that of `r`.
    sequence_lens : array of int, shape (batch,), optional
        How many steps each row has, 0 to seq. Results beyond are zero.
    initial_h, initial_c : array of float32, shape (directions, batch, hidden), optional
    p : array of float32, shape (directions, 3 * hidden), optional
        Peepholes i, o, f.
    w_scale, r_scale : float or array_like of float32, optional
        Of codes alone: one for all, or of shape (4 * hidden,), (directions, 1) or (directions, 4 * hidden).
        What codes are multiplied with is quantized row by row and step by step, as DynamicQuantizeLinear does.
    w_zero_point, r_zero_point : int or array_like, default 0
        Of the same shapes.
    direction : "forward", "reverse" or "bidirectional"
    activations : list of str, optional
        f, g and h of each direction; Sigmoid, Tanh, Tanh by default. `rnn` lists them.
    activation_alpha, activation_beta : list of float, optional
        For those functions that take one, in turn.
    clip : float, optional
        What enters an activation is clipped to [-clip, clip].
    hidden_size : int, optional
        Checked against `r`.
    input_forget : 0 or 1
        1: the forget gate is 1 - i.
    layout : 0 or 1
        1: x and y begin with (batch, seq), states with (batch, directions).

    Returns
    -------
    y : ndarray of float32, shape (seq, directions, batch, hidden)
    y_h, y_c : ndarray of float32, shape (directions, batch, hidden)
        The states after the last step of each row.

    Raises
    ------
    InvalidArgument, InvalidDType, InvalidQParams, ShapeMismatch
        Naming what was wanted and what came. With weights of codes, values that are NaN or infinite are refused.
    """
    arguments = (b, p, direction, activations, activation_alpha, activation_beta, clip, hidden_size, 0, input_forget)
    quantized = (w_scale, w_zero_point, r_scale, r_zero_point)
    made: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
    made = layer("lstm", (x, initial_h, initial_c), (w, r), quantized, arguments, sequence_lens, layout)
    return made


def gru(
    x: Any,
    w: Any,
    r: Any,
    b: Any = None,
    sequence_lens: Any = None,
    initial_h: Any = None,
    *,
    w_scale: Any = None,
    w_zero_point: Any = 0,
    r_scale: Any = None,
    r_zero_point: Any = 0,
    direction: str = "forward",
    activations: Any = None,
    activation_alpha: Any = None,
    activation_beta: Any = None,
    clip: float | None = None,
    hidden_size: int | None = None,
    linear_before_reset: int = 0,
    layout: int = 0,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Run gated recurrent units over sequences (ONNX GRU).

    Parameters
    ----------
    x : array of float32, shape (seq, batch, input)
        Any strides.
    w : array of float32, uint8 or int8, QTensor or PackedRnn, shape (directions, 3 * hidden, input)
        Gates in the order z, r, h.
    r : the same, shape (directions, 3 * hidden, hidden)
        Arrays are packed at every call; `pack_rnn` does it once.
    b : array of float32, shape (directions, 6 * hidden), optional
        That of `w`, then that of `r`.
    sequence_lens : array of int, shape (batch,), optional
        How many steps each row has, 0 to seq. Results beyond are zero.
    initial_h : array of float32, shape (directions, batch, hidden), optional
    w_scale, r_scale : float or array_like of float32, optional
        Of codes alone: one for all, or of shape (3 * hidden,), (directions, 1) or (directions, 3 * hidden).
        What codes are multiplied with is quantized row by row and step by step, as DynamicQuantizeLinear does.
    w_zero_point, r_zero_point : int or array_like, default 0
        Of the same shapes.
    direction : "forward", "reverse" or "bidirectional"
    activations : list of str, optional
        f and g of each direction; Sigmoid, Tanh by default. `rnn` lists them.
    activation_alpha, activation_beta : list of float, optional
        For those functions that take one, in turn.
    clip : float, optional
        What enters an activation is clipped to [-clip, clip].
    hidden_size : int, optional
        Checked against `r`.
    linear_before_reset : 0 or 1
        1: the reset gate multiplies ``h R + b`` of the last gate; 0: the state before that product.
    layout : 0 or 1
        1: x and y begin with (batch, seq), states with (batch, directions).

    Returns
    -------
    y : ndarray of float32, shape (seq, directions, batch, hidden)
    y_h : ndarray of float32, shape (directions, batch, hidden)
        The state after the last step of each row.

    Raises
    ------
    InvalidArgument, InvalidDType, InvalidQParams, ShapeMismatch
        Naming what was wanted and what came. With weights of codes, values that are NaN or infinite are refused.
    """
    arguments = (b, None, direction, activations, activation_alpha, activation_beta, clip, hidden_size)
    quantized = (w_scale, w_zero_point, r_scale, r_zero_point)
    made: tuple[NDArray[Any], NDArray[Any]]
    made = layer(
        "gru", (x, initial_h, None), (w, r), quantized, (*arguments, linear_before_reset, 0), sequence_lens, layout
    )
    return made
