"""The process that examines one workload.

Started as `harness.training.worker` is, with the same FOLDER, by one rank. It reads
FOLDER/trial.json and leaves FOLDER/checks.json besides its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.core.processes import end_process
from harness.training.entry import before_torch

if __name__ == "__main__":
    before_torch()

from harness.core.import_path import ROOT
from harness.core.paths import TrialFolder
from harness.preflight.examination import examine
from harness.preflight.reads import OpenedFiles, check_reads
from harness.preflight.report import write_checks
from harness.records.record import RankResult
from harness.training import worker
from harness.training.ranks import Ranks
from harness.training.state import TrainingState
from workloads.catalog import find_source

CHECKS_FILE = "checks.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine one workload, and return the process's exit code as `worker.main` does."""
    return worker.main(arguments, examine_workload)


def examine_workload(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> RankResult:
    """Write what the checks have found out; return a result without measurements."""
    with worker.joined(folder, ranks, worker.COLLECTIVE_TIMEOUT) as (assignment, mesh):
        cell = assignment.trial.cell
        base_folder = Path(assignment.base_folder)
        code = find_source(cell.workload.uses, base_folder).files.values()
        opened = OpenedFiles(path for path in code if not path.is_relative_to(ROOT / "workloads"))
        workload = worker.load_workload(assignment)
        report = examine(
            cell.workload.label, workload, cell.axes, assignment.trial.seed, mesh.device
        )
    reads = check_reads(cell, workload, opened.paths).finding("reads")
    report = replace(report, findings=[*report.findings, reads])
    write_checks(folder.path / CHECKS_FILE, report)
    return entered


if __name__ == "__main__":
    end_process(main())  # at once, as `harness.training.worker` does
