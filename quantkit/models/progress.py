"""How long work tells where it is."""

from collections.abc import Callable

# (stage, done, in all or None): the stage is one word, such as "calibrate"; done counts up to what there is in all.
Progress = Callable[[str, int, int | None], None]
