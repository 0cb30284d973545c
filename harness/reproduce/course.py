"""Measures the distance of two trials over their steps: losses, and parameters at a few steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.analysis.rungs import ulp_distances
from harness.core.paths import TrialFolder
from harness.records.files import read_rank_result
from harness.records.record import RankResult
from harness.records.series import Numbers
from harness.reproduce.snapshot import list_snapshots
from harness.reproduce.trajectory import read_tensor, tensor_names
from harness.reproduce.values import INTEGERS, ulp_distance


@dataclass(frozen=True, kw_only=True)
class Distance:
    """The distance of losses or parameters after a step."""

    step: int  # counted from 1
    relative: float  # of the larger loss, or of the norm of all parameters; NaN where one is NaN
    ulp: int  # the largest distance in units in the last place


@dataclass(frozen=True, kw_only=True)
class Course:
    """The distances of two trials over their steps."""

    losses: Sequence[Distance]  # of each step that both have, the largest over ranks
    parameters: Sequence[Distance]  # after a few steps


def course_of_runs(folder_a: Path, folder_b: Path, world_sizes: tuple[int, int]) -> Course:
    """Return the distances of two runs that were traced with snapshots in these folders."""
    ranks_a = _rank_results(TrialFolder(folder_a), world_sizes[0])
    ranks_b = _rank_results(TrialFolder(folder_b), world_sizes[1])
    return Course(
        losses=loss_distances(_losses(ranks_a), _losses(ranks_b)),
        parameters=_parameter_distances(folder_a, folder_b),
    )


def _rank_results(folder: TrialFolder, world_size: int) -> list[RankResult]:
    """Return the results of the ranks of a run."""
    return [read_rank_result(folder.result_path(rank)) for rank in range(world_size)]


def _losses(ranks: Sequence[RankResult]) -> Numbers:
    """Return the losses of the ranks, shape (ranks, steps)."""
    return np.stack([result.loss.unpack() for result in ranks if result.loss is not None])


def loss_distances(a: Numbers, b: Numbers) -> list[Distance]:
    """Return the distances of losses of shape (ranks, steps) at each step that both have.

    With other numbers of ranks, whose losses are of other samples, means over ranks are compared.
    """
    if len(a) != len(b):
        a, b = a.mean(axis=0, keepdims=True), b.mean(axis=0, keepdims=True)
    steps = min(a.shape[1], b.shape[1])
    a, b = a[:, :steps], b[:, :steps]
    ulp = ulp_distances(a, b).max(axis=0)
    scale = np.maximum(np.maximum(np.abs(a), np.abs(b)).astype(np.float64), np.finfo(float).tiny)
    relative = (np.abs(a.astype(np.float64) - b) / scale).max(axis=0)
    distances = []
    for step in range(steps):
        distances.append(
            Distance(step=step + 1, relative=float(relative[step]), ulp=int(ulp[step]))
        )
    return distances


def _parameter_distances(folder_a: Path, folder_b: Path) -> list[Distance]:
    """Return the distances of all parameters together at each step with snapshots of both."""
    snapshots_a, snapshots_b = list_snapshots(folder_a), list_snapshots(folder_b)
    distances = []
    for step, path in snapshots_a.items():
        if step in snapshots_b:
            distances.append(_snapshot_distance(step, path, snapshots_b[step]))
    return distances


def _snapshot_distance(step: int, path_a: Path, path_b: Path) -> Distance:
    """Return the distance of the tensors that both snapshots have."""
    squares = difference_squares = 0.0
    largest_ulp = 0
    names_b = set(tensor_names(path_b))
    for name in tensor_names(path_a):
        if name not in names_b:
            continue
        a, b = read_tensor(path_a, name), read_tensor(path_b, name)
        if a.dtype != b.dtype or a.dtype not in INTEGERS or not a.numel():
            continue
        squares += float(a.double().square().sum())
        difference_squares += float((a.double() - b.double()).square().sum())
        largest_ulp = max(largest_ulp, ulp_distance(a, b))
    relative = math.sqrt(difference_squares / squares) if squares else 0.0
    return Distance(step=step, relative=relative, ulp=largest_ulp)
