"""Paths of everything in the results folder, and writing files so that no reader sees half of one.

    results/
      runs/<sweep>/           a SweepFolder: sweep.json, lock, report.html, parity.json
        <cell id>-s<seed>-r<repeat>/   a TrialFolder: best/, resume/, ...
          attempt-1/          of an attempt: trial.json, record.json, logs/, ...
      peaks/                  what machines were measured to reach
      certificates/           A/A certificates of machines
      baselines/<hardware>/   what later runs are compared with
      mlflow.db, artifacts/   MLflow's, if no server is named

The names below jobs/, environments/, peaks/, certificates/ and baselines/, and those of the files
with the numbers of a record, are put together by the modules that write them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from harness.core.files import writing

# What `write_atomically` calls a file until it is complete: `.record.json.` and eight characters.
TEMPORARY_FILES = ".*.????????"
# The id of a trial, which is the name of its folder.
TRIAL_ID = re.compile(r"(?P<cell>.+-[0-9a-f]{10})-s(?P<seed>\d{1,10})-r(?P<repeat>\d{1,9})")
ATTEMPT = re.compile(r"attempt-(\d{1,9})")  # the name of an attempt's folder
# What `safe_folder_name` makes of a name that is not safe as it is.
MADE_SAFE = re.compile(r"[A-Za-z0-9._-]{1,60}-[0-9a-f]{8}")


PathOf = Callable[[int | str], Path]


class Below:
    """A path in a folder of results, by its name there."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: TrialFolder | SweepFolder | Results, _: object = None) -> Path:
        return folder.path / self.name


class InAttempt(Below):
    """A path in the folder of an attempt, by its name there."""

    def __get__(self, folder: TrialFolder, _: object = None) -> Path:  # type: ignore[override]
        return folder.attempt_path / self.name


class BelowOf(Below):
    """Paths in a folder, by a pattern of their names: of a rank, an attempt, a format or a digest."""

    def __get__(self, folder: TrialFolder | SweepFolder, _: object = None) -> PathOf:  # type: ignore[override]
        return lambda name: folder.path / self.name.format(name)


class InAttemptOf(Below):
    """Paths in the folder of an attempt, by a pattern of their names: of a rank."""

    def __get__(self, folder: TrialFolder, _: object = None) -> PathOf:  # type: ignore[override]
        return lambda name: folder.attempt_path / self.name.format(name)


@dataclass(frozen=True)
class TrialFolder:
    """The folder of a trial, as one of its attempts sees it.

    An attempt has a folder of its own in it, which no other attempt changes: the runner writes the assignment
    and the record, ranks write the rest. Checkpoints and exports are the trial's, and lie beside
    the attempts. What ranks do besides trials has one folder for all (`attempt` 0).
    """

    path: Path  # its name is the trial's id
    attempt: int = 0  # counted from 1

    @classmethod
    def newest(cls, path: Path) -> Self:
        """Return the folder of a trial as the attempt sees it that was begun last."""
        newest = 0
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
            for entry in entries:
                attempt = ATTEMPT.fullmatch(entry.name)
                if attempt is not None:
                    newest = max(newest, int(attempt[1]))
        return cls(path, newest)

    @classmethod
    def of_attempt(cls, path: Path) -> Self:
        """Return what `attempt_path` gives this path for."""
        attempt = ATTEMPT.fullmatch(path.name)
        if attempt is None:
            return cls(path)
        return cls(path.parent, int(attempt[1]))

    @property
    def attempt_path(self) -> Path:
        """Return the folder of the attempt."""
        return self.path / f"attempt-{self.attempt}" if self.attempt else self.path

    assignment_path = InAttempt("trial.json")  # which the runner writes and the ranks read
    record_path = InAttempt("record.json")  # of the attempt once it has ended
    progress_path = InAttempt("progress.json")  # how far a running trial has come, by rank 0
    heartbeat_folder = InAttempt("heartbeats")  # of a running trial's ranks
    # Of ranks, as the process saw them that started them.
    failures_path = InAttempt("failures.json")
    log_folder = InAttempt("logs")  # of the attempt
    launch_log = InAttempt("logs/launch.log")  # of what the launcher itself prints
    best_checkpoints = Below("best")  # of the best evaluation, where the sweep wants them
    resume_checkpoints = Below("resume")  # of an interrupted trial, until it ends
    export_folder = Below("export")  # of exported models, with a folder for each format
    export_path = Below("export/export.json")  # parity and latencies of these models
    trace_folder = InAttempt("profile")  # the profiler's traces and tables of all ranks

    heartbeat_path = InAttemptOf("heartbeats/rank{}.json")  # each heartbeat in place of the last
    exported_model = BelowOf("export/{}")  # the folder of the model in a format
    # What a rank prints, libraries and the workload included.
    rank_log = InAttemptOf("logs/rank{}.log")
    result_path = InAttemptOf("rank{}.json")  # a rank's part of the record, as a RankResult
    trace_path = InAttemptOf("profile/rank{}.json.gz")  # which Perfetto and chrome://tracing open
    compiler_cache = InAttemptOf("cache{}")  # of a rank that must start cold, while the trial runs


@dataclass(frozen=True)
class SweepFolder:
    """The folder of one sweep: a folder for each trial, and what belongs to all of them."""

    path: Path  # results/runs/<sweep>

    spec_path = Below("sweep.json")  # the sweep as it was asked for, before its first trial starts
    lock_path = Below("lock")  # which is locked while the sweep runs
    jobs_path = Below("jobs")  # what was submitted to Slurm; each submission has a folder in it
    parity_path = Below("parity.json")  # how alike the sweep's cells are
    report_path = Below("report.html")  # one file that needs no other

    # All packages that were installed, of that SHA-256, for `pip install -r`; trials share it.
    packages_path = BelowOf("environments/{}.txt")
    # How the user's repository differed from its commit, in the file of that SHA-256.
    diff_path = BelowOf("environments/{}.diff")

    def trial_folder(self, trial_id: str) -> TrialFolder:
        """Return the folder of a trial, which need not exist, in its newest attempt."""
        return TrialFolder.newest(self.path / trial_id)

    @property
    def results(self) -> Results:
        """Return the results folder that the sweep is in."""
        return Results(self.path.parent.parent)

    def records(self, among: Iterable[str] | None = None) -> dict[str, Path]:
        """Return the paths of all records by the name of their folder, sorted: ids of trials, as a rule.

        Those of trials that are no longer asked for are among them. `among` are the names of the
        folders that are looked at, by default of all.
        """
        names = self.subfolders() if among is None else among
        paths = {}
        for name in sorted(names):
            path = self.trial_folder(name).record_path
            if path.exists():
                paths[name] = path
        return paths

    def recorded_ids(self, among: Iterable[str] | None = None) -> list[str]:
        """Return the names of the folders that have a record, as `records` does."""
        return list(self.records(among))

    def record_paths(self) -> list[Path]:
        """Return the paths of all records, sorted by the names of their folders."""
        return list(self.records().values())

    def subfolders(self) -> list[str]:
        """Return the names of the folders in this one: ids of trials, as a rule."""
        return [path.name for path in self.path.glob("*/")]


def default_results() -> Path:
    """Return the results folder of commands without `--results`; an empty variable is none."""
    return Path(os.environ.get("HARNESS_RESULTS") or "results")


def results_folder(folder: str | Path | None) -> Results:
    """Return the results folder that commands use, unless another one is given."""
    return Results(Path(folder or default_results()))


def tracking_flag(uri: str | None) -> str:
    """Return ` --tracking-uri URI` as a shell takes it, for commands that are shown.

    Empty without a URI, and where commands find it in the environment. A password is left out.
    """
    if uri is None or uri == os.environ.get("MLFLOW_TRACKING_URI"):
        return ""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    shown = parts._replace(netloc=host).geturl()
    return f" --tracking-uri {shlex.quote(shown)}"


@dataclass(frozen=True)
class Results:
    """The folder `results/`, or another that `--results` or HARNESS_RESULTS names."""

    path: Path

    runs = Below("runs")  # a folder for each sweep
    peaks = Below("peaks")  # a file for each machine's key
    file_digests = Below("file-digests.json")  # of large data files
    # A/A certificates, a file for each kind of hardware, to be committed with the baselines.
    certificates = Below("certificates")
    baselines = Below("baselines")  # a folder for each kind of hardware; to be committed
    database = Below("mlflow.db")  # MLflow's local one
    artifacts = Below("artifacts")  # MLflow's local ones

    def command(self, words: str) -> str:
        """Return a command for people to type, `harness WORDS` as a shell takes it.

        It names this folder unless commands look there by themselves.
        """
        if self.path == default_results():
            return f"harness {words}"
        return f"harness --results {shlex.quote(str(self.path))} {words}"

    def collect_command(self, sweep: str, tracking_uri: str | None = None) -> str:
        """Return the command that delivers a sweep to MLflow, as a shell takes it."""
        return self.command(f"collect {shlex.quote(sweep)}{tracking_flag(tracking_uri)}")

    def sweep_folder(self, name: str) -> SweepFolder:
        """Return the folder of a sweep, which need not exist.

        A folder that is there may be named itself, as shells complete it.
        """
        # With its digits, the folder of a long name is too long to be safe as it is.
        named = self.runs / name
        if MADE_SAFE.fullmatch(name) and named.is_dir():
            return SweepFolder(named)
        return SweepFolder(self.runs / safe_folder_name(name))

    def record_paths_by_cell(self) -> dict[str, list[Path]]:
        """Return the paths of the records of all sweeps, sorted, by the id of their cell."""
        paths: dict[str, list[Path]] = {}
        for folder in sorted(self.runs.glob("*/*-s*-r*/")):
            path = TrialFolder.newest(folder).record_path
            if path.exists():
                cell_id = folder.name.rpartition("-s")[0]
                paths.setdefault(cell_id, []).append(path)
        return paths


def cache_folder() -> Path:
    """Return the folder for what can be made again, in the user's cache by the XDG convention.

    Raises RuntimeError for a user without a home, where XDG_CACHE_HOME is not set either.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "distributed-training-harness"


def safe_folder_name(name: str) -> str:
    """Return a folder's name that is safe in any file system and shell.

    Different names never share one. A name that is safe stays as it is. Of any other the safe
    characters stay, at most 60 of them, and 8 digits of the name's SHA-256 tell it from names that
    differ in what was replaced.
    """
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    safe = safe.strip(".-")[:60]
    if safe and safe == name:
        return safe
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{safe or 'sweep'}-{digest}"


def write_atomically(
    path: Path, content: str | bytes, *, durable: bool = True, mode: int = 0o644
) -> None:
    """Write a file so that a reader sees either the old content or the new one, never half of it.

    The content goes to a temporary file in the same folder, which is renamed: within one file
    system, a rename is atomic. With `durable`, the file and its name are on the disk on return, and
    survive a loss of power. Text is written as UTF-8. Folders that are missing are made. `mode` are
    the file's permissions, whatever the umask.

    Raises StorageError, which names the file, where the disk is full or fails.
    """
    encoded = content.encode("utf-8") if isinstance(content, str) else content
    with writing(path):
        new_folders = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        # mkstemp lets nobody but the owner read the file until it has its own permissions.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(encoded)
                os.fchmod(file.fileno(), mode)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        if durable:
            for name in (path, *new_folders):
                fsync_folder(name.parent)


def fsync_folder(folder: Path) -> None:
    """Put on the disk which names a folder has.

    Without it, a loss of power may take back the renaming of a file whose content is on the disk.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems can't, and need not
            raise
    finally:
        os.close(handle)


def remove_temporary_files(folder: Path) -> None:
    """Remove what `write_atomically` left in a folder when its process was killed.

    Only for a folder that nobody else writes to now.
    """
    for path in folder.glob(TEMPORARY_FILES):
        path.unlink(missing_ok=True)
