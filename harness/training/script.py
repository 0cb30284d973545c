"""Runs a script that trains in its own loop, and watches its steps through torch's own hooks.

Torch calls hooks before and after the step of every optimizer. A step of the training ends where the
leading optimizer has stepped: the one that stepped first, until another one steps twice without it.
So of a critic and a generator in turn it is a step of the critic, with five critics' steps to one of the
generator as well, and optimizers one after the other, as of folds, have all their steps counted. One that
is made anew for the same parameters takes the place of the old one. What happens between two steps
belongs to the second one, but for pauses (`script_watch`). Of its parts only that of the optimizers is
seen. Of the first step nothing else is, so it is always one of the warm-up.
"""

from __future__ import annotations

import hashlib
import math
import os
import runpy
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from harness.core.errors import Interrupted, NonFiniteLoss, NotApplied
from harness.core.paths import TrialFolder
from harness.core.reporting import listening
from harness.measure.clock import Phase, SegmentTimes, StepClock, step_clock
from harness.measure.memory import PeakMemory
from harness.measure.telemetry import TelemetrySampler, telemetry_for
from harness.records.assignment import Assignment
from harness.records.record import Evaluation, Rank0Report, RankResult, TargetMetric
from harness.spec.axes import AXES
from harness.spec.cell import ESCAPED, MAX_STEPS, PLACEHOLDER, placeholders_of
from harness.spec.files import check_code
from harness.training.entry import environment_of, prepare_rank, read_initial_environment
from harness.training.fingerprint import add_tensor
from harness.training.interruption import is_requested
from harness.training.progress import ProgressFile
from harness.training.ranks import Ranks, choose_device, seed_everything
from harness.training.script_watch import PAUSE_RATIO, LoadedSamples, Pauses, watch
from harness.training.state import TrainingState
from harness.training.stopping import LOSS
from harness.training.train import SEGMENT_SECONDS, Hooks, Segment
from harness.training.tree_reduction import local_part
from workloads.importing import make_importable

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


class _LengthReached(BaseException):
    """Ends a script after the steps of its trial, also where it catches every Exception."""


class StepReports:
    """What a script has reported of its steps at this rank."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, Any]] = []  # steps and losses, which are read in `settle`
        self._losses: dict[int, list[float]] = {}  # by step, counted from 0
        self._samples: dict[int, int] = {}  # by step

    def add(self, step: int, loss: Any, samples: int | None) -> None:
        """Add what was reported of a step, counted from 0; raises ValueError for negative samples."""
        if samples is not None and samples < 0:
            raise ValueError(f"harness.report: samples: found {samples}; allowed: 0 or more")
        if loss is not None:
            # Not the tensor itself: CUDA graphs write the next loss into the same memory.
            kept = loss.detach().clone() if isinstance(loss, Tensor) else loss
            self._pending.append((step, kept))
        if samples is not None:
            self._samples[step] = self._samples.get(step, 0) + int(samples)

    def settle(self) -> None:
        """Read the losses that were reported since, which waits for the device."""
        for step, loss in self._pending:
            self._losses.setdefault(step, []).append(float(loss))
        self._pending.clear()

    def mean_losses(self, start: int, stop: int) -> list[float]:
        """Return the mean loss of each step from `start` on, NaN where none was reported."""
        means = []
        for step in range(start, stop):
            losses = self._losses.get(step)
            means.append(sum(losses) / len(losses) if losses else math.nan)
        return means

    def drop_unfinished_samples(self, steps_done: int) -> None:
        """Drop the samples of steps that never ended, as some of theirs are missing."""
        for step in [step for step in self._samples if step >= steps_done]:
            del self._samples[step]

    def first_bad_step(self) -> int | None:
        """Return the first step, counted from 0, whose loss was reported as NaN or infinite."""
        bad = [step for step, losses in self._losses.items() if not math.isfinite(sum(losses))]
        return min(bad, default=None)

    @property
    def samples_per_step(self) -> float | None:
        """The mean number of samples of the steps that have reported some, None without any."""
        if not self._samples:
            return None
        return sum(self._samples.values()) / len(self._samples)


class ScriptObserver:
    """Watches the optimizers of a script at one rank, segment by segment as the harness's own loop.

    What it sees is in `state`. To be used through `observe`.
    """

    def __init__(
        self,
        assignment: Assignment,
        folder: TrialFolder,
        ranks: Ranks,
        state: TrainingState,
        stack: ExitStack,
    ) -> None:
        """Watch without hooks; `stack` closes what is opened on the way."""
        self.assignment, self.ranks, self.state = assignment, ranks, state
        self.hooks = Hooks()  # between the segments; a gate sets its own
        cell = assignment.trial.cell
        self.uses, self.warmup = cell.workload.uses, cell.warmup
        self.length = cell.length.steps  # None: as long as the script trains
        self.skipped_steps = 0  # before the first segment, which are not counted
        self.device = self.launch_device = _device_of(assignment, ranks)
        self.memory = PeakMemory(self.device)
        self.optimizers: dict[Optimizer, None] = {}  # an ordered set
        self.pauses = Pauses()
        self.loaded = LoadedSamples(self.pauses)
        self.reports = StepReports()
        self.metrics: dict[str, float] = {}  # the newest value of each
        chosen = cell.workload.target
        self.target = LOSS  # of a script that reports no metric
        if chosen is not None:
            self.target = TargetMetric(name=chosen.name, higher_is_better=chosen.higher_is_better)
        self.progress = ProgressFile(folder.progress_path, self.length, is_writer=ranks.is_rank_0)
        self._stack = stack
        # Of the script, once it has stepped. If a model were its last owner, torch could wait for ever:
        # the main thread destroys a gloo group with the GIL, which the group's own thread needs for
        # dropping the tensors of the last collective.
        self._process_group: dist.ProcessGroup | None = None
        self._clock: StepClock | None = None
        self._telemetry: TelemetrySampler | None = None
        self._leader: Optimizer | None = None
        self._stepping: Optimizer | None = None  # others step within it if it wraps them
        self._ends: dict[
            Optimizer, int
        ] = {}  # of others since the last step, as marks of the clock
        self._has_closure = False  # which has forward and backward within the optimizer's step
        self._pause_seconds: list[float] = []  # of each step
        self._joined = False  # a process group, in some step
        self._steps_seen = 0  # skipped ones too
        # A parameter whose gradient says whether there was a backward since the last step.
        self._watched: Tensor | None = None
        self._last_gradient: Tensor | None = None
        self._reports_before_step = False  # the first one, which may be before its backward
        self._last_version = 0  # how often it had been changed in place by then
        self._segment_start = 0  # the steps that were done when the segment began
        self._segment_stop = 0  # and those after which it ends at the latest
        self._segment_began = time.perf_counter()
        self._began = time.perf_counter()
        self._ended = self._began  # of the last segment

    # What torch calls

    def before_step(
        self, optimizer: Optimizer, arguments: Sequence[Any] = (), options: Mapping[str, Any] = {}
    ) -> None:
        """Begin a segment unless one runs, and note that the optimizer begins."""
        if self._stepping not in (None, optimizer) or _is_initialization(optimizer):
            return
        self._stepping = optimizer
        if self._leader is None:
            self._prepare(optimizer)
        assert self._clock is not None
        self._add_optimizer(optimizer)
        if optimizer in self._ends:
            self._hand_over(optimizer)
        is_leader = optimizer is self._leader
        if is_leader and self._is_at_length():
            raise _LengthReached
        if not self._clock.running and is_leader and self._steps_seen >= self.skipped_steps:
            self._begin_segment()
        # `arguments` begin with the optimizer.
        self._has_closure |= any(part is not None for part in (*arguments[1:], *options.values()))
        if self._clock.running and not self._has_closure:
            self._clock.enter(Phase.optimizer)

    def after_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Note that the optimizer has stepped; if it is the leading one, the step has ended."""
        clock = self._clock
        if clock is None or optimizer is not self._stepping:
            return  # it had begun before it was watched
        self._stepping = None
        self.loaded.end_step()
        if optimizer is not self._leader:
            self._ends[optimizer] = clock.mark() if clock.running else -1
            return
        self._ends.clear()
        self._steps_seen += 1
        self._joined |= dist.is_initialized()
        self._note_gradient()
        pause = self.pauses.end_step()
        if not clock.running:
            return
        clock.end_step()
        self._pause_seconds.append(pause)
        self.state.step += 1
        is_over = time.perf_counter() - self._segment_began >= SEGMENT_SECONDS
        if is_over or self.state.step >= self._segment_stop or is_requested():
            self._end_segment()
            if self._is_at_length():
                return  # it may still report this step and evaluate; `before_step` ends it
            self._check_whether_to_continue()
            self._begin_segment()

    def _add_optimizer(self, optimizer: Optimizer) -> None:
        """Add an optimizer, which takes the place of the leading one if it is of the same parameters."""
        if optimizer in self.optimizers:
            return
        first = _first_parameter(optimizer)
        if self._leader is not None and first is _first_parameter(self._leader):
            del self.optimizers[self._leader]
            self._leader = optimizer
        self._leader = self._leader or optimizer
        self.optimizers[optimizer] = None
        if first is not None:
            self.pauses.first_parameters.append(first)

    def _hand_over(self, optimizer: Optimizer) -> None:
        """Let an optimizer lead that steps a second time without the leading one; both steps count."""
        assert self._clock is not None
        self._leader, self._watched = optimizer, None
        self._steps_seen += 1
        if self._clock.running:
            self._clock.end_step_at(self._ends[optimizer])
            self._pause_seconds.append(self.pauses.end_step())
            self.state.step += 1
        self._ends.clear()

    def on_report(self, loss: Any, samples: int | None, metrics: Mapping[str, Any]) -> None:
        """Keep what the script reports; the target metric makes an evaluation of the newest values."""
        if loss is not None or samples is not None:
            self.reports.add(self._reported_step(), loss, samples)
        for name, value in metrics.items():
            self.metrics[name] = float(value)
            if name != self.target.name and not math.isfinite(self.metrics[name]):
                del self.metrics[name]  # no record can hold it; of the target, `check` says so
        if self.target.name in metrics:
            evaluation = Evaluation(
                step=self.state.step,
                epoch=0.0,  # known when the script has ended
                metrics=dict(self.metrics),
                seconds=None,
                started_at=time.time(),
            )
            self.state.evaluations.append(evaluation)

    def _reported_step(self) -> int:
        """Return the step that a report is of, counted from 0.

        That is the coming one if there was a backward since the last step. Otherwise it is the last one,
        unless the script has reported its first step before that: then it does so each time.
        """
        if not self._steps_seen:
            self._reports_before_step = True
            return 0
        gradient = None if self._watched is None else self._watched.grad
        if gradient is None:
            has_new_gradient = False
        elif gradient is self._last_gradient:
            # To set it to zero in place is one change, and a backward after that another one.
            has_new_gradient = gradient._version > self._last_version + 1
        else:
            has_new_gradient = True
        if has_new_gradient or self._reports_before_step:
            return self._steps_seen
        return self._steps_seen - 1

    def _note_gradient(self) -> None:
        """Note the gradient that the leading optimizer has just stepped with.

        Of the smallest parameter, as a gradient that is kept takes memory.
        """
        if self._watched is None:
            assert self._leader is not None
            parameters = [part for group in self._leader.param_groups for part in group["params"]]
            trained = [part for part in parameters if part.grad is not None]
            self._watched = min(trained, key=torch.numel, default=None)
        if self._watched is not None and self._watched.grad is not None:
            self._last_gradient = self._watched.grad
            self._last_version = self._watched.grad._version

    # Segments

    def _prepare(self, optimizer: Optimizer) -> None:
        """Make what depends on the device, which the parameters of the first optimizer are on."""
        first = _first_parameter(optimizer)
        self.device = self.launch_device if first is None else first.device
        self._process_group = dist.group.WORLD
        self._clock = step_clock(self.device)
        cores = self.assignment.lane.cores
        self._telemetry = telemetry_for(self.device, warmup=self.warmup, cores=cores)
        self._stack.enter_context(self._telemetry)
        self.state.training_began_at = time.time()
        self.state.add_seconds("build", time.perf_counter() - self._began)

    def _begin_segment(self) -> None:
        """Begin a segment, whose clock starts once the device has finished its work."""
        assert self._clock is not None
        assert self._telemetry is not None
        step = self.state.step
        stop = self.length or MAX_STEPS
        if step < self.warmup:  # telemetry begins with a segment
            stop = min(stop, self.warmup)
        self._segment_stop = self.hooks.before_segment(self.state, stop)
        self._segment_start = step
        self._telemetry.begin_segment()
        self._clock.start()
        self._segment_began = time.perf_counter()

    def _end_segment(self) -> None:
        """End the segment and keep its numbers."""
        assert self._clock is not None
        assert self._telemetry is not None
        state = self.state
        times = self._without_pauses(self._clock.stop())
        self._ended = time.perf_counter()
        steps = len(times.steps)
        self._telemetry.end_segment(steps)
        state.step_seconds += times.steps.tolist()
        state.step_phases.setdefault("optimizer", []).extend(times.phases["optimizer"].tolist())
        state.add_seconds("train", float(times.steps.sum()))
        self._read_losses()
        losses = np.asarray(state.losses[self._segment_start :], dtype=np.float32)
        segment = Segment(self._segment_start, losses, times)
        samples = self.samples_per_step
        ranks = self.ranks.world_size
        rate = steps * (1 if samples is None else samples * ranks) / segment.seconds
        known = losses[np.isfinite(losses)]
        self.progress.report_training(state.step, rate, float(known[-1]) if len(known) else None)
        self.hooks.after_segment(state, segment)

    def _without_pauses(self, times: SegmentTimes) -> SegmentTimes:
        """Take pauses out of the steps that they are in, and count them as a phase of the trial."""
        pauses = np.asarray(self._pause_seconds)
        usual = float(np.median(pauses))
        newest = np.zeros(len(times.steps))
        newest[:] = pauses[len(pauses) - len(times.steps) :]
        newest[newest <= PAUSE_RATIO * usual] = usual
        # The clock of a GPU may see less of a pause than the host.
        pause = np.minimum(newest - usual, times.steps)
        self.state.add_seconds("evaluate", float(pause.sum()))
        return replace(times, steps=times.steps - pause)

    @property
    def samples_per_step(self) -> float | None:
        """The mean samples of a step at this rank: reported, else of torch's loaders; None if unknown."""
        reported = self.reports.samples_per_step
        if reported is not None or not self.loaded.total or not self._steps_seen:
            return reported
        return self.loaded.total / self._steps_seen

    def _read_losses(self) -> None:
        """Fill the losses up to the last step, whose own may be reported only after it."""
        losses = self.state.losses
        self.reports.settle()
        first = max(0, len(losses) - 1)  # of which nothing may have been known last time
        del losses[first:]
        skipped = self.skipped_steps  # which are among the reports, and not in `state.step`
        losses += self.reports.mean_losses(skipped + first, skipped + self.state.step)

    def _is_at_length(self) -> bool:
        """Return whether all steps of the trial are done."""
        return self.length is not None and self.state.step >= self.length

    def _check_whether_to_continue(self) -> None:
        """Raise Interrupted if that was asked for."""
        if is_requested():
            self.progress.report("interrupted", self.state.step)
            raise Interrupted(
                f"stopped after step {self.state.step}; the next attempt starts from step 0: {self.uses}"
                " is a script, whose checkpoints the harness does not know"
            )

    def finish(self) -> None:
        """Keep the numbers of the steps since the last segment, once the script has ended."""
        if self._clock is not None and self._clock.running:
            if self.state.step > self._segment_start:
                self._end_segment()
            self._clock.running = False
        self._read_losses()
        self.reports.drop_unfinished_samples(self._steps_seen)
        if self.state.step:
            self.state.add_seconds("end", time.perf_counter() - self._ended)

    # Results

    def check(self) -> None:
        """Raise NotApplied for a script that did not train as its cell says, NonFiniteLoss for NaN."""
        steps = self.state.step
        if not steps:
            raise NotApplied(
                f"{self.uses} ended without a step of an optimizer of torch.optim; needed: one or more"
            )
        if self.length is not None and steps < self.length:
            raise NotApplied(
                f"length={self.length} steps had no effect: {self.uses} ended after step {steps};"
                " let it train longer, or leave the length out"
            )
        if self.ranks.world_size > 1 and not self._joined:
            count = self.ranks.world_size
            raise NotApplied(
                f"world_size={count} had no effect: no rank joined a process group, so these are {count}"
                f" independent trainings; let {self.uses} call init_process_group"
            )
        bad_step = self.reports.first_bad_step()
        if bad_step is not None:
            # It may be a loss of the step after the last one, which never ended.
            bad_step = min(bad_step + 1, steps)
            raise NonFiniteLoss(
                f"the loss became NaN or infinite at step {bad_step} of {steps}",
                rank=self.ranks.rank,
            )
        for evaluation in self.state.evaluations:
            value = evaluation.metrics[self.target.name]
            if not math.isfinite(value):
                raise NonFiniteLoss(
                    f"the script reported {self.target.name}={value} after step {evaluation.step}",
                    rank=self.ranks.rank,
                )

    def digest_parameters(self) -> str:
        """Return the SHA-256 of the parameters of all optimizers, as this rank holds them.

        Of sharded parameters these are its own shards: the script may have left its process group, so
        ranks can't put them together any more.
        """
        digest = hashlib.sha256()
        for parameter in self._parameters():
            add_tensor(digest.update, local_part(parameter).detach().cpu())
        return digest.hexdigest()

    def _parameters(self) -> Iterator[Tensor]:
        """Yield each parameter of the optimizers once, in their order."""
        parameters: dict[Tensor, None] = {}  # an optimizer may wrap another one, which has them too
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                parameters.update(dict.fromkeys(group["params"]))
        yield from parameters

    def result(self, entered: RankResult) -> RankResult:
        """Return what this rank leaves; no other rank takes part."""
        assert self._telemetry is not None  # as there were steps
        memory = self.memory.read()
        report = self._rank0_report() if self.ranks.is_rank_0 else None
        return replace(
            entered,
            **self.state.result(),
            telemetry=self._telemetry.report(),
            memory=memory,
            phases=dict(self.state.phases),
            samples_per_step=self.samples_per_step,
            rank0=report,
            environment=None if report is None else environment_of(self.assignment),
        )

    def _rank0_report(self) -> Rank0Report:
        """Return the results that rank 0 reports for all ranks: of what it knows, without guesses.

        The whole script counts as one epoch, as its own epochs are not known.
        """
        steps = self.state.step
        evaluations = []
        for evaluation in self.state.evaluations:
            evaluations.append(replace(evaluation, epoch=evaluation.step / steps))
        assert self.state.training_began_at is not None
        return Rank0Report(
            target=self.target,
            steps_per_epoch=steps,
            parameter_count=sum(parameter.numel() for parameter in self._parameters()),
            flops_per_sample=None,
            evaluations=tuple(evaluations),
            parameter_digest=self.digest_parameters(),
            began_at=self.state.began_at,
            training_began_at=self.state.training_began_at,
        )


@contextmanager
def observe(
    assignment: Assignment,
    folder: TrialFolder,
    ranks: Ranks,
    state: TrainingState,
) -> Iterator[ScriptObserver]:
    """Watch the optimizers of this process, and listen to `harness.report`, while the block lasts."""
    with ExitStack() as stack:
        observer = ScriptObserver(assignment, folder, ranks, state, stack)
        # In a step that the script compiles, Dynamo would trace the hooks, and fail at the clock.
        before_step = torch.compiler.disable(observer.before_step)  # type: ignore[no-untyped-call]
        after_step = torch.compiler.disable(observer.after_step)  # type: ignore[no-untyped-call]
        stack.callback(register_optimizer_step_pre_hook(before_step).remove)
        stack.callback(register_optimizer_step_post_hook(after_step).remove)
        watch(observer.pauses, observer.loaded, stack)
        stack.enter_context(listening(observer.on_report))
        yield observer


def run_script(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> RankResult:
    """Run the script of `trial.json`; return this rank's part of the trial's record."""
    assignment = prepare_rank(folder)
    with observe(assignment, folder, ranks, state) as observer:
        try:
            execute(assignment, folder)
        except _LengthReached:
            if dist.is_initialized():
                dist.barrier()  # all ranks end at the same step, and none may leave the others
        finally:
            observer.finish()
        observer.check()
    return observer.result(entered)


def execute(assignment: Assignment, folder: TrialFolder) -> None:
    """Run the script as `python train.py ARGUMENT…` would, in the folder of its sweep file.

    Raises CodeChanged if its code is not that of the cell, and whatever the script raises; an exit with
    code 0 is its end.
    """
    reference, base = assignment.trial.cell.workload, Path(assignment.base_folder).absolute()
    check_code(reference, base)
    path = base / Path(reference.uses).expanduser()
    make_importable(base)
    make_importable(path.parent)
    sys.path.insert(0, str(path.parent))  # before what is installed, as Python does it
    seed_everything(assignment.trial.seed)  # as far as the script does not do it itself
    os.chdir(base)
    sys.argv = [str(path), *script_arguments(assignment, folder)]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise


def script_arguments(assignment: Assignment, folder: TrialFolder) -> list[str]:
    """Return the arguments of the script, with the values of their placeholders as Python prints them."""
    trial = assignment.trial
    reference, axes = trial.cell.workload, trial.cell.axes
    values: dict[str, Any] = {
        "rank_batch_size": axes.batch_size // axes.world_size,
        "seed": trial.seed,
        "steps": trial.cell.length.steps,
        "folder": folder.path.absolute(),
        **{name: axes.value(name) for name in AXES},
        **reference.options,
    }
    arguments = reference.arguments or ()
    assert set(placeholders_of(arguments)) <= set(values)  # as planning has checked
    words = []
    for text in arguments:
        word = PLACEHOLDER.sub(lambda name: str(values[name[1]]), text)
        if word or not PLACEHOLDER.fullmatch(text):  # a flag that is off is no word
            words.append(ESCAPED.sub(r"\1", word))
    return words


def _first_parameter(optimizer: Optimizer) -> Tensor | None:
    """Return the first parameter of an optimizer, None if it has none."""
    parts: list[Tensor] = [part for group in optimizer.param_groups for part in group["params"]]
    return parts[0] if parts else None


def _is_initialization(optimizer: Optimizer) -> bool:
    """Return whether a step makes the state that a checkpoint is then loaded into.

    `torch.distributed.checkpoint.state_dict` steps a new optimizer at a rate and with gradients of zero.
    """
    if optimizer.state or any(float(group.get("lr", 1.0)) for group in optimizer.param_groups):
        return False
    gradients = [part.grad for group in optimizer.param_groups for part in group["params"]]
    return all(part is not None and not local_part(part).any() for part in gradients)


def _device_of(assignment: Assignment, ranks: Ranks) -> torch.device:
    """Return the device of this rank, and hide all others from the script that are not its trial's."""
    if assignment.device == "cpu":
        os.environ[VISIBLE_GPUS] = ""
        return torch.device("cpu")
    if assignment.lane.gpus:
        entries = [str(gpu) for gpu in assignment.lane.gpus]
        # They are counted among those that the variable named when this process was started: it may
        # have been set since.
        visible = (read_initial_environment() or {}).get(VISIBLE_GPUS)
        if visible:
            names = visible.split(",")
            entries = [names[gpu] for gpu in assignment.lane.gpus]
        os.environ[VISIBLE_GPUS] = ",".join(entries)
    return choose_device(assignment.device, ranks)
