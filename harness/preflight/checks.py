"""Checks of a workload: its model, loss, evaluation and optimizer, and that all ranks get the same samples."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from harness.core.errors import NotApplied
from harness.core.text import listed
from harness.preflight.probe import (
    Probe,
    draw,
    is_equal,
    seeded_batch,
    spread_indices,
    without_dropout,
)
from harness.preflight.report import CheckFinding, passed, problem, skipped
from harness.training.loader import make_loader
from harness.training.model import check_training_mode, make_optimizer
from harness.training.order import BatchOrder
from harness.training.ranks import seed_everything
from workloads.base import Batch, Workload, load_splits

PART_TOLERANCE = 1e-3  # of the gradients of a batch's parts, which are summed up in another order
UNDECLARED = (
    "return the mean over samples, or define loss_weight(batch) as what the loss divides by, such as"
    " the number of target tokens: without it, gradients depend on micro-batches and ranks; those of"
    " a loss that compares samples with each other always do"
)
DECLARED = "loss_weight(batch) has to return what loss(model, batch) divides its sum by"
# Of the loss at the start: the batch is overfitted. One that only learns how frequent each class is
# stays above it, and label smoothing leaves a loss that no model can go below.
OVERFITTED = 0.5
MAX_STEPS = 300
RESCUE_RATES = (1e-3, 1e-2)  # of Adam, which overfits one batch of nearly anything


def check_loss(probe: Probe) -> CheckFinding:
    """Check that the loss is a finite scalar with a gradient."""
    loss = probe.workload.loss(probe.build(), probe.batch)
    if loss.ndim:
        return problem(
            f"the loss has shape {tuple(loss.shape)}", "return the mean over the batch: a scalar"
        )
    if not loss.isfinite():
        return problem(
            f"the loss of a new model is {loss.item()}",
            "look for values of samples that are not finite, log(0) or a division by 0",
        )
    if not loss.requires_grad:
        return problem(
            "the loss has no gradient",
            "something disconnects it from the parameters: .detach(), .item(), torch.no_grad() or argmax",
        )
    return passed(f"the loss of a new model is {loss.item():.4g}")


def check_mean(probe: Probe) -> CheckFinding:
    """Check that the loss of a batch is the mean of its parts', weighted by `loss_weight`.

    Otherwise gradients depend on how a batch is cut into micro-batches and ranks.
    """
    # Batch norm uses the whole batch in training mode.
    model = probe.build().eval()
    try:
        whole = _gradients(probe, model, probe.batch)
    except Exception as problem_of_mode:  # some models have no loss in evaluation mode
        return skipped(f"the loss can't be computed in evaluation mode: {problem_of_mode}")
    seed_everything(probe.seed, 1)
    repeated_error = _mean_error(probe, model, whole, [probe.batch], [1.0])
    if repeated_error > PART_TOLERANCE:
        return skipped("the loss draws random numbers")
    weights = []
    for part in probe.cut_parts():
        weight = torch.as_tensor(probe.workload.loss_weight(part))
        if weight.numel() != 1 or not 0 <= weight.item() < math.inf:
            return problem(f"loss_weight() returned {weight.tolist()}", DECLARED)
        weights.append(weight.item())
    return _check_parts(probe, model, whole, weights)


def _check_parts(
    probe: Probe,
    model: nn.Module,
    whole: Tensor,
    weights: Sequence[float],
) -> CheckFinding:
    """Check that the gradients `whole` of a batch are the weighted mean of its parts' gradients."""
    is_weighted = type(probe.workload).loss_weight is not Workload.loss_weight
    weighed_by = "what loss_weight() counts" if is_weighted else "samples"
    cut = probe.cut_parts()
    parts = probe.fetched_parts() or cut
    error = _mean_error(probe, model, whole, parts, weights)
    if error <= PART_TOLERANCE:
        return passed(f"the loss is a mean over {weighed_by}")
    measured = (
        f"the gradient of a batch is {error:.2%} off its parts' mean, weighted by {weighed_by}"
    )
    if _mean_error(probe, model, whole, cut, weights) <= PART_TOLERANCE:
        return problem(
            f"{measured}, if each part is padded separately",
            "leave out padding in the model and in the loss: ranks pad to their own longest sample",
        )
    return problem(measured, DECLARED if is_weighted else UNDECLARED)


def _mean_error(
    probe: Probe,
    model: nn.Module,
    whole: Tensor,
    parts: Sequence[Batch],
    weights: Sequence[float],
) -> float:
    """Return how far the weighted mean of the parts' gradients is from `whole`.

    It is relative to the mean norm of the parts' gradients. Parts with a weight of 0 are left out: a
    mean over nothing is NaN.
    """
    total = sum(weights)
    mean = torch.zeros_like(whole)
    scale = 0.0
    for part, weight in zip(parts, weights, strict=True):
        share = weight / total
        if share:
            gradients = _gradients(probe, model, part)
            mean += share * gradients
            scale += share * float(gradients.norm())
    error = float((mean - whole).norm())
    if error == 0:
        return 0.0
    return error / scale if scale else math.inf


def _gradients(probe: Probe, model: nn.Module, batch: Batch) -> Tensor:
    """Return the gradients of the loss of a batch in fp64, flattened, shape (parameters,)."""
    model.zero_grad(set_to_none=True)
    probe.workload.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    gradients = []
    for parameter in model.parameters():
        gradient = parameter.grad
        if gradient is None:
            gradient = torch.zeros_like(parameter)
        gradients.append(gradient.to_dense().double().flatten())
    return torch.cat(gradients)


def check_evaluation(probe: Probe) -> CheckFinding:
    """Check that an evaluation draws no random numbers and changes no buffer."""
    model = probe.build()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    seed_everything(probe.seed, 1)
    rows = probe.rows(model, probe.batch)
    seed_everything(probe.seed, 2)
    again = probe.rows(model, probe.batch)
    changed = []
    for name, buffer in model.named_buffers():
        if not torch.equal(buffer, buffers[name]):
            changed.append(name)
    if changed:
        return problem(
            f"an evaluation changes {listed(changed)}",
            "a part of the model is in training mode while it is evaluated: call no .train() in"
            " forward or evaluate, and pass training=self.training to functions",
        )
    if not torch.equal(rows, again):
        return problem(
            "two evaluations of the same samples differ",
            "dropout is active while it is evaluated: use nn.Dropout, or pass training=self.training"
            " to functional.dropout",
        )
    return passed("the same samples are always evaluated alike")


def check_mode(probe: Probe) -> CheckFinding:
    """Check that the model is built to be trained, and that a loss changes no module's mode."""
    model = probe.build()
    try:
        check_training_mode(probe.workload, model)
    except NotApplied as error:
        return problem(str(error), "call model.train() in build_model, before any part is frozen")
    modules = dict(model.named_modules())
    before = {name: module.training for name, module in modules.items()}
    probe.workload.loss(model, probe.batch)
    switched = []
    for name, module in modules.items():
        if module.training != before[name]:
            switched.append(name or "the model")
    if switched:
        return problem(
            f"the loss switches {listed(switched)} between training and evaluation mode",
            "call no .train() or .eval() in loss or forward: dropout and batch norm would train as if"
            " they were evaluated, or the other way round",
        )
    return passed("computing a loss leaves the modes of all modules as they are")


def check_optimizer(probe: Probe) -> CheckFinding:
    """Check that the optimizer has all parameters of the model, and no others."""
    model = probe.build()
    optimizer = make_optimizer(probe.workload, model, probe.axes)
    in_optimizer: set[int] = set()
    for group in optimizer.param_groups:
        in_optimizer.update(map(id, group["params"]))
    trainable = 0
    missing = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        trainable += 1
        if id(parameter) not in in_optimizer:
            missing.append(name)
    if missing:
        return problem(
            f"the optimizer is missing {listed(missing)}",
            "give it all of model.parameters(), of the model that optimizer() is called with",
        )
    foreign = in_optimizer.difference(map(id, model.parameters()))
    if foreign:
        return problem(
            f"the optimizer has {len(foreign)} parameters that are not the model's",
            "use the model that optimizer() is called with, not one that was built before",
        )
    return passed(f"the optimizer trains {trainable} tensors")


def check_one_batch(probe: Probe) -> CheckFinding:
    """Check that the model can overfit a small batch: its loss falls to OVERFITTED of the start.

    A model that is trained already, whose loss is low at the start, has to lower it at all.
    """
    model = probe.build()
    optimizer = make_optimizer(probe.workload, model, probe.axes)
    losses = _overfit(probe, model, optimizer)
    steps = len(losses) - 1
    course = (
        f"the loss of {len(probe.batch[0])} samples goes from {losses[0]:.3g} to {losses[-1]:.3g}"
        f" in {steps} steps"
    )
    if _is_overfitted(losses):
        return passed(course)
    has_fallen = min(losses[1:]) < losses[0]
    if has_fallen and _is_trained(probe, losses[0]):
        return passed(f"{course}; the model was trained before")
    for rate in RESCUE_RATES:
        model = probe.build()
        adam = Adam(model.parameters(), lr=rate)
        rescued = _overfit(probe, model, adam)
        if _is_overfitted(rescued):
            return problem(
                f"{course}; Adam at {rate:g} needs {len(rescued) - 1}",
                "the optimizer or its learning rate keeps the model from learning",
            )
    return problem(
        course,
        "a model that can't overfit a few samples will learn nothing: check labels against inputs,"
        " the loss, and what is detached from the gradient",
    )


def _overfit(probe: Probe, model: nn.Module, optimizer: Optimizer) -> list[float]:
    """Train without dropout until the batch is overfitted; return the loss before every step."""
    losses: list[float] = []
    with without_dropout(model):
        for _ in range(MAX_STEPS + 1):
            loss = probe.workload.loss(model, probe.batch)
            losses.append(loss.item())
            if not math.isfinite(losses[-1]) or _is_overfitted(losses):
                break
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return losses


def _is_trained(probe: Probe, loss: float) -> bool:
    """Return whether a model has learned: its loss is far below that with its weights shuffled."""
    model = probe.build()
    with torch.no_grad(), without_dropout(model):
        for parameter in model.parameters():
            order = torch.randperm(parameter.numel(), device=parameter.device)
            shuffled_values = parameter.flatten()[order]
            parameter.copy_(shuffled_values.view_as(parameter))
        shuffled_loss = probe.workload.loss(model, probe.batch).item()
    return loss < OVERFITTED * shuffled_loss


def _is_overfitted(losses: Sequence[float]) -> bool:
    """Return whether the last loss is far below the first; one that begins at or below 0 has to fall."""
    limit = OVERFITTED * abs(losses[0])
    return losses[-1] < min(losses[0], limit)


CLOCK_SECONDS = 1.1  # until samples are drawn again: a generator may be seeded by whole seconds
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
    of_other_seed = seeded_batch(samples, indices, probe.seed + 1)
    if not is_equal(forward, of_other_seed):
        return skipped("samples are drawn again each time")
    backward = seeded_batch(samples, indices[::-1], probe.seed)
    in_reverse = tuple(tensor.flip(0) for tensor in forward)
    if not is_equal(backward, in_reverse):
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
    of_other_model = probe.build().state_dict()
    for name, value in of_other_model.items():
        if isinstance(value, torch.Tensor) and not torch.equal(value, parameters[name]):
            return problem(f"the same seed gives a new model another {name}", SEED_IT)
    return passed("the same seed gives the same samples and the same new model")


def check_workers(probe: Probe) -> CheckFinding:
    """Check that WORKERS loader workers fetch the same batches as one.

    Workers are forked from the rank: they share its open files, whose position each of them moves, and
    each has a copy of a generator that the samples keep.
    """
    by_one = _fetch_by_workers(probe, 1)
    by_all = _fetch_by_workers(probe, WORKERS)
    pairs = zip(by_one, by_all, strict=True)
    for number, (alone, together) in enumerate(pairs):
        if not is_equal(alone, together):
            return problem(
                f"{WORKERS} loader workers fetch another batch {number} than one",
                "open files where a sample is read, not where the data set is made, and draw from torch,"
                " numpy or random instead of a generator of your own",
            )
    return passed(f"{WORKERS} loader workers fetch the same {len(by_one)} batches as one")


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
    for _, batch in islice(loader, WORKER_BATCHES):
        copy = tuple(tensor.cpu().clone() for tensor in batch)
        batches.append(copy)
    return batches
