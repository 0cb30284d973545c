"""What a pre-flight finds out about the workloads of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from harness.core.paths import write_atomically
from harness.records.format import FileFormat, decode_file, sealed_text
from workloads.settings import Between

CHECKS_FILE = "checks.json"  # in the folder of the process that examines a workload
CHECKS_FORMAT = FileFormat(name="rank's checks", is_sealed=True)

# passed: it was looked for, and is not there
# problem: it is there
# skipped: it can't be looked for in this workload
Status = Literal["passed", "problem", "skipped"]


@dataclass(frozen=True, kw_only=True)
class CheckFinding:
    """The result of one check."""

    check: str = ""  # its name, which whoever runs it knows
    status: Status
    measured: str  # what was seen, or why the check was skipped; one line
    advice: str = ""  # what to do about a problem; one line


def passed(measured: str) -> CheckFinding:
    """Return that a check found nothing wrong; `measured` is the evidence."""
    return CheckFinding(status="passed", measured=measured)


def problem(measured: str, advice: str = "") -> CheckFinding:
    """Return a problem: the evidence, and what to do about it."""
    return CheckFinding(status="problem", measured=measured, advice=advice)


def skipped(reason: str) -> CheckFinding:
    """Return that a check does not apply to this workload."""
    return CheckFinding(status="skipped", measured=reason)


@dataclass(frozen=True, kw_only=True)
class WorkloadReport:
    """All checks of one workload."""

    label: str  # the sweep's name for it
    seed: int
    device: str  # as torch calls it
    seconds: Annotated[float, Between(0)]  # duration of the checks, without loading torch
    findings: Sequence[CheckFinding]  # in the order of the checks

    @property
    def problems(self) -> list[CheckFinding]:
        """Return the findings that need a change."""
        return [finding for finding in self.findings if finding.status == "problem"]


def write_checks(path: Path, report: WorkloadReport) -> None:
    """Write what a rank has checked, sealed."""
    write_atomically(path, sealed_text(asdict(report)), durable=False)


def read_checks(path: Path) -> WorkloadReport:
    """Read what a rank has checked; raises BadFile."""
    return decode_file(WorkloadReport, path, CHECKS_FORMAT)
