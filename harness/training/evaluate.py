"""Evaluation over exactly the samples of a test or validation set, at any number of ranks.

A padded or truncated set, which is what torch's DistributedSampler gives, would make metrics
depend on the number of ranks. So each rank evaluates its share, and rank 0 computes the metrics
from all rows in the order of the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from harness.core.errors import NotApplied
from harness.training.build import TrialParts
from harness.training.model import undisturbed
from harness.training.ranks import broadcast_from_rank_0, gather
from workloads.base import Samples

PASSES_BETWEEN_CHECKS = 16  # forward passes after which ranks agree on whether to continue


def evaluate(
    parts: TrialParts, samples: Samples, should_continue: Callable[[], bool]
) -> Mapping[str, float] | None:
    """Return the workload's metrics over all of `samples`, the same at every rank.

    Every rank must call this. Training goes on as if nothing had been evaluated. After each
    PASSES_BETWEEN_CHECKS forward passes, every rank calls `should_continue`; if that returns False, the
    evaluation is given up and None returned. Raises NotApplied if the workload doesn't return one row for
    each sample.
    """
    mesh = parts.mesh
    count = len(samples)
    indices = range(mesh.rank, count, mesh.world_size)  # of this rank
    batch_size = max(1, parts.axes.batch_size // mesh.world_size)
    all_rows = []
    # Every rank makes as many passes as rank 0, which has the most samples, because under FSDP2 a
    # forward pass is collective. A rank that has run out repeats sample 0 and drops the result.
    passes = range(0, -(-count // mesh.world_size), batch_size)
    with undisturbed(parts.model, mesh.device):
        parts.strategy.before_evaluation(parts.model)
        for number, start in enumerate(passes, start=1):
            batch_indices = indices[start : start + batch_size]
            rows = parts.result_rows(samples, batch_indices or [0])
            if batch_indices:
                all_rows.append(rows)
            if number % PASSES_BETWEEN_CHECKS == 0 and not should_continue():
                return None
        shares = gather(torch.cat(all_rows) if all_rows else None)
        metrics: Mapping[str, float] | None = None
        if shares:
            computed = parts.workload.metrics(_in_sample_order(shares, count))
            metrics = {name: float(value) for name, value in computed.items()}
        agreed: Mapping[str, float] | None = broadcast_from_rank_0(metrics)
    return agreed


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
