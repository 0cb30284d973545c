"""Few rows of settings that cover every pair of values that makes sense, in `covering.json`.

After a new axis or value, or a new rule of what goes with what, `missing_pairs` names what rows lack.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.sweep.axes import Axes, find_conflict

Row = dict[str, Any]
Pair = tuple[str, str]  # two axes with their values, each as JSON, so that True is not 1

PATH = Path(__file__).with_name("covering.json")
VALUES: dict[str, list[Any]] = {
    "strategy": ["ddp", "fsdp2"],
    "execution": ["eager", "compile"],
    "precision": ["fp32", "bf16", "fp16", "bf16:fsdp2"],
    "grad_accum_steps": [1, 2],
    "input": ["loader", "resident"],
    "num_workers": [0, 2],
    "loader.persistent_workers": [True, False],
    "loader.prefetch_factor": [2, 1],
    "ddp.bucket_cap_mb": [None, 1e-4],  # 104 bytes: the model's gradients have 644
    "ddp.gradient_as_bucket_view": [False, True],
    "ddp.static_graph": [False, True],
    "fsdp.reshard_after_forward": [None, True, False],
    "compile.dynamic": [None, False],
    "activation_checkpointing": [False, True],
    "max_grad_norm": [None, 1e6],
    "optimizer_impl": ["for-loop", "foreach", "fused"],
}


def read() -> list[Row]:
    """Return the rows."""
    rows: list[Row] = json.loads(PATH.read_text(encoding="utf-8"))
    return rows


def fits(row: Row) -> bool:
    """Return whether settings go together, on two ranks."""
    return find_conflict(Axes.of({"batch_size": 32, "world_size": 2, **row})) is None


def pairs_of(row: Row) -> set[Pair]:
    """Return every pair of settings in a row."""
    settings = [json.dumps([axis, row[axis]]) for axis in VALUES]
    return set(itertools.combinations(settings, 2))


def possible_pairs() -> set[Pair]:
    """Return the pairs that go with some choice of the axes that others need."""
    needed = ("strategy", "execution", "input", "num_workers", "grad_accum_steps")
    pairs: set[Pair] = set()
    for axis, other_axis in itertools.combinations(VALUES, 2):
        free = [name for name in needed if name not in (axis, other_axis)]
        choices = list(itertools.product(*(VALUES[name] for name in free)))
        for value, other_value in itertools.product(VALUES[axis], VALUES[other_axis]):
            settings = {axis: value, other_axis: other_value}
            if any(fits(settings | dict(zip(free, choice, strict=True))) for choice in choices):
                pairs.add((json.dumps([axis, value]), json.dumps([other_axis, other_value])))
    return pairs


def missing_pairs(rows: Sequence[Row]) -> set[Pair]:
    """Return the possible pairs that are in no row."""
    return possible_pairs().difference(*map(pairs_of, rows))
