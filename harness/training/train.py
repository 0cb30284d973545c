"""The one training loop, for every workload, strategy, execution and precision.

Training is cut into segments. In a segment there is nothing but training, and all of it is timed.
Between segments, untimed, numbers are kept, and the ranks agree on whether and how to continue.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.core.errors import Interrupted, NonFiniteLoss, NotApplied, StorageError
from harness.measure.clock import Phase, SegmentTimes
from harness.records.record import Evaluation, StopOutcome, TargetMetric
from harness.training.best import save_best
from harness.training.build import TrialParts
from harness.training.checkpoint import KEPT, Checkpointer
from harness.training.evaluate import evaluate
from harness.training.fingerprint import digest_model
from harness.training.interruption import SIGNAL, is_requested
from harness.training.loader import Fetched, batches_ahead
from harness.training.model import must_place_batches, place_batch
from harness.training.order import BatchOrder, Indices
from harness.training.progress import ProgressFile
from harness.training.ranks import barrier
from harness.training.saving import IntervalSaver
from harness.training.state import TrainingState
from harness.training.step import NO_OBSERVER
from harness.training.stopping import find_stop_reason, selection_metric
from workloads.base import Samples

# The seconds that a segment should last: long compared with what happens between segments, and short
# for somebody who waits for a trial to stop.
SEGMENT_SECONDS = 2.0
# A segment has at most this many times the steps of the one before, as its steps may take longer.
FASTEST_GROWTH = 10


@dataclass(frozen=True)
class Segment:
    """The results of a segment of training at this rank."""

    start_step: int  # the optimizer steps that were done before it
    losses: NDArray[np.float32]  # this rank's mean loss at each step, shape (steps,)
    times: SegmentTimes  # in seconds, for each step
    is_observed: bool = False  # whether the times include an observer's

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

    def before_segment(self, state: TrainingState, stop: int) -> int:
        """Return the step up to which the next segment trains: `stop` or an earlier one.

        It may block for as long as it likes.
        """
        return stop

    def after_segment(self, state: TrainingState, segment: Segment) -> None:
        """Look at a segment that has ended; its numbers are in `state` already."""

    def should_evaluate(self, state: TrainingState) -> bool:
        """Return whether an evaluation that is due takes place."""
        return True


class Trainer:
    """Trains one trial at one rank, segment by segment, from its newest checkpoint on.

    `run` is the loop. A segment is two calls: `train_segment`, which is timed, and `synchronize`,
    which is not. What a trial leaves is in `state`.
    """

    def __init__(self, parts: TrialParts, state: TrainingState, hooks: Hooks | None = None) -> None:
        self.parts = parts
        self.state = state  # gets that of the attempts before this one, and is filled by it
        self.hooks = hooks or Hooks()
        self.target = TargetMetric(**asdict(parts.workload.target))
        cell = parts.assignment.trial.cell
        self.stop_rule = cell.stop
        # The metric by which the best evaluation is chosen.
        self.selection = selection_metric(self.stop_rule, self.target)
        self.progress = ProgressFile(
            parts.folder.progress_path, parts.total_steps, is_writer=parts.mesh.ranks.is_rank_0
        )
        self.steps_between_evaluations = cell.evaluate.in_steps(parts.order.steps)
        self.checkpointer = Checkpointer(parts)
        with state.timed("build"):
            self.checkpointer.resume(state)
        saves = parts.assignment.saves
        self.saver = None if saves is None else IntervalSaver(saves, self.checkpointer, state)
        self.segment_steps = 1  # of the next segment; more once it is known how long a step takes
        self._counted_compile_seconds = parts.compiler.seconds  # that are in the phases already
        self._batches_ahead = batches_ahead(parts.loader)  # none without workers

    # The loop

    def run(self, until: int | None = None) -> None:
        """Train up to the step `until`, with the evaluations on the way.

        `until` is the trial's last step unless given. Raises NonFiniteLoss, NotApplied,
        Interrupted, and whatever the workload raises.
        """
        parts, state = self.parts, self.state
        last_step = parts.total_steps if until is None else until
        if not self._all_ranks_continue():
            self._interrupt()
        if state.training_began_at is None:
            state.training_began_at = time.time()
        last_evaluated = max((done.step for done in state.evaluations), default=0)
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
            if self._must_restart_loader(has_paused, last_step):
                batches = None
        if self.saver is not None:
            self.saver.stop()

    @property
    def stop_reason(self) -> Literal["patience", "goal"] | None:
        """Return which part of the rule for stopping has ended the trial, None if none has."""
        if self.stop_rule is None:
            return None
        return find_stop_reason(self.stop_rule, self.target, self.state.evaluations)

    def _is_evaluation_due(self) -> bool:
        """Return whether the steps done are followed by an evaluation."""
        step = self.state.step
        return step % self.steps_between_evaluations == 0 or step == self.parts.total_steps

    def _segment_end(self, last_step: int) -> int:
        """Return the step at which the next segment ends, the same at every rank."""
        step = self.state.step
        stops = [step + self.segment_steps, last_step, self.parts.total_steps]
        stops.append(_next_multiple(step, self.steps_between_evaluations))
        if self._batches_ahead:  # workers are started for each epoch, untimed
            stops.append(_next_multiple(step, self.parts.order.steps))
        saves = self.parts.assignment.saves
        if saves is not None and saves.steps is not None:
            stops.append(_next_multiple(step, saves.steps))
        return min(stops)

    def _must_restart_loader(self, has_paused: bool, last_step: int) -> bool:
        """Return whether workers have to begin anew: in a new epoch, and after an untimed pause.

        They would have fetched in the pause, and a loader that is too slow would seem faster, the more
        often is evaluated. The first steps wait for them, and are noted as no part of the measurement. A
        stream is not read again: of it, only these steps are noted.
        """
        step, order = self.state.step, self.parts.order
        if not self._batches_ahead:
            return False
        if step % order.steps == 0:
            return True
        if not has_paused:
            return False
        end = min(step + self._batches_ahead, _next_multiple(step, order.steps), last_step)
        self.state.refilled_steps += range(step, end)
        return not order.in_order

    def train_segment(self, batches: Iterator[Fetched], stop: int) -> Segment:
        """Train up to the step `stop`: nothing but training.

        The timed region is from `clock.start()` to `clock.stop()`, both of which wait for the
        device.
        """
        parts, state = self.parts, self.state
        clock, train_step = parts.train_step.clock, parts.train_step.run
        axes, device = parts.axes, parts.mesh.device
        must_place = must_place_batches(axes, device)
        observer = parts.train_step.observer
        is_observed = observer is not NO_OBSERVER
        start_step = state.step
        losses: list[Tensor] = []
        trained_on: list[Indices] = []
        parts.train_step.step = start_step
        if not is_observed:
            parts.telemetry.begin_segment()
            state.in_step = True
        clock.start(segments_left=(parts.total_steps - start_step) / self.segment_steps)
        for step in range(start_step, stop):
            indices, worker, batch = next(batches)
            observer.before_step(step, indices)
            if must_place:
                clock.enter(Phase.host_to_device)
                batch = place_batch(batch, axes, device)
            losses.append(train_step(batch))
            del batch  # so that the next one gets its memory
            trained_on.append(indices)
            clock.end_step()
        times = clock.stop()
        if not is_observed:
            parts.telemetry.end_segment(len(losses))
        state.loader_workers = max(state.loader_workers, worker + 1)
        state.order_digest.add(parts.order, start_step, trained_on)
        state.step = stop
        loss_values = torch.stack(losses).float().cpu().numpy()
        return Segment(start_step, loss_values, times, is_observed=is_observed)

    def synchronize(self, segment: Segment) -> bool:
        """Keep a segment's numbers, and agree with the other ranks on how to continue.

        Returns whether a save took time, the same at every rank.

        One reduction tells all ranks the earliest loss that is not finite, the length of the next
        segment, and whether a rank was asked to stop. Raises NonFiniteLoss, NotApplied and
        Interrupted.
        """
        parts, state = self.parts, self.state
        self._keep_numbers(segment)
        self._check_settings_had_effect()
        is_last = state.step == parts.total_steps  # after which nothing is to be saved
        votes = () if self.saver is None or is_last else self.saver.votes(state.step)
        bad_loss, self.segment_steps, all_continue, *agreed = parts.mesh.all_reduce_min(
            self._earliest_bad_loss(segment),
            self._next_segment_steps(segment),
            not is_requested(),
            *votes,
            *parts.strategy.votes(),
        )
        state.in_step = False
        bad_step, rank = divmod(bad_loss, parts.mesh.ranks.world_size)
        if bad_step < parts.total_steps:
            raise NonFiniteLoss(
                f"the loss became NaN or infinite at step {bad_step + 1} of {parts.total_steps}",
                rank=rank,
            )
        parts.strategy.check_votes(agreed[len(votes) :])
        if not all_continue:
            self._interrupt()
        has_saved = False
        if self.saver is not None and votes:
            has_saved = self.saver.on_agreement(agreed[: len(votes)], state)
            self.progress.note_saved(self.saver.saved_step, self.saver.saved_at)
        samples = segment.steps * parts.axes.batch_size
        rate = samples / segment.seconds
        self.progress.report_training(state.step, rate, float(segment.losses[-1]))
        return has_saved

    def _earliest_bad_loss(self, segment: Segment) -> int:
        """Return a number for the first loss of this rank that is not finite, ordered by step, then by rank.

        Without any it is that of the step after the trial's last.
        """
        bad_steps = np.flatnonzero(~np.isfinite(segment.losses))
        step = self.parts.total_steps
        if len(bad_steps):
            step = segment.start_step + int(bad_steps[0])
        return step * self.parts.mesh.ranks.world_size + self.parts.mesh.ranks.rank

    def _next_segment_steps(self, segment: Segment) -> int:
        """Return how many steps would last SEGMENT_SECONDS, at this segment's pace.

        The pace of observed steps says nothing, and so makes later segments no shorter.
        """
        steps = math.ceil(SEGMENT_SECONDS * segment.steps / segment.seconds)
        steps = min(steps, FASTEST_GROWTH * segment.steps)
        if segment.is_observed:
            return max(steps, self.segment_steps)
        return steps

    def _keep_numbers(self, segment: Segment) -> None:
        """Append the numbers of a segment to those of the trial."""
        self.state.add_steps(segment.losses, segment.times.steps, segment.times.phases)
        # torch.compile works inside a step, the first or one with another shape, and counts as its
        # own phase.
        compile_seconds = self.parts.compiler.seconds - self._counted_compile_seconds
        self._counted_compile_seconds = self.parts.compiler.seconds
        if compile_seconds:
            self.state.add_seconds("compile", compile_seconds)
        phase = "fingerprint" if segment.is_observed else "train"
        self.state.add_seconds(phase, segment.seconds - compile_seconds)
        self.progress.note_segment(segment.seconds - compile_seconds)

    def _check_settings_had_effect(self) -> None:
        """Raise NotApplied if a setting did nothing, such as torch.compile that compiled no graph."""
        self.state.compiled = self.parts.compiler.account()
        self.parts.strategy.check_effect()
        self.parts.determinism.check_effect()
        num_workers = self.parts.axes.num_workers
        if num_workers and not self.state.loader_workers:
            raise NotApplied(
                f"num_workers={num_workers} had no effect: no worker has delivered a batch"
            )

    # Evaluation

    def evaluate(self) -> None:
        """Evaluate the test set, and the validation set if there is one.

        If the best model is kept and this is the best so far, save it. Raises NonFiniteLoss for a
        metric that is NaN or infinite, NotApplied and Interrupted.
        """
        parts, state = self.parts, self.state
        if not self.hooks.should_evaluate(state):
            return
        self.progress.report("evaluate", state.step)
        started_at = time.time()
        validation: Mapping[str, float] | None = None
        with state.timed("evaluate") as elapsed:
            if parts.splits.validation is not None:
                validation = self._scores_of(parts.splits.validation, "validation set")
            test = self._scores_of(parts.splits.test, "test set")
        evaluation = Evaluation(
            step=state.step,
            epoch=state.step / parts.order.steps,
            metrics=test,
            seconds=elapsed(),
            validation=validation,
            started_at=started_at,
        )
        state.evaluations.append(evaluation)
        is_kept = parts.assignment.checkpoint == "best"
        if is_kept and self.selection.best(state.evaluations) == evaluation:
            with state.timed("checkpoint"):
                save_best(parts, state)

    def _scores_of(self, samples: Samples, name: str) -> Mapping[str, float]:
        """Return the scores over samples; `name` is for errors.

        Raises NonFiniteLoss, and Interrupted if a rank was asked to stop.
        """
        parts = self.parts
        scores = evaluate(
            parts.workload,
            parts.model,
            samples,
            parts.axes,
            parts.strategy,
            parts.mesh,
            self._all_ranks_continue,
        )
        if scores is None:
            self._interrupt()
        for metric, value in scores.items():
            if not math.isfinite(value):
                raise NonFiniteLoss(
                    f"{metric} of the {name} became {value}"
                    f" after step {self.state.step} of {parts.total_steps}"
                )
        return scores

    # Interruption

    def _all_ranks_continue(self) -> bool:
        """Return whether no rank was asked to stop, the same at every rank."""
        (continues,) = self.parts.mesh.all_reduce_min(not is_requested())
        return bool(continues)

    def _interrupt(self) -> NoReturn:
        """Leave a checkpoint to resume from, if it can be written, and raise Interrupted."""
        parts, state = self.parts, self.state
        self.progress.report("interrupted", state.step)
        if self.saver is not None:
            self.saver.stop()
        problem = ""
        if state.step > state.resumed_at:
            keep = KEPT if parts.assignment.saves is None else parts.assignment.saves.keep
            try:
                self.checkpointer.save(state, interrupted_by=SIGNAL.name, keep=keep)
            except StorageError as error:
                problem = f"; step {state.step} was not saved: {error}"
        # No rank may end before rank 0 has written it: launchers end all ranks when one has ended.
        barrier()
        message = f"stopped after step {state.step} of {parts.total_steps}{problem}"
        if state.step and self.checkpointer.unsaved is not None:
            message += f"; the next attempt starts from step 0: {self.checkpointer.unsaved}"
        raise Interrupted(message)

    # Results

    @property
    def stop_outcome(self) -> StopOutcome | None:
        """Return how the rule for stopping has ended the trial, None without a rule."""
        if self.stop_rule is None:
            return None
        reason = self.stop_reason or "length"
        return StopOutcome(reason=reason, step=self.state.step, metric=self.selection)

    def fingerprint(self) -> str:
        """Return the digest of the final model, at rank 0 that of all ranks; every rank must take part."""
        with self.state.timed("fingerprint"):
            state_digest = self.parts.workload_state.digest()
            return digest_model(self.parts.model, state_digest)


def batches_from(loader: Iterable[Fetched], order: BatchOrder, step: int) -> Iterator[Fetched]:
    """Return the batches of `step` and of the steps after it, epoch after epoch.

    Workers begin to fetch at once.
    """
    order.seek(step)
    return itertools.chain(iter(loader), _later_epochs(loader, order))


def _later_epochs(loader: Iterable[Fetched], order: BatchOrder) -> Iterator[Fetched]:
    """Yield the batches of the epochs after the present one."""
    while True:
        order.seek((order.epoch + 1) * order.steps)
        yield from loader


def _next_multiple(step: int, interval: int) -> int:
    """Return the first multiple of an interval after a step."""
    return (step // interval + 1) * interval
