"""Runs a script that trains in its own loop, and watches its steps through torch's own hooks.

Torch calls hooks before and after the step of every optimizer. A step of the training ends where the
leading optimizer has stepped: the one that stepped first, until another one steps twice without it.
So of a critic and a generator in turn it is a step of the critic, with five critics' steps to one of the
generator as well, and optimizers one after the other, as of folds, have all their steps counted. Optimizers
are told apart by their first parameters: one that is made anew for the same ones goes on with the steps of
the old one. What happens between two steps belongs to the second one, but for pauses (`script_watch`). Of
the first step only the optimizer's part is seen, so it is always one of the warm-up.
"""

from __future__ import annotations

import hashlib
import math
import os
import runpy
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from harness.core.errors import NonFiniteLoss, NotApplied
from harness.core.paths import TrialFolder
from harness.core.progress import listening
from harness.measure.clock import StepClock
from harness.measure.memory import PeakMemory
from harness.measure.telemetry import TelemetrySampler
from harness.records.assignment import Assignment
from harness.records.record import LOSS, Evaluation, Rank0Report, RankResult, TargetMetric
from harness.sweep.axes import OF_TORCHRUN
from harness.sweep.cell import ESCAPED, MAX_STEPS, PLACEHOLDER
from harness.sweep.files import check_code, check_files, named_files
from harness.training.digests import add_tensor, local_part
from harness.training.entry import environment_of, prepare_rank
from harness.training.progress import ProgressFile
from harness.training.ranks import Ranks, choose_device, seed_everything
from harness.training.script_watch import LoadedSamples, Pauses, Reports, parameters_of, watch
from harness.training.state import TrainingState
from harness.training.train import SEGMENT_SECONDS, Hooks, Segment
from workloads.importing import make_importable

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


class _LengthReached(BaseException):
    """Ends a script after the steps of its trial, also where it catches every Exception."""


@dataclass(eq=False)
class ScriptObserver:
    """Watches the optimizers of a script at one rank, segment by segment as the harness's own loop.

    What it sees is in `state`. It watches in the block of `observe`.
    """

    assignment: Assignment
    folder: TrialFolder
    ranks: Ranks
    state: TrainingState

    def __post_init__(self) -> None:
        self.hooks = Hooks()  # between the segments; a gate sets its own
        self.cell = cell = self.assignment.trial.cell
        self.length = cell.length.steps
        device = _visible_device(self.assignment, self.ranks)
        self.memory = PeakMemory(device)
        self.clock = StepClock(device)
        self.telemetry = TelemetrySampler(device, cell.warmup, self.assignment.lane.cores)
        # Those that step in the present part of the script, by their first parameters, the leader first:
        # of a fold that is over, nothing is kept alive.
        self.optimizers: dict[Tensor | None, Optimizer] = {}
        self.pauses = Pauses(self.optimizers)
        self.reports = Reports()
        self.loaded = LoadedSamples(self.pauses)
        self.metrics: dict[str, float] = {}  # the newest value of each
        self.target = LOSS  # of a script that reports no metric
        if cell.workload.target is not None:
            self.target = TargetMetric(**asdict(cell.workload.target))
        # A script may decide itself how many steps there are.
        self.progress = ProgressFile(self.folder, self.ranks.rank, {"steps": self.length})
        # Of the script, once it has stepped. If a model were its last owner, torch could wait for ever:
        # the main thread destroys a gloo group with the GIL, which the group's own thread needs for
        # dropping the tensors of the last collective.
        self._process_group: dist.ProcessGroup | None = None
        self._stepping: Optimizer | None = None  # others step within it if it wraps them
        # Of others since the last step, their own as marks of the clock.
        self._others: dict[Tensor | None, int] = {}
        self._segment_stop = 0  # the steps after which the segment ends at the latest
        self._segment_began = time.perf_counter()  # before the first one, when the script did

    # What torch and the script call

    def before_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Note that an optimizer begins; the first one begins the training."""
        if self._stepping not in (None, optimizer) or self._is_initialization(optimizer):
            return
        self._stepping = optimizer
        parameter = next(parameters_of(optimizer), None)
        if not self.optimizers:
            self._process_group = dist.group.WORLD
            self.state.training_began_at = time.time()
            self.state.add_seconds("build", time.perf_counter() - self._segment_began)
            self._begin_segment()
        elif parameter in self._others:  # a second time without the leader: it leads from now on
            self.optimizers.clear()
            if self.clock.running:  # its first step counts as well
                self.clock.end_step_at(self._others[parameter])
                self._count_step()
        self.optimizers[parameter] = optimizer
        if parameter is next(iter(self.optimizers)) and not self.clock.running:
            raise _LengthReached

    def after_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Note that the optimizer has stepped; if it is the leading one, the step has ended."""
        if optimizer is not self._stepping:
            return  # it had begun before it was watched
        self._stepping = None
        self.reports.has_backward = False
        self.pauses.is_evaluated = False  # though nothing may have called `train`
        self.loaded.end_step()
        parameter = next(parameters_of(optimizer), None)
        if parameter is not next(iter(self.optimizers)):
            self._others[parameter] = self.clock.mark()
            return
        self.clock.end_step()
        self._count_step()
        is_over = time.perf_counter() - self._segment_began >= SEGMENT_SECONDS
        if is_over or self.state.step >= self._segment_stop:
            self._end_segment()
            if self.length is None or self.state.step < self.length:
                self._begin_segment()  # after the last one the script may still report and evaluate

    def on_report(self, loss: Any, samples: int | None, metrics: Mapping[str, Any]) -> None:
        """Keep what the script reports; the target metric makes an evaluation of the newest values."""
        step, target = self.state.step, self.target.name
        if samples is not None and samples < 0:
            raise ValueError(f"harness.report: samples: found {samples}; allowed: 0 or more")
        self.reports.add(step, loss, samples)
        self.metrics |= {name: float(value) for name, value in metrics.items()}
        if target not in metrics:
            return
        if not math.isfinite(self.metrics[target]):
            problem = f"the script reported {target}={self.metrics[target]} after step {step}"
            raise NonFiniteLoss(problem, rank=self.ranks.rank)
        # No record can hold another number.
        newest = {name: value for name, value in self.metrics.items() if math.isfinite(value)}
        evaluation = Evaluation(step=step, metrics=newest, seconds=None, started_at=time.time())
        self.state.evaluations.append(evaluation)

    # Steps

    def _is_initialization(self, optimizer: Optimizer) -> bool:
        """Return whether a step makes the state that a checkpoint is then loaded into.

        `torch.distributed.checkpoint.state_dict` steps a new optimizer at a rate of zero, without a backward.
        """
        if self.reports.has_backward:
            return False
        return all(group.get("lr") == 0.0 for group in optimizer.param_groups)

    def _count_step(self) -> None:
        """Count a step that has ended."""
        self.state.step += 1
        self.pauses.end_step()
        self._others.clear()

    @property
    def samples_per_step(self) -> float | None:
        """The mean samples of a step at this rank: reported, else of torch's loaders; None if unknown."""
        steps = self.state.step
        # A step that never ended lacks some of its own.
        reported = [samples for step, samples in self.reports.samples.items() if step < steps]
        if reported:
            return sum(reported) / len(reported)
        if self.loaded.total > 0:
            return self.loaded.total / steps
        return None

    # Segments

    def _begin_segment(self) -> None:
        """Begin a segment, whose clock starts once the device has finished its work."""
        stop = self.length or MAX_STEPS
        if self.state.step < self.cell.warmup:  # telemetry begins with a segment
            stop = min(stop, self.cell.warmup)
        self._segment_stop = self.hooks.before_segment(self.state, stop)
        self.telemetry.begin_segment()
        self.clock.start()
        self._segment_began = time.perf_counter()

    def _end_segment(self) -> None:
        """End the segment and keep its numbers, those of its steps without pauses."""
        state = self.state
        start = len(state.series["loss"])
        times = self.clock.stop()
        self.telemetry.end_segment(state.step - start)
        pauses = self.pauses.lengthening(times.steps)
        times = replace(times, steps=times.steps - pauses)
        losses = self.reports.mean_losses(start, state.step)
        segment = Segment(start, losses, times)
        state.add_steps({"loss": losses, "seconds": times.steps})
        state.add_seconds("train", segment.seconds)
        state.add_seconds("evaluate", float(pauses.sum()))
        rate, unit = segment.steps / segment.seconds, "steps/s"
        if self.samples_per_step is not None:
            unit = "samples/s"
            rate *= self.samples_per_step * self.ranks.world_size
        loss = self.reports.latest_loss
        self.progress.report("train", state.step, rate=rate, unit=unit, loss=loss)
        self.hooks.after_segment(state, segment)

    def finish(self) -> None:
        """Keep the numbers of the steps since the last segment, once the script has ended."""
        state = self.state
        if state.step > len(state.series["loss"]):
            self._end_segment()
        # Of the last step of a segment it may have been reported after that, and one of a step that
        # never ended may be NaN.
        losses = self.reports.mean_losses(0, state.step + 1)
        state.series["loss"] = losses[:-1].tolist()

    # Results

    def check(self) -> None:
        """Raise NotApplied for a script that did not train as its cell says, NonFiniteLoss for NaN."""
        uses = self.cell.workload.uses
        steps, count = self.state.step, self.ranks.world_size
        if not steps:
            raise NotApplied(
                f"{uses} ended without a step of an optimizer of torch.optim; needed: one or more"
                " (processes that it starts are not watched)"
            )
        if self.length is not None and steps < self.length:
            raise NotApplied(
                f"length={self.length} steps had no effect: {uses} ended after step {steps};"
                " let it train longer, or leave the length out"
            )
        if count > 1 and self._process_group is None:
            raise NotApplied(
                f"world_size={count} had no effect: no rank joined a process group, so these are {count}"
                f" independent trainings; let {uses} call init_process_group"
            )
        if math.isfinite(self.reports.first_bad_step):
            bad_step = min(self.reports.first_bad_step + 1, steps)
            problem = f"the loss became NaN or infinite at step {bad_step} of {steps}"
            raise NonFiniteLoss(problem, rank=self.ranks.rank)

    def digest_parameters(self) -> str:
        """Return the SHA-256 of the parameters of the optimizers, as this rank holds them.

        Of sharded parameters these are its own shards: the script may have left its process group, so
        ranks can't put them together any more.
        """
        digest = hashlib.sha256()
        for optimizer in self.optimizers.values():
            for parameter in parameters_of(optimizer):
                add_tensor(digest.update, local_part(parameter).detach().cpu())
        return digest.hexdigest()

    def result(self, entered: RankResult) -> RankResult:
        """Return what this rank leaves; no other rank takes part."""
        state = self.state
        result = replace(
            entered,
            **state.result(),
            telemetry=self.telemetry.report(),
            numbers=self.memory.read(),
            samples_per_step=self.samples_per_step,
        )
        if self.ranks.rank != 0:
            return result
        report = Rank0Report(
            target=self.target,
            steps_per_epoch=state.step,  # its own epochs are not known
            evaluations=tuple(state.evaluations),
            parameter_digest=self.digest_parameters(),
            training_began_at=state.training_began_at,
        )
        return replace(result, rank0=report, environment=environment_of(self.assignment))


@contextmanager
def observe(observer: ScriptObserver) -> Iterator[None]:
    """Watch the optimizers of this process, and listen to `harness.report`, while the block lasts."""
    with ExitStack() as stack:
        stack.enter_context(observer.telemetry)
        # In a step that the script compiles, Dynamo would trace the hooks, and fail at the clock.
        hide: Any = torch.compiler.disable
        stack.callback(register_optimizer_step_pre_hook(hide(observer.before_step)).remove)
        stack.callback(register_optimizer_step_post_hook(hide(observer.after_step)).remove)
        watch(observer.pauses, observer.loaded, observer.reports, stack)
        stack.enter_context(listening(observer.on_report))
        yield


def run_script(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> RankResult:
    """Run the script of `trial.json`; return this rank's part of the trial's record."""
    assignment = prepare_rank(folder)
    observer = ScriptObserver(assignment, folder, ranks, state)
    with observe(observer):
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
    """Run the script as `torchrun train.py ARGUMENT…` would, in the folder of its sweep file.

    With `launch: python` as `python train.py` would. Raises CodeChanged or DataChanged if its code, or a
    file among its arguments, is not that of the cell, and whatever the script raises; an exit with code 0
    is its end.
    """
    reference = assignment.trial.cell.workload
    base = Path(assignment.base_folder).absolute()
    check_code(reference, base)
    if reference.code is not None:
        check_files(reference, named_files(reference.arguments or (), reference.options, base))
    path = base / Path(reference.uses).expanduser()
    folder_of_imports = path.parent if reference.module is None else base
    make_importable(base)
    make_importable(path.parent)
    sys.path.insert(0, str(folder_of_imports))  # before what is installed, as Python does it
    seed_everything(assignment.trial.seed)  # as far as the script does not do it itself
    os.chdir(base)
    sys.argv = [str(path), *script_arguments(assignment, folder)]
    if reference.launch == "python":
        for name in filter(OF_TORCHRUN.match, list(os.environ)):
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
    values = {
        **axes.values,
        "rank_batch_size": axes.batch_size // axes.world_size,
        "seed": trial.seed,
        "steps": trial.cell.length.steps,
        "folder": folder.attempt_path.absolute(),
        **reference.options,
    }
    words = []
    for text in reference.arguments or ():
        word = PLACEHOLDER.sub(lambda name: str(values[name[1]]), text)
        if word or not PLACEHOLDER.fullmatch(text):  # a flag that is off is no word
            words.append(ESCAPED.sub(r"\1", word))
    return words


def _visible_device(assignment: Assignment, ranks: Ranks) -> torch.device:
    """Return the device of this rank, and hide all others from the script that are not its trial's."""
    gpus = assignment.lane.gpus
    if assignment.device == "cpu":
        os.environ[VISIBLE_GPUS] = ""
    elif gpus:  # counted among those that are visible
        visible = os.environ.get(VISIBLE_GPUS)
        names = visible.split(",") if visible else range(max(gpus) + 1)
        os.environ[VISIBLE_GPUS] = ",".join(str(names[gpu]) for gpu in gpus)
    return choose_device(assignment.device, ranks)
