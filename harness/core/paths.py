"""Paths of everything in the results folder, and writing files so that no reader sees half of one."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TrialFolder:
    """The folder of one trial."""

    path: Path

    @property
    def assignment_path(self) -> Path:
        """What the ranks are told to do."""
        return self.path / "trial.json"

    @property
    def record_path(self) -> Path:
        """The record of the attempt that ended last."""
        return self.path / "record.json"

    def invalid_record_path(self, attempt: int | str) -> Path:
        """Return where the record of an invalid attempt goes when the next attempt replaces it."""
        return self.path / f"invalid-{attempt}.json"

    @property
    def progress_path(self) -> Path:
        """How far a running trial has come."""
        return self.path / "progress.json"

    @property
    def failures_path(self) -> Path:
        """The ranks that the launcher saw fail."""
        return self.path / "failures.json"

    @property
    def log_folder(self) -> Path:
        """The logs of all attempts."""
        return self.path / "logs"

    @property
    def launch_log(self) -> Path:
        """What the launcher itself prints."""
        return self.log_folder / "launch.log"

    @property
    def best_checkpoints(self) -> Path:
        """Checkpoints of the best evaluation."""
        return self.path / "best"

    @property
    def resume_checkpoints(self) -> Path:
        """Checkpoints of an interrupted trial, until it ends."""
        return self.path / "resume"

    def rank_log(self, rank: int) -> Path:
        """Return the log of one rank."""
        return self.log_folder / f"rank{rank}.log"

    def result_path(self, rank: int) -> Path:
        """Return where a rank leaves its part of the record."""
        return self.path / f"rank{rank}.json"

    @property
    def trace_folder(self) -> Path:
        """What the profiler leaves."""
        return self.path / "profile"

    def trace_path(self, rank: int) -> Path:
        """Return the profiler's trace of one rank."""
        return self.trace_folder / f"rank{rank}.json.gz"

    def compiler_cache(self, rank: int) -> Path:
        """Return the compiler's cache of one rank where it must start cold; it exists while the trial runs."""
        return self.path / f"cache{rank}"


@dataclass(frozen=True)
class SweepFolder:
    """The folder of one sweep: a folder for each trial, and what belongs to all of them."""

    path: Path

    @property
    def spec_path(self) -> Path:
        """The sweep as it was asked for."""
        return self.path / "sweep.json"

    @property
    def lock_path(self) -> Path:
        """Held by the process that runs the sweep; see `harness.records.store`."""
        return self.path / "lock"

    def trial_folder(self, trial_id: str) -> TrialFolder:
        """Return the folder of a trial, which need not exist."""
        return TrialFolder(self.path / trial_id)

    @property
    def peaks_folder(self) -> Path:
        """The peaks of all sweeps in the same results folder."""
        return self.path.parent.parent / "peaks"

    @property
    def roofline_path(self) -> Path:
        """The plot of `harness roofline`."""
        return self.path / "roofline.png"

    @property
    def report_path(self) -> Path:
        """The report of `harness report`."""
        return self.path / "report.html"

    def record_paths(self) -> list[Path]:
        """Return the paths of all records, sorted."""
        return sorted(self.path.glob("*/record.json"))


@dataclass(frozen=True)
class Results:
    """The folder `results/`."""

    path: Path

    @property
    def runs(self) -> Path:
        """A folder for each sweep."""
        return self.path / "runs"

    @property
    def peaks(self) -> Path:
        """The measured peaks of machines, a file for each machine's key."""
        return self.path / "peaks"

    @property
    def certificates(self) -> Path:
        """The A/A certificates of machines, a file for each machine's key; to be committed beside baselines."""
        return self.path / "certificates"

    @property
    def baselines(self) -> Path:
        """The baselines, in a folder for each kind of hardware; to be committed."""
        return self.path / "baselines"

    @property
    def database(self) -> Path:
        """MLflow's local database."""
        return self.path / "mlflow.db"

    @property
    def artifacts(self) -> Path:
        """MLflow's local artifacts."""
        return self.path / "artifacts"

    def sweep_folder(self, name: str) -> SweepFolder:
        """Return the folder of a sweep, which need not exist."""
        return SweepFolder(self.runs / safe_folder_name(name))

    def record_paths_of(self, cell_id: str) -> list[Path]:
        """Return the paths of a cell's records in all sweeps, sorted."""
        return sorted(self.runs.glob(f"*/{cell_id}-s*-r*/record.json"))


def safe_folder_name(name: str) -> str:
    """Return a folder's name that is safe in any file system and shell; different names never share one.

    A name that is safe stays as it is. Of any other the safe characters stay, and a digest of the name tells it apart.
    """
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:60]
    if safe == name:
        return safe
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{safe or 'sweep'}-{digest}"


def write_atomically(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Write a file so that a reader sees either the old content or the new one, never half of it.

    The content goes to a temporary file in the same folder, which is renamed. With `durable`, it is on the disk before
    that, and survives a loss of power.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
