"""Measures how far two trials are apart over their steps: tensors of snapshots, and losses.

One tensor is read at a time, so the memory needed does not grow with the model's depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from harness.analysis.distance import TensorDistance
from harness.analysis.rungs import ulp_distances
from harness.core.errors import HarnessError
from harness.core.paths import TrialFolder
from harness.core.validation import finite
from harness.records.files import read_rank_result
from harness.records.series import Numbers
from harness.reproduce.snapshot import gradients_path, list_snapshots
from harness.reproduce.values import UNSIGNED, differing_elements, read_tensor, ulp_distance


def distances(folder: Path, reference: Path, exact: Path | None) -> list[TensorDistance]:
    """Return the distance of every tensor of every snapshot, in the order of the steps.

    The arguments are folders of trials: the trial to judge, the reference, and the reference in fp64,
    None without one. With another batch size, an epoch has another number of steps, so the steps
    with snapshots of both are compared. Raises HarnessError if there are none, and for other
    tensors.
    """
    snapshots, references = list_snapshots(folder), list_snapshots(reference)
    common = [step for step in snapshots if step in references]
    if not common:
        raise HarnessError(
            f"found snapshots of steps {list(snapshots)}; needed: some of {list(references)}, as of"
            " the reference"
        )
    measured = []
    for step in common:
        path, reference_path = snapshots[step], references[step]
        exact_path = None if exact is None else list_snapshots(exact)[step]
        names = tensor_names(path)
        if names != tensor_names(reference_path):
            raise HarnessError(f"step {step}: found other tensors than the reference has")
        measured += _distances_between(step, names, path, reference_path, exact_path)
    return measured


def gradient_distances(folder: Path, reference: Path, exact: Path | None) -> list[TensorDistance]:
    """Return the distances of the first step's gradients, of all parameters that have one.

    The arguments are those of `distances`.
    """
    path, reference_path = gradients_path(folder), gradients_path(reference)
    exact_path = None if exact is None else gradients_path(exact)
    in_all = set(tensor_names(path)) & set(tensor_names(reference_path))
    if exact_path is not None:
        in_all &= set(tensor_names(exact_path))
    return _distances_between(1, sorted(in_all), path, reference_path, exact_path)


def _distances_between(
    step: int, names: Sequence[str], path: Path, reference_path: Path, exact_path: Path | None
) -> list[TensorDistance]:
    """Return the distances of the tensors with these names in three files."""
    measured = []
    for name in names:
        exact = None if exact_path is None else read_tensor(exact_path, name)
        tensor, reference = read_tensor(path, name), read_tensor(reference_path, name)
        measured.append(distance(step, name, tensor, reference, exact))
    return measured


def distance(
    step: int, name: str, tensor: Tensor, reference: Tensor, exact: Tensor | None
) -> TensorDistance:
    """Return how far a tensor is from the reference's, and both from the one in fp64."""
    is_alike = tensor.dtype == reference.dtype and tensor.shape == reference.shape
    differing = differing_elements(tensor, reference) if is_alike else tensor.numel()
    largest_ulp = None
    if is_alike and tensor.dtype in UNSIGNED and tensor.numel():
        largest_ulp = ulp_distance(tensor, reference)
    error = reference_error = scale = None
    is_finite = True
    if exact is not None and exact.is_floating_point() and exact.shape == tensor.shape:
        error = finite(_root_mean_square(tensor.double() - exact))
        is_finite = error is not None
        reference_error = finite(_root_mean_square(reference.double() - exact))
        scale = finite(_root_mean_square(exact))
    return TensorDistance(
        step=step,
        name=name,
        dtype=_name_of(tensor.dtype),
        shape=tuple(tensor.shape),
        differing=differing,
        largest_ulp=largest_ulp,
        error=error,
        reference_error=reference_error,
        scale=scale,
        is_finite=is_finite,
        reference_dtype=_name_of(reference.dtype) if tensor.dtype != reference.dtype else None,
    )


def _name_of(dtype: torch.dtype) -> str:
    """Return what torch calls a type, without `torch.`."""
    return str(dtype).removeprefix("torch.")


def _root_mean_square(values: Tensor) -> float:
    """Return the root of the mean square in fp64, 0 of nothing."""
    if not values.numel():
        return 0.0
    return math.sqrt(float(torch.mean(torch.square(values.double()))))


def tensor_names(path: Path) -> list[str]:
    """Return the names of a snapshot's tensors, sorted."""
    with safe_open(path, framework="pt") as file:
        return sorted(file.keys())


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
    parameters: Sequence[Distance]  # all together, at each step with snapshots of both


def course_of_runs(folder_a: Path, folder_b: Path, world_sizes: tuple[int, int]) -> Course:
    """Return the distances of two runs that were traced with snapshots in these folders."""
    losses_a = _losses(TrialFolder(folder_a), world_sizes[0])
    losses_b = _losses(TrialFolder(folder_b), world_sizes[1])
    losses = loss_distances(losses_a, losses_b)
    snapshots_a, snapshots_b = list_snapshots(folder_a), list_snapshots(folder_b)
    parameters = []
    for step, path in snapshots_a.items():
        if step in snapshots_b:
            parameters.append(_snapshot_distance(step, path, snapshots_b[step]))
    return Course(losses=losses, parameters=parameters)


def _losses(folder: TrialFolder, world_size: int) -> Numbers:
    """Return the losses of the ranks of a run, shape (ranks, steps)."""
    results = [read_rank_result(folder.result_path(rank)) for rank in range(world_size)]
    return np.stack([result.loss.unpack() for result in results if result.loss is not None])


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


def _snapshot_distance(step: int, path_a: Path, path_b: Path) -> Distance:
    """Return the distance of the tensors that both snapshots have."""
    squares = difference_squares = 0.0
    largest_ulp = 0
    names_b = set(tensor_names(path_b))
    for name in tensor_names(path_a):
        if name not in names_b:
            continue
        a, b = read_tensor(path_a, name), read_tensor(path_b, name)
        if a.dtype != b.dtype or a.dtype not in UNSIGNED or not a.numel():
            continue
        squares += float(a.double().square().sum())
        difference_squares += float((a.double() - b.double()).square().sum())
        largest_ulp = max(largest_ulp, ulp_distance(a, b))
    relative = math.sqrt(difference_squares / squares) if squares else 0.0
    return Distance(step=step, relative=relative, ulp=largest_ulp)
