"""Checks that every rank and every loader worker gets the same samples."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from harness.preflight.probe import Probe, draw, is_equal, seeded_batch, spread_indices
from harness.preflight.report import CheckFinding, passed, problem, skipped
from harness.training.loader import make_loader
from harness.training.order import BatchOrder
from harness.training.ranks import seed_everything
from workloads.base import Batch, load_splits

CLOCK_SECONDS = (
    1.1  # after which samples are drawn again: a generator may be seeded by whole seconds
)
WORKERS = 2  # processes that fetch at the same time
WORKER_BATCHES = 32  # that they fetch, at most
SEED_IT = (
    "draw from torch, numpy or random, which the harness seeds, or from a generator with a fixed seed:"
    " ranks that start at other times would train on other data"
)


def check_indices(probe: Probe) -> CheckFinding:
    """Check that a batch has the requested samples, in their order.

    The harness shuffles by requesting other indices. Samples that ignore them are never shuffled.
    """
    samples = probe.splits.train
    indices = spread_indices(samples)
    if len(indices) < 2:
        return skipped("the training set has a single sample")
    forward = probe.drawn["training"]
    if not is_equal(forward, seeded_batch(samples, indices, probe.seed + 1)):
        return skipped("samples are drawn again each time")
    backward = seeded_batch(samples, indices[::-1], probe.seed)
    if not is_equal(backward, tuple(tensor.flip(0) for tensor in forward)):
        return problem(
            f"batch({indices[::-1]}) is not batch({indices}) in reverse",
            "index your tensors by `indices` and keep their order: shuffling has no effect otherwise",
        )
    return passed("batches have the requested samples, in their order")


def check_repeatable(probe: Probe) -> CheckFinding:
    """Check that the same seed gives the same samples and the same new model, at another time.

    Each rank reads the data and builds the model separately, so values that depend on the clock or
    the system differ between ranks.
    """
    first = probe.drawn
    time.sleep(CLOCK_SECONDS)
    seed_everything(probe.seed)
    again = draw(load_splits(probe.workload), probe.seed)
    for name, batch in first.items():
        if name not in again or not is_equal(batch, again[name]):
            return problem(f"the same seed gives other {name} samples at another time", SEED_IT)
    parameters = probe.build().state_dict()
    for name, value in probe.build().state_dict().items():
        if isinstance(value, torch.Tensor) and not torch.equal(value, parameters[name]):
            return problem(f"the same seed gives a new model another {name}", SEED_IT)
    return passed("the same seed gives the same samples and the same new model")


def check_workers(probe: Probe) -> CheckFinding:
    """Check that WORKERS loader workers fetch the same batches as one.

    Workers are forked from the rank: they share its open files, whose position each of them moves, and
    each has a copy of a generator that the samples keep.
    """
    fetched = [_fetch_by_workers(probe, workers) for workers in (1, WORKERS)]
    for number, (alone, together) in enumerate(zip(*fetched, strict=True)):
        if not is_equal(alone, together):
            return problem(
                f"{WORKERS} loader workers fetch another batch {number} than one",
                "open files where a sample is read, not where the data set is made, and draw from torch,"
                " numpy or random instead of a generator of your own",
            )
    return passed(f"{WORKERS} loader workers fetch the same {len(fetched[0])} batches as one")


def _fetch_by_workers(probe: Probe, workers: int) -> list[Batch]:
    """Return the first batches of an epoch as loader workers fetch them."""
    samples = probe.splits.train
    axes = replace(probe.axes, num_workers=workers)
    order = BatchOrder(
        samples=len(samples),
        batch_size=min(probe.axes.batch_size, len(samples)),
        seed=probe.seed,
        dp_rank=0,
        dp_size=1,
        in_order=getattr(samples, "in_order", False),
    )
    seed_everything(probe.seed)
    loader = make_loader(samples, order, axes, seed=probe.seed, device=probe.device)
    batches = []
    for _, _, batch in loader:
        batches.append(tuple(tensor.cpu().clone() for tensor in batch))
        if len(batches) == WORKER_BATCHES:
            break
    return batches
