"""What has the wrong type is refused by an error of quantkit that says what was wanted and what came."""

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import InvalidArgument, InvalidDType, InvalidQParams, OutOfMemory, QuantkitError, ShapeMismatch

RAGGED = [[1], [2, 3]]
SQUARE = np.ones((2, 2))
CODES = np.ones((2, 2), np.int8)
IMAGE, KERNEL = np.ones((1, 1, 4, 4), np.int8), np.ones((1, 1, 1, 1), np.int8)
REALS = np.ones((2, 3), np.float32)

RAGGED_CALLS = {
    "pack_matmul: b": lambda: qk.ops.pack_matmul(RAGGED),
    "matmul_integer: a": lambda: qk.ops.matmul_integer(RAGGED, CODES),
    "matmul_integer: b": lambda: qk.ops.matmul_integer(CODES, RAGGED),
    "pack_conv: w": lambda: qk.ops.pack_conv(RAGGED),
    "pack_conv_transpose: w": lambda: qk.ops.pack_conv_transpose(RAGGED),
    "conv_integer: x": lambda: qk.ops.conv_integer(RAGGED, KERNEL),
    "conv_integer: x_zero_point": lambda: qk.ops.conv_integer(IMAGE, KERNEL, x_zero_point=RAGGED),
    "conv_transpose_integer: x": lambda: qk.ops.conv_transpose_integer(RAGGED, KERNEL),
    "lookup: q": lambda: qk.ops.lookup(RAGGED, np.zeros(256, np.uint8)),
    "lookup: table": lambda: qk.ops.lookup(CODES, RAGGED),
    "lstm: x": lambda: qk.ops.lstm(RAGGED, np.ones((1, 4, 1), np.float32), np.ones((1, 4, 1), np.float32)),
    "pack_rnn: w": lambda: qk.ops.pack_rnn(RAGGED),
    "copy: x": lambda: qk.ops.copy(RAGGED),
    "quantize: x": lambda: qk.quantize(RAGGED),
    "as_tensor: data": lambda: qk.as_tensor(RAGGED),
}


@pytest.mark.parametrize("where", RAGGED_CALLS)
def test_ragged_lists(where):
    with pytest.raises(InvalidDType, match=f"^{where} cannot be read as an array"):
        RAGGED_CALLS[where]()


AN_ARRAY = r"got an array of float64 \(2, 2\)"
CALLS = [
    (lambda: qk.randint(SQUARE, 3, (2,)), InvalidDType, "an integer for low, " + AN_ARRAY),
    (lambda: qk.randint(0, SQUARE, (2,)), InvalidDType, "an integer for high, " + AN_ARRAY),
    (lambda: qk.randint(np.nan, size=3), InvalidDType, "an integer for high, got nan"),
    (lambda: qk.from_buffer(b"abc", dtype=SQUARE), InvalidDType, AN_ARRAY),
    (lambda: qk.empty(3, dtype=SQUARE), InvalidDType, AN_ARRAY),
    (
        lambda: qk.full(np.ones((3, 4)), 1),
        InvalidArgument,
        r"^wanted a shape of integers, got an array of .* \(3, 4\)$",
    ),
    (lambda: qk.full(3, SQUARE, dtype="float32"), ShapeMismatch, "elements of shape"),
    (lambda: qk.quantize(REALS, dtype=qk.qint8, axis="x"), InvalidDType, "axis must be an integer or None, got 'x'"),
    (lambda: qk.ops.histogram(REALS, SQUARE, 1, 4), InvalidDType, "low must be a real number, " + AN_ARRAY),
    (lambda: qk.ops.histogram(REALS, 0, 1 + 2j, 4), InvalidDType, "high must be a real number"),
    (lambda: qk.choose_qparams(0, 1 + 2j), InvalidQParams, "two real numbers"),
    (lambda: qk.ops.pack_matmul(np.ones((2, 2), "M8[s]")), InvalidDType, r"got datetime64\[s\]"),
    (lambda: qk.ops.conv_integer(IMAGE, KERNEL, pads=[300000] * 4), OutOfMemory, "600004"),
    (lambda: qk.QTensor(qk.empty(4).storage(), np.arange(4)), InvalidQParams, "wanted QParams"),
    (lambda: qk.Stream(threads="x"), InvalidArgument, "threads from 0 to 256, got 'x'"),
    (lambda: qk.Stream(threads=10**6), InvalidArgument, "threads from 0 to 256, got 1000000"),
    (lambda: qk.Stream().wait_completion(timeout="x"), InvalidArgument, "timeout in seconds"),
    (lambda: qk.Stream().wait_completion(timeout=-1), InvalidArgument, "timeout in seconds"),
    (lambda: qk.Stream().wait_completion(timeout=float("nan")), InvalidArgument, "timeout in seconds"),
    (lambda: qk.load(None), InvalidDType, "load: wanted a path, got None"),
    (lambda: qk.read_image(3), InvalidDType, "read_image: wanted a path, bytes or a binary file, got 3"),
    (lambda: qk.quantize_model("a", exclude=None, mode="dynamic"), InvalidArgument, "exclude: wanted names, got None"),
    (lambda: qk.quantize_model("a", exclude=[3], mode="dynamic"), InvalidArgument, "exclude: wanted names, got 3"),
]


@pytest.mark.parametrize("case", range(len(CALLS)))
def test_wrong_types(case):
    call, error, message = CALLS[case]
    with pytest.raises(error, match=message) as raised:
        call()
    assert isinstance(raised.value, QuantkitError)
    assert len(str(raised.value)) < 200
