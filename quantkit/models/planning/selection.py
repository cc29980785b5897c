"""Which nodes the user left out: names, glob patterns and operator types."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from quantkit.errors import InvalidArgument
from quantkit.graph import Model, Node


def match_excluded(model: Model, exclude: Iterable[str]) -> dict[Node, str]:
    """Return the nodes that `exclude` names, each with the reason that says which entry named it; bodies included.

    An entry is a node's name, an operator type, the name of a tensor that a node makes, or a glob pattern over names
    (``*``, ``?``, ``[abc]``). It must be matched before the graph is prepared: preparing renames and merges.

    Raises
    ------
    InvalidArgument
        When an entry matches nothing.
    """
    entries = [exclude] if isinstance(exclude, str) else list(exclude)
    nodes = [node for graph in model.graph.walk() for node in graph.nodes]
    found: dict[Node, str] = {}
    for entry in entries:
        hits = [node for node in nodes if _matches(node, entry)]
        if not hits:
            types = ", ".join(sorted({node.op_type for node in nodes}))
            raise InvalidArgument(f"exclude: {entry!r} matches no node; the model's operator types are {types}")
        for node in hits:
            found.setdefault(node, f"excluded by {entry!r}")
    return found


def _matches(node: Node, entry: str) -> bool:
    if entry == node.op_type:
        return True
    names = [name for name in (node.name, *node.outputs) if name]
    return entry in names or any(fnmatchcase(name, entry) for name in names)
