"""HardSwish in every spelling becomes one, with the same numbers."""

import numpy as np
import onnxruntime as ort
import pytest
from corpus import Builder, Built
from onnx import numpy_helper, parser

import quantkit
from quantkit.graph import load_model
from quantkit.models.passes.prepare import prepare

HEAD = '<ir_version: 8, opset_import: ["" : 14]> g (float[n] x) => (float[n] y) '
CONSTANTS = " ".join(
    f"{name} = Constant<value = float {{{value}}}>()"
    for name, value in {"zero": 0.0, "three": 3.0, "six": 6.0, "sixth": 0.16666667}.items()
)
SPELLINGS = {
    "operator": "{ y = HardSwish(x) }",
    "division last": f"{{ {CONSTANTS} a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six) }}",
    "division first": f"{{ {CONSTANTS} a = Add(three, x) c = Clip(a, zero, six) d = Div(c, six) y = Mul(d, x) }}",
    "factor last": f"{{ {CONSTANTS} a = Add(x, three) c = Clip(a, zero, six) m = Mul(c, x) y = Mul(m, sixth) }}",
    "factor first": f"{{ {CONSTANTS} a = Add(x, three) c = Clip(a, zero, six) d = Mul(sixth, c) y = Mul(x, d) }}",
}
LOOKALIKES = {
    "another divisor": f"{{ {CONSTANTS} a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, three) }}",
    "bound from below": f"{{ {CONSTANTS} a = Add(x, three) c = Clip(a, sixth, six) m = Mul(x, c) y = Div(m, six) }}",
    "sum read twice": f"{{ {CONSTANTS} a = Add(x, three) c = Clip(a, zero, six) m = Mul(a, c) y = Div(m, six) }}",
}
X = np.linspace(-5, 5, 41).astype(np.float32)


def check(text):
    proto = parser.parse_model(HEAD + text)
    model = prepare(load_model(proto)).to_proto()
    a, b = (ort.InferenceSession(p.SerializeToString()).run(None, {"x": X})[0] for p in (proto, model))
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("name", SPELLINGS)
def test_one_form(name):
    assert check(SPELLINGS[name]) == ["HardSigmoid", "Mul"]


@pytest.mark.parametrize("name", LOOKALIKES)
def test_what_only_looks_like_it_stays(name):
    assert "HardSigmoid" not in check(LOOKALIKES[name])


def test_a_zero_point_of_half_a_step_moves_into_the_bias():
    """255 * 0.5 is no integer: the bias makes good the half step, so that every gate value is the nearest code's."""
    b = Builder(3)
    s = b.op("GlobalAveragePool", b.conv("x", 3, 8, 3))
    gate = b.op("HardSigmoid", b.conv(s, 8, 8, 1), alpha=1 / 6, beta=0.5)
    built = Built(b.model(b.op("Relu", b.conv(b.op("Mul", b.conv("x", 3, 8, 3), gate), 8, 4, 1))))
    conv = built.proto.graph.node[2]
    assert conv.op_type == "Conv"
    result = quantkit.quantize_model(built.proto, calibration=built.feeds(16), refine=False, measure=False)
    names = {node.name: node for node in result.model.graph.node}
    codes = {t.name: numpy_helper.to_array(t) for t in result.model.graph.initializer}
    makers = {node.output[0]: node for node in result.model.graph.node}
    bias = makers[names[conv.name].input[2]]
    scale = codes[bias.input[1]]
    exact = numpy_helper.to_array(next(t for t in built.proto.graph.initializer if t.name == conv.input[2]))
    moved = codes[bias.input[0]] * scale - exact
    half = 0.5 * 6 / 255
    # Besides the half step, the bias makes good what rounding the weights adds on average.
    assert np.all(np.abs(moved + half) < half / 2)
