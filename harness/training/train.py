"""The one training loop, for every workload, strategy, execution and precision."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.core.errors import Interrupted, NonFiniteLoss, NotApplied
from harness.core.paths import TrialFolder, write_atomically
from harness.measure.clock import Phase, StepTimes, step_clock
from harness.measure.memory import PeakMemory
from harness.measure.telemetry import telemetry_for
from harness.records.record import Compiled, Evaluation, Interruption, Target
from harness.spec.axes import setting_that_needs_gpu
from harness.spec.cell import Assignment
from harness.training import checkpoint
from harness.training.evaluate import evaluate
from harness.training.execution import Compiler
from harness.training.fingerprint import digest_parameters
from harness.training.interruption import SIGNAL, is_requested
from harness.training.loader import Fetched, make_loader, to_device
from harness.training.optimization import make_optimizer, make_schedule
from harness.training.order import BatchOrder, OrderDigest
from harness.training.precision import Scaler, apply_matmul_precision, under_autocast
from harness.training.ranks import (
    Ranks,
    all_reduce_min,
    barrier,
    broadcast_from_rank_0,
    derive_seed,
    seed_everything,
)
from harness.training.strategy import arrange, prepare
from workloads.base import Batch, Workload

STRETCH = 2.0  # seconds that a timed stretch should take, after which ranks look at losses and agree to go on
TELL = 0.5  # seconds at least from one word of progress in training to the next


@dataclass
class Trace:
    """What a rank has seen so far; goes into checkpoints, so that a resumed trial has it all."""

    losses: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    step_phases: dict[str, list[float]] = field(default_factory=dict)
    evaluations: list[dict[str, Any]] = field(default_factory=list)  # of `Evaluation`s
    order: tuple[int, int] = (0, 0)
    loader_workers: int = 0  # seen to deliver batches
    interruptions: list[dict[str, Any]] = field(default_factory=list)  # of `Interruption`s
    phases: dict[str, float] = field(default_factory=dict)  # seconds, of earlier attempts
    compiled: dict[str, Any] | None = None  # of `Compiled`, at the last attempt that trained

    def evaluations_seen(self) -> list[Evaluation]:
        return [Evaluation(**evaluation) for evaluation in self.evaluations]


class Training:
    """One trial at one rank, stretch by stretch of nothing but training."""

    def __init__(
        self,
        assignment: Assignment,
        workload: Workload,
        folder: TrialFolder,
        ranks: Ranks,
        device: torch.device,
        trace: Trace,
    ) -> None:
        self.assignment, self.workload, self.folder = assignment, workload, folder
        self.ranks, self.device, self.trace = ranks, device, trace
        self.cell, self.seed = assignment.trial.cell, assignment.trial.seed
        self.axes = self.cell.axes
        self.step = self.first = 0  # optimizer steps done: so far, and by earlier attempts
        self.compiler = Compiler(self.axes, folder.compiler_cache(ranks.rank))
        self.scaler = Scaler(self.axes, device)
        self.loss = under_autocast(self.axes, device, workload.loss)
        self.moves = (
            device.type != "cpu" or self.axes.channels_last
        )  # a batch, before it can be trained on
        self.telemetry = telemetry_for(device, warmup=self.cell.warmup)
        self.phases: dict[str, float] = {}
        self.shared: list[
            float
        ] = []  # the first and the last moment at which all ranks met, on this rank's clock
        self.told = 0.0  # when progress in training was, on the monotonic clock
        self.pace: dict[str, float] = {}  # what it said, for as long as there is nothing newer
        self.stretch = 1  # steps until the next look; longer once it is known what a step takes
        with self.phase("data"):
            self.splits = workload.splits()
        count, batch_size, seed = (
            len(self.splits.train),
            self.axes.batch_size,
            derive_seed(self.seed),
        )
        self.order = BatchOrder(
            samples=count,
            batch_size=batch_size,
            seed=seed,
            rank=ranks.rank,
            world_size=ranks.world_size,
        )
        self.digest = OrderDigest(self.order)
        self.steps = self.cell.length.in_steps(self.order.steps)
        with self.phase("build"):
            self._build()

    def _build(self) -> None:
        if (setting := setting_that_needs_gpu(self.axes)) and self.device.type != "cuda":
            raise NotApplied(f"{setting}; needed: a GPU")
        self.memory = PeakMemory(self.device)
        apply_matmul_precision(self.axes, self.device)
        seed_everything(self.seed)  # the same at every rank: FSDP2 shards what each rank has built
        model = self.workload.build_model()
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.clock = step_clock(self.device)
        self.model = prepare(
            self.workload, model, self.axes, self.device, self.compiler, self.clock
        )
        self.optimizer = make_optimizer(self.workload, self.model.module, self.axes)
        self.schedule = make_schedule(self.workload, self.optimizer, self.axes, self.steps)
        self.loader = make_loader(
            self.splits.train, self.order, self.axes, seed=self.seed, device=self.device
        )
        seed_everything(self.seed, self.ranks.rank)
        place = broadcast_from_rank_0(
            checkpoint.newest(self.folder.best_checkpoints, self.folder.resume_checkpoints)
        )
        if place is not None:
            self._resume(place)

    def _resume(self, place: Path) -> None:
        if self.axes.strategy == "ddp" and self.ranks.world_size > 2:
            self._rehearse()
        model = self.model.module
        self.step, rest = checkpoint.load(place, model, self.optimizer, self.schedule, self.ranks)
        self.first = self.step
        self.scaler.restore(rest["scaler"])
        for name, value in rest["trace"].items():
            setattr(self.trace, name, value)
        self.digest.sums = self.trace.order
        lost = max(0.0, time.time() - rest["at"])
        taken_up = Interruption(step=self.step, at=rest["at"], signal=rest["by"], lost_seconds=lost)
        self.trace.interruptions.append(asdict(taken_up))

    def _rehearse(self) -> None:
        """A forward and a backward that come to nothing, before all state is put back.

        DDP lays out its buckets anew after its first backward, by the order in which gradients came. Where a gradient
        lies decides in which order more than two ranks are added up, and so the last bits of the sum.
        """
        share = range(self.axes.batch_size // self.ranks.world_size // self.axes.grad_accum_steps)
        batch = arrange(to_device(self.splits.train.batch(share), self.device), self.axes)
        loss = self.loss(self.model.training, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad(set_to_none=True)
        if seconds := self.compiler.seconds:
            self.phases |= {"compile": seconds, "build": -seconds}  # it is built meanwhile

    def run(self) -> None:
        """Train to the end; raises NonFiniteLoss, NotApplied, Interrupted and whatever the workload raises."""
        every = self.cell.evaluate.in_steps(self.order.steps)
        if not self._goes_on():
            self._interrupt()
        if self._owes_evaluation(every):
            self._evaluate()
        while self.step < self.steps:
            self.order.epoch, self.order.skip = divmod(self.step, self.order.steps)
            epoch_end = min(self.steps, (self.order.epoch + 1) * self.order.steps)
            with self.phase("loader"):
                batches = iter(self.loader)
            while self.step < epoch_end:
                evaluation = (self.step // every + 1) * every
                self._stretch(batches, min(self.step + self.stretch, epoch_end, evaluation))
                if self.step in (evaluation, self.steps):
                    self._evaluate()

    def _stretch(self, batches: Iterator[Fetched], stop: int) -> None:
        """Nothing but training, timed, up to the step `stop`."""
        losses: list[Tensor] = []
        indices: list[list[int]] = []
        self.telemetry.begin_segment()
        self.clock.start()
        while self.step + len(losses) < stop:
            chosen, worker, batch = next(batches)
            if self.moves:
                self.clock.enter(Phase.host_to_device)
                batch = arrange(to_device(batch, self.device), self.axes)
            losses.append(self._train_step(batch))
            indices.append(chosen)
            self.clock.end_step()
        times = self.clock.stop()
        self.telemetry.end_segment(len(losses))
        self.trace.loader_workers = max(self.trace.loader_workers, worker + 1)
        self.digest.add(self.step, indices)
        self.step = stop
        self._look(torch.stack(losses).float().cpu().numpy(), times)

    def _train_step(self, batch: Batch) -> Tensor:
        parts = self.axes.grad_accum_steps
        loss = self._micro_step(batch) if parts == 1 else self._accumulate(batch, parts)
        self.clock.enter(Phase.optimizer)
        stepped = self.scaler.step(self.optimizer, self.axes.max_grad_norm)
        if self.schedule is not None and stepped:
            self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def _accumulate(self, batch: Batch, parts: int) -> Tensor:
        """The mean loss of equal parts of a batch, in its order; ranks share gradients in the last only."""
        losses = []
        for number, part in enumerate(
            zip(*(tensor.chunk(parts) for tensor in batch), strict=True), 1
        ):
            with self.model.sync(number == parts):
                losses.append(self._micro_step(part, parts))
        return torch.stack(losses).mean()

    def _micro_step(self, batch: Batch, parts: int = 1) -> Tensor:
        self.clock.enter(Phase.forward)
        loss = self.loss(self.model.training, batch)
        self.clock.enter(Phase.backward)
        if self.model.watch is not None:
            self.model.watch(loss)
        self.scaler.backward(loss if parts == 1 else loss / parts)
        return loss.detach()

    def _look(self, losses: NDArray[np.float32], times: StepTimes) -> None:
        """After a stretch: keep its numbers, stop at a loss that is not finite or if a rank was asked to, tell how far
        the trial has come."""
        first, spent = self.step - len(losses), float(times.steps.sum())
        self.trace.losses += losses.tolist()
        self.trace.step_seconds += times.steps.tolist()
        for name, seconds in times.phases.items():
            self.trace.step_phases.setdefault(name, []).extend(seconds.tolist())
        compiling = self.compiler.seconds - self.phases.get("compile", 0.0)
        if compiling:
            self.phases["compile"] = self.compiler.seconds
        self.phases["train"] = self.phases.get("train", 0.0) + spent - compiling
        self._check_applied()
        bad = next(iter(np.flatnonzero(~np.isfinite(losses))), None)
        never = self.steps * self.ranks.world_size
        mine = (
            never if bad is None else (first + int(bad)) * self.ranks.world_size + self.ranks.rank
        )
        longer = min(len(losses) * 10, math.ceil(STRETCH * len(losses) / spent))
        earliest, self.stretch, go_on = all_reduce_min(
            self.device, mine, longer, not is_requested()
        )
        self.shared[1:] = [time.perf_counter()]
        if earliest < never:
            step, rank = divmod(earliest, self.ranks.world_size)
            raise NonFiniteLoss(
                f"the loss became NaN or infinite at step {step + 1} of {self.steps}", rank=rank
            )
        if not go_on:
            self._interrupt()
        if time.monotonic() - self.told > TELL:
            self.told = time.monotonic()
            self.pace = {
                "rate": len(losses) * self.axes.batch_size / spent,
                "loss": float(losses[-1]),
            }
            self._tell("train")

    def _check_applied(self) -> None:
        self.compiler.account()
        if self.axes.num_workers and not self.trace.loader_workers:
            raise NotApplied(
                f"num_workers: {self.axes.num_workers} were asked for and none delivered a batch"
            )

    def _owes_evaluation(self, every: int) -> bool:
        """Whether an earlier attempt was interrupted between a step and the evaluation that follows it."""
        last = max((found["step"] for found in self.trace.evaluations), default=0)
        return self.step > last and (self.step % every == 0 or self.step == self.steps)

    def _evaluate(self) -> None:
        self._tell("evaluate")
        with self.phase("evaluate") as spent:
            module, test = self.model.module, self.splits.test
            metrics = evaluate(
                self.workload, module, test, self.axes, self.ranks, self.device, self._goes_on
            )
        if metrics is None:
            self._interrupt()
        for name, value in metrics.items():
            if not np.isfinite(value):
                raise NonFiniteLoss(
                    f"{name} of the test set became {value} after step {self.step} of {self.steps}"
                )
        epoch = self.step / self.order.steps
        found = Evaluation(step=self.step, epoch=epoch, metrics=metrics, seconds=spent())
        self.trace.evaluations.append(asdict(found))
        if (
            self.assignment.checkpoint == "best"
            and self.target.best(self.trace.evaluations_seen()) == found
        ):
            with self.phase("checkpoint"):
                self._save(self.folder.best_checkpoints)

    def _goes_on(self) -> bool:
        """Whether no rank was asked to stop."""
        return bool(all_reduce_min(self.device, not is_requested())[0])

    def _interrupt(self) -> NoReturn:
        """Leave a checkpoint and end; no rank before it is there, as launchers end all ranks when one has ended."""
        self._tell("interrupted")
        if self.step > self.first:
            self._save(self.folder.resume_checkpoints, by=SIGNAL.name)
        barrier()
        raise Interrupted(f"{SIGNAL.name} after step {self.step} of {self.steps}")

    def _save(self, folder: Path, by: str | None = None) -> None:
        compiled = self.compiled()
        trace = replace(
            self.trace,
            order=self.digest.sums,
            phases=self.spent,
            compiled=asdict(compiled) if compiled else None,
        )
        rest = {"trace": asdict(trace), "scaler": self.scaler.state(), "at": time.time(), "by": by}
        checkpoint.save(
            folder, self.step, self.model.module, self.optimizer, self.schedule, rest, self.ranks
        )

    def compiled(self) -> Compiled | None:
        """What the last attempt that trained has compiled, None for eager; raises NotApplied as `Compiler.account`."""
        if self.step == self.first and self.trace.compiled:
            return Compiled(**self.trace.compiled)
        return self.compiler.account()

    @property
    def spent(self) -> dict[str, float]:
        """Seconds by phase, earlier attempts' too."""
        names, before = self.trace.phases | self.phases, self.trace.phases
        return {name: before.get(name, 0.0) + self.phases.get(name, 0.0) for name in names}

    @property
    def target(self) -> Target:
        return Target(**asdict(self.workload.target))

    @property
    def elapsed(self) -> float | None:
        """Seconds between two moments that all ranks share; None if there were not two."""
        return self.shared[1] - self.shared[0] if len(self.shared) == 2 else None

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

    def _tell(self, phase: str) -> None:
        if self.ranks.is_rank_0:
            content = {
                "phase": phase,
                "step": self.step,
                "steps": self.steps,
                "at": time.time(),
                **self.pace,
            }
            write_atomically(self.folder.progress_path, json.dumps(content), durable=False)
