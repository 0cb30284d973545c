"""Saves checkpoints at intervals while a trial trains.

Between two segments, each rank copies its part to memory, which is all that training waits for. A
thread writes the copy. When all ranks have written theirs, rank 0 seals and renames the checkpoint,
in its thread again. Ranks agree on each of these moments in the reduction that ends a segment, so
nothing else is sent, and a rank that is slow to write holds up no other.

A save that fails is a line in the log and in the record, and the next one is tried as if it had not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from harness.core.errors import StorageError
from harness.records.record import Saves
from harness.spec.saving import SavePlan, automatic_interval, parse_interval
from harness.training.checkpoint import Checkpointer, folder_aside
from harness.training.shards import CheckpointPart, SavingCancelled, Staging
from harness.training.state import TrainingState

END_SECONDS = 60.0  # that a part of a file which is being written has to end


class IntervalSaver:
    """Decides when the trial is saved, and saves it; every rank has one."""

    def __init__(self, plan: SavePlan, checkpointer: Checkpointer, state: TrainingState) -> None:
        interval = parse_interval(plan.every)
        assert interval is not None, "a trial that never saves has no saver"
        # What a save needs of torch takes a second to import, which is no part of its cost.
        import_module("torch.distributed.checkpoint.state_dict")
        self._plan = plan
        self._interval = interval
        self._checkpointer = checkpointer
        self._folder = checkpointer.folder.resume_checkpoints
        self._staging = Staging(checkpointer.mesh.device)
        self._last = time.monotonic()  # when the last save began, or this attempt
        self._costs: list[float] = []  # seconds of each save of this attempt
        self._stage: Literal["idle", "writing", "sealing"] = "idle"
        self._step = 0  # of the save that is under way
        self._begun_at = 0.0  # seconds since the epoch
        self._blocked = 0.0  # seconds of it
        self._not_resumable: str | None = None
        self._task: _Task | None = None
        # What a death would go back to, and when that was saved or this attempt began to train.
        self.saved_step, self.saved_at = state.step, time.time()
        if state.saves is None:
            state.saves = Saves()

    def next_stop(self, step: int, segment_end: int) -> int:
        """Return the step at which a segment ends that begins after `step`: before a save."""
        if self._interval.steps is None:
            return segment_end
        next_save = (step // self._interval.steps + 1) * self._interval.steps
        return min(segment_end, next_save)

    def votes(self, step: int) -> tuple[int, int]:
        """Return what ranks agree on by their smallest numbers: `on_agreement` takes them."""
        is_busy = self._task is not None and not self._task.is_done
        return int(not self._is_due(step)), int(not is_busy)

    def _is_due(self, step: int) -> bool:
        """Return whether a save should begin. Of times, rank 0's clock decides."""
        if self._checkpointer.best_copy is not None:
            return False
        if self._interval.steps is not None:
            return step % self._interval.steps == 0
        if not self._checkpointer.mesh.ranks.is_rank_0:
            return False
        seconds = self._interval.seconds  # from one save to the next
        if seconds is None:
            # Before the first save, its cost is unknown.
            cost = sum(self._costs) / len(self._costs) if self._costs else 0.0
            seconds = automatic_interval(cost, self._plan.mean_seconds_between_failures)
        return time.monotonic() - self._last >= seconds

    def on_agreement(self, agreed: Sequence[int], state: TrainingState) -> bool:
        """Take the next step of the save that is under way, or begin one that is due.

        `agreed` are the smallest of all ranks' votes. Returns whether there was anything to do.
        """
        not_due, all_done = agreed
        if self._stage == "idle" and not_due:
            return False
        start = time.perf_counter()
        if self._stage == "writing" and all_done:
            self._begin_sealing(state)
        elif self._stage == "sealing" and all_done:
            self._finish(state)
        if self._stage == "idle" and not not_due:
            self._begin_writing(state)
        seconds = time.perf_counter() - start
        self._blocked += seconds
        assert state.saves is not None
        blocked = state.saves.blocked_seconds + seconds
        state.saves = replace(state.saves, blocked_seconds=blocked)
        state.add_seconds("checkpoint", seconds)
        return True

    def _begin_writing(self, state: TrainingState) -> None:
        """Copy this rank's part, and begin to write it."""
        self._last, self._blocked = time.monotonic(), 0.0
        self._step, self._begun_at = state.step, time.time()
        self._not_resumable = self._checkpointer.workload_state.missing_from_checkpoints()
        part = self._staging.copy(self._checkpointer.capture(state))
        aside = folder_aside(self._folder, state.step)
        self._task = _Task(lambda task: self._write(aside, part, task))
        self._stage = "writing"

    def _write(self, aside: Path, part: CheckpointPart, task: _Task) -> dict[str, Any] | str:
        """Write this rank's part; return its size and digest, or why it could not be written."""
        try:
            return asdict(self._checkpointer.write(aside, part, task.is_cancelled))
        except (StorageError, OSError) as error:
            return str(error)

    def _begin_sealing(self, state: TrainingState) -> None:
        """Have rank 0 make a checkpoint of the parts that all ranks have written."""
        assert self._task is not None
        outcome = self._task.result
        written = outcome["size"] if isinstance(outcome, dict) else 0
        assert state.saves is not None
        state.saves = replace(
            state.saves,
            bytes=written,
            writing_seconds=state.saves.writing_seconds + self._task.seconds,
        )
        if self._checkpointer.mesh.device.type == "cpu":
            # The thread takes cores from training; next to a GPU, it does not.
            self._blocked += self._task.cpu_seconds
        outcomes = self._checkpointer.mesh.gather(outcome)
        self._task = None
        if self._checkpointer.mesh.ranks.is_rank_0:
            self._task = _Task(lambda _: self._seal(outcomes))
        self._stage = "sealing"

    def _seal(self, outcomes: Sequence[dict[str, Any] | str]) -> str | None:
        """Make a checkpoint of all parts; return why that was impossible, None if it was not."""
        try:
            self._checkpointer.commit(
                self._folder,
                self._step,
                outcomes,
                keep=self._plan.keep,
                not_resumable=self._not_resumable,
            )
        except (StorageError, OSError) as error:
            return str(error)
        return None

    def _finish(self, state: TrainingState) -> None:
        """Note what became of the save."""
        problem = None if self._task is None else self._task.result
        assert state.saves is not None
        if problem is not None:
            state.note_unsaved(f"step {self._step} was not saved: {problem}")
        else:
            state.saves = replace(state.saves, count=state.saves.count + 1)
            self.saved_step, self.saved_at = self._step, self._begun_at
        self._costs.append(self._blocked)
        self._task = None
        self._stage = "idle"

    def stop(self) -> None:
        """End what is under way: it is not wanted any more. Every rank must call this."""
        if self._task is not None:
            self._task.cancel()
        self._task = None
        self._stage = "idle"


class _Task:
    """A function that runs in a thread and gets this object, by which it learns that it should end."""

    def __init__(self, function: Callable[[_Task], Any]) -> None:
        self.result: Any = None
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self._cancelled = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(function,), name="checkpoint", daemon=True
        )
        self._thread.start()

    def _run(self, function: Callable[[_Task], Any]) -> None:
        """Run the function, and note its result and how long it took."""
        start, cpu_start = time.perf_counter(), time.thread_time()
        try:
            self.result = function(self)
        except SavingCancelled:
            return
        except Exception as error:  # whatever it is, no trial is lost for a save
            self.result = f"{type(error).__name__}: {error}"
        self.seconds = time.perf_counter() - start
        self.cpu_seconds = time.thread_time() - cpu_start

    @property
    def is_done(self) -> bool:
        """Return whether the function has returned."""
        return not self._thread.is_alive()

    def is_cancelled(self) -> bool:
        """Return whether the function should end without a result."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Have the function end, and wait until it has."""
        self._cancelled.set()
        self._thread.join(END_SECONDS)
