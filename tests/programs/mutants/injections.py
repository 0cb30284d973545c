"""What is planted: which kinds of defects there are, where each strikes, and how it has to be named."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from harness.reproduce.divergence import TraceComparison
from tests.programs.mutants.trials import BATCH_SIZE, STEPS, STEPS_BETWEEN_EVALUATIONS, Setting
from tests.support.mutants import BIT_PARAMETERS

ALL = None  # of the ranks


@dataclass(frozen=True)
class Injection:
    """A defect in a training, and the first difference that it makes."""

    kind: str
    setting: Setting
    options: Mapping[str, Any]  # of the workload that has it
    step: int
    phase: str
    tensor: str  # the first that differs, or one of those of the same moment
    ranks: Sequence[int] = field(default_factory=list)

    def problem(self, comparison: TraceComparison) -> str | None:
        """Return how the defect is named otherwise than it should be; None if it is not."""
        divergence = comparison.divergence
        if divergence is None:
            return "not found"
        mark = divergence.earliest.mark
        tensors = {entry.mark.name for entry in divergence.together}
        named = (mark.step, mark.phase, divergence.ranks)
        if named != (self.step, self.phase, list(self.ranks)) or self.tensor not in tensors:
            return f"named {named} {sorted(tensors)[:3]}"
        return None

    def __str__(self) -> str:
        where = f"step {self.step}, {self.phase}, ranks {list(self.ranks)}, {self.tensor}"
        return f"{self.kind} in {self.setting} seed {self.setting.seed}: {where}"


Draw = Callable[[Random, Setting], Injection | None]


def worker_seeded_by_time(random: Random, setting: Setting) -> Injection:
    """Have a loader worker draw other noise, for one batch of one rank."""
    setting = replace(setting, num_workers=2)
    at, rank = random.randint(1, setting.samples // BATCH_SIZE), _rank(random, setting)
    options = {"mutant": "worker seeded by time", "at": at, "at_rank": rank}
    return Injection("worker seeded by time", setting, options, at, "data", "batch[0]", [rank])


def swapped_samples(random: Random, setting: Setting) -> Injection:
    """Swap samples of two ranks in one batch."""
    at, rank = random.randint(1, STEPS), _rank(random, setting)
    options = {"mutant": "swapped samples", "at": at, "at_rank": rank}
    ranks = sorted([rank, (rank + 1) % setting.world_size])
    return Injection("swapped samples", setting, options, at, "samples", "sample ids", ranks)


def dropped_sample(random: Random, setting: Setting) -> Injection:
    """Have one rank lose a sample of one batch."""
    at, rank = random.randint(1, STEPS), _rank(random, setting)
    options = {"mutant": "dropped sample", "at": at, "at_rank": rank}
    return Injection("dropped sample", setting, options, at, "data", "batch[0]", [rank])


def dropout_in_evaluation(random: Random, setting: Setting) -> Injection:
    """Leave dropout on at one rank, from one evaluation on."""
    at = STEPS_BETWEEN_EVALUATIONS * random.randint(1, STEPS // STEPS_BETWEEN_EVALUATIONS)
    options = {
        "mutant": "dropout in evaluation",
        "at": at,
        "at_rank": _rank(random, setting),
    }
    kind = "dropout in evaluation"
    return Injection(kind, setting, options, at, "evaluation", "error", _all(setting))


def zero_grad_forgotten(random: Random, setting: Setting) -> Injection:
    """Keep the gradients of one step."""
    at = random.randint(1, STEPS - 1)
    options = {"mutant": "zero_grad", "at": at}
    tensor = "inner.0.weight"
    return Injection(
        "zero_grad forgotten", setting, options, at + 1, "all-reduce", tensor, _all(setting)
    )


def summed_gradients(random: Random, setting: Setting) -> Injection:
    """Sum gradients up instead of averaging them."""
    at = random.randint(1, STEPS)
    options = {"mutant": "summed gradients", "at": at}
    tensor = "inner.0.weight"
    return Injection("summed gradients", setting, options, at, "all-reduce", tensor, _all(setting))


def learning_rate(random: Random, setting: Setting) -> Injection:
    """Change the learning rate by one part in a million from one step on."""
    at = random.choice([37, random.randint(1, STEPS)])
    options = {"mutant": "learning rate", "at": at}
    return Injection(
        "learning rate", setting, options, at, "optimizer settings", "group 0 (lr)", _all(setting)
    )


def flipped_bit(random: Random, setting: Setting) -> Injection:
    """Flip a bit of one parameter at one rank; FSDP2's other ranks gather it."""
    at, rank = random.randint(1, STEPS), _rank(random, setting)
    parameter = random.randrange(len(BIT_PARAMETERS))
    options = {
        "mutant": "bit",
        "at": at,
        "at_rank": rank,
        "parameter": parameter,
        "bit": random.choice([*range(23), 31]),  # no exponent, which could make it infinite
    }
    ranks = [rank] if setting.strategy == "ddp" else _all(setting)
    return Injection(
        "flipped bit", setting, options, at, "optimizer", BIT_PARAMETERS[parameter], ranks
    )


def set_epoch_forgotten(random: Random, setting: Setting) -> Injection:
    """Go through the samples in each epoch as in the first."""
    setting = replace(setting, samples=random.choice([512, 1024]))
    kind = "set_epoch forgotten"
    step = setting.samples // BATCH_SIZE + 1
    return Injection(kind, setting, {"mutant": kind}, step, "samples", "sample ids", _all(setting))


def unordered_reduction(random: Random, setting: Setting) -> Injection | None:
    """Add up the ranks in another order from one step on; of two, the order does not matter."""
    if setting.world_size == 2:
        return None
    setting = replace(setting, ordered=True)
    orders = [
        order
        for order in itertools.permutations(range(setting.world_size))
        if set(order[:2]) not in ({0, 1}, {2, 3})
    ]
    at = random.randint(1, STEPS)
    kind = "unordered reduction"
    options = {"mutant": kind, "at": at, "order": list(random.choice(orders))}
    return Injection(kind, setting, options, at, "all-reduce", "inner.0.weight", _all(setting))


def own_batch_norm(random: Random, setting: Setting) -> Injection:
    """Leave each rank its own statistics: DDP's then differ in training, FSDP2's in evaluations."""
    options = {"mutant": "own batch norm"}
    if setting.strategy == "ddp":
        ranks = _all(setting)[1:]
        tensor = "inner.1.running_mean"
        return Injection("own batch norm", setting, options, 2, "buffers", tensor, ranks)
    step = STEPS_BETWEEN_EVALUATIONS
    return Injection("own batch norm", setting, options, step, "evaluation", "error", _all(setting))


def average_at_one_rank(random: Random, setting: Setting) -> Injection:
    """Move the workload's own average of the weights at one rank only, from one step on.

    FSDP2 shards the average as it does the parameters, so that all ranks gather the same.
    """
    setting = replace(setting, average=0.9)
    at, rank = random.randint(2, STEPS), _rank(random, setting)
    kind = "average at one rank"
    options = {"mutant": kind, "at": at, "at_rank": rank}
    ranks = _all(setting)
    tensor = "average['inner.0.weight']"
    if setting.strategy == "ddp":
        ranks.remove(rank)
        tensor = "average['module.inner.0.weight']"  # the loss gets what DDP has wrapped
    return Injection(kind, setting, options, at, "workload state", tensor, ranks)


def after_step(random: Random, setting: Setting) -> Injection:
    """Have the workload's own after_step change a parameter once."""
    at = random.randint(1, STEPS)
    options = {"mutant": "after_step", "at": at}
    return Injection("after_step", setting, options, at, "after_step", "head.bias", _all(setting))


def buffers_in_after_step(random: Random, setting: Setting) -> Injection:
    """Have the workload's own after_step change a buffer once; rank 0's is looked at by itself."""
    kind, at = "buffers in after_step", random.randint(1, STEPS - 1)
    options = {"mutant": kind, "at": at}
    tensor = "inner.1.running_mean"
    return Injection(kind, setting, options, at + 1, "buffers before", tensor, [0])


KINDS: Sequence[Draw] = (
    worker_seeded_by_time,
    swapped_samples,
    dropped_sample,
    dropout_in_evaluation,
    zero_grad_forgotten,
    summed_gradients,
    learning_rate,
    flipped_bit,
    set_epoch_forgotten,
    unordered_reduction,
    own_batch_norm,
    average_at_one_rank,
    after_step,
    buffers_in_after_step,
)


def _rank(random: Random, setting: Setting) -> int:
    """Draw a rank."""
    return random.randrange(setting.world_size)


def _all(setting: Setting) -> list[int]:
    """Return all ranks."""
    return list(range(setting.world_size))


def injections(seed: int, executions: Sequence[str]) -> Iterator[Injection]:
    """Yield injections without end: rounds of every kind in every setting, in a drawn order.

    Settings draw from `executions`, some of which may be there several times.
    """
    for number in itertools.count():
        random = Random(f"{seed} {number}")
        drawn = []
        for draw, strategy, ranks in itertools.product(KINDS, ("ddp", "fsdp2"), (2, 4)):
            execution = random.choice(executions)
            seed_of_trial = number % 2 if execution == "eager" else 0
            setting = Setting(strategy, ranks, execution, seed=seed_of_trial)
            injection = draw(random, setting)
            if injection is not None:
                drawn.append(injection)
        random.shuffle(drawn)
        yield from drawn
