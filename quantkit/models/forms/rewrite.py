"""From decisions to a rewritten model: static, dynamic and weight-only, every graph of the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from quantkit.graph import Graph, Model, Node
from quantkit.graph.fold import tidy
from quantkit.graph.op_table import WEIGHT_OPS, weight_inputs
from quantkit.models.calibration.statistics import Calibration
from quantkit.models.forms.dynamic import DynamicWriter, dynamic_problem
from quantkit.models.forms.qdq import rewrite_qdq
from quantkit.models.forms.qoperator import rewrite_qoperator
from quantkit.models.forms.weight_only import RECURRENT, WeightOnlyWriter, weight_problem
from quantkit.models.passes.bias import merge_bias, split_all
from quantkit.models.passes.channel_groups import ChannelGroup, find_groups
from quantkit.models.passes.equalize import equalize
from quantkit.models.planning.decisions import NodePlan, Plan
from quantkit.models.planning.plan import Planner

Decisions = dict[Node, NodePlan]
_AT_RUN_TIME = "activations quantized at run time"


def quantize_static(
    model: Model,
    seen: Mapping[Graph, Calibration],
    excluded: Mapping[Node, str],
    form: str,
    target: str,
    *,
    in_float: Mapping[Node, str] | None = None,
    bare: Collection[Node] = (),
    equalized: bool = True,
    within_pairs: bool = False,
) -> tuple[Decisions, dict[Graph, Plan]]:
    """Rewrite `model` in static form; weights of nodes that stay float are at least stored in int8.

    Parameters
    ----------
    seen : mapping of Graph to Calibration
        Carried along where channels are equalized.
    excluded : mapping of Node to str
        Nodes to leave float, weights and all, and why.
    form : {"qdq", "qoperator"}
    target : {"onnxruntime", "portable"}
    in_float : mapping of Node to str, optional
        Nodes that compute in float, and why; their weights are stored in int8.
    bare : collection of Node, optional
        Those of them whose weights stay float, too.
    equalized : bool
        Whether channels of an activation are given like ranges first.
    within_pairs : bool
        Keep everything exact on CPUs without VNNI; see `saturation.py`.

    Returns
    -------
    decisions : dict of Node to NodePlan
    plans : dict of Graph to Plan
    """
    decisions: Decisions = {}
    plans: dict[Graph, Plan] = {}
    left = {**(in_float or {}), **excluded}
    for graph in list(model.graph.walk()):
        calibration = seen[graph]
        if equalized:
            equalize(graph, _worth_equalizing(graph, excluded, left), calibration)
        merged = merge_bias(graph, set(left))
        plan = plans[graph] = Planner(graph, calibration, left, within_pairs=within_pairs).make()
        never_run = graph.parent is not None and not calibration.batches
        if never_run:
            plan.nodes.update({n: NodePlan("float", "its branch was never taken in calibration") for n in graph.nodes})
        dynamic = DynamicWriter(graph, within_pairs=within_pairs)
        kept = {*excluded, *bare}
        _store_remaining(graph, plan.nodes, left, kept, target, dynamic, WeightOnlyWriter(graph, calibration))
        rewrite_qdq(graph, plan, calibration, within_pairs=within_pairs)
        for add, product in merged.items():
            plan.nodes[add] = NodePlan(plan.nodes[product].decision, f"bias of {product!r}")
        decisions |= plan.nodes
        if form == "qoperator":
            rewrite_qoperator(graph)
    tidy(model)
    return decisions, plans


def _worth_equalizing(graph: Graph, excluded: Collection[Node], left: Collection[Node]) -> list[ChannelGroup]:
    """Return the groups that something computes in int8 with: what is left float reads equal channels just as well."""
    return [
        group
        for group in find_groups(graph, set(excluded))
        if any(node not in left for node in (*group.producers, *group.consumers))
    ]


def _store_remaining(
    graph: Graph,
    decisions: Decisions,
    left: Mapping[Node, str],
    kept: Collection[Node],
    target: str,
    dynamic: DynamicWriter,
    writer: WeightOnlyWriter,
) -> None:
    """Give nodes that compute in float int8 weights, which costs nothing at run time."""
    for node in graph.sorted_nodes():
        if not weight_inputs(node) or node in kept or decisions[node].decision != "float":
            continue
        if node.is_op(*RECURRENT) and node not in left:
            problem = dynamic_problem(graph, node, target)
            if problem is None:
                dynamic.write(node)
                decisions[node] = NodePlan("dynamic", _AT_RUN_TIME)
                continue
            decisions[node].reason = problem
        problem = weight_problem(graph, node)
        if problem is None:
            writer.write(node)
            reason = "gathers int8 rows" if node.is_op("Gather") else decisions[node].reason
            decisions[node] = NodePlan("weight_only", reason)
        elif node.is_op("Gather"):
            decisions[node] = NodePlan("float", problem)


def quantize_weights_only(model: Model, excluded: Mapping[Node, str]) -> Decisions:
    """Rewrite `model` so that every weight that can be is stored in int8."""
    return _each_graph(model, excluded, None)


def quantize_dynamic(
    model: Model, excluded: Mapping[Node, str], target: str, *, within_pairs: bool = False
) -> Decisions:
    """Rewrite `model` in dynamic form; weights without such a form are stored in int8."""
    return _each_graph(model, excluded, target, within_pairs)


def _each_graph(
    model: Model, excluded: Mapping[Node, str], dynamic_target: str | None, within_pairs: bool = False
) -> Decisions:
    decisions: Decisions = {}
    for graph in list(model.graph.walk()):
        merged = merge_bias(graph, set(excluded))
        weights, dynamic = WeightOnlyWriter(graph), DynamicWriter(graph, within_pairs=within_pairs)
        for node in graph.sorted_nodes():
            found = _verdict(graph, node, excluded, dynamic_target)
            decisions[node] = found
            if found.decision == "dynamic":
                dynamic.write(node)
            elif found.decision == "weight_only":
                weights.write(node)
        for add, product in merged.items():
            decisions[add] = NodePlan(decisions[product].decision, f"bias of {product!r}")
        split_all(graph)
    tidy(model)
    return decisions


def _verdict(graph: Graph, node: Node, excluded: Mapping[Node, str], dynamic_target: str | None) -> NodePlan:
    if node in excluded:
        return NodePlan("float", excluded[node])
    if node.op_type not in WEIGHT_OPS or not any(graph.is_constant(node.input(p)) for p in weight_inputs(node)):
        return NodePlan("float", f"{node.op_type} is computed in float")
    problem = weight_problem(graph, node)
    if problem is not None:
        return NodePlan("float", problem)
    if dynamic_target is None:
        return NodePlan("weight_only", "int8 weight, float arithmetic")
    problem = dynamic_problem(graph, node, dynamic_target)
    if problem is None:
        return NodePlan("dynamic", _AT_RUN_TIME)
    return NodePlan("weight_only", problem)
