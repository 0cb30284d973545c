"""The one training loop, for every workload, strategy, execution and precision."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness import checkpoint
from harness.cell import Assignment
from harness.dist import Ranks, derive_seed, seed_everything
from harness.errors import NonFiniteLoss, NotApplied
from harness.evaluate import evaluate
from harness.fingerprint import digest_parameters
from harness.loader import Fetched, make_loader, to_device
from harness.measure.clock import step_clock
from harness.order import BatchOrder, OrderDigest
from harness.paths import TrialFolder, write_whole
from harness.record import Evaluation, Target
from harness.strategy import autocast, compiled_graphs, prepare
from workloads.base import Workload

STRETCH = 0.5  # seconds of uninterrupted timing, after which losses are looked at and progress is told


@dataclass
class Trace:
    """What a rank has seen so far; goes into checkpoints, so that a resumed trial has it all."""

    losses: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    wait_seconds: list[float] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)  # of `Evaluation`s
    order: tuple[int, int] = (0, 0)
    resumed_at: list[int] = field(default_factory=list)

    def evaluations_seen(self) -> list[Evaluation]:
        return [Evaluation(**evaluation) for evaluation in self.evaluations]


class Training:
    """One trial at one rank. Between `pause`s nothing happens but training."""

    def __init__(
        self, assignment: Assignment, workload: Workload, folder: TrialFolder, ranks: Ranks, device: torch.device
    ) -> None:
        self.assignment, self.workload, self.folder, self.ranks, self.device = (
            assignment,
            workload,
            folder,
            ranks,
            device,
        )
        self.cell, self.seed = assignment.trial.cell, assignment.trial.seed
        self.axes = self.cell.axes
        self.phases: dict[str, float] = {}
        self.graphs: int | None = None
        self.trace, self.step, self.loader_workers, self.place = Trace(), 0, 0, checkpoint.newest(folder.best)
        self._losses: list[Tensor] = []
        self._indices: list[Any] = []
        with self.phase("data"):
            self.splits = workload.splits()
        order_seed = derive_seed(self.seed)
        self.order = BatchOrder(
            samples=len(self.splits.train),
            batch_size=self.axes.batch_size,
            seed=order_seed,
            rank=ranks.rank,
            world_size=ranks.world_size,
        )
        self.digest = OrderDigest(self.order)
        self.steps = self.cell.length.in_steps(self.order.steps)
        with self.phase("build"):
            self._build()

    def _build(self) -> None:
        seed_everything(self.seed)  # the same at every rank: FSDP2 shards what each rank has built
        model = self.workload.build_model()
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.model = prepare(self.workload, model, self.axes, self.device)
        self.optimizer = self.workload.optimizer(self.model.module)
        self.schedule = self.workload.schedule(self.optimizer, self.steps)
        self.loader = make_loader(
            self.splits.train, self.order, workers=self.axes.workers, seed=self.seed, device=self.device
        )
        self.clock = step_clock(self.device)
        seed_everything(self.seed, self.ranks.rank)
        if self.place is not None:
            self._resume()

    def _resume(self) -> None:
        assert self.place is not None
        self.step, rest = checkpoint.load(self.place, self.model.module, self.optimizer, self.schedule, self.ranks)
        self.trace = Trace(**rest["trace"])
        self.trace.resumed_at.append(self.step)
        self.digest.sums = self.trace.order

    def run(self) -> None:
        """Train to the end; raises NonFiniteLoss, NotApplied and whatever the workload raises."""
        every = self.cell.evaluate.in_steps(self.order.steps)
        while self.step < self.steps:
            self.order.epoch, self.order.skip = divmod(self.step, self.order.steps)
            stop = min(self.steps, (self.order.epoch + 1) * self.order.steps)
            with self.phase("loader"):
                batches = iter(self.loader)
            self.clock.start()
            while self.step < stop:
                elapsed = self._train_step(next(batches))
                ends_here = self.step == stop or self.step % every == 0
                if ends_here or elapsed > STRETCH:
                    self._pause()
                    if ends_here and (self.step == self.steps or self.step % every == 0):
                        self._evaluate()
                    self.clock.start()

    def _train_step(self, fetched: Fetched) -> float:
        """Returns the seconds since the stretch began."""
        indices, worker, batch = fetched
        self.clock.fetched()
        batch = to_device(batch, self.device)
        with autocast(self.axes, self.device):
            loss = self.workload.loss(self.model.training, batch)
        loss.backward()
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._losses.append(loss.detach())
        self._indices.append(indices)
        self.loader_workers = max(self.loader_workers, worker + 1)
        self.step += 1
        return self.clock.lap()

    def _pause(self) -> None:
        """End a timed stretch: read the clock, look at the losses, tell how far the trial has come."""
        self.clock.stop()
        first = self.step - len(self._losses)
        losses = torch.stack(self._losses).float().cpu().numpy()
        self.digest.add(first, self._indices)
        self._losses, self._indices = [], []
        self._check_applied()
        for offset in np.flatnonzero(~np.isfinite(losses))[:1]:
            raise NonFiniteLoss(f"the loss became {losses[offset]} at step {first + int(offset) + 1} of {self.steps}")
        self.trace.losses += losses.tolist()
        self.trace.step_seconds += self.clock.steps
        self.trace.wait_seconds += self.clock.waits
        spent = sum(self.clock.steps)
        self.phases["train"] = self.phases.get("train", 0.0) + spent
        self._tell("train", rate=len(losses) * self.axes.batch_size / spent, loss=float(losses[-1]))
        self.clock.steps, self.clock.waits = [], []

    def _check_applied(self) -> None:
        self.graphs = compiled_graphs(self.axes)
        if self.axes.workers and not self.loader_workers:
            raise NotApplied(f"workers: {self.axes.workers} were asked for and none delivered a batch")

    def _evaluate(self) -> None:
        self._tell("evaluate")
        with self.phase("evaluate") as spent:
            module, test = self.model.module, self.splits.test
            metrics = evaluate(self.workload, module, test, self.axes, self.ranks, self.device)
        for name, value in metrics.items():
            if not np.isfinite(value):
                raise NonFiniteLoss(f"{name} of the test set became {value} after step {self.step} of {self.steps}")
        epoch = self.step / self.order.steps
        found = Evaluation(step=self.step, epoch=epoch, metrics=metrics, seconds=spent())
        self.trace.evaluations.append(asdict(found))
        if self.assignment.checkpoint == "best" and self.target.best(self.trace.evaluations_seen()) == found:
            with self.phase("checkpoint"):
                self._save()

    def _save(self) -> None:
        self.trace.order = self.digest.sums
        rest = {"trace": asdict(self.trace)}
        model, place = self.model.module, self.folder.best
        checkpoint.save(place, self.step, model, self.optimizer, self.schedule, rest, self.ranks)

    @property
    def target(self) -> Target:
        return Target(**asdict(self.workload.target))

    def fingerprint(self) -> str:
        """The digest of the final parameters; every rank must take part."""
        with self.phase("fingerprint"):
            return digest_parameters(self.model.module)

    @contextmanager
    def phase(self, name: str) -> Iterator[Any]:
        """Adds the block's seconds to a phase; yields a function that tells them."""
        start = time.perf_counter()
        yield lambda: time.perf_counter() - start
        self.phases[name] = self.phases.get(name, 0.0) + time.perf_counter() - start

    def _tell(self, phase: str, **more: float) -> None:
        if self.ranks.first:
            content = {"phase": phase, "step": self.step, "steps": self.steps, "at": time.time(), **more}
            write_whole(self.folder.progress, json.dumps(content), durable=False)
