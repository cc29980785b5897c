"""Equalize: give the channels of an activation like ranges, exactly, before one scale is chosen for all of them.

An activation has one scale for all channels, so a channel of small range is left with few codes. Within a
`ChannelGroup` the channels can be scaled freely; a Conv's own weights have a scale for each output channel and do not
mind. What does mind is the weight of the next Conv, where the factors of its input channels spread within one
output channel. How far to go is chosen by predicted noise: that of the activation's rounding against that of the
weight's rounding, from the calibrated ranges and powers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quantkit.graph import Graph, Node
from quantkit.models.calibration.statistics import Calibration, ChannelStats, TensorStats
from quantkit.models.passes.channel_groups import ChannelGroup

Array = np.ndarray[Any, Any]

# Factors are multiples of 1/255 of the largest one, so that a uint8 constant holds them exactly.
_LEVELS = 255
_LEAST_LEVEL = 4
# A gate that undoes factors for each channel costs onnxruntime more than one that does not.
_GAIN_WORTH_A_GATE = 0.9
# How far to go, from not at all to equal ranges.
_STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


def equalize(graph: Graph, groups: list[ChannelGroup], calibration: Calibration) -> int:
    """Scale the channels of each group in which that lowers the predicted noise; return how many did.

    The calibrated statistics are carried along.
    """
    return sum(_equalize_group(graph, group, calibration) for group in groups)


def _equalize_group(graph: Graph, group: ChannelGroup, calibration: Calibration) -> bool:
    stats: dict[str, ChannelStats] = {}
    for name in group.tensors:
        found = calibration.channels.get(name)
        if found is None or not found.usable:
            return False
        stats[name] = found
    if len({len(found.low) for found in stats.values()}) != 1:
        return False
    reach = np.max([_relative_reach(found) for found in stats.values()], axis=0)
    noise = {strength: _noise(graph, group, stats, _factors(reach, strength)) for strength in _STRENGTHS}
    strength = min(_STRENGTHS, key=lambda s: (noise[s], s))
    factors = _factors(reach, strength)
    worth = _GAIN_WORTH_A_GATE if group.gates else 1.0
    if np.all(factors == factors[0]) or noise[strength] > worth * noise[0.0]:
        return False
    for node in group.producers:
        _scale_rows(graph, node, 1 / factors)
    for node in group.consumers:
        _replace(graph, node, 1, _scaled_columns(graph.array(node.inputs[1]), factors, node.get("group", 1)))
    for node in group.offsets:
        _scale_offset(graph, node, factors, group.rank)
    for node in group.gates:
        _restore(graph, node, factors, group.rank, calibration)
    for name, found in stats.items():
        found.divide(factors)
        calibration.divide_moments(name, factors)
        tensor = calibration.tensors[name]
        tensor.low, tensor.high = float(found.low.min()), float(found.high.max())
        tensor.histogram = found.histogram()
    return True


def _relative_reach(stats: ChannelStats) -> Array:
    """Return each channel's range, zero included, as a share of the tensor's."""
    low, high = np.minimum(stats.low, 0), np.maximum(stats.high, 0)
    share: Array = np.maximum(high / max(high.max(), 1e-30), low / min(low.min(), -1e-30))
    # A side that hardly reaches out does not set the step.
    whole = max(high.max() - low.min(), 1e-30)
    reach: Array = np.maximum((high - low) / whole, np.minimum(share, 2 * (high - low) / whole))
    return reach


def _factors(reach: Array, strength: float) -> Array:
    wanted = np.maximum(reach, 1e-9) ** strength
    levels = np.clip(np.ceil(wanted / wanted.max() * _LEVELS), _LEAST_LEVEL, _LEVELS)
    factors: Array = levels / _LEVELS
    return factors


def _noise(graph: Graph, group: ChannelGroup, stats: dict[str, ChannelStats], factors: Array) -> float:
    """Predict the noise that the group's Convs hand on, relative to each output's power."""
    total = 0.0
    for node in group.consumers:
        found = stats[node.inputs[0]]
        weight = graph.array(node.inputs[1]).astype(np.float64)
        groups = node.get("group", 1)
        low, high = np.minimum(found.low / factors, 0).min(), np.maximum(found.high / factors, 0).max()
        step = (high - low) / 255
        taps = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
        scale = factors.reshape(groups, 1, -1)
        energy = (taps**2).sum(axis=-1)  # [group, out, in]
        largest = np.abs(taps).max(axis=-1) * scale
        signal = (energy * found.power.reshape(groups, 1, -1)).sum(axis=-1)
        from_input = step**2 / 12 * (energy * scale**2).sum(axis=-1)
        weight_step = largest.max(axis=-1) / 127
        power = (found.power / factors**2).reshape(groups, 1, -1)
        from_weight = weight_step**2 / 12 * (power * taps.shape[-1]).sum(axis=-1)
        total += float(np.sum((from_input + from_weight) / np.maximum(signal, 1e-30)))
    return total


def _replace(graph: Graph, node: Node, position: int, values: Array) -> None:
    old = graph.array(node.inputs[position])
    inputs = list(node.inputs)
    inputs[position] = graph.add_constant(node.inputs[position], values.astype(old.dtype))
    graph.set_inputs(node, inputs)


def _scale_rows(graph: Graph, node: Node, by: Array) -> None:
    weight = graph.array(node.inputs[1]).astype(np.float64)
    _replace(graph, node, 1, weight * by.reshape(-1, *[1] * (weight.ndim - 1)))
    if node.input(2):
        _replace(graph, node, 2, graph.array(node.inputs[2]).astype(np.float64) * by)


def _scaled_columns(weight: Array, by: Array, groups: int) -> Array:
    wide = weight.astype(np.float64).reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    return (wide * by.reshape(groups, 1, -1, 1)).reshape(weight.shape)


def _along_channels(values: Array, rank: int) -> Array:
    return values.astype(np.float32).reshape(-1, *[1] * (rank - 2))


def _scale_offset(graph: Graph, node: Node, factors: Array, rank: int) -> None:
    position = next(i for i, name in enumerate(node.inputs) if graph.is_constant(name))
    offset = graph.array(node.inputs[position]).astype(np.float64).reshape(-1)
    inputs = list(node.inputs)
    inputs[position] = graph.add_constant(node.inputs[position], _along_channels(offset / factors, rank))
    graph.set_inputs(node, inputs)


def _restore(graph: Graph, gate: Node, factors: Array, rank: int, calibration: Calibration) -> None:
    """Let a gate read its input with the factors undone."""
    name = gate.inputs[0]
    fresh = graph.model.names.fresh
    restored = fresh(f"{name}_restored")
    constant = graph.add_constant(f"{name}_factors", _along_channels(factors, rank))
    graph.add(Node("Mul", [name, constant], [restored], name=fresh(f"{gate.name or name}_restore")), before=gate)
    graph.set_inputs(gate, [restored])
    seen = calibration[name]
    found = calibration.channels[name]
    calibration.tensors[restored] = TensorStats(
        float(found.low.min()), float(found.high.max()), seen.nonfinite, seen.batches, seen.shape
    )
