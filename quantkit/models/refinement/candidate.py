"""A candidate: one way to quantize a model, and how it was judged."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from quantkit.graph import Model
from quantkit.models.calibration.statistics import Calibration
from quantkit.models.planning.decisions import Plan
from quantkit.models.refinement.judge import Array
from quantkit.models.report.report import NodeRecord


@dataclass
class Candidate:
    """One way to quantize a model, done.

    Attributes
    ----------
    model : Model
    records : list of NodeRecord
    plans : list of (Plan, Calibration)
    noise : float
        Noise over signal of the worst output; inf where the model does not run.
    noises : ndarray
        The same of every output and of every slice that matters.
    score : float
        The most that one of these is of what is good enough; at most 1 is good enough.
    label : str
    equalized : bool
    left_float : dict of int to str
        Nodes left float, by position, and why.
    """

    model: Model
    records: list[NodeRecord]
    plans: list[tuple[Plan, Calibration]]
    noise: float = np.inf
    noises: Array = field(default_factory=lambda: np.zeros(0))
    score: float = np.inf
    label: str = ""
    equalized: bool = True
    left_float: dict[int, str] = field(default_factory=dict)
