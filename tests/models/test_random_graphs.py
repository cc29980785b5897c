"""Any valid graph quantizes in any mode, loads, and agrees with the float run about as well as its steps allow."""

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import STEPS, build
from test_quantizer import compare, quantize

from quantkit.models.refinement.refine import Refiner

FORMS = {
    "static": {},
    "qoperator": {"format": "qoperator"},
    "dynamic": {"mode": "dynamic"},
    "portable": {"mode": "dynamic", "target": "portable"},
    "weight_only": {"mode": "weight_only"},
    "without vnni": {"avoid_saturation": True},
}
# Noise adds up over the steps, and one step may take most of the signal away: a sum that cancels, a gate near zero.
LEAST_DB = {"weight_only": 20}
# The samples of the calibration: on others, one value outside each range, cubed by two products, can be all the signal.
CALIBRATED = 0

graphs = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 11)), min_size=1, max_size=7)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=graphs, seed=st.integers(0, 999), constants=st.sampled_from(["initializer", "node"]))
def test_every_graph_quantizes(form, steps, seed, constants):
    built = build(steps, seed, constants)
    result = quantize(built, refine=False, **FORMS[form])
    onnx.checker.check_model(result.model, full_check=True)
    assert min(compare(built, result.model, CALIBRATED)) > LEAST_DB.get(form, 10)
    if form == "without vnni":
        assert result.report.saturation.nodes == []


@settings(max_examples=8)
@given(steps=graphs, seed=st.integers(0, 999), left=st.sets(st.integers(0, 30)))
def test_any_nodes_may_stay_float(steps, seed, left):
    """Whatever speed or accuracy gives back to float, the rest still fits together; the first Conv stays int8."""
    built = build(steps, seed)
    original = Refiner.make

    def make(self, *, equalized, left_float=None):
        return original(self, equalized=equalized, left_float={i: "a test" for i in left if 0 < i < self.count})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Refiner, "make", make)
        result = quantize(built, refine=False)
    assert min(compare(built, result.model, CALIBRATED)) > 10
