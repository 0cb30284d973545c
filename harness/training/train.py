"""The one training loop, for every workload, strategy, execution and precision.

Training is cut into segments. In a segment there is nothing but training, and all of it is timed.
Between segments, untimed, numbers are kept, and the ranks agree on whether and how to continue.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Literal, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.core.errors import Interrupted, NonFiniteLoss, NotApplied, StorageError, one_line
from harness.measure.clock import Phase, SegmentTimes
from harness.records.record import Evaluation, StopOutcome, TargetMetric
from harness.training.best import gather_state, write_best
from harness.training.build import TrialParts
from harness.training.checkpoint import KEPT
from harness.training.epoch import Indices, InOrder
from harness.training.evaluate import evaluate
from harness.training.fingerprint import digest_buffers, digest_parameters
from harness.training.interruption import SIGNAL, is_requested
from harness.training.loader import Fetched, batches_ahead
from harness.training.model import must_place_batches, place_batch
from harness.training.progress import ProgressFile
from harness.training.saving import IntervalSaver
from harness.training.state import TrainingState
from harness.training.stopping import find_stop_reason, selection_metric
from harness.training.workload_state import join_state_digests
from workloads.base import Samples

# The seconds that a segment should last: long compared with what happens between segments, and short
# for somebody who waits for a trial to stop.
SEGMENT_SECONDS = 2.0
# A segment has at most this many times the steps of the one before, as its steps may take longer.
FASTEST_GROWTH = 10


class _EvaluationAborted(Exception):
    """An evaluation was aborted, at every rank, because a rank was asked to stop."""


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

    @property
    def first_bad_step(self) -> int | None:
        """Return the first step whose loss is NaN or infinite, None if there is none.

        Steps are counted from 0 over all epochs.
        """
        bad_steps = np.flatnonzero(~np.isfinite(self.losses))
        if len(bad_steps) == 0:
            return None
        return self.start_step + int(bad_steps[0])


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
    """Trains one trial at one rank, segment by segment.

    `run` is the loop. A segment is two calls: `train_segment`, which is timed, and `synchronize`,
    which is not. What a trial leaves is in `state`.
    """

    def __init__(self, parts: TrialParts, state: TrainingState, hooks: Hooks | None = None) -> None:
        self.parts = parts
        self.state = state  # of the attempts before this one, and filled by it
        self.hooks = hooks or Hooks()
        self.telemetry = parts.telemetry
        self.target = TargetMetric(**asdict(parts.workload.target))
        self.stop_rule = parts.assignment.trial.cell.stop
        # The metric by which the best evaluation is chosen.
        self.selection = selection_metric(self.stop_rule, self.target)
        self.progress = ProgressFile(
            parts.folder.progress_path, parts.total_steps, is_writer=parts.mesh.ranks.is_rank_0
        )
        steps_per_epoch = parts.order.steps
        self.steps_between_evaluations = parts.assignment.trial.cell.evaluate.in_steps(
            steps_per_epoch
        )
        plan = parts.assignment.saves
        self.saver = None if plan is None else IntervalSaver(plan, parts.checkpointer, state)
        self.segment_steps = 1  # of the next segment; more once it is known how long a step takes
        self._counted_compile_seconds = parts.compiler.seconds  # that are in the phases already

    # The loop

    def run(self, until: int | None = None) -> None:
        """Train up to the step `until`, with the evaluations on the way.

        `until` is the trial's last step unless given. Raises NonFiniteLoss, NotApplied,
        Interrupted, and whatever the workload raises.
        """
        last_step = self.parts.total_steps if until is None else until
        if not self._all_ranks_continue():
            self._interrupt()
        if self.state.training_began_at is None:
            self.state.training_began_at = time.time()
        step = self.state.step
        is_due = step % self.steps_between_evaluations == 0 or step == self.parts.total_steps
        last_evaluated = max((done.step for done in self.state.evaluations), default=0)
        if is_due and step > last_evaluated:  # an earlier attempt was interrupted before or in it
            self.evaluate()
        while self.state.step < last_step and self.stop_reason is None:
            self._train_epoch(last_step)
        if self.is_finished and self.saver is not None:
            self.saver.stop()

    @property
    def stop_reason(self) -> Literal["patience", "goal"] | None:
        """Return which part of the rule for stopping has ended the trial, None if none has."""
        if self.stop_rule is None:
            return None
        return find_stop_reason(self.stop_rule, self.target, self.state.evaluations)

    @property
    def is_finished(self) -> bool:
        """Return whether nothing is left to train."""
        return self.stop_reason is not None or self.state.step == self.parts.total_steps

    def _train_epoch(self, last_step: int) -> None:
        """Train to the end of the present epoch, or to `last_step` if that comes first.

        An evaluation may end the trial before either.
        """
        state, order = self.state, self.parts.order
        order.seek(state.step)
        epoch_end = (order.epoch + 1) * order.steps
        stop = min(epoch_end, last_step)
        is_rank_0 = self.parts.mesh.ranks.is_rank_0
        if is_rank_0 and state.step % order.steps == 0:  # else an epoch is resumed
            state.epoch_began_at.append(time.time())
        with state.timed("loader"):
            batches = iter(self.parts.loader)
        while state.step < stop:
            evaluations = state.step // self.steps_between_evaluations
            next_evaluation = (evaluations + 1) * self.steps_between_evaluations
            next_evaluation = min(next_evaluation, self.parts.total_steps)
            segment_end = min(state.step + self.segment_steps, stop, next_evaluation)
            if self.saver is not None:
                segment_end = self.saver.next_stop(state.step, segment_end)
            segment_end = self.hooks.before_segment(state, segment_end)
            segment = self.train_segment(batches, segment_end)
            # Before `synchronize`, which may save a checkpoint from which the next epoch resumes.
            if is_rank_0 and state.step == epoch_end:
                state.epoch_ended_at.append(time.time())
            has_paused = self.synchronize(segment)
            self.hooks.after_segment(state, segment)
            if state.step == next_evaluation:
                self.evaluate()
                if self.stop_reason is not None:
                    return
                has_paused = True
            if has_paused and state.step < stop:
                batches = self._without_prefetched(batches, stop)

    def _without_prefetched(self, batches: Iterator[Fetched], stop: int) -> Iterator[Fetched]:
        """Return the coming batches after an untimed pause, none of which workers have fetched in it.

        Otherwise a loader that is too slow would seem faster, the more often is evaluated. The first
        steps wait for workers that begin anew, and are noted as no part of the measurement. A stream is
        not read again: of it, only these steps are noted.
        """
        state, order, loader = self.state, self.parts.order, self.parts.loader
        ahead = batches_ahead(loader)
        if not ahead:
            return batches
        state.refilled_steps += range(state.step, min(stop, state.step + ahead))
        if isinstance(order.epoch_order, InOrder):
            return batches
        del batches
        order.seek(state.step)
        with state.timed("loader"):
            return iter(loader)

    def train_segment(self, batches: Iterator[Fetched], stop: int) -> Segment:
        """Train up to the step `stop`: nothing but training.

        The timed region is from `clock.start()` to `clock.stop()`, both of which wait for the
        device.
        """
        parts, state = self.parts, self.state
        clock, train_step = parts.clock, parts.train_step.run
        axes, device = parts.axes, parts.mesh.device
        must_place = must_place_batches(axes, device)
        observer = parts.train_step.observer
        start_step = state.step
        losses: list[Tensor] = []
        trained_on: list[Indices] = []
        parts.train_step.step = start_step
        if observer is None:
            self.telemetry.begin_segment()
            state.in_step = True
        clock.start(segments_left=(parts.total_steps - start_step) / self.segment_steps)
        for step in range(start_step, stop):
            indices, worker, batch = next(batches)
            if observer is not None:
                observer.before_step(step, indices)
            if must_place:
                clock.enter(Phase.host_to_device)
                batch = place_batch(batch, axes, device)
            losses.append(train_step(batch))
            del batch  # so that the next one gets its memory
            trained_on.append(indices)
            clock.end_step()
        times = clock.stop()
        if observer is None:
            self.telemetry.end_segment(len(losses))
        state.loader_workers = max(state.loader_workers, worker + 1)
        state.order_digest.add(parts.order, start_step, trained_on)
        state.step = stop
        return Segment(
            start_step,
            torch.stack(losses).float().cpu().numpy(),
            times,
            is_observed=observer is not None,
        )

    def synchronize(self, segment: Segment) -> bool:
        """Keep a segment's numbers, and agree with the other ranks on how to continue.

        Returns whether a save took time, the same at every rank.

        One reduction tells all ranks the earliest loss that is not finite, the length of the next
        segment, and whether a rank was asked to stop. Raises NonFiniteLoss, NotApplied and
        Interrupted.
        """
        self._keep_numbers(segment)
        self._check_settings_had_effect()
        world_size = self.parts.mesh.ranks.world_size
        no_bad_loss = self.parts.total_steps * world_size  # greater than any step and rank
        bad_loss = no_bad_loss
        if segment.first_bad_step is not None:
            # Ordered by step, then by rank, so that all ranks name the same one.
            bad_loss = segment.first_bad_step * world_size + self.parts.mesh.ranks.rank
        is_last = self.state.step == self.parts.total_steps  # after which nothing is to be saved
        votes = () if self.saver is None or is_last else self.saver.votes(self.state.step)
        strategy = self.parts.strategy
        earliest_bad_loss, self.segment_steps, all_continue, *agreed = (
            self.parts.mesh.all_reduce_min(
                bad_loss,
                self._next_segment_steps(segment),
                not is_requested(),
                *votes,
                *strategy.votes(),
            )
        )
        self.state.in_step = False
        if earliest_bad_loss < no_bad_loss:
            step, rank = divmod(earliest_bad_loss, world_size)
            raise NonFiniteLoss(
                f"the loss became NaN or infinite at step {step + 1} of {self.parts.total_steps}",
                rank=rank,
            )
        strategy.check_votes(agreed[len(votes) :])
        agreed = agreed[: len(votes)]
        if not all_continue:
            self._interrupt()
        has_saved = False
        if self.saver is not None and agreed:
            has_saved = self.saver.on_agreement(agreed, self.state)
            self.progress.note_saved(self.saver.saved_step, self.saver.saved_at)
        samples = segment.steps * self.parts.axes.batch_size
        self.progress.report_training(
            self.state.step, samples / segment.seconds, float(segment.losses[-1])
        )
        return has_saved

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
        state = self.state
        state.losses += segment.losses.tolist()
        state.step_seconds += segment.times.steps.tolist()
        for name, seconds in segment.times.phases.items():
            state.step_phases.setdefault(name, []).extend(seconds.tolist())
        # torch.compile works inside a step, the first or one with another shape, and counts as its
        # own phase.
        compile_seconds = self.parts.compiler.seconds - self._counted_compile_seconds
        self._counted_compile_seconds = self.parts.compiler.seconds
        if compile_seconds:
            state.add_seconds("compile", compile_seconds)
        phase = "fingerprint" if segment.is_observed else "train"
        state.add_seconds(phase, segment.seconds - compile_seconds)
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
        validation: Mapping[str, float] | None = None
        test: Mapping[str, float] | None = None
        started_at = time.time()
        with state.timed("evaluate") as elapsed, suppress(_EvaluationAborted):
            if parts.splits.validation is not None:
                validation = self._scores_of(parts.splits.validation, "validation set")
            test = self._scores_of(parts.splits.test, "test set")
        if test is None:
            self._interrupt()
        evaluation = Evaluation(
            step=state.step,
            epoch=state.step / parts.order.steps,
            metrics=test,
            seconds=elapsed(),
            validation=validation,
            started_at=started_at,
        )
        state.evaluations.append(evaluation)
        keeps_best = parts.assignment.checkpoint == "best"
        if keeps_best and self.selection.best(state.evaluations) == evaluation:
            with state.timed("checkpoint"):
                self._save_best()

    def _save_best(self) -> None:
        """Save the weights as the best so far; what can't be written costs a line and no trial."""
        parts, state = self.parts, self.state
        weights = gather_state(parts.model, keeps=parts.mesh.ranks.is_rank_0)
        workload = parts.workload_state.save()
        if not parts.mesh.ranks.is_rank_0:
            return
        trial, folder = parts.assignment.trial.id, parts.folder.best_checkpoints
        try:
            write_best(folder, trial, state.step, weights, parts.model, workload)
        except Exception as error:  # of the disk, or a tensor that safetensors does not know
            state.note_unsaved(
                f"the best model, step {state.step}, was not saved: {one_line(error)}"
            )

    def _scores_of(self, samples: Samples, name: str) -> Mapping[str, float]:
        """Return the scores over samples; `name` is for errors.

        Raises NonFiniteLoss, and _EvaluationAborted if a rank was asked to stop.
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
            raise _EvaluationAborted
        for metric, value in scores.items():
            if not math.isfinite(value):
                raise NonFiniteLoss(
                    f"{metric} of the {name} became {value}"
                    f" after step {self.state.step} of {parts.total_steps}"
                )
        return scores

    @property
    def stop_outcome(self) -> StopOutcome | None:
        """Return how the rule for stopping has ended the trial, None without a rule."""
        if self.stop_rule is None:
            return None
        return StopOutcome(
            reason=self.stop_reason or "length",
            step=self.state.step,
            metric=self.selection,
        )

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
                parts.checkpointer.save(state, interrupted_by=SIGNAL.name, keep=keep)
            except StorageError as error:
                problem = f"; step {state.step} was not saved: {error}"
        # No rank may end before rank 0 has written it: launchers end all ranks when one has ended.
        parts.mesh.barrier()
        message = f"stopped after step {state.step} of {parts.total_steps}{problem}"
        lost = parts.checkpointer.unsaved()
        if lost is not None and state.step:
            message += f"; the next attempt starts from step 0: {lost}"
        raise Interrupted(message)

    # Results

    def fingerprint(self) -> str:
        """Return the digest of the final model: parameters, buffers and the workload's own state.

        Without buffers and state it is the digest of the parameters alone. Every rank must take part;
        only rank 0's digest is that of all ranks.
        """
        with self.state.timed("fingerprint"):
            parameters = digest_parameters(self.parts.model)
            states = self.parts.mesh.gather(self.parts.workload_state.digest())
            others = digest_buffers(self.parts.model), join_state_digests(states)
            digests = [parameters, *(digest for digest in others if digest is not None)]
            if len(digests) == 1:
                return parameters
            return hashlib.sha256(" ".join(digests).encode()).hexdigest()
