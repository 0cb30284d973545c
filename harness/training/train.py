"""The one training loop, for every workload, strategy, execution and precision.

Training is cut into segments. In a segment there is nothing but training, and all of it is timed.
Between segments, untimed, numbers are kept, and the ranks agree on whether and how to continue.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.profiler import profile, schedule

from harness.core.errors import Interrupted, NonFiniteLoss, NotApplied
from harness.measure.clock import Phase, SegmentTimes
from harness.records.record import Evaluation, TargetMetric
from harness.sweep.cell import StopRule
from harness.training.build import TrialParts
from harness.training.checkpoint import Checkpointer, save_best
from harness.training.execution import check_deterministic_mode
from harness.training.loader import Fetched
from harness.training.model import place_batch, undisturbed
from harness.training.order import BatchOrder, add_to_digest
from harness.training.progress import SIGNAL, ProgressFile, stop_is_requested
from harness.training.ranks import all_reduce_min, broadcast_from_rank_0, gather
from harness.training.state import TrainingState
from harness.training.step import observe_nothing
from workloads.base import Samples

# The seconds that a segment should last: long compared with what happens between segments, and short
# for somebody who waits for a trial to stop.
SEGMENT_SECONDS = 2.0
# A segment has at most this many times the steps of the one before, as its steps may take longer.
FASTEST_GROWTH = 10
PROFILER_WARMUP = 1  # steps under the profiler whose events are dropped: it is slow at first
PASSES_BETWEEN_CHECKS = 16  # of an evaluation, after which ranks agree on whether to continue


@dataclass(frozen=True)
class Segment:
    """The results of a segment of training at this rank."""

    start_step: int  # the optimizer steps that were done before it
    losses: NDArray[np.float32]  # this rank's mean loss at each step, shape (steps,)
    times: SegmentTimes  # in seconds, for each step

    @property
    def steps(self) -> int:
        """Return the number of its optimizer steps."""
        return len(self.losses)

    @property
    def seconds(self) -> float:
        """Return how long its steps took together."""
        return float(self.times.steps.sum())


class Hooks:
    """Callbacks for a driver of the loop, at its named moments.

    All of them are outside the timed region. The methods of this class change nothing: derive a
    class, override those that you need, and give an object of it to the `Trainer`.
    """

    evaluates = True  # whether evaluations that are due take place

    def before_segment(self, state: TrainingState, stop: int) -> int:
        """Return the step up to which the next segment trains: `stop` or an earlier one.

        It may block for as long as it likes.
        """
        return stop

    def after_segment(self, state: TrainingState, segment: Segment) -> None:
        """Look at a segment that has ended; its numbers are in `state` already."""


@dataclass(eq=False)
class Trainer:
    """Trains one trial at one rank, segment by segment, from its newest checkpoint on.

    `run` is the loop. A segment is two calls: `train_segment`, which is timed, and `synchronize`,
    which is not. What a trial leaves is in `state`.
    """

    parts: TrialParts
    state: TrainingState  # gets that of the attempts before this one, and is filled by it
    hooks: Hooks = field(default_factory=Hooks)

    def __post_init__(self) -> None:
        parts = self.parts
        cell = parts.assignment.trial.cell
        self.stop_rule = cell.stop
        self.progress = ProgressFile(parts.folder, parts.mesh.rank, {"steps": parts.total_steps})
        self.steps_per_epoch = parts.order.steps
        self.steps_between_evaluations = cell.evaluate.in_steps(self.steps_per_epoch)
        self.checkpointer = Checkpointer(parts)
        with self.state.timed("build"):
            self.checkpointer.resume(self.state)
        self.segment_steps = 1  # of the next segment; more once it is known how long a step takes
        self._longest_segment = 0.0  # in seconds
        parts.compiler.seconds = 0.0  # those until now are of the phase "build"
        # That workers may have fetched before they are asked for; none without workers.
        self._batches_ahead = parts.axes.num_workers * parts.axes.loader_prefetch_factor

    # The loop

    def run(self, until: int | None = None) -> None:
        """Train up to the step `until`, with the evaluations on the way.

        `until` is the trial's last step unless given. Raises NonFiniteLoss, NotApplied,
        Interrupted, and whatever the workload raises.
        """
        parts, state = self.parts, self.state
        last_step = until or parts.total_steps
        if not self._all_ranks_continue():
            self._interrupt()
        state.training_began_at = state.training_began_at or time.time()
        last_evaluated = state.evaluations[-1].step if state.evaluations else 0
        # An earlier attempt may have been interrupted before an evaluation or in it.
        if state.step > last_evaluated and self._is_evaluation_due():
            self.evaluate()
        batches: Iterator[Fetched] | None = None
        while state.step < last_step and self.stop_reason is None:
            if batches is None:
                with state.timed("loader"):
                    batches = batches_from(parts.loader, parts.order, state.step)
            stop = self.hooks.before_segment(state, self._segment_end(last_step))
            segment = self.train_segment(batches, stop)
            has_paused = self.synchronize(segment)
            self.hooks.after_segment(state, segment)
            if self._is_evaluation_due():
                self.evaluate()
                has_paused = True
            is_epoch_over = state.step % self.steps_per_epoch == 0
            if self._batches_ahead and is_epoch_over:
                batches = None  # workers are started for each epoch, untimed
            elif has_paused:
                self._leave_out_fetched_steps()
        self.checkpointer.stop()

    @property
    def stop_reason(self) -> Literal["patience", "goal"] | None:
        """Return which part of the rule for stopping has ended the trial, None if none has."""
        return find_stop_reason(self.stop_rule, self.parts.target, self.state.evaluations)

    def _is_evaluation_due(self) -> bool:
        """Return whether the steps done are followed by an evaluation."""
        step = self.state.step
        is_due = step % self.steps_between_evaluations == 0 or step == self.parts.total_steps
        return is_due and self.hooks.evaluates

    def _segment_end(self, last_step: int) -> int:
        """Return the step at which the next segment ends, the same at every rank."""
        step = self.state.step
        stops = [step + self.segment_steps, last_step, self.parts.total_steps]
        stops.append(_next_multiple(step, self.steps_between_evaluations))
        if self._batches_ahead:
            stops.append(_next_multiple(step, self.steps_per_epoch))
        saves = self.parts.assignment.saves
        if saves is not None and saves.steps is not None:
            stops.append(_next_multiple(step, saves.steps))
        return min(stops)

    def _leave_out_fetched_steps(self) -> None:
        """Note the steps that workers have fetched for in an untimed pause as no part of the measurement.

        A loader that is too slow would seem faster, the more often is evaluated.
        """
        step = self.state.step
        epoch_end = _next_multiple(step, self.steps_per_epoch)
        self.state.refilled_steps += range(step, min(step + self._batches_ahead, epoch_end))

    def train_segment(self, batches: Iterator[Fetched], stop: int) -> Segment:
        """Train up to the step `stop`: nothing but training.

        The timed region is from `clock.start()` to `clock.stop()`, both of which wait for the
        device.
        """
        parts, state = self.parts, self.state
        axes, device = parts.axes, parts.device
        clock = parts.train_step.clock
        train_step = parts.train_step.run
        observe = parts.train_step.observe
        # Else there is nothing to do, and no mark of the clock for it.
        must_place = device.type != "cpu" or axes.channels_last or axes.precision == "fp64"
        start_step = state.step
        losses = []
        trained_on = []
        parts.train_step.step = start_step
        parts.telemetry.begin_segment()
        state.in_step = observe is observe_nothing  # of others nobody knows how long they take
        clock.start(segments_left=(parts.total_steps - start_step) / self.segment_steps)
        for _ in range(start_step, stop):
            indices, batch = next(batches)
            observe("indices", 0, indices)
            if must_place:
                clock.enter(Phase.host_to_device)
                batch = place_batch(batch, axes, device)
            losses.append(train_step(batch))
            del batch  # so that the next one gets its memory
            trained_on.append(indices)
            clock.end_step()
        times = clock.stop()
        parts.telemetry.end_segment(len(losses))
        state.order_sums = add_to_digest(state.order_sums, parts.order, start_step, trained_on)
        state.step = stop
        loss_values = torch.stack(losses).float()
        return Segment(start_step, loss_values.cpu().numpy(), times)

    def synchronize(self, segment: Segment) -> bool:
        """Keep a segment's numbers, and agree with the other ranks on how to continue.

        Returns whether a save took time, the same at every rank.

        One reduction tells all ranks the earliest loss that is not finite, the length of the next
        segment, and whether a rank was asked to stop. Raises NonFiniteLoss, NotApplied and
        Interrupted.
        """
        parts, state = self.parts, self.state
        self._keep_numbers(segment)
        # These raise NotApplied for a setting that did nothing, such as torch.compile without a graph.
        state.compiled = parts.compiler.account()
        parts.strategy.check_effect()
        check_deterministic_mode(parts.deterministic_settings)
        steps_per_second = segment.steps / segment.seconds
        enough_steps = math.ceil(SEGMENT_SECONDS * steps_per_second)
        most_steps = FASTEST_GROWTH * segment.steps
        bad_loss, self.segment_steps, all_continue, *agreed = all_reduce_min(
            self._earliest_bad_loss(segment),
            min(enough_steps, most_steps),
            not stop_is_requested(),
            *self.checkpointer.votes(state.step),
        )
        state.in_step = False
        bad_step, rank = divmod(bad_loss, parts.mesh.world_size)
        steps = parts.total_steps
        if bad_step < steps:
            problem = f"the loss became NaN or infinite at step {bad_step + 1} of {steps}"
            raise NonFiniteLoss(problem, rank)
        if not all_continue:
            self._interrupt()
        has_saved = self.checkpointer.on_agreement(agreed, state)
        loss = float(segment.losses[-1])
        rate = steps_per_second * parts.axes.batch_size
        self.progress.report(
            "train", state.step, rate=rate, loss=loss, slowest=self._longest_segment
        )
        return has_saved

    def _earliest_bad_loss(self, segment: Segment) -> int:
        """Return a number for the first loss of this rank that is not finite, ordered by step, then by rank.

        Without any it is that of the step after the trial's last.
        """
        mesh = self.parts.mesh
        step = self.parts.total_steps
        is_bad = ~np.isfinite(segment.losses)
        if is_bad.any():
            step = segment.start_step + int(is_bad.argmax())
        return step * mesh.world_size + mesh.rank

    def _keep_numbers(self, segment: Segment) -> None:
        """Append the numbers of a segment to those of the trial."""
        state = self.state
        times = segment.times
        state.add_steps({"loss": segment.losses, "seconds": times.steps} | times.phases)
        # torch.compile works inside a step, the first or one with another shape, and counts as its
        # own phase.
        compiler = self.parts.compiler
        compile_seconds, compiler.seconds = compiler.seconds, 0.0
        if compile_seconds:
            state.add_seconds("compile", compile_seconds)
        seconds = segment.seconds - compile_seconds
        state.add_seconds("train", seconds)
        self._longest_segment = max(seconds, self._longest_segment)

    # Evaluation

    def evaluate(self) -> None:
        """Evaluate the test set, and the validation set if there is one.

        If the best model is kept and this is the best so far, save it. Raises NonFiniteLoss for a
        metric that is NaN or infinite, NotApplied and Interrupted.
        """
        parts, state = self.parts, self.state
        splits = parts.splits
        self.progress.report("evaluate", state.step)
        started_at = time.time()
        validation: Mapping[str, float] | None = None
        with state.timed("evaluate"):
            if splits.validation is not None:
                validation = self._evaluate_set("validation", splits.validation)
            metrics = self._evaluate_set("test", splits.test)
        evaluation = Evaluation(
            step=state.step,
            metrics=metrics,
            seconds=max(0.0, time.time() - started_at),
            validation=validation,
            started_at=started_at,
        )
        state.evaluations.append(evaluation)
        is_best = parts.target.best(state.evaluations) == evaluation
        if is_best and parts.assignment.checkpoint == "best":
            with state.timed("checkpoint"):
                state.best_checkpoint = save_best(parts, state)

    def _evaluate_set(self, name: str, samples: Samples) -> Mapping[str, float]:
        """Return the workload's metrics over all samples of a set, the same at every rank.

        Training goes on as if nothing had been evaluated.
        """
        parts = self.parts
        metrics: dict[str, float] = {}
        with undisturbed(parts.model, parts.device):
            rows = self._rows_of(samples)
            if rows is not None and parts.mesh.rank == 0:
                for metric, value in parts.workload.metrics(rows).items():
                    metrics[metric] = float(value)
        if rows is None:
            self._interrupt()
        metrics = broadcast_from_rank_0(metrics)
        for metric, value in metrics.items():
            if not math.isfinite(value):
                raise NonFiniteLoss(
                    f"{metric} of the {name} set became {value}"
                    f" after step {self.state.step} of {parts.total_steps}"
                )
        return metrics

    def _rows_of(self, samples: Samples) -> Tensor | None:
        """Evaluate a set, of which each rank has a share; return None if a rank is to stop.

        Returns a row for each sample, in their order, which only rank 0 has. A padded or truncated set,
        which is what torch's DistributedSampler gives, would make metrics depend on the number of ranks.
        Raises NotApplied if the workload doesn't return one row for each sample.
        """
        parts = self.parts
        mesh = parts.mesh
        parts.strategy.before_evaluation(parts.model)
        count = len(samples)
        indices = range(mesh.rank, count, mesh.world_size)  # of this rank
        batch_size = parts.axes.batch_size // mesh.world_size
        most_samples = math.ceil(count / mesh.world_size)  # of a rank: those of rank 0
        all_rows = []
        # Every rank makes as many passes as rank 0, because under FSDP2 a forward pass is collective. A
        # rank that has run out repeats sample 0 and drops the result.
        passes = range(0, most_samples, batch_size)
        for number, start in enumerate(passes, start=1):
            batch_indices = indices[start : start + batch_size]
            rows = parts.result_rows(samples, batch_indices or [0])
            all_rows.append(rows if batch_indices else rows[:0])
            if number % PASSES_BETWEEN_CHECKS == 0 and not self._all_ranks_continue():
                return None
        rows = torch.cat(all_rows)
        if len(rows) != len(indices):
            raise NotApplied(
                f"evaluate() returned {len(rows)} rows for {len(indices)} samples of rank {mesh.rank};"
                " needed: one row per sample"
            )
        in_order = rows.new_empty((count, *rows.shape[1:]))
        for rank, share in enumerate(gather(rows)):  # at rank 0 alone
            in_order[rank :: mesh.world_size] = share
        return in_order

    # Interruption

    def _all_ranks_continue(self) -> bool:
        """Return whether no rank was asked to stop, the same at every rank."""
        (continues,) = all_reduce_min(not stop_is_requested())
        return bool(continues)

    def _interrupt(self) -> NoReturn:
        """Leave a checkpoint to resume from, if it can be written, and raise Interrupted."""
        state = self.state
        self.progress.report("interrupted", state.step)
        self.checkpointer.stop()
        problem = ""
        has_trained = state.step > self.checkpointer.saved_step
        is_saved = not has_trained or self.checkpointer.save(state, interrupted_by=SIGNAL.name)
        if state.unsaved and not is_saved:
            problem = f"; {state.unsaved[-1]}"
        # No rank may end before rank 0 has written it: launchers end all ranks when one has ended.
        all_reduce_min(0)
        raise Interrupted(f"stopped after step {state.step} of {self.parts.total_steps}{problem}")


def find_stop_reason(
    rule: StopRule | None, metric: TargetMetric, evaluations: Sequence[Evaluation]
) -> Literal["patience", "goal"] | None:
    """Return why a trial ends after its last evaluation, by the target metric; None if it continues.

    All ranks have the same evaluations, and every checkpoint has them, so all decide alike. The goal goes
    before patience, if the last evaluation has met both.
    """
    best = metric.best(evaluations)
    if rule is None or best is None:
        return None
    score = metric.score(best.deciding[metric.name])
    if rule.goal is not None and score >= metric.score(rule.goal):
        return "goal"
    evaluations_since = len(evaluations) - 1 - evaluations.index(best)
    if rule.patience is not None and evaluations_since >= rule.patience:
        return "patience"
    return None


def batches_from(loader: Iterable[Fetched], order: BatchOrder, step: int) -> Iterator[Fetched]:
    """Return the batches of `step` and of the steps after it, epoch after epoch.

    Workers begin to fetch at once.
    """
    order.next_step = step
    return itertools.chain(iter(loader), _later_epochs(loader, order))


def _later_epochs(loader: Iterable[Fetched], order: BatchOrder) -> Iterator[Fetched]:
    """Yield the batches of the epochs after the present one."""
    while True:
        order.seek_next_epoch()
        yield from loader


def _next_multiple(step: int, interval: int) -> int:
    """Return the first multiple of an interval after a step."""
    return (step // interval + 1) * interval


def trace_steps(parts: TrialParts, state: TrainingState, steps: int) -> None:
    """Train `steps` more steps, and leave a trace of them in the trial's folder.

    `profile/rank<N>.json.gz` is a Chrome trace. Every rank must call this, and the model is another one
    afterwards. The learning rate stays as it is: a schedule may not continue after its end.
    """
    parts.train_step.schedule = None
    batches = batches_from(parts.loader, parts.order, state.step)
    path = parts.folder.trace_path(parts.mesh.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    active = schedule(wait=0, warmup=PROFILER_WARMUP, active=steps, repeat=1)
    with state.timed("profile"), profile(schedule=active) as profiler:
        for _ in range(PROFILER_WARMUP + steps):
            _, batch = next(batches)
            batch = place_batch(batch, parts.axes, parts.device)
            parts.train_step.run(batch)
            profiler.step()
        profiler.export_chrome_trace(str(path))  # compressed, as its name ends in .gz
