"""Delivery of records to MLflow, while a sweep runs on this machine or in jobs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from harness.core.errors import BadInput, HarnessError, StorageError, one_line
from harness.core.paths import Results, TrialFolder
from harness.launch.runner import TrialListener
from harness.records.files import read_record
from harness.records.record import Record
from harness.slurm.status import SweepStatus
from harness.spec.cell import Trial
from harness.spec.sweep import Sweep


class SweepView(TrialListener, Protocol):
    """Shows a running sweep."""

    def on_delivery(self) -> None:
        """Records are going to be delivered, which may take seconds."""


class RunDelivery:
    """Listens to a running sweep, delivers its records to MLflow, and passes all events to a view.

    A tracker that fails is reported once and fails no trial: the records are on disk.
    """

    def __init__(
        self, sweep: Sweep, results: Results, view: SweepView, tracking_uri: str | None
    ) -> None:
        """Prepare to deliver to the MLflow store `tracking_uri`, which is connected to later.

        Raises BadInput for a URI that no store can have.
        """
        # Imported here: `harness.interface.running` starts trials before it needs a tracker.
        from harness.tracking import choose_deliverer
        from harness.tracking.pace import pace_of_deliveries

        self.view = view
        self.sweep_folder = results.sweep_folder(sweep.name)
        self.deliverer = choose_deliverer(results, tracking_uri)
        self.pace = pace_of_deliveries()
        self.trial_seconds: dict[str, float] = {}  # of the last trial of a cell, by the cell's id
        self.undelivered: list[str] = []  # ids of trials that have ended
        self.trouble: str | None = None  # what MLflow failed with
        self.disk_failed = False  # whether that was a disk of this machine
        self.planned_count = 0
        self.started_count = 0
        self.finished_count = 0

    def __enter__(self) -> RunDelivery:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Deliver the remaining records, also after an error."""
        self.deliver(self.undelivered)
        self.deliverer.close()

    def on_plan(self, pending: Sequence[Trial], finished: Sequence[Record]) -> None:
        """Note how long trials took; further repeats have a plan of their own."""
        self.planned_count += len(pending)
        for record in finished:
            self.trial_seconds[record.trial.cell.id] = record.ended - record.started
        self.view.on_plan(pending, finished)

    def on_trial_start(self, trial: Trial) -> None:
        """Deliver records that would otherwise have to wait for a long trial."""
        if self.undelivered and self.trial_seconds.get(trial.cell.id, 0.0) > self.pace.min_seconds:
            self.deliver(self.undelivered, in_passing=True)
        self.started_count += 1
        self.view.on_trial_start(trial)

    def on_trial_progress(self, trial: Trial, progress: dict[str, Any]) -> None:
        """Do nothing but show it."""
        self.view.on_trial_progress(trial, progress)

    def on_trial_end(self, record: Record, folder: TrialFolder) -> None:
        """Deliver the record if a delivery is due.

        The last one is delivered at the end of the sweep, with the verdicts on all cells.
        """
        self.trial_seconds[record.trial.cell.id] = record.ended - record.started
        self.finished_count += 1
        self.view.on_trial_end(record, folder)
        self.undelivered.append(record.trial.id)
        # An invalid trial runs again, so that more may start than were planned.
        is_last = self.finished_count >= max(self.planned_count, self.started_count)
        if self.pace.is_due() and not is_last:
            self.deliver(self.undelivered, in_passing=True)

    def on_message(self, text: str) -> None:
        """Do nothing but show it."""
        self.view.on_message(text)

    def deliver(self, trials: Sequence[str], *, in_passing: bool = False) -> None:
        """Deliver trials, given by their ids, unless an earlier delivery has failed.

        A trial that MLflow has already costs a query and adds nothing. `in_passing` is for a
        delivery between two trials, which leaves out what only the end of a sweep needs.
        """
        from harness.tracking.connect import StoreLocked

        if self.trouble or not trials:
            return
        self.view.on_delivery()
        started = time.monotonic()
        try:
            delivery = self.deliverer.deliver_trials(
                self.sweep_folder, trials, in_passing=in_passing
            )
        except HarnessError as error:
            if in_passing and isinstance(error, StoreLocked):
                self.pace.add(time.monotonic() - started)  # a later delivery brings these too
                return
            self.disk_failed = isinstance(error, StorageError)
            self._report_trouble(str(error))
        except Exception as error:  # whatever a tracker raises, the trials to come must run
            self._report_trouble(f"MLflow: {type(error).__name__}: {one_line(error)}")
        else:
            self.pace.add(delivery.seconds)
            delivered = set(trials)
            self.undelivered = [trial for trial in self.undelivered if trial not in delivered]

    def _report_trouble(self, text: str) -> None:
        """Show what MLflow failed with; nothing is delivered after it."""
        self.trouble = text
        self.view.on_message(text)


class JobDelivery:
    """Delivers records that jobs left; a `harness run` on this machine delivers its own.

    After the first failure it delivers nothing more: records are on disk, and `harness results collect`
    delivers them later.
    """

    def __init__(self, results: Results, tracking_uri: str | None) -> None:
        # Imported here because it takes longer than reading the states of a sweep once.
        from harness.tracking import Tracker

        self.results = results
        self.tracker = Tracker(results, tracking_uri)
        self.error: str | None = None  # what a delivery failed with
        self.delivered: set[Path] = set()  # paths of records, so that each is read only once

    def deliver(self, status: SweepStatus) -> None:
        """Deliver the records of trials that became final since the last call."""
        if self.error is not None:
            return
        sweep_folder = self.results.sweep_folder(status.sweep.name)
        new: set[Path] = set()
        for trial in status.trials:
            path = sweep_folder.trial_folder(trial.trial).record_path
            if trial.job and trial.is_final and path not in self.delivered:
                new.add(path)
        if not new:
            return
        records = []
        for path in new:
            with suppress(BadInput):  # it is named at the end, and delays no other record
                records.append(read_record(path))
        try:
            self.tracker.deliver(sweep_folder, records)
            self.delivered |= new
        except HarnessError as error:
            self.error = str(error)
        except Exception as error:  # whatever MLflow and its HTTP client raise
            self.error = f"MLflow: {one_line(error)}"
