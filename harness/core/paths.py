"""Where everything lies, and how a file gets there whole."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TrialFolder:
    """All that one trial leaves."""

    path: Path

    @property
    def assignment_path(self) -> Path:
        return self.path / "trial.json"

    @property
    def record_path(self) -> Path:
        return self.path / "record.json"

    def invalid_record_path(self, attempt: int | str) -> Path:
        """Where the record of an invalid attempt is kept when another has taken its place."""
        return self.path / f"invalid-{attempt}.json"

    @property
    def progress_path(self) -> Path:
        return self.path / "progress.json"

    @property
    def failures_path(self) -> Path:
        return self.path / "failures.json"

    @property
    def log_folder(self) -> Path:
        return self.path / "logs"

    @property
    def launch_log(self) -> Path:
        return self.log_folder / "launch.log"

    @property
    def best_checkpoints(self) -> Path:
        return self.path / "best"

    @property
    def resume_checkpoints(self) -> Path:
        """The checkpoint of an interrupted trial, until it is over."""
        return self.path / "resume"

    def rank_log(self, rank: int) -> Path:
        return self.log_folder / f"rank{rank}.log"

    def result_path(self, rank: int) -> Path:
        return self.path / f"rank{rank}.json"

    @property
    def trace_folder(self) -> Path:
        return self.path / "profile"

    def trace_path(self, rank: int) -> Path:
        return self.trace_folder / f"rank{rank}.json.gz"

    def compiler_cache(self, rank: int) -> Path:
        """A compiler's cold cache, for as long as the trial runs."""
        return self.path / f"cache{rank}"


@dataclass(frozen=True)
class SweepFolder:
    """All that one sweep leaves."""

    path: Path

    @property
    def spec_path(self) -> Path:
        return self.path / "sweep.json"

    @property
    def lock_path(self) -> Path:
        return self.path / "lock"

    def trial_folder(self, trial_id: str) -> TrialFolder:
        return TrialFolder(self.path / trial_id)

    @property
    def peaks_folder(self) -> Path:
        """Of all sweeps beside this one."""
        return self.path.parent.parent / "peaks"

    @property
    def roofline_path(self) -> Path:
        return self.path / "roofline.png"

    @property
    def report_path(self) -> Path:
        return self.path / "report.html"

    def record_paths(self) -> list[Path]:
        return sorted(self.path.glob("*/record.json"))


@dataclass(frozen=True)
class Results:
    """The folder `results/`."""

    path: Path

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def peaks(self) -> Path:
        """What machines can do, by their key."""
        return self.path / "peaks"

    @property
    def certificates(self) -> Path:
        """How often equal code was told apart on machines, by their key; to be committed beside baselines."""
        return self.path / "certificates"

    @property
    def baselines(self) -> Path:
        """A folder for each kind of hardware; to be committed."""
        return self.path / "baselines"

    @property
    def database(self) -> Path:
        return self.path / "mlflow.db"

    @property
    def artifacts(self) -> Path:
        return self.path / "artifacts"

    def sweep_folder(self, name: str) -> SweepFolder:
        return SweepFolder(self.runs / safe_folder_name(name))

    def record_paths_of(self, cell_id: str) -> list[Path]:
        """Every record of a cell, in any sweep."""
        return sorted(self.runs.glob(f"*/{cell_id}-s*-r*/record.json"))


def safe_folder_name(name: str) -> str:
    """A name that is safe in any file system and shell; different names never share one."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:60]
    return (
        safe
        if safe == name
        else f"{safe or 'sweep'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    )


def write_atomically(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Write aside, flush to the disk if durable, rename into place: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(aside).chmod(0o644)
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
