"""One allocator of unique names for a whole model, nested bodies included."""

from __future__ import annotations

from collections.abc import Iterable


class NameAllocator:
    """Hands out names that no tensor and no node of the model has.

    Tensors and nodes of every nesting level share one pool: a body may capture any outer tensor, so a fresh name
    that shadows one would silently change what the body reads.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def reserve(self, name: str) -> None:
        """Mark `name` as taken."""
        self._taken.add(name)

    def fresh(self, hint: str) -> str:
        """Return a name that starts with `hint` and was never seen before."""
        name = hint
        if not hint or name in self._taken:
            count = self._next.get(hint, 0)
            while not name or name in self._taken:
                count += 1
                name = f"{hint}_{count}"
            self._next[hint] = count
        self._taken.add(name)
        return name
