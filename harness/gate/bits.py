"""Compares the losses that two trees compute, step by step, without measuring their speed."""

from __future__ import annotations

import math
from collections.abc import Mapping

from harness.core.progress import report_progress
from harness.core.worktree import Tree
from harness.gate.pairs import pair_starter
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep

STRIDE = 20  # steps between two comparisons


def compare_losses(
    sweep: Sweep,
    cell: Cell,
    trees: Mapping[str, Tree],
    profile: Profile,
    *,
    seconds: float,
    max_steps: int | None = None,
) -> tuple[bool, int]:
    """Train a cell in the trees `a` and `b` until their losses differ.

    Losses that are the same after `seconds` of training, or after `max_steps` where that is given,
    count as the same. Returns whether they are, and the steps that were trained. Raises HarnessError
    if a rank fails.
    """
    steps = 0
    spent = 0.0
    with pair_starter(sweep, cell, trees, profile) as starter, starter.pair(["a", "b"]) as arms:
        while steps < (max_steps or math.inf) and (max_steps is not None or spent < seconds):
            turn_a, turn_b = arms["a"].train(STRIDE), arms["b"].train(STRIDE)
            steps += STRIDE
            spent += turn_a.wall_seconds + turn_b.wall_seconds
            report_progress(f"{steps} steps")
            if turn_a.losses != turn_b.losses:
                return False, steps
    return True, steps
