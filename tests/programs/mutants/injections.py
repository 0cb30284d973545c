"""What is planted: which kinds of defects there are, where each strikes, and how it has to be named."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import yaml

from harness.records.trace import Recording
from harness.reproduce.divergence import TraceComparison, Traces
from harness.reproduce.tracing import TracedTrial, Tracer
from harness.sweep.cluster import Profile
from harness.sweep.sweep import load_sweep
from tests.support.mutants import BIT_PARAMETERS
from tests.support.tree import TOP

MUTANT = f"{TOP / 'tests' / 'support' / 'mutants.py'}:MutantLine"
STEPS = 48
STEPS_BETWEEN_EVALUATIONS = 12
BATCH_SIZE = 32
TIMEOUT = 300.0  # seconds that a trial may take
EXECUTIONS = ("eager",) * 7 + ("compile",)  # compiled trainings take several times as long
# The phase in which each kind shows first, and the tensor, or one of those of the same moment.
KINDS: Mapping[str, tuple[str, str]] = {
    # A loader worker draws other noise, for one batch of one rank.
    "worker seeded by time": ("data", "batch[0]"),
    # Two ranks have each other's sample in one batch.
    "swapped samples": ("samples", "sample ids"),
    # One rank loses a sample of one batch.
    "dropped sample": ("data", "batch[0]"),
    # Dropout stays on at one rank, from one evaluation on.
    "dropout in evaluation": ("evaluation", "error"),
    # The gradients of one step are kept.
    "zero_grad": ("all-reduce", "inner.0.weight"),
    # Gradients are summed up instead of averaged.
    "summed gradients": ("all-reduce", "inner.0.weight"),
    # The learning rate is another by one part in a million, from one step on.
    "learning rate": ("optimizer settings", "group 0 (lr)"),
    # A bit of one parameter is flipped at one rank; FSDP2's other ranks gather it.
    "bit": ("optimizer", ""),
    # Each epoch goes through the samples as the first does.
    "set_epoch forgotten": ("samples", "sample ids"),
    # Each rank keeps its own statistics: DDP's then differ in training, FSDP2's in evaluations.
    "own batch norm": ("evaluation", "error"),
    # The workload's own average of the weights moves at one rank only, from one step on.
    "average at one rank": ("workload state", "average['inner.0.weight']"),
    # The workload's own after_step changes a parameter once.
    "after_step": ("after_step", "head.bias"),
    # It changes a buffer once; rank 0's is looked at by itself.
    "buffers in after_step": ("buffers before", "inner.1.running_mean"),
}


@dataclass(frozen=True)
class Setting:
    """A training of the tests' mutant workload, without a defect."""

    strategy: str
    world_size: int
    execution: str = "eager"
    num_workers: int = 0
    average: float = 0.0
    static_graph: bool = False
    samples: int = 1024
    seed: int = 0

    @property
    def name(self) -> str:
        """Return a label for it in a sweep."""
        strategy = f"{self.strategy}-static" if self.static_graph else self.strategy
        return f"{strategy}-{self.world_size}-w{self.num_workers}"

    def sweep(self, **options: Any) -> dict[str, Any]:
        """Return a sweep of it; `options` are the workload's, a defect among them."""
        axes = {
            "strategy": self.strategy,
            "world_size": self.world_size,
            "execution": self.execution,
            "num_workers": self.num_workers,
            "batch_size": BATCH_SIZE,
        }
        if self.strategy == "hsdp":
            axes["shard_size"] = self.world_size // 2
        if self.static_graph:
            axes["ddp.static_graph"] = True
        options = {
            "dropout": 0.3,
            "samples": self.samples,
            "average": self.average,
            **options,
        }
        if self.num_workers:
            options["noise"] = 0.1
        return {
            "name": "mutants",
            "workloads": {"mutant": {"uses": MUTANT, "axes": axes, "options": options}},
            "length": {"steps": STEPS},
            "evaluate": {"steps": STEPS_BETWEEN_EVALUATIONS},
            "warmup": 2,
            "seeds": [self.seed],
        }

    def trace(self, folder: Path, **options: Any) -> Traces:
        """Run it with every tensor of every step digested; return its ranks' traces.

        `options` are the workload's, a defect among them. Raises HarnessError if a rank fails.
        """
        folder.mkdir()
        path = folder / "mutants.yaml"
        path.write_text(yaml.safe_dump(self.sweep(**options)), encoding="utf-8")
        (trial,) = load_sweep(path).trials()
        tracer = Tracer(folder, Profile(slots=4, device="cpu"), TIMEOUT)
        traced = TracedTrial(trial=trial, base_folder=folder)
        return tracer.trace(self.name, traced, Recording(last_step=STEPS, all_steps=True)).traces

    def __str__(self) -> str:
        return f"{self.strategy}×{self.world_size} {self.execution}"


@dataclass(frozen=True, kw_only=True)
class Injection:
    """A defect in a training, and the first difference that it makes."""

    kind: str
    setting: Setting
    options: Mapping[str, Any]  # of the workload that has it
    step: int
    phase: str
    tensor: str
    ranks: Sequence[int]

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


def draw(kind: str, random: Random, setting: Setting) -> Injection:
    """Return a defect of a kind, at a random step and rank of this setting."""
    phase, tensor = KINDS[kind]
    rank, at = random.randrange(setting.world_size), random.randint(2, STEPS - 1)
    ranks, step = list(range(setting.world_size)), at
    options: dict[str, Any] = {}
    if kind == "worker seeded by time":
        setting = replace(setting, num_workers=2)
        at = step = random.randint(1, setting.samples // BATCH_SIZE)
        ranks = [rank]
    elif kind == "swapped samples":
        ranks = sorted([rank, (rank + 1) % setting.world_size])
    elif kind == "dropped sample":
        ranks = [rank]
    elif kind == "dropout in evaluation":
        at = step = STEPS_BETWEEN_EVALUATIONS * random.randint(
            1, STEPS // STEPS_BETWEEN_EVALUATIONS
        )
    elif kind == "zero_grad":
        step = at + 1
    elif kind == "bit":
        options["parameter"] = random.randrange(len(BIT_PARAMETERS))
        # No exponent, which could make it infinite.
        options["bit"] = random.choice([*range(23), 31])
        tensor = BIT_PARAMETERS[options["parameter"]]
        if setting.strategy == "ddp":
            ranks = [rank]
    elif kind == "set_epoch forgotten":
        setting = replace(setting, samples=random.choice([512, 1024]))
        step = setting.samples // BATCH_SIZE + 1
    elif kind == "own batch norm" and setting.strategy == "ddp":
        phase, tensor, ranks, step = "buffers", "inner.1.running_mean", ranks[1:], 2
    elif kind == "own batch norm":
        step = STEPS_BETWEEN_EVALUATIONS
    elif kind == "average at one rank":
        setting = replace(setting, average=0.9)
        # FSDP2 shards the average as it does the parameters, so that all ranks gather the same.
        if setting.strategy == "ddp":
            ranks.remove(rank)
            tensor = "average['module.inner.0.weight']"  # the loss gets what DDP has wrapped
    elif kind == "buffers in after_step":
        ranks, step = [0], at + 1
    return Injection(
        kind=kind,
        setting=setting,
        options={"mutant": kind, "at": at, "at_rank": rank, **options},
        step=step,
        phase=phase,
        tensor=tensor,
        ranks=ranks,
    )


def injections(seed: int) -> Iterator[Injection]:
    """Yield injections without end: rounds of every kind in every setting, in a drawn order."""
    for number in itertools.count():
        random = Random(f"{seed} {number}")
        drawn = []
        for kind, strategy, ranks in itertools.product(KINDS, ("ddp", "fsdp2"), (2, 4)):
            execution = random.choice(EXECUTIONS)
            seed_of_trial = number % 2 if execution == "eager" else 0
            setting = Setting(strategy, ranks, execution, seed=seed_of_trial)
            drawn.append(draw(kind, random, setting))
        random.shuffle(drawn)
        yield from drawn
