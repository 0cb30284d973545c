"""What each axis of a sweep bought: attribution of the throughputs of its trials."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict

from harness.analysis.compare import Side
from harness.core.errors import BadInput
from harness.statistics.attribution import Attribution, Point, attribute


def attributions(side: Side) -> dict[str, Attribution]:
    """By workload, of those whose cells differ in an axis and have trials enough."""
    points: dict[str, list[Point]] = {}
    for cell in side.cells:
        own = points.setdefault(cell.cell.workload.label, [])
        own += [
            Point(
                levels=asdict(cell.cell.axes),
                block=(one.seed, one.repeat),
                value=math.log(one.throughput),
            )
            for one in cell.trials
            if one.throughput
        ]
    found = {label: attribute(own) for label, own in points.items() if own}
    return {label: one for label, one in found.items() if one is not None and one.effects}


def effects(side: Side) -> Mapping[str, Attribution]:
    """The same; raises BadInput where there is nothing to attribute."""
    told = attributions(side)
    if not told:
        raise BadInput(
            f"{side.name}: found too few trials to tell effects from noise; allowed: cells that differ in an axis,"
            " and more seeds or repeats"
        )
    return told
