"""Checks of whether a model can learn: loss, gradients, optimizer, and overfitting one batch."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.core.text import listed
from harness.core.validation import finite
from harness.preflight.advice import describe
from harness.preflight.probe import Probe, without_dropout
from harness.preflight.report import CheckFinding, ParameterNorms, passed, problem, skipped
from harness.training.optimization import make_optimizer
from harness.training.ranks import seed_everything
from workloads.base import Batch, Workload

# The loss of a new model, as a multiple of that of a guess. Initializations scatter by much less.
LOWEST_START = 0.6
HIGHEST_START = 1.5
HIGHEST_START_BEYOND = 0.5  # nats, which count where there are few classes
PART_TOLERANCE = 1e-3  # of the gradients of a batch's parts, which are summed up in another order
UNDECLARED = (
    "return the mean over samples, or define loss_weight(batch) as what the loss divides by, such as"
    " the number of target tokens: without it, gradients depend on micro-batches and ranks; those of"
    " a loss that compares samples with each other always do"
)
DECLARED = "loss_weight(batch) has to return what loss(model, batch) divides its sum by"
SEVERAL_CROSS_ENTROPIES = "the loss has several cross-entropies"  # in unknown shares
OTHER_TERMS = "the loss has terms or factors besides its cross-entropy"
LEARNED = 0.05  # of the loss at the start: the batch is overfitted
MAX_STEPS = 300
MAX_SECONDS = 60.0
REACHED_WITHIN = 5  # steps; some layers begin at 0, and pass gradients on after the first step
VANISHING = 1e-5  # of the largest gradient in another layer
EXPLODING = 1e3  # Euclidean norm of all gradients of a new model
RESCUE_RATES = (1e-3, 1e-2)  # of Adam, which learns one batch of nearly anything


def check_softmax(probe: Probe) -> CheckFinding:
    """Check that cross-entropy, which takes a softmax itself, gets none of probabilities."""
    if not probe.calls:
        return skipped("the loss is no cross-entropy")
    scores = probe.calls[-1].scores.float()
    sums = scores.sum(dim=probe.calls[-1].class_dim)
    if bool((scores >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
        classes = probe.calls[-1].classes
        floor = math.log1p((classes - 1) / math.e)
        return problem(
            f"cross-entropy gets probabilities: it can't fall below {floor:.3f}",
            "return logits and drop the softmax: cross_entropy includes one",
        )
    return passed("cross-entropy gets logits")


def check_start(probe: Probe) -> CheckFinding:
    """Check that the loss of a new model is that of a guess.

    Where the loss is too large and its cross-entropy is not, it has other terms, as a detector's.
    """
    if not probe.calls:
        return skipped("the loss is no cross-entropy")
    if len(probe.calls) > 1:
        return skipped(SEVERAL_CROSS_ENTROPIES)
    model = probe.build()
    with without_dropout(model):
        loss = probe.loss(model, probe.batch).item()
    call = probe.calls[-1]
    lowest = LOWEST_START * call.chance
    highest = HIGHEST_START * call.chance + HIGHEST_START_BEYOND
    seen = f"{loss:.3f}; a guess among {call.classes} classes costs {call.chance:.3f}"
    if min(loss, call.mean) > highest:
        return problem(
            f"the loss of a new model is {seen}",
            "a new model is sure of wrong answers: scale the inputs, or initialize the last layer"
            " with smaller weights",
        )
    if loss < lowest:
        return problem(
            f"the loss of a new model is {seen}",
            "a new model can't know better than to guess: look for labels among its inputs, or a loss"
            " that is divided too often",
        )
    if loss > highest:
        return skipped(OTHER_TERMS)
    return passed(f"the loss of a new model is {seen}")


def check_mean(probe: Probe) -> CheckFinding:
    """Check that the loss of a batch is the mean of its parts', weighted by `loss_weight`.

    Otherwise gradients depend on how a batch is cut into micro-batches and ranks.
    """
    model = probe.build()
    doubled: Batch = tuple(torch.cat([tensor, tensor]) for tensor in probe.batch)
    with without_dropout(model):
        single = probe.loss(model, probe.batch).item()
        double = probe.loss(model, doubled).item()
    if not math.isclose(single, 0.0) and math.isclose(double / single, 2.0, rel_tol=0.05):
        return problem(
            "a batch with every sample twice has twice the loss",
            "return the mean over samples: a sum makes the learning rate depend on the batch size,"
            " and DDP's mean over ranks wrong",
        )
    # Batch norm uses the whole batch in training mode.
    model.eval()
    try:
        whole = _gradients(probe, model, probe.batch)
    except Exception as error:  # some models have no loss in evaluation mode
        return skipped(f"the loss can't be computed in evaluation mode: {describe(error)}")
    seed_everything(probe.seed, 1)
    if _mean_error(probe, model, whole, [probe.batch], [1.0]) > PART_TOLERANCE:
        return skipped("the loss draws random numbers")
    return _judge_parts(probe, model, whole)


def _judge_parts(probe: Probe, model: nn.Module, whole: Tensor) -> CheckFinding:
    """Judge whether `whole` is the weighted mean of gradients over parts of the batch."""
    is_weighted = type(probe.workload).loss_weight is not Workload.loss_weight
    weighed_by = "what loss_weight() counts" if is_weighted else "samples"
    cut = probe.cut_parts()
    weights = [torch.as_tensor(probe.workload.loss_weight(part)) for part in cut]
    for weight in weights:
        if weight.numel() != 1 or not 0 <= weight.item() < math.inf:
            return problem(f"loss_weight() returned {weight.tolist()}", DECLARED)
    shares = torch.stack([weight.double().reshape(()) for weight in weights])
    shares /= shares.sum()
    error = _mean_error(probe, model, whole, probe.fetched_parts() or cut, shares.tolist())
    if error <= PART_TOLERANCE:
        return passed(f"the loss is a mean over {weighed_by}")
    measured = (
        f"the gradient of a batch is {error:.2%} off its parts' mean, weighted by {weighed_by}"
    )
    if _mean_error(probe, model, whole, cut, shares.tolist()) <= PART_TOLERANCE:
        return problem(
            f"{measured}, if each part is padded separately",
            "leave out padding in the model and in the loss: ranks pad to their own longest sample",
        )
    return problem(measured, DECLARED if is_weighted else UNDECLARED)


def _mean_error(
    probe: Probe, model: nn.Module, whole: Tensor, parts: Sequence[Batch], shares: Sequence[float]
) -> float:
    """Return how far the weighted mean of the parts' gradients is from `whole`.

    It is relative to the mean norm of the parts' gradients. Parts with a share of 0 are left out: a
    mean over nothing is NaN.
    """
    mean, scale = torch.zeros_like(whole), 0.0
    for part, share in zip(parts, shares, strict=True):
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
    probe.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    gradients = []
    for parameter in model.parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        gradients.append(gradient.double().flatten())
    return torch.cat(gradients)


def parameter_norms(probe: Probe) -> list[ParameterNorms]:
    """Return the norms of all parameters of a new model and of their gradients."""
    model = probe.build()
    probe.loss(model, probe.batch).backward()  # type: ignore[no-untyped-call]
    norms = []
    for name, parameter in model.named_parameters():
        gradient = None
        if parameter.grad is not None:
            gradient = _norm(parameter.grad)
        norms.append(
            ParameterNorms(name=name, parameter=_norm(parameter) or 0.0, gradient=gradient)
        )
    return norms


def _norm(tensor: Tensor) -> float | None:
    """Return the Euclidean norm in double precision, None if it is not finite."""
    return finite(float(tensor.detach().double().norm()))


def check_gradients(probe: Probe) -> CheckFinding:
    """Check that gradients reach every layer, and neither vanish nor explode on the way."""
    model = probe.build()
    probe.loss(model, probe.batch).backward()  # type: ignore[no-untyped-call]
    trained = [(name, part) for name, part in model.named_parameters() if part.requires_grad]
    unused = [name for name, parameter in trained if parameter.grad is None]
    if unused:
        verb = "gets" if len(unused) == 1 else "get"
        return problem(
            f"{listed(unused)} {verb} no gradient",
            "use them in forward or delete them: DDP waits for the gradient of every parameter",
        )
    gradients = {name: _peak(parameter) for name, parameter in trained}
    broken = [name for name, size in gradients.items() if not math.isfinite(size)]
    if broken:
        return problem(
            f"the gradient of {listed(broken)} is not finite",
            "look for sqrt(0), log(0), a division by 0, or a norm of zeros",
        )
    total = math.hypot(*(_norm(part.grad) or 0.0 for _, part in trained if part.grad is not None))
    if total > EXPLODING:
        return problem(
            f"gradients explode: their norm is {total:.2g} in a new model",
            "initialize with smaller weights, normalize between layers, or set max_grad_norm",
        )
    weights = {name: gradients[name] for name, part in trained if part.ndim > 1}
    return _judge_spread(weights, total)


def _judge_spread(weights: dict[str, float], total: float) -> CheckFinding:
    """Judge whether gradients vanish between layers; `weights` has the largest of each layer."""
    reached = {name: size for name, size in weights.items() if size > 0}
    if reached:
        largest = max(reached.values())
        vanishing = [name for name, size in reached.items() if size < VANISHING * largest]
        if vanishing:
            return problem(
                f"gradients vanish: those of {listed(vanishing)} are below"
                f" {VANISHING:g} of the largest",
                "use ReLU or GELU instead of sigmoid or tanh, normalize between layers, add residual"
                " connections, or initialize with larger weights",
            )
    return passed(f"gradients reach {len(weights)} weight tensors, with a norm of {total:.3g}")


def _peak(parameter: nn.Parameter) -> float:
    """Return the largest size of an element of a parameter's gradient."""
    if parameter.grad is None or not parameter.grad.numel():
        return 0.0
    return parameter.grad.detach().double().abs().max().item()


def check_optimizer(probe: Probe) -> CheckFinding:
    """Check that the optimizer has all parameters, and clears their gradients."""
    model = probe.build()
    optimizer = make_optimizer(probe.workload, model, probe.axes)  # as in a trial
    in_optimizer = {id(part) for group in optimizer.param_groups for part in group["params"]}
    parameters = {name: part for name, part in model.named_parameters() if part.requires_grad}
    missing = [name for name, part in parameters.items() if id(part) not in in_optimizer]
    if missing:
        return problem(
            f"the optimizer is missing {listed(missing)}",
            "give it all of model.parameters(), of the model that optimizer() is called with",
        )
    foreign = in_optimizer - {id(part) for part in model.parameters()}
    if foreign:
        return problem(
            f"the optimizer has {len(foreign)} parameters that are not the model's",
            "use the model that optimizer() is called with, not one that was built before",
        )
    probe.loss(model, probe.batch).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    left = [name for name, part in parameters.items() if part.grad is not None and part.grad.any()]
    if left:
        return problem(
            f"zero_grad() leaves the gradients of {listed(left)}",
            "clear them: each step would add its gradients to those of all steps before",
        )
    return passed(f"the optimizer trains {len(parameters)} tensors, and clears their gradients")


@dataclass(kw_only=True)
class Rehearsal:
    """A model that overfits one batch, with the sweep's optimizer and without dropout."""

    probe: Probe

    def __post_init__(self) -> None:
        """Evaluate the new model, train it, and evaluate it again."""
        self.model = self.probe.build()
        self.metrics_before = self._metrics()
        self.reached: set[str] = set()  # parameters that had a gradient other than 0
        self.losses = self._learn(self.model, self.probe.optimizer(self.model))
        self.metrics_after = self._metrics()

    @cached_property
    def rescue(self) -> tuple[float, int] | None:
        """The learning rate at which Adam learns the batch, and its steps; None for none."""
        for rate in RESCUE_RATES:
            model = self.probe.build()
            losses = self._learn(model, torch.optim.Adam(model.parameters(), lr=rate))
            if self._has_learned(losses):
                return rate, len(losses) - 1
        return None

    def _metrics(self) -> dict[str, float] | None:
        """Return the metrics over the batch, None where they are undefined over this few samples."""
        rows = self.probe.rows(self.model, self.probe.batch)
        try:
            return self.probe.workload.metrics(rows)
        except Exception:  # some metrics need both classes, or more samples than these
            return None

    def _learn(self, model: nn.Module, optimizer: Optimizer) -> list[float]:
        """Train until the batch is overfitted or time is up; return the loss before every step.

        The steps in which gradients must reach all parameters are taken even if time is up.
        """
        losses: list[float] = []
        deadline = time.monotonic() + MAX_SECONDS
        with without_dropout(model):
            for step in range(MAX_STEPS + 1):
                loss = self.probe.loss(model, self.probe.batch)
                losses.append(loss.item())
                if not math.isfinite(losses[-1]) or self._has_learned(losses):
                    break
                if step >= REACHED_WITHIN and time.monotonic() > deadline:
                    break
                loss.backward()  # type: ignore[no-untyped-call]
                if step < REACHED_WITHIN:
                    self.reached.update(_with_gradients(model))
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        return losses

    @property
    def has_learned(self) -> bool:
        """Whether the batch is overfitted."""
        return self._has_learned(self.losses)

    def _has_learned(self, losses: Sequence[float]) -> bool:
        """Return whether the last loss is near its lower bound, relative to the first loss.

        A loss that begins at or below the bound has another one, which is unknown.
        """
        if losses[0] <= self.floor:
            return False
        return losses[-1] - self.floor <= LEARNED * (losses[0] - self.floor)

    @property
    def floor(self) -> float:
        """The lower bound of the loss: that of a cross-entropy, 0 of any other."""
        return self.probe.calls[-1].floor if self.probe.calls else 0.0

    @property
    def unknown_floor(self) -> str | None:
        """Why it is unknown how far the loss can fall; None if it is known."""
        calls = self.probe.calls
        if len(calls) > 1 and any(call.floor > 0 for call in calls):
            return f"{SEVERAL_CROSS_ENTROPIES}, and how far it can fall is unknown"
        begins_at_floor = self.losses[0] <= self.floor
        if not begins_at_floor:
            return None
        return f"the loss begins at {self.losses[0]:.3g}, and how far it can fall is unknown"


def _with_gradients(model: nn.Module) -> list[str]:
    """Return the names of the parameters that have a gradient other than 0."""
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and bool(parameter.grad.any())
    ]


def check_one_batch(probe: Probe, rehearsal: Rehearsal) -> CheckFinding:
    """Check that the model can overfit a small batch."""
    losses = rehearsal.losses
    steps = len(losses) - 1
    course = f"the loss of {len(probe.batch[0])} samples goes from {losses[0]:.3g} to {losses[-1]:.3g} in {steps} steps"
    if not math.isfinite(losses[-1]):
        return problem(
            course, "the learning rate is too large, or the loss is not defined everywhere"
        )
    if rehearsal.unknown_floor is not None:
        return skipped(rehearsal.unknown_floor)
    if rehearsal.has_learned:
        return passed(course)
    if steps < MAX_STEPS:
        return skipped(f"{course}, when time was up")
    if rehearsal.rescue is not None:
        rate, needed = rehearsal.rescue
        return problem(
            f"{course}; Adam at {rate:g} needs {needed}",
            "the optimizer or its learning rate keeps the model from learning",
        )
    return problem(
        course,
        "a model that can't overfit a few samples will learn nothing: check labels against inputs,"
        " the loss, and what is detached from the gradient",
    )


def check_reach(probe: Probe, rehearsal: Rehearsal) -> CheckFinding:
    """Check that every parameter has had a gradient other than 0 within some steps."""
    trained = [name for name, part in rehearsal.model.named_parameters() if part.requires_grad]
    dead = [name for name in trained if name not in rehearsal.reached]
    if dead:
        return problem(
            f"{listed(dead)} had a gradient of 0 in each of {REACHED_WITHIN} steps",
            "look for ReLUs that are always off, weights of 0 on both sides, or a factor of 0",
        )
    return passed(f"all {len(trained)} parameters are moved within {REACHED_WITHIN} steps")


def check_direction(probe: Probe, rehearsal: Rehearsal) -> CheckFinding:
    """Check that the target metric gets better in the direction that the workload states."""
    target = probe.workload.target
    before, after = rehearsal.metrics_before, rehearsal.metrics_after
    if before is None or after is None or target.name not in after:
        return skipped(f"{target.name} is not defined over {len(probe.batch[0])} samples")
    if math.isnan(before[target.name] - after[target.name]):
        return skipped(f"{target.name} is not finite")
    if rehearsal.unknown_floor is not None:
        return skipped(rehearsal.unknown_floor)
    if not rehearsal.has_learned or before[target.name] == after[target.name]:
        return skipped(f"{target.name} did not change")
    course = f"{target.name} goes from {before[target.name]:.4g} to {after[target.name]:.4g}"
    has_risen = after[target.name] > before[target.name]
    if has_risen != target.higher_is_better:
        return problem(
            f"{course} while the batch is learned",
            f"Target({target.name!r}) says that"
            f" {'higher' if target.higher_is_better else 'lower'} is better: set higher_is_better",
        )
    return passed(f"{course} while the batch is learned")
