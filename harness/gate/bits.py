"""Compares the losses that two trees compute, step by step, without measuring their speed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.core.progress import report_progress
from harness.core.worktree import Tree
from harness.gate.pairs import PairStarter
from harness.spec.cell import Cell
from harness.spec.cluster import Profile

STRIDE = 20  # steps between two comparisons


@dataclass(frozen=True, kw_only=True)
class LossComparison:
    """How long two trees computed the same losses."""

    steps: int  # that were trained
    same_losses: bool


def compare_losses(
    cell: Cell,
    seed: int,
    trees: Mapping[str, Tree],
    base: Path,
    profile: Profile,
    *,
    seconds: float,
    max_steps: int | None = None,
) -> LossComparison:
    """Train a cell in the trees `a` and `b` until their losses differ.

    Losses that are the same after `seconds` of training, or after `max_steps` where that is given,
    count as the same. Raises HarnessError if a rank fails.
    """
    steps = 0
    spent = 0.0
    with (
        PairStarter(cell, seed, trees, base, profile) as starter,
        starter.pair(["a", "b"]) as arms,
    ):
        while steps < (max_steps or math.inf) and (max_steps is not None or spent < seconds):
            turn_a, turn_b = arms["a"].train(STRIDE), arms["b"].train(STRIDE)
            steps += STRIDE
            spent += turn_a.wall_seconds + turn_b.wall_seconds
            report_progress(f"{steps} steps")
            if turn_a.losses != turn_b.losses:
                return LossComparison(steps=steps, same_losses=False)
    return LossComparison(steps=steps, same_losses=True)
