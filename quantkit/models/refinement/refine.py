"""Refine: try a few ways to quantize, and keep the one whose outputs agree best with the float model.

No rule about ranges or channels is best for every model, and the error of one layer says little about the error of the
outputs; so the outputs themselves decide, on samples of the calibration set. Equalization is tried with and without.
Where the best still falls short, the parts of the model that cost the outputs most are left float; see `parts.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from quantkit.errors import ModelError
from quantkit.graph import Graph, Model, Node
from quantkit.graph.io import tensor_bytes
from quantkit.models.calibration.statistics import Calibration
from quantkit.models.forms.rewrite import quantize_static
from quantkit.models.inputs import Feed
from quantkit.models.refinement.candidate import Candidate
from quantkit.models.refinement.costs import borders, crossings, node_costs, promising
from quantkit.models.refinement.judge import Array, Judge
from quantkit.models.refinement.parts import Part, choose_float, factors_of, give_back, measure_parts
from quantkit.models.refinement.reasons import HOPELESS, by_outputs, by_time, decibels, effect
from quantkit.models.refinement.speed import SLACK, Costs, assignments, attribute, is_slower, losses
from quantkit.models.report.account import Account
from quantkit.models.report.report import BlockCost, NodeRecord
from quantkit.models.runtime import Session, open_session
from quantkit.models.verification.execution import node_times
from quantkit.models.verification.latency import Latency, best_clock, interleave
from quantkit.models.verification.output_classes import class_axes
from quantkit.text import counted

_PROBES = 8
_PROBE_BYTES = 64 << 20
# Beyond this a model is not built again and again.
_MAX_BYTES = 256 << 20
# Beyond this its blocks are not tried one by one: by size and not by time, so that results do not vary.
_MAX_BLOCK_BYTES = 64 << 20
_LEAST_WEIGHT_SHARE = 0.75
# Shares of the multiply-accumulates that may be float for the sake of outputs, tried in this order; the latter where
# float arithmetic mends them.
_FLOAT_SHARES = (0.1, 0.2, 0.4)
_FLOAT_SHARES_IF_MENDED = (0.6, 0.8, 1.0)
_WORTH = 0.9  # what leaving parts float must lower the noise of outputs to
_WORTH_SLICES = 0.7
_FOR_SLICES = 0.1
_TRIALS = 3
_TIMING_SECONDS = 0.6
# Shares of the weights to keep in int8, tried in this order until the model is faster than float.
_WEIGHT_SHARES = (0.97, 0.9, _LEAST_WEIGHT_SHARE)
# Shares of the multiply-accumulates, tried in this order until the model should be faster than float.
_MAC_SHARES = (0.9, 0.75, 0.5)
_COSTLY = "left float: int8 costs onnxruntime more time here"
_TIMES = 2  # a model must measure slower this often
_SLOWER = "left float: int8 measured slower here"
_ROUNDING = "left float: rounding here cost the outputs most"
_MOST_NAMED = 8

Seen = Mapping[Graph, Calibration]


class Refiner:
    """Makes candidates from one prepared and calibrated model, which stays as it is."""

    def __init__(
        self,
        model: Model,
        seen: Seen,
        excluded: Mapping[Node, str],
        form: str,
        target: str,
        *,
        within_pairs: bool = False,
    ) -> None:
        self._within_pairs = within_pairs
        self._proto, self._tensors, self._form, self._target = model.to_proto(), model.tensors, form, target
        graphs = model.graphs()
        self._seen = [seen[graph] for graph in graphs]
        nodes = [node for graph in graphs for node in graph.sorted_nodes()]
        self._excluded = {i: excluded[node] for i, node in enumerate(nodes) if node in excluded}
        self.count = len(nodes)
        self._float: Session | None = None
        self._probes: list[tuple[Feed, list[Any]]] = []
        self._names = [node.title for node in nodes]
        self.blocks: list[BlockCost] = []
        self._judge = Judge([])
        walked = {node: i for i, node in enumerate(n for graph in model.graph.walk() for n in graph.sorted_nodes())}
        self._record_of = [walked[node] for node in nodes]

    def make(
        self, *, equalized: bool, left_float: Mapping[int, str] | None = None, bare: Iterable[int] = ()
    ) -> Candidate:
        """Quantize a copy of the model.

        Nodes `left_float`, by position, stay float for the reasons given; those of them in `bare` with their weights.
        """
        model = Model(self._proto, self._tensors)
        graphs = model.graphs()
        seen = {graph: copy.deepcopy(found) for graph, found in zip(graphs, self._seen, strict=True)}
        nodes = [node for graph in graphs for node in graph.sorted_nodes()]
        excluded = {nodes[i]: entry for i, entry in self._excluded.items()}
        left = dict(left_float or {})
        in_float = {nodes[i]: reason for i, reason in left.items()}
        account = Account(model, seen)
        decisions, plans = quantize_static(
            model,
            seen,
            excluded,
            self._form,
            self._target,
            in_float=in_float,
            bare={nodes[i] for i in bare},
            equalized=equalized,
            within_pairs=self._within_pairs,
        )
        found = [(plan, seen[graph]) for graph, plan in plans.items()]
        return Candidate(model, account.records(decisions), found, equalized=equalized, left_float=left)

    def best(self, float_model: Any, feeds: Iterable[Feed], tell: Callable[[int, int], None]) -> Candidate:
        """Return the best candidate, judged on the first few of `feeds`."""
        first = self.make(equalized=True)
        first.label = "channels equalized"
        if tensor_bytes(self._proto) > _MAX_BYTES:
            return first
        self._take_probes(float_model, feeds)
        plain = self.make(equalized=False)
        plain.label = "channels as they are"
        for candidate in (first, plain):
            self._measure(candidate)
        best = min(first, plain, key=lambda c: c.score)
        small = tensor_bytes(self._proto) <= _MAX_BLOCK_BYTES
        if small and best.noises.size and best.score > 1:
            best = self._leave_float(best, tell)
        return best

    def _take_probes(self, float_model: Any, feeds: Iterable[Feed]) -> None:
        session = open_session(float_model, "the float model")
        size = 0
        for feed in islice(feeds, _PROBES):
            self._probes.append((feed, session.run(feed)))
            size += sum(np.asarray(value).nbytes for value in feed.values())
            if size > _PROBE_BYTES:
                break
        axes = class_axes(float_model)
        by_position = {i: axes[name] for i, name in enumerate(session.outputs) if name in axes}
        self._judge = Judge([expected for _, expected in self._probes], session.output_shapes, by_position)

    def _measure(self, candidate: Candidate) -> None:
        try:
            session = open_session(candidate.model.to_proto(), "a candidate", tensors=self._tensors)
            results = [session.run({spec.name: feed[spec.name] for spec in session.inputs}) for feed, _ in self._probes]
        except ModelError:
            return
        candidate.noises = np.minimum(self._judge.noises(results), HOPELESS)
        candidate.noise = float(np.max(candidate.noises[: self._judge.outputs], initial=0.0))
        candidate.score = float(np.max(candidate.noises / self._judge.goals, initial=0.0))

    def balanced(self, base: Candidate) -> Candidate:
        """Return `base`, or where it should take longer than float, one that leaves in float what int8 makes slower.

        By the model of time in `costs.py`: the same on every machine.
        """
        if tensor_bytes(self._proto) > _MAX_BYTES or not self._probes:
            return base
        costs = self._predicted(base)
        for chosen in promising(costs, assignments(costs, _MAC_SHARES)):
            if chosen.all():
                return base
            left = by_time(costs, chosen, _COSTLY) | base.left_float
            found = self.make(equalized=base.equalized, left_float=left)
            if not any(record.decision == "static" for record in found.records):
                continue
            self._measure(found)
            if found.score <= max(1.0, base.score * 1.5):
                found.label = f"{base.label}, float where int8 costs more"
                _explain(found, base)
                return found
        return base

    def _predicted(self, base: Candidate) -> Costs:
        model = Model(self._proto, self._tensors)
        graphs = model.graphs()
        seen = dict(zip(graphs, self._seen, strict=True))
        # The records come from an account of the same model, so they are in its order.
        rows = Account(model, seen).rows
        decided = {row[0]: record for row, record in zip(rows, base.records, strict=True)}
        work = {row[0]: (row[4] or 0, row[3]) for row in rows}
        nodes, both = [], []
        for graph in graphs:
            extra = crossings(graph, seen[graph], lambda n: decided[n].decision in ("static", "passthrough"))
            for node in graph.sorted_nodes():
                record = decided[node]
                rescaled = record.reason.startswith("the same codes")
                nodes.append(node)
                costs = node_costs(node, record.decision, seen[graph], *work[node], rescaled=rescaled)
                both.append((costs[0], costs[1] + extra.get(node, 0.0)))
        times = np.array(both).reshape(-1, 2)
        macs = np.array([float(work[node][0]) for node in nodes])
        return Costs(times[:, 0], times[:, 1], borders(nodes, self._seen), macs)

    def faster(self, float_model: Any, base: Candidate, warnings: list[str]) -> Candidate:
        """Return `base`, or where it measures slower than float, twice, one that gives back what int8 made slower."""
        if tensor_bytes(self._proto) > _MAX_BYTES or not self._probes:
            return base
        feed = self._probes[0][0]
        session = open_session(float_model, "the float model", threads=1)
        latency = None
        for _ in range(_TIMES):
            latency = self._time(session, base, feed)
            if latency is None or not is_slower(latency):
                return base
        assert latency is not None
        costs, describe = self._costs(base, feed, latency)
        best, least = base, latency.int8_ms / latency.float_ms
        for chosen in assignments(costs, _WEIGHT_SHARES):
            left = by_time(costs, chosen, _SLOWER) | base.left_float
            found = self.make(equalized=base.equalized, left_float=left)
            found.label = f"{base.label}, float where int8 measured slower"
            if not any(record.decision in ("static", "dynamic", "weight_only") for record in found.records):
                continue
            self._measure(found)
            timed = self._time(session, found, feed) if found.score <= max(1.0, base.score * 1.5) else None
            if timed is None or timed.int8_ms / timed.float_ms >= least:
                continue
            best, least = found, timed.int8_ms / timed.float_ms
            if timed.speedup > 1 + timed.spread:
                break
        if best is not base:
            _explain(best, base)
            warnings.append(self._given_back(best, base, latency))
        if least > 1 + SLACK:
            warnings.append(
                f"slower than float in onnxruntime on one thread ({least:.2f}x the time); int8 loses most at "
                f"{losses(costs, describe)}: exclude them, or keep this model float"
            )
        return best

    def _given_back(self, best: Candidate, base: Candidate, latency: Latency) -> str:
        was = {record.name for record in base.records if record.decision in ("static", "passthrough", "dynamic")}
        names = [self._names[i] for i in sorted(best.left_float) if i not in base.left_float and self._names[i] in was]
        listed = ", ".join(map(repr, names[:_MOST_NAMED]))
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        return (
            f"int8 measured {latency.int8_ms / latency.float_ms:.2f}x the float time in onnxruntime on one thread: "
            f"{counted(len(names), 'node')} went back to float, as this measurement says ({listed}{more})"
        )

    def _time(self, session: Session, candidate: Candidate, feed: Feed) -> Latency | None:
        try:
            other = open_session(candidate.model.to_proto(), "a candidate", threads=1, tensors=self._tensors)
            given = {spec.name: feed[spec.name] for spec in other.inputs}
            return interleave(
                lambda: session.run(feed), lambda: other.run(given), budget=_TIMING_SECONDS, clock=best_clock(1)
            )
        except ModelError:
            return None

    def _costs(self, base: Candidate, feed: Feed, latency: Latency) -> tuple[Costs, Callable[[int], str]]:
        model = Model(self._proto, self._tensors)
        graphs = model.graphs()
        nodes = [node for graph in graphs for node in graph.sorted_nodes()]
        places: dict[str, int] = {}
        for i, node in enumerate(nodes):
            for name in (node.name, *node.outputs):
                if name:
                    places.setdefault(name, i)
        runs = int(min(20, max(3, 1000 * _TIMING_SECONDS / (latency.float_ms + latency.int8_ms))))
        both = []
        for proto, milliseconds in ((self._proto, latency.float_ms), (base.model.to_proto(), latency.int8_ms)):
            times = node_times(proto, feed, runs, tensors=self._tensors)
            extra = sum(item.microseconds for item in times) - 1e3 * milliseconds
            both.append(attribute(times, places, len(nodes), max(0.0, extra / max(1, len(times)))))
        weights = {row[0]: row[3] for row in Account(model, None).rows}
        weight = np.array([float(weights[node]) for node in nodes])
        return Costs(
            both[0], both[1], borders(nodes, self._seen), weight
        ), lambda i: f"{nodes[i].op_type} {nodes[i].name!r}"

    def _leave_float(self, base: Candidate, tell: Callable[[int, int], None]) -> Candidate:
        """Leave those parts float that cost the outputs most, until these are good enough."""
        computing = ("static", "dynamic")
        starts = [i for i, r in enumerate(self._in_order(base)) if r.decision in computing and r.weight_elements]
        if not starts:
            return base

        def alone(first: int, end: int) -> Array:
            rest = [i for i in range(self.count) if not first <= i < end]
            found = self.make(equalized=base.equalized, left_float=dict.fromkeys(rest, _ROUNDING), bare=rest)
            self._measure(found)
            return found.noises

        parts = measure_parts(starts, self.count, self._judge.goals, alone, tell)
        whole = max(1, sum(r.macs or 0 for r in base.records))
        records = self._in_order(base)
        macs = np.array([sum(r.macs or 0 for r in records[p.first : p.end]) / whole for p in parts])
        best, chosen = self._chosen_float(base, parts, macs)
        for i, part in enumerate(parts):
            names = self._names[part.first], self._names[part.end - 1]
            noise = float(np.max(part.noises[: self._judge.outputs], initial=0.0))
            cost = BlockCost(*names, part.end - part.first, decibels(noise), decibels(base.noise), i in chosen)
            self.blocks.append(cost)
        self.blocks.sort(key=lambda block: block.sqnr_db)
        return best

    def _chosen_float(self, base: Candidate, parts: list[Part], macs: Array) -> tuple[Candidate, set[int]]:
        everything = self.make(equalized=base.equalized, left_float=dict.fromkeys(range(self.count), _ROUNDING))
        self._measure(everything)
        of_outputs = np.arange(len(self._judge.goals)) < self._judge.outputs
        # What float arithmetic does not mend is no goal. Outputs first, for little of the arithmetic if that is enough:
        # noises of parts may add up to more than their sum, and then too much would seem needed. For as much as it
        # takes where float can mend them; then slices, for a tenth.
        every = np.maximum(self._judge.goals, everything.noises)
        of_whole = np.where(of_outputs, every, np.inf)
        mended = np.all((everything.noises <= self._judge.goals)[of_outputs]) and not self._cuts_off()
        best = base, set[int]()
        for share in (*_FLOAT_SHARES, *_FLOAT_SHARES_IF_MENDED) if mended else _FLOAT_SHARES:
            best = self._improved(base, best, parts, macs, of_whole, share, _WORTH)
        share = float(macs[list(best[1])].sum()) + _FOR_SLICES
        return self._improved(base, best, parts, macs, every, share, _WORTH_SLICES)

    def _improved(
        self,
        base: Candidate,
        best: tuple[Candidate, set[int]],
        parts: list[Part],
        macs: Array,
        goals: Array,
        share: float,
        worth: float,
    ) -> tuple[Candidate, set[int]]:
        """Return `best`, or a candidate nearer to `goals` by `worth` with up to `share` of the arithmetic in float."""
        found, last = before = best
        if np.all(found.noises <= goals):
            return best
        for _ in range(_TRIALS):
            trial = choose_float(parts, last, factors_of(parts, last, found.noises), goals, macs, share)
            if trial == last:
                break
            found, last = self._with_float(base, parts, trial), trial
            if np.max(found.noises / goals) <= worth * np.max(best[0].noises / goals):
                best = found, trial
            if np.all(found.noises <= goals):
                break
        if best is before or not np.all(best[0].noises <= goals):
            return best
        return self._given_back_parts(base, best, parts, macs, goals)

    def _given_back_parts(
        self, base: Candidate, best: tuple[Candidate, set[int]], parts: list[Part], macs: Array, goals: Array
    ) -> tuple[Candidate, set[int]]:
        """Return `best` with what may be in int8 after all, the most arithmetic first, while the goals are kept."""
        chosen = best[1]
        needed = give_back(parts, chosen, factors_of(parts, chosen, best[0].noises), goals, macs)
        back = sorted(chosen - needed, key=lambda i: -macs[i])
        while back:
            found = self._with_float(base, parts, chosen - {*back})
            if np.all(found.noises <= goals):
                return found, chosen - {*back}
            back = back[: len(back) // 2]
        return best

    def _cuts_off(self) -> bool:
        """Whether ranges were chosen that do not hold every value: what that costs is wanted."""
        return any(stats.method.needs_histogram for seen in self._seen for stats in seen.tensors.values())

    def _with_float(self, base: Candidate, parts: list[Part], trial: set[int]) -> Candidate:
        """Return `base` with these parts in float, measured."""
        left: dict[int, str] = {}
        for part in (parts[i] for i in sorted(trial)):
            why = by_outputs(part.noises, self._judge.outputs, base.noise, _ROUNDING, part.end - part.first)
            left |= dict.fromkeys(range(part.first, part.end), why)
        found = self.make(equalized=base.equalized, left_float=left)
        self._measure(found)
        found.label = f"{base.label}, {len(trial)} of {len(parts)} parts float"
        return found

    def _in_order(self, candidate: Candidate) -> list[NodeRecord]:
        """Return its records in the order of positions."""
        return [candidate.records[i] for i in self._record_of]


def _explain(found: Candidate, base: Candidate) -> None:
    """Add to the reasons of the nodes that `found` has in float what that does to the outputs."""
    words = effect(found.noise, base.noise)
    new = {reason for i, reason in found.left_float.items() if i not in base.left_float}
    found.left_float = {i: reason + words if reason in new else reason for i, reason in found.left_float.items()}
    found.records = [replace(r, reason=r.reason + words) if r.reason in new else r for r in found.records]
