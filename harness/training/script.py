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
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
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

from harness.core.errors import Interrupted, NonFiniteLoss, NotApplied, StorageError
from harness.core.paths import TrialFolder
from harness.core.processes import end_process
from harness.core.progress import listening
from harness.measure.clock import Phase, SegmentTimes, step_clock
from harness.measure.memory import PeakMemory
from harness.measure.telemetry import telemetry_for
from harness.records.assignment import Assignment
from harness.records.files import write_rank_result
from harness.records.record import Evaluation, Failure, Rank0Report, RankResult, TargetMetric
from harness.sweep.axes import AXES
from harness.sweep.cell import (
    ESCAPED,
    MAX_STEPS,
    PLACEHOLDER,
    placeholders_of,
)
from harness.sweep.environment import OF_TORCHRUN
from harness.sweep.files import check_code, check_files, named_files
from harness.training.digests import add_tensor, local_part
from harness.training.entry import environment_of, prepare_rank
from harness.training.interruption import SIGNAL
from harness.training.progress import ProgressFile
from harness.training.ranks import Ranks, choose_device, seed_everything
from harness.training.script_watch import (
    PAUSE_RATIO,
    LoadedSamples,
    Pauses,
    Reports,
    first_parameter,
    watch,
)
from harness.training.state import TrainingState
from harness.training.stopping import LOSS
from harness.training.train import SEGMENT_SECONDS, Hooks, Segment
from workloads.importing import make_importable

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
NOTED_PAUSE = 0.1  # seconds without gradients below which nothing is said
MAX_FILES = 2000  # of the script's folder that are looked at for changes


class _LengthReached(BaseException):
    """Ends a script after the steps of its trial, also where it catches every Exception."""


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
    ) -> None:
        """Prepare to watch."""
        self.assignment, self.ranks, self.state = assignment, ranks, state
        self.hooks = Hooks()  # between the segments; a gate sets its own
        cell = assignment.trial.cell
        self.uses, self.length, self.warmup = cell.workload.uses, cell.length.steps, cell.warmup
        self.skipped_steps = 0  # before the first segment, which are not counted
        device, cores = _visible_device(assignment, ranks), assignment.lane.cores
        self.memory = PeakMemory(device)
        self.telemetry = telemetry_for(device, warmup=cell.warmup, cores=cores)
        self.clock = step_clock(device)
        # Those that step in the present part of the script: of a fold that is over, nothing is kept alive.
        self.optimizers: dict[Optimizer, None] = {}
        self.pauses = Pauses(self.optimizers)
        self.loaded = LoadedSamples(self.pauses)
        self.reports = Reports()
        self.metrics: dict[str, float] = {}  # the newest value of each
        chosen = cell.workload.target
        self.target = LOSS  # of a script that reports no metric
        if chosen is not None:
            self.target = TargetMetric(name=chosen.name, higher_is_better=chosen.higher_is_better)
        self.progress = ProgressFile(folder.progress_path, self.length, is_writer=ranks.is_rank_0)
        self.notes: list[str] = []  # for the trial's record
        # Of the script, once it has stepped. If a model were its last owner, torch could wait for ever:
        # the main thread destroys a gloo group with the GIL, which the group's own thread needs for
        # dropping the tensors of the last collective.
        self._process_group: dist.ProcessGroup | None = None
        self._leader: Optimizer | None = None
        self._stepping: Optimizer | None = None  # others step within it if it wraps them
        # Of others since the last step, their own as marks of the clock.
        self._others: dict[Optimizer, int] = {}
        self._has_closure = False  # which has forward and backward within the optimizer's step
        self._pause_seconds: list[float] = []  # of each step
        self._joined = False  # a process group, in some step
        self._steps_seen = 0  # skipped ones too
        self._has_backward = False  # since the last step of any optimizer
        self._reports_before_step = False  # the first one, which may be before its backward
        self._segment_start = 0  # the steps that were done when the segment began
        self._segment_stop = 0  # and those after which it ends at the latest
        self._began = self._segment_began = self._ended = time.perf_counter()

    # What torch and the script call

    def before_step(
        self, optimizer: Optimizer, arguments: Sequence[Any] = (), options: Mapping[str, Any] = {}
    ) -> None:
        """Begin a segment unless one runs, and note that the optimizer begins."""
        if self._stepping not in (None, optimizer) or _is_initialization(optimizer):
            return
        self._stepping = optimizer
        self._choose_leader(optimizer)
        clock = self.clock
        if optimizer is self._leader:
            if self._is_at_length():
                raise _LengthReached
            if not clock.running and self._steps_seen >= self.skipped_steps:
                self._begin_segment()
        # `arguments` begin with the optimizer.
        self._has_closure |= any(part is not None for part in (*arguments[1:], *options.values()))
        if clock.running and not self._has_closure:
            clock.enter(Phase.optimizer)

    def after_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Note that the optimizer has stepped; if it is the leading one, the step has ended."""
        clock = self.clock
        if optimizer is not self._stepping:
            return  # it had begun before it was watched
        self._stepping, self._has_backward = None, False
        self.loaded.end_step()
        self.pauses.end()
        if optimizer is not self._leader:
            self._others[optimizer] = clock.mark() if clock.running else -1
            return
        if clock.running:
            clock.end_step()
        self._count_step()
        is_over = time.perf_counter() - self._segment_began >= SEGMENT_SECONDS
        if clock.running and (is_over or self.state.step >= self._segment_stop):
            self._end_segment()
            if not self._is_at_length():  # then it may still report this step and evaluate
                self._begin_segment()

    def on_backward(self) -> None:
        """Note that gradients are computed."""
        self._has_backward = True

    def on_report(self, loss: Any, samples: int | None, metrics: Mapping[str, Any]) -> None:
        """Keep what the script reports; the target metric makes an evaluation of the newest values."""
        if loss is not None or samples is not None:
            self._reports_before_step |= not self._steps_seen
            is_of_next = self._has_backward or self._reports_before_step
            self.reports.add(self._steps_seen - (not is_of_next), loss, samples)
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

    def _choose_leader(self, optimizer: Optimizer) -> None:
        """Let an optimizer lead that is the first one, made anew, or steps twice without the leader."""
        if self._leader is None:
            self._leader, self._process_group = optimizer, dist.group.WORLD
            self.state.training_began_at = time.time()
            self.state.add_seconds("build", time.perf_counter() - self._began)
        elif optimizer in self._others:  # both of its steps count
            if self.clock.running:
                self.clock.end_step_at(self._others[optimizer])
            self._leader = optimizer
            self.optimizers.clear()
            self._count_step()
        elif optimizer not in self.optimizers:
            first = first_parameter(optimizer)
            if first is not None and first is first_parameter(self._leader):
                del self.optimizers[self._leader]
                self._leader = optimizer
        self.optimizers[optimizer] = None

    def _count_step(self) -> None:
        """Count a step that has ended."""
        self._others.clear()
        self._steps_seen += 1
        self._joined |= dist.is_initialized()
        pause = self.pauses.end_step()
        if self.clock.running:
            self._pause_seconds.append(pause)
            self.state.step += 1

    # Segments

    def _begin_segment(self) -> None:
        """Begin a segment, whose clock starts once the device has finished its work."""
        step, stop = self.state.step, self.length or MAX_STEPS
        if step < self.warmup:  # telemetry begins with a segment
            stop = min(stop, self.warmup)
        self._segment_stop = self.hooks.before_segment(self.state, stop)
        self._segment_start = step
        self.telemetry.begin_segment()
        self.clock.start()
        self._segment_began = time.perf_counter()

    def _end_segment(self) -> None:
        """End the segment and keep its numbers."""
        state = self.state
        times = self._without_pauses(self.clock.stop())
        self._ended = time.perf_counter()
        steps = len(times.steps)
        self.telemetry.end_segment(steps)
        state.step_seconds += times.steps.tolist()
        state.step_phases.setdefault("optimizer", []).extend(times.phases["optimizer"].tolist())
        state.add_seconds("train", float(times.steps.sum()))
        self._read_losses()
        losses = np.asarray(state.losses[self._segment_start :], dtype=np.float32)
        segment = Segment(self._segment_start, losses, times)
        samples = self.samples_per_step
        a_step = 1.0 if samples is None else samples * self.ranks.world_size
        known = losses[np.isfinite(losses)]
        loss = float(known[-1]) if len(known) else None
        self.progress.report_training(state.step, steps * a_step / segment.seconds, loss)
        self.hooks.after_segment(state, segment)

    def _without_pauses(self, times: SegmentTimes) -> SegmentTimes:
        """Take pauses out of the steps that they are in, and count them as a phase of the trial."""
        pauses = np.asarray(self._pause_seconds)
        usual = float(np.median(pauses))
        newest = pauses[len(pauses) - len(times.steps) :]
        long = np.where(newest > PAUSE_RATIO * usual, newest - usual, 0.0)
        # The clock of a GPU may see less of a pause than the host.
        pause = np.minimum(long, times.steps)
        self.state.add_seconds("evaluate", float(pause.sum()))
        return replace(times, steps=times.steps - pause)

    @property
    def samples_per_step(self) -> float | None:
        """The mean samples of a step at this rank: reported, else of torch's loaders; None if unknown."""
        reported = self.reports.samples_per_step(self._steps_seen)
        loaded = self.loaded.total / self._steps_seen if self._steps_seen else 0.0
        return reported if reported is not None or not loaded > 0 else loaded

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

    def finish(self) -> None:
        """Keep the numbers of the steps since the last segment, once the script has ended."""
        if self.clock.running:
            if self.state.step > self._segment_start:
                self._end_segment()
            self.clock.running = False
        self._read_losses()
        if self.state.step:
            self.state.add_seconds("end", time.perf_counter() - self._ended)
        pause = self.state.phases.get("evaluate", 0.0)
        if pause >= NOTED_PAUSE:
            self.notes.append(
                f"no part of its steps: {pause:.1f} s without gradients or for saving"
            )

    # Results

    def check(self) -> None:
        """Raise NotApplied for a script that did not train as its cell says, NonFiniteLoss for NaN."""
        steps, ranks = self.state.step, self.ranks
        if not steps:
            raise NotApplied(
                f"{self.uses} ended without a step of an optimizer of torch.optim; needed: one or more"
                " (processes that it starts are not watched)"
            )
        if self.length is not None and steps < self.length:
            raise NotApplied(
                f"length={self.length} steps had no effect: {self.uses} ended after step {steps};"
                " let it train longer, or leave the length out"
            )
        if ranks.world_size > 1 and not self._joined:
            count = ranks.world_size
            raise NotApplied(
                f"world_size={count} had no effect: no rank joined a process group, so these are {count}"
                f" independent trainings; let {self.uses} call init_process_group"
            )
        bad_step = self.reports.first_bad_step()
        if bad_step is not None:
            # It may be a loss of the step after the last one, which never ended.
            text = f"the loss became NaN or infinite at step {min(bad_step + 1, steps)} of {steps}"
            raise NonFiniteLoss(text, rank=ranks.rank)
        for evaluation in self.state.evaluations:
            value = evaluation.metrics[self.target.name]
            if not math.isfinite(value):
                text = (
                    f"the script reported {self.target.name}={value} after step {evaluation.step}"
                )
                raise NonFiniteLoss(text, rank=ranks.rank)

    def digest_parameters(self) -> str:
        """Return the SHA-256 of the parameters of the optimizers, as this rank holds them.

        Of sharded parameters these are its own shards: the script may have left its process group, so
        ranks can't put them together any more.
        """
        digest = hashlib.sha256()
        for parameter in self._parameters():
            add_tensor(digest.update, local_part(parameter).detach().cpu())
        return digest.hexdigest()

    def _parameters(self) -> list[Tensor]:
        """Return each parameter of the optimizers once, in their order."""
        parameters: dict[Tensor, None] = {}  # an optimizer may wrap another one, which has them too
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                parameters.update(dict.fromkeys(group["params"]))
        return list(parameters)

    def result(self, entered: RankResult) -> RankResult:
        """Return what this rank leaves; no other rank takes part."""
        memory = self.memory.read()
        is_rank_0 = self.ranks.is_rank_0
        return replace(
            entered,
            **self.state.result(),
            telemetry=self.telemetry.report(),
            memory=memory,
            phases=dict(self.state.phases),
            samples_per_step=self.samples_per_step,
            rank0=self._rank0_report() if is_rank_0 else None,
            environment=environment_of(self.assignment) if is_rank_0 else None,
            notes=self.notes,
        )

    def _rank0_report(self) -> Rank0Report:
        """Return the results that rank 0 reports for all ranks: of what it knows, without guesses.

        The whole script counts as one epoch, as its own epochs are not known.
        """
        state = self.state
        evaluations = []
        for evaluation in state.evaluations:
            evaluations.append(replace(evaluation, epoch=evaluation.step / state.step))
        assert state.training_began_at is not None
        return Rank0Report(
            target=self.target,
            steps_per_epoch=state.step,
            parameter_count=sum(parameter.numel() for parameter in self._parameters()),
            flops_per_sample=None,
            evaluations=tuple(evaluations),
            parameter_digest=self.digest_parameters(),
            began_at=state.began_at,
            training_began_at=state.training_began_at,
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
        observer = ScriptObserver(assignment, folder, ranks, state)
        stack.enter_context(observer.telemetry)
        # In a step that the script compiles, Dynamo would trace the hooks, and fail at the clock.
        hide: Any = torch.compiler.disable
        stack.callback(register_optimizer_step_pre_hook(hide(observer.before_step)).remove)
        stack.callback(register_optimizer_step_post_hook(hide(observer.after_step)).remove)
        watch(observer.pauses, observer.loaded, hide(observer.on_backward), stack)
        stack.enter_context(listening(observer.on_report))
        yield observer


def run_script(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> RankResult:
    """Run the script of `trial.json`; return this rank's part of the trial's record."""
    _end_when_asked(folder, ranks, entered, state)
    assignment = prepare_rank(folder)
    base = Path(assignment.base_folder).absolute()
    with observe(assignment, folder, ranks, state) as observer:
        before = _file_times(base, folder.path)
        try:
            execute(assignment, folder)
        except _LengthReached:
            if dist.is_initialized():
                dist.barrier()  # all ranks end at the same step, and none may leave the others
        finally:
            observer.finish()
        observer.check()
        after = _file_times(base, folder.path)
        changed = [name for name, at in before.items() if after.get(name, at) != at]
        if changed:
            names = ", ".join(changed[:3])
            text = f"it changed files that were there before, as of another trial: {names}"
            observer.notes.append(f"{text}; hand it {{folder}} for what it writes")
    return observer.result(entered)


def _end_when_asked(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> None:
    """End this rank as soon as the signal of `interruption` comes, wherever the script is.

    It has nothing to save, and may never step.
    """

    def wait() -> None:
        signal.sigwait({SIGNAL})
        text = f"stopped after step {state.step}; the next attempt starts from step 0, as of any script"
        failure = Failure(
            kind=Interrupted.__name__,
            message=text,
            rank=ranks.rank,
            host=ranks.host,
            at=time.time(),
        )
        with suppress(StorageError):
            result = replace(entered, failure=failure, **state.result())
            write_rank_result(folder.result_path(ranks.rank), result)
        end_process(Interrupted.exit_code)

    threading.Thread(target=wait, name="interruption", daemon=True).start()


def _file_times(base: Path, own: Path) -> dict[str, int]:
    """Return when the files below a folder were changed, but hidden ones and the results of trials."""
    times: dict[str, int] = {}
    for folder, folders, names in os.walk(base):
        place = Path(folder)
        folders[:] = [name for name in folders if not _is_apart(place / name, own)]
        for name in names[: MAX_FILES - len(times)]:
            with suppress(OSError):  # it has just gone
                times[str((place / name).relative_to(base))] = (place / name).stat().st_mtime_ns
    return times


def _is_apart(folder: Path, own: Path) -> bool:
    """Return whether a folder is hidden, a cache, or has the trial's own."""
    return folder.name.startswith((".", "__")) or own.is_relative_to(folder)


def execute(assignment: Assignment, folder: TrialFolder) -> None:
    """Run the script as `torchrun train.py ARGUMENT…` would, in the folder of its sweep file.

    With `launch: python` as `python train.py` would. Raises CodeChanged or DataChanged if its code, or a
    file among its arguments, is not that of the cell, and whatever the script raises; an exit with code 0
    is its end.
    """
    reference, base = assignment.trial.cell.workload, Path(assignment.base_folder).absolute()
    check_code(reference, base)
    if reference.code is not None:
        check_files(reference, named_files(reference.arguments or (), reference.options, base))
    path = base / Path(reference.uses).expanduser()
    make_importable(base)
    make_importable(path.parent)
    # Before what is installed, as Python does it.
    sys.path.insert(0, str(path.parent if reference.module is None else base))
    seed_everything(assignment.trial.seed)  # as far as the script does not do it itself
    os.chdir(base)
    sys.argv = [str(path), *script_arguments(assignment, folder)]
    if reference.launch == "python":
        for name in list(os.environ):
            if OF_TORCHRUN.match(name):
                del os.environ[name]
    try:
        if reference.module is None:
            runpy.run_path(str(path), run_name="__main__")
        else:
            runpy.run_module(reference.module, run_name="__main__", alter_sys=True)
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


def _is_initialization(optimizer: Optimizer) -> bool:
    """Return whether a step makes the state that a checkpoint is then loaded into.

    `torch.distributed.checkpoint.state_dict` steps a new optimizer at a rate and with gradients of zero.
    """
    if optimizer.state or any(float(group.get("lr", 1.0)) for group in optimizer.param_groups):
        return False
    gradients = [part.grad for group in optimizer.param_groups for part in group["params"]]
    return all(part is not None and not local_part(part).any() for part in gradients)


def _visible_device(assignment: Assignment, ranks: Ranks) -> torch.device:
    """Return the device of this rank, and hide all others from the script that are not its trial's."""
    gpus = [str(gpu) for gpu in assignment.lane.gpus]
    visible = os.environ.get(VISIBLE_GPUS)
    if assignment.device == "cpu":
        os.environ[VISIBLE_GPUS] = ""
    elif gpus:  # counted among those that are visible
        entries = visible.split(",") if visible else gpus
        os.environ[VISIBLE_GPUS] = ",".join(entries[int(gpu)] if visible else gpu for gpu in gpus)
    return choose_device(assignment.device, ranks)
