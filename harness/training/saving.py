"""Saves checkpoints at intervals while a trial trains.

Between two segments, each rank copies its part to memory, which is all that training waits for. A
thread writes the copy. Ranks agree in the reduction that ends a segment on when to begin, and on whether
all have written theirs, so nothing else is sent, and a rank that is slow to write holds up no other.

A save that fails is a line in the log and in the record, and the next one is tried as if it had not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
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
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._last = time.monotonic()  # when the last save began, or this attempt
        # Of the save that is under way: its bytes and the seconds of writing, its step, its moment.
        self._written: Future[tuple[int, float]] | None = None
        self._step, self._begun_at = 0, 0.0
        # What a death would go back to, and when that was saved or this attempt began to train.
        self.saved_step, self.saved_at = state.step, time.time()
        state.saves = state.saves or Saves()

    def votes(self, step: int) -> tuple[int, int, int]:
        """Return what ranks agree on by their smallest numbers: `on_agreement` takes them."""
        is_done, has_failed = False, False
        if self._written is not None and self._written.done():
            is_done, has_failed = True, self._written.exception() is not None
        return int(not self._is_due(step)), int(is_done), int(not has_failed)

    def _is_due(self, step: int) -> bool:
        """Return whether a save should begin. Of times, rank 0's clock decides."""
        if self._interval.steps is not None:
            return step % self._interval.steps == 0
        seconds = self._interval.seconds  # from one save to the next
        if seconds is None or not self._checkpointer.mesh.ranks.is_rank_0:
            return False
        return time.monotonic() - self._last >= seconds

    def on_agreement(self, agreed: Sequence[int], state: TrainingState) -> bool:
        """End the save that all ranks have written, and begin one that is due.

        `agreed` are the smallest of all ranks' votes. Returns whether one was begun.
        """
        not_due, all_done, all_written = agreed
        if all_done and self._written is not None:
            self._finish(self._written, state, is_whole=bool(all_written))
        if not_due or self._written is not None:
            return False
        start = self._last = time.monotonic()
        self._step, self._begun_at = state.step, time.time()
        self._written = self._thread.submit(self._write, self._checkpointer.capture(state))
        seconds = time.monotonic() - start
        saves = state.saves or Saves()
        state.saves = replace(saves, blocked_seconds=saves.blocked_seconds + seconds)
        state.add_seconds("checkpoint", seconds)
        return True

    def _write(self, content: dict[str, Any]) -> tuple[int, float]:
        """Write what this rank has captured, in the thread; return bytes and seconds."""
        start = time.monotonic()
        return self._checkpointer.write(content), time.monotonic() - start

    def _finish(
        self, written: Future[tuple[int, float]], state: TrainingState, *, is_whole: bool
    ) -> None:
        """Note what became of the save; `is_whole` says whether all ranks have written it."""
        self._written = None
        if not is_whole:
            problem = written.exception() or "another rank could not write its part"
            state.note_unsaved(f"step {self._step} was not saved: {problem}")
            return
        size, seconds = written.result()
        saves = state.saves or Saves()
        state.saves = replace(
            saves,
            count=saves.count + 1,
            bytes=size,
            writing_seconds=saves.writing_seconds + seconds,
        )
        self.saved_step, self.saved_at = self._step, self._begun_at
        self._checkpointer.remove_old(self._step, self._interval.keep)

    def stop(self) -> None:
        """Wait for the file that is being written."""
        if self._written is not None:
            wait([self._written], END_SECONDS)
        self._written = None
