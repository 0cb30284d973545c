"""Evaluation over the exact test set: no sample twice, none lost, at any world size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from harness.core.errors import NotApplied
from harness.spec.axes import Axes
from harness.training.loader import to_device
from harness.training.precision import autocast
from harness.training.ranks import Ranks, broadcast_from_rank_0, gather, share_buffers
from harness.training.strategy import arrange
from workloads.base import Samples, Workload

LOOK = 16  # passes from one question whether to go on to the next


@torch.no_grad()
def evaluate(
    workload: Workload,
    model: nn.Module,
    samples: Samples,
    axes: Axes,
    ranks: Ranks,
    device: torch.device,
    go_on: Callable[[], bool] = lambda: True,
) -> dict[str, float] | None:
    """The workload's metrics over all of `samples`, the same at every rank; None if `go_on`, which every rank asks
    after each LOOK passes, says no.

    Sample i belongs to rank i modulo world size. Ranks make equally many forward passes, because under FSDP2 a pass
    is collective: a rank that has run out repeats a sample and drops what comes of it.
    """
    share_buffers(model)
    model.eval()
    count, batch = len(samples), max(1, axes.batch_size // ranks.world_size)
    mine = list(range(ranks.rank, count, ranks.world_size))
    most = -(-count // ranks.world_size)
    rows = []
    for start in range(0, most, batch):
        indices = mine[start : start + batch]
        with autocast(axes, device):
            result = workload.evaluate(
                model, arrange(to_device(samples.batch(indices or [0]), device), axes)
            )
        if indices:
            rows.append(result.double().cpu().numpy())
        if (start // batch + 1) % LOOK == 0 and not go_on():
            model.train()
            return None
    model.train()
    parts = gather((np.asarray(mine), np.concatenate(rows) if rows else None), ranks)
    metrics = None
    if ranks.is_rank_0:
        order = np.concatenate([indices for indices, _ in parts])
        found = np.concatenate([part for _, part in parts if part is not None])
        if not np.array_equal(np.sort(order), np.arange(count)) or len(found) != count:
            raise NotApplied(
                f"evaluate: gave {len(found)} rows for {count} samples; needed: one row a sample"
            )
        metrics = workload.metrics(torch.from_numpy(found[np.argsort(order)]))
    shared: dict[str, float] = broadcast_from_rank_0(metrics)
    return shared
