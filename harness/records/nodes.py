"""Says how fast nodes are, by the records of the trials that ran on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from harness.records.record import Record
from harness.statistics.nodes import NodeSpeed, node_speeds


@dataclass(frozen=True, kw_only=True)
class NodeTimes:
    """How long a step of one trial took each of its nodes."""

    cell: str  # id
    block: tuple[int, int]  # seed and repeat
    seconds: Mapping[str, float]  # by node, of its own work in a step


def node_times(record: Record) -> NodeTimes | None:
    """Return what a trial says of its nodes, None unless it is done and was measured."""
    if record.status != "done" or record.summary is None or not record.summary.node_seconds:
        return None
    return NodeTimes(
        cell=record.trial.cell.id,
        block=(record.trial.seed, record.trial.repeat),
        seconds=record.summary.node_seconds,
    )


def speeds_by_trials(trials: Iterable[NodeTimes]) -> list[NodeSpeed]:
    """Return the speed of each node, none unless trials ran on several.

    The trials of a block are no independent measurements of their nodes, so a block has one value
    for a node: the mean over its trials there, of how the log speed differs from the cell's mean.
    """
    listed = list(trials)
    nodes_of_all = {node for trial in listed for node in trial.seconds}
    if len(nodes_of_all) < 2:
        return []
    by_cell: dict[str, list[float]] = {}
    by_block: dict[tuple[int, int], dict[str, list[float]]] = {}
    for trial in listed:
        logs = [-math.log(seconds) for seconds in trial.seconds.values()]
        by_cell.setdefault(trial.cell, []).append(fmean(logs))
    means = {cell: fmean(values) for cell, values in by_cell.items()}
    for trial in listed:
        nodes = by_block.setdefault(trial.block, {})
        for node, seconds in trial.seconds.items():
            nodes.setdefault(node, []).append(-math.log(seconds) - means[trial.cell])
    blocks = []
    for nodes in by_block.values():
        blocks.append({node: fmean(values) for node, values in nodes.items()})
    return node_speeds(blocks)
