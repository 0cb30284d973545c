"""Writes the logs of the trials of a recorded sweep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import BadInput
from harness.core.paths import SweepFolder
from harness.mllog.log import benchmark_name, write_log
from harness.records.record import Record
from harness.records.store import RecordedSweep


@dataclass(frozen=True, kw_only=True)
class WrittenLog:
    """The log of a trial."""

    path: Path
    record: Record

    @property
    def benchmark(self) -> str:
        """Return what the log calls the trial's workload."""
        return benchmark_name(self.record.trial.cell.workload)


def write_logs(folder: SweepFolder, recorded: RecordedSweep) -> list[WrittenLog]:
    """Write the log of each trial that is complete, in place of an earlier one.

    Raises BadInput without any such trial, and for one without evaluations.
    """
    written = []
    for record in recorded.records:
        if (
            record.rank0 is None or record.trial.cell.workload.is_script
        ):  # whose epochs are not known
            continue
        log = WrittenLog(path=folder.trial_folder(record.trial.id).mllog_path, record=record)
        write_log(log.path, record)
        written.append(log)
    if not written:
        raise BadInput(
            f"{recorded.sweep.name}: found no complete trial of a workload class; allowed: at least one"
        )
    return written
