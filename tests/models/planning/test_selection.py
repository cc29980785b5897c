import pytest
from corpus import MODELS

from quantkit.errors import InvalidArgument
from quantkit.graph import load_model
from quantkit.models.planning.selection import match_excluded


def names(nodes):
    return sorted(node.name for node in nodes)


@pytest.fixture
def model():
    return load_model(MODELS["resnet"]().proto)


def conv(model, index):
    return [node for node in model.graph.nodes if node.op_type == "Conv"][index]


def test_include_leaves_out_all_others(model):
    left = match_excluded(model, [], ["Conv"])
    assert names(left) == names(n for n in model.graph.nodes if n.op_type != "Conv")
    assert set(left.values()) == {"not among what was included"}


def test_exclude_is_stronger_than_include(model):
    first = conv(model, 0)
    left = match_excluded(model, [first.name], ["Conv"])
    assert left[first] == f"excluded by {first.name!r}"


def test_a_stretch_between_two_nodes(model):
    """The residual block: everything from its first Conv to the Add, and nothing before or after."""
    start = conv(model, 1)
    end = next(node for node in model.graph.nodes if node.op_type == "Add")
    got = [node.op_type for node in match_excluded(model, [f"{start.name}..{end.name}"])]
    assert sorted(got) == ["Add", "BatchNormalization", "BatchNormalization", "Conv", "Conv", "Relu"]


def test_a_stretch_between_tensors(model):
    first = conv(model, 0)
    got = match_excluded(model, [f"x..{first.outputs[0]}"])
    assert names(got) == [first.name]


def test_a_loop_is_included_with_its_body():
    model = load_model(MODELS["bodies_that_compute"]().proto)
    left = match_excluded(model, [], ["Loop"])
    assert "loop_conv" not in names(left)
    assert "if_conv_0" in names(left)


@pytest.mark.parametrize("entry", ["Convv", "x..nowhere", "nowhere..x", ".."])
def test_what_matches_nothing_is_an_error(model, entry):
    for options in ({"exclude": [entry]}, {"exclude": [], "include": [entry]}):
        with pytest.raises(InvalidArgument, match="matches no node"):
            match_excluded(model, **options)
