"""Which nodes the user chose: names, glob patterns, operator types and the stretches between two points."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from quantkit.errors import InvalidArgument
from quantkit.graph import Graph, Model, Node


def match_excluded(model: Model, exclude: Iterable[str], include: Iterable[str] = ()) -> dict[Node, str]:
    """Return the nodes to leave float, each with the reason that says which entry did; bodies included.

    An entry is a node's name, an operator type, the name of a tensor that a node makes, a glob pattern over names
    (``*``, ``?``, ``[abc]``), or ``FROM..TO``: the nodes on the paths from one node or tensor to another, both
    included. Entries must be matched before the graph is prepared: preparing renames and merges.

    Parameters
    ----------
    model : Model
    exclude : iterable of str
    include : iterable of str
        Where there is one, all other nodes are left out. A node that holds bodies is included with what is in them.

    Raises
    ------
    InvalidArgument
        When an entry matches nothing.
    """
    found: dict[Node, str] = {}
    for entry in exclude:
        for node in _matching(model, entry, "exclude"):
            found.setdefault(node, f"excluded by {entry!r}")
    included = [node for entry in include for node in _matching(model, entry, "include")]
    if included:
        kept = {inner for node in included for inner in _with_bodies(node)}
        for graph in model.graph.walk():
            for node in graph.nodes:
                if node not in kept:
                    found.setdefault(node, "not among what was included")
    return found


def _with_bodies(node: Node) -> Iterable[Node]:
    yield node
    for body in node.bodies.values():
        for graph in body.walk():
            yield from graph.nodes


def _matching(model: Model, entry: str, option: str) -> list[Node]:
    graphs = list(model.graph.walk())
    hits = [node for graph in graphs for node in graph.nodes if _matches(node, entry)]
    if not hits and ".." in entry:
        hits = [node for graph in graphs for node in _between(graph, *entry.split("..", 1))]
    if not hits:
        types = ", ".join(sorted({node.op_type for graph in graphs for node in graph.nodes}))
        raise InvalidArgument(f"{option}: {entry!r} matches no node; the model's operator types are {types}")
    return hits


def _matches(node: Node, entry: str) -> bool:
    if entry == node.op_type:
        return True
    names = [name for name in (node.name, *node.outputs) if name]
    return entry in names or any(fnmatchcase(name, entry) for name in names)


def _between(graph: Graph, first: str, last: str) -> list[Node]:
    """Return the nodes of `graph` on a path from `first` to `last`, which are nodes or tensors."""
    starts = [node for node in graph.nodes if first in (node.name, *node.outputs)] or graph.consumers(first)
    ends = [node for node in graph.nodes if last in (node.name, *node.outputs)]
    after = _reached(starts, lambda node: [user for name in node.outputs for user in graph.consumers(name)])
    before = _reached(ends, lambda node: [maker for name in graph.uses(node) if (maker := graph.producer(name))])
    return [node for node in graph.nodes if node in after and node in before]


def _reached(nodes: list[Node], further: Callable[[Node], list[Node]]) -> set[Node]:
    found: set[Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(further(node))
    return found
