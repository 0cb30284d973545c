"""Delivery of records to MLflow, while a sweep runs on this machine or in jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from harness.core.errors import HarnessError, StorageError, one_line
from harness.core.paths import Results, TrialFolder
from harness.interface.planning import estimate_cells
from harness.measure.host import load_of_others
from harness.records.record import Record
from harness.render.console import TerminalConsole
from harness.render.plan import busy_line, describe_duration
from harness.render.run import RunView
from harness.slurm.status import SweepStatus
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep


class DeliveredRun(RunView):
    """A running sweep that is shown, and whose records are delivered to MLflow.

    A tracker that fails is reported once and fails no trial: the records are on disk.
    """

    def __init__(
        self,
        sweep: Sweep,
        profile: Profile,
        results: Results,
        tracking_uri: str | None,
        console: TerminalConsole,
    ) -> None:
        """Prepare to deliver to the MLflow store `tracking_uri`, which is connected to later.

        The trials run with `profile`, which says whether a busy machine makes them invalid. Raises
        BadInput for a URI that no store can have.
        """
        # Imported here: `harness.interface.running` starts trials before it needs a tracker.
        from harness.tracking import Follower

        super().__init__(sweep, results, console)
        self.profile = profile
        self.follower = Follower(results, results.sweep_folder(sweep.name), tracking_uri)
        self.has_records = False
        self.trouble: str | None = None  # what MLflow failed with
        self.disk_failed = False  # whether that was a disk of this machine

    def __enter__(self) -> Self:
        self.follower.start()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        """Deliver everything, with the verdicts, also after an error."""
        try:
            if self.has_records:
                self.show_delivery()
                with self._reported():
                    self.follower.finish()
        finally:
            self.follower.close()
            super().__exit__()

    def on_plan(self, pending: Sequence[Trial], finished: Sequence[Record]) -> None:
        """Note whether trials have ended before: an earlier run may have left them undelivered."""
        self.has_records = self.has_records or bool(finished)
        super().on_plan(pending, finished)

    def describe_time(self, pending: Sequence[Trial]) -> str:
        """Return the end of the first line: how long the trials will take."""
        if not pending:
            return ""
        cells = {trial.cell.id: trial.cell for trial in pending}
        estimates = estimate_cells(list(cells.values()), self.results)
        return f"; {describe_duration(pending, estimates)}"

    def machine_lines(self, pending: Sequence[Trial]) -> list[str]:
        """Return a line on a machine whose cores other programs want, where that is not allowed."""
        if not pending or self.profile.validity.contention is None:
            return []
        cores = os.cpu_count() or 1
        wanted = max(trial.cell.axes.world_size for trial in pending)
        load = load_of_others()
        # One more core than they lack: this command's own processes count too.
        if load is None or load <= max(0, cores - wanted) + 1:
            return []
        return [busy_line(load, cores)]

    def on_trial_end(self, record: Record, folder: TrialFolder) -> None:
        """Show the trial; its record is delivered by another process."""
        super().on_trial_end(record, folder)
        self.has_records = True

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Show what MLflow fails with in the block."""
        try:
            yield
        except HarnessError as error:
            self.disk_failed = isinstance(error, StorageError)
            self.trouble = str(error)
        except Exception as error:  # whatever a tracker raises, the trials to come must run
            self.trouble = f"MLflow: {type(error).__name__}: {one_line(error)}"
        if self.trouble is not None:
            self.on_message(self.trouble)


class JobDelivery:
    """Delivers records that jobs left; a `harness run` on this machine delivers its own.

    What fails is tried again with the next records, and once all trials have ended.
    """

    def __init__(self, results: Results, tracking_uri: str | None) -> None:
        # Imported here because it takes longer than reading the states of a sweep once.
        from harness.tracking import Tracker

        self.results = results
        self.tracker = Tracker(results, tracking_uri)
        self.error: str | None = None  # what a delivery failed with
        # Records by their path and time in nanoseconds: each is read once, and again after a retry.
        self.delivered: set[tuple[Path, int]] = set()

    def deliver(self, status: SweepStatus) -> None:
        """Deliver the records of trials that became final since the last call.

        Once all have ended, everything is delivered, with the verdicts.
        """
        sweep_folder = self.results.sweep_folder(status.sweep.name)
        new: dict[tuple[Path, int], str] = {}  # the ids of trials by their records
        for trial in status.trials:
            if not trial.is_submitted or not trial.is_final:
                continue
            path = sweep_folder.trial_folder(trial.trial).record_path
            with suppress(OSError):  # a record that can't be reached now is delivered later
                record = (path, path.stat().st_mtime_ns)
                if record not in self.delivered:
                    new[record] = trial.trial
        if not new:
            return
        try:
            if status.is_over:
                self.tracker.deliver(sweep_folder)
            else:
                self.tracker.deliver_trials(sweep_folder, new.values())
            self.delivered.update(new)
            self.error = None
        except HarnessError as error:
            self.error = str(error)
        except Exception as error:  # whatever MLflow and its HTTP client raise
            self.error = f"MLflow: {one_line(error)}"
