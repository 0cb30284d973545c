"""Evaluation over exactly the samples of a test or validation set, at any number of ranks.

A padded or truncated set, which is what torch's DistributedSampler gives, would make metrics
depend on the number of ranks. So each rank evaluates its share, and rank 0 computes the metrics
from all rows in the order of the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from harness.core.errors import BadInput, NotApplied
from harness.spec.axes import Axes
from harness.spec.cell import StopRule
from harness.training.mesh import ParallelMesh
from harness.training.model import place_batch, undisturbed
from harness.training.precision import autocast
from harness.training.ranks import broadcast_from_rank_0, gather
from harness.training.stopping import LOSS
from harness.training.strategies.base import Strategy
from workloads.base import Samples, Workload

PASSES_BETWEEN_CHECKS = 16  # forward passes after which ranks agree on whether to continue


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
    nothing had been evaluated. After each PASSES_BETWEEN_CHECKS forward passes, every rank calls
    `should_continue`; if that returns False, the evaluation is given up and None returned. Raises
    NotApplied if the workload doesn't return one row for each sample.
    """
    count = len(samples)
    indices = range(mesh.rank, count, mesh.size)  # of this rank
    batch_size = max(1, axes.batch_size // mesh.size)
    all_rows = []
    # Every rank makes as many passes as rank 0, which has the most samples, because under FSDP2 a
    # forward pass is collective. A rank that has run out repeats sample 0 and drops the result.
    passes = range(0, -(-count // mesh.size), batch_size)
    with undisturbed(model, mesh.device):
        strategy.before_evaluation(model)
        for number, start in enumerate(passes, start=1):
            batch_indices = indices[start : start + batch_size]
            rows = _rows(workload, model, samples, batch_indices or [0], axes, mesh.device)
            if batch_indices:
                all_rows.append(rows)
            if number % PASSES_BETWEEN_CHECKS == 0 and not should_continue():
                return None
        shares = gather(torch.cat(all_rows) if all_rows else None)
        metrics: Mapping[str, float] | None = None
        if shares:
            computed = workload.metrics(_in_sample_order(shares, count))
            metrics = {name: float(value) for name, value in computed.items()}
        agreed: Mapping[str, float] | None = broadcast_from_rank_0(metrics)
    return agreed


def check_metrics(
    workload: Workload,
    model: nn.Module,
    samples: Samples,
    axes: Axes,
    device: torch.device,
    rule: StopRule | None,
) -> None:
    """Raise BadInput if the workload's metrics lack its target, or the metric of the rule for stopping.

    `model` is the one that was just built, before a strategy has it. Two samples are evaluated, which
    leaves everything as it was.
    """
    with undisturbed(model, device):
        rows = _rows(workload, model, samples, [0, 1][: len(samples)], axes, device)
        try:
            metrics = workload.metrics(rows)
        except Exception:
            return  # some metrics, such as an area under a curve, are not defined over two samples
    needed = {workload.target.name: "the workload's target"}
    if rule is not None and rule.metric == "loss":
        needed[LOSS.name] = "which stop.metric names"
    for name, purpose in needed.items():
        if name not in metrics:
            raise BadInput(
                f"{type(workload).__name__}.metrics(): found {', '.join(metrics) or 'nothing'};"
                f" allowed: metrics with {name!r} among them, {purpose}"
            )


def _rows(
    workload: Workload,
    model: nn.Module,
    samples: Samples,
    indices: Sequence[int],
    axes: Axes,
    device: torch.device,
) -> Tensor:
    """Return a row of float64 for each of some samples, on the CPU."""
    batch = place_batch(samples.batch(indices), axes, device)
    with autocast(axes, device):
        rows = workload.evaluate(model, batch)
    return rows.double().cpu()


def _in_sample_order(shares: Sequence[Tensor | None], count: int) -> Tensor:
    """Return the rows of all ranks in the order of the samples, shape (samples, columns).

    `shares` has each rank's rows, None for a rank without samples. Raises NotApplied unless there is
    exactly one row for each of `count` samples.
    """
    first = shares[0]
    assert first is not None, "rank 0 has a sample if there is one"
    in_order = first.new_empty((count, *first.shape[1:]))
    for rank, rows in enumerate(shares):
        share = in_order[rank :: len(shares)]
        if rows is None:
            continue
        if len(rows) != len(share):
            raise NotApplied(
                f"evaluate() returned {len(rows)} rows for {len(share)} samples of rank {rank};"
                " needed: one row per sample"
            )
        share.copy_(rows)
    return in_order
