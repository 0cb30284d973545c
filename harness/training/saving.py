"""Saves checkpoints at intervals while a trial trains.

Between two segments, each rank copies its part to memory, which is all that training waits for. A
thread writes the copy. Ranks agree in the reduction that ends a segment on when to begin, and on whether
all have written theirs, so nothing else is sent, and a rank that is slow to write holds up no other.

A save that fails is a line in the log and in the record, and the next one is tried as if it had not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.records.record import Saves
from harness.spec.saving import SaveInterval
from harness.training.checkpoint import Checkpointer
from harness.training.state import TrainingState

END_SECONDS = 60.0  # that a file which is being written has to end


class IntervalSaver:
    """Decides when the trial is saved, and saves it; every rank has one."""

    def __init__(
        self, interval: SaveInterval, checkpointer: Checkpointer, state: TrainingState
    ) -> None:
        self._interval = interval
        self._checkpointer = checkpointer
        self._last = time.monotonic()  # when the last save began, or this attempt
        self._writer: _Writer | None = None  # of the save that is under way
        self._step = 0  # of the save that is under way
        self._begun_at = 0.0  # seconds since the epoch
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

    def votes(self, step: int) -> tuple[int, int, int]:
        """Return what ranks agree on by their smallest numbers: `on_agreement` takes them."""
        writer = self._writer
        is_done = writer is not None and not writer.is_alive()
        has_failed = is_done and writer is not None and writer.problem is not None
        return int(not self._is_due(step)), int(is_done), int(not has_failed)

    def _is_due(self, step: int) -> bool:
        """Return whether a save should begin. Of times, rank 0's clock decides."""
        if self._interval.steps is not None:
            return step % self._interval.steps == 0
        if not self._checkpointer.mesh.ranks.is_rank_0:
            return False
        seconds = self._interval.seconds  # from one save to the next
        return seconds is not None and time.monotonic() - self._last >= seconds

    def on_agreement(self, agreed: Sequence[int], state: TrainingState) -> bool:
        """End the save that all ranks have written, and begin one that is due.

        `agreed` are the smallest of all ranks' votes. Returns whether one was begun.
        """
        not_due, all_done, all_written = agreed
        if all_done:
            self._finish(state, is_whole=bool(all_written))
        if not_due or self._writer is not None:
            return False
        start = time.perf_counter()
        self._last = time.monotonic()
        self._step, self._begun_at = state.step, time.time()
        self._writer = _Writer(self._checkpointer, self._checkpointer.capture(state))
        self._writer.start()
        blocked = time.perf_counter() - start
        assert state.saves is not None
        total = state.saves.blocked_seconds + blocked
        state.saves = replace(state.saves, blocked_seconds=total)
        state.add_seconds("checkpoint", blocked)
        return True

    def _finish(self, state: TrainingState, *, is_whole: bool) -> None:
        """Note what became of the save; `is_whole` says whether all ranks have written it."""
        writer, self._writer = self._writer, None
        assert writer is not None
        assert state.saves is not None
        state.saves = replace(
            state.saves,
            bytes=writer.bytes,
            writing_seconds=state.saves.writing_seconds + writer.seconds,
        )
        if is_whole:
            state.saves = replace(state.saves, count=state.saves.count + 1)
            self.saved_step, self.saved_at = self._step, self._begun_at
            self._checkpointer.remove_old(self._step, self._interval.keep)
        else:
            problem = writer.problem or "another rank could not write its part"
            state.note_unsaved(f"step {self._step} was not saved: {problem}")

    def stop(self) -> None:
        """Wait for the file that is being written."""
        if self._writer is not None:
            self._writer.join(END_SECONDS)
        self._writer = None


class _Writer(threading.Thread):
    """Writes what a rank has captured."""

    def __init__(self, checkpointer: Checkpointer, content: dict[str, Any]) -> None:
        super().__init__(name="checkpoint", daemon=True)
        self._checkpointer, self._content = checkpointer, content
        self.problem: str | None = None  # why it could not be written
        self.bytes = 0
        self.seconds = 0.0

    def run(self) -> None:
        """Write the file, and note how long it took."""
        start = time.perf_counter()
        try:
            self.bytes = self._checkpointer.write(self._content)
        except Exception as error:  # whatever it is, no trial is lost for a save
            self.problem = f"{type(error).__name__}: {error}"
        self.seconds = time.perf_counter() - start
