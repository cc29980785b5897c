"""HardSwish in every spelling becomes one, with the same numbers."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

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
