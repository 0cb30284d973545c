"""Evaluation over exactly the samples of a test or validation set, at any number of ranks.

A padded or truncated set, which is what torch's DistributedSampler gives, would make metrics
depend on the number of ranks. So each rank evaluates its share, and rank 0 computes the metrics
from all rows in the order of the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from harness.core.errors import BadInput, NotApplied
from harness.spec.axes import Axes
from harness.spec.cell import StopRule
from harness.training.mesh import ParallelMesh
from harness.training.model import evaluation_mode, place_batch, undisturbed
from harness.training.precision import autocast
from harness.training.stopping import LOSS
from harness.training.strategies.base import Strategy
from workloads.base import Samples, Workload

PASSES_BETWEEN_CHECKS = 16  # forward passes after which ranks agree on whether to continue


@torch.no_grad()
def evaluate(
    workload: Workload,
    model: nn.Module,
    samples: Samples,
    axes: Axes,
    strategy: Strategy,
    mesh: ParallelMesh,
    should_continue: Callable[[], bool],
) -> Mapping[str, float] | None:
    """Return the workload's metrics over all of `samples`, the same at every rank.

    Every rank must call this. `model` is the one without the strategy's wrapper. Training goes on as if
    nothing had been evaluated: modes of modules, buffers and random generators are restored. After
    each PASSES_BETWEEN_CHECKS forward passes, every rank calls
    `should_continue`; if that returns False, the evaluation is given up and None returned. Raises
    NotApplied if the workload doesn't return one row for each sample.
    """
    with undisturbed(model, mesh.device):
        strategy.before_evaluation(model)
        return _evaluate(workload, model, samples, axes, strategy, mesh, should_continue)


def _evaluate(
    workload: Workload,
    model: nn.Module,
    samples: Samples,
    axes: Axes,
    strategy: Strategy,
    mesh: ParallelMesh,
    should_continue: Callable[[], bool],
) -> Mapping[str, float] | None:
    """Return what `evaluate` does, with the buffers that the model has now."""
    indices = mesh.test_share(len(samples))
    batch_size = max(1, mesh.rank_batch_size(axes))
    all_rows = []
    # Every rank makes as many passes as the rank with the most samples, because under FSDP2 a
    # forward pass is collective. A rank that has run out repeats sample 0 and drops the result.
    passes = range(0, mesh.largest_test_share(len(samples)), batch_size)
    with evaluation_mode(model):
        for number, start in enumerate(passes, start=1):
            batch_indices = indices[start : start + batch_size]
            batch = place_batch(samples.batch(batch_indices or [0]), axes, mesh.device)
            with autocast(axes, mesh.device):
                rows = workload.evaluate(model, batch)
            if batch_indices:
                all_rows.append(rows.double().cpu())
            if number % PASSES_BETWEEN_CHECKS == 0 and not should_continue():
                return None
    rank_rows = torch.cat(all_rows) if all_rows else None
    shares = mesh.gather((torch.tensor(indices, dtype=torch.int64), rank_rows))
    metrics = None
    if mesh.ranks.is_rank_0:
        rows_in_order = _in_sample_order(shares, len(samples))
        metrics = workload.metrics(rows_in_order)
        metrics = {name: float(value) for name, value in metrics.items()}
    agreed: Mapping[str, float] | None = mesh.broadcast_from_rank_0(metrics)
    return agreed


@torch.no_grad()
def check_metrics(
    workload: Workload,
    model: nn.Module,
    samples: Samples,
    axes: Axes,
    device: torch.device,
    rule: StopRule | None,
) -> None:
    """Raise BadInput if the workload's metrics lack its target, or the metric of the rule for stopping.

    `model` is the one that was just built, before a strategy has it. Two samples are evaluated, and
    what that may change is restored: buffers, the generators of torch, and the modules' modes.
    """
    with undisturbed(model, device), evaluation_mode(model):
        batch = place_batch(samples.batch([0, 1][: len(samples)]), axes, device)
        with autocast(axes, device):
            rows = workload.evaluate(model, batch)
    try:
        metrics = workload.metrics(rows.double().cpu())
    except Exception:
        return  # some metrics, such as an area under a curve, are not defined over two samples
    check_names(workload, metrics, rule)


def check_names(
    workload: Workload, metrics: Mapping[str, float], rule: StopRule | None = None
) -> None:
    """Raise BadInput if metrics lack the workload's target, or what the rule for stopping wants."""
    needed = {workload.target.name: "the workload's target"}
    if rule is not None and rule.metric == "loss":
        needed[LOSS.name] = "which stop.metric names"
    for name, purpose in needed.items():
        if name not in metrics:
            raise BadInput(
                f"{type(workload).__name__}.metrics(): found {', '.join(metrics) or 'nothing'};"
                f" allowed: metrics with {name!r} among them, {purpose}"
            )


def _in_sample_order(shares: Sequence[tuple[Any, Any]], count: int) -> torch.Tensor:
    """Return the rows of all ranks in the order of the samples, shape (samples, columns), float64.

    `shares` has each rank's sample indices and its rows, None for a rank without samples. Raises
    NotApplied unless there is exactly one row for each of `count` samples.
    """
    indices = np.concatenate([share_indices.numpy() for share_indices, _ in shares])
    rows = np.concatenate([rank_rows.numpy() for _, rank_rows in shares if rank_rows is not None])
    each_once = np.array_equal(np.sort(indices), np.arange(count))
    if not each_once or len(rows) != count:
        raise NotApplied(
            f"evaluate() returned {len(rows)} rows for {count} samples; needed: one row per sample"
        )
    return torch.from_numpy(rows[np.argsort(indices)])
