"""The one oracle: what a results folder must be like once a disturbed command has run again.

- The bits of every trial equal those of an undisturbed run.
- Every trial has one record and one run in MLflow.
- No process, shared memory or temporary file is left. A port is closed with its process.
- What commands print is true: no traceback, no success that is none, no failure without a line.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from harness.core.errors import HarnessError
from harness.core.paths import Results, SweepFolder
from harness.records.files import read_record
from tests.programs.campaign.commands import Ended
from tests.slurm.sweeps import computed

FindingKind = Literal["lost", "doubled", "differing", "left", "hung", "misreported"]
FINDING_KINDS: Sequence[str] = get_args(FindingKind)
SHARED_MEMORY = Path("/dev/shm")
ATTEMPTS = re.compile(r"attempt-\d+")
# What Python's tempfile and the temporary files of Rust have at the end of a name.
RANDOM_NAMES = re.compile(
    r"(?<=json\.)[a-z0-9_]{8}(?=$|/)|(?<=tmp)[A-Za-z0-9_]{6,8}(?=$|/)|(?<=^tmp/)[a-z0-9_]{8}(?=$|/)"
)
# By which Python's tempfile sees that it may write there: of a process that is killed meanwhile it stays.
PROBE = "tmp/*"
COLUMN_DIGEST = re.compile(r"(?<=-)[0-9a-f]{12}(?=\.npz$)")
# Trials that MLflow shows, one row for each run that holds: an earlier attempt's run stays.
LIVE_RUNS = """select tags.value from tags join runs using (run_uuid)
               where tags.key = 'harness.trial' and runs.lifecycle_stage = 'active'
               and run_uuid not in (select run_uuid from tags where key = 'harness.superseded')"""
# A line that says that something has gone wrong: an error, a failed trial, MLflow's refusal.
COMPLAINTS = (
    "harness: ",
    "✗",
    "MLflow at ",
    "MLflow: ",
    "MLflow is missing trials",
    "left out, because of",
)


@dataclass(frozen=True)
class Finding:
    """One way in which the oracle was contradicted."""

    kind: FindingKind
    text: str  # one line


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What the oracle compares of a results folder and its surroundings."""

    bits: Mapping[str, Mapping[str, Any]]  # what each trial that is done computed, by its id
    # The kept checkpoint of each; without those that have none because the disk refused it.
    checkpoints: Mapping[str, str | None] = field(default_factory=dict)
    records: Sequence[str] = ()  # the trial of every record that can be read
    unreadable: Sequence[str] = ()  # why the other records can't be read
    mlflow_runs: Sequence[str] = ()  # the trial of every run in MLflow
    files: frozenset[str]  # below the folder, without what is random in their names
    shared_memory: frozenset[str]  # that no process has mapped: it would stay for ever


def take_snapshot(work: Path) -> Snapshot:
    """Return what `work`, which has folders `results` and `tmp`, is like."""
    results = Results(work / "results")
    bits = {}
    checkpoints = {}
    records = []
    unreadable = []
    sweeps = [SweepFolder(path) for path in sorted(results.runs.glob("*/"))]
    for path in [path for sweep in sweeps for path in sweep.record_paths()]:
        try:
            record = read_record(path)
        except (HarnessError, OSError) as error:
            unreadable.append(str(error))
            continue
        records.append(record.trial.id)
        if record.status == "done":
            bits[record.trial.id] = computed(record)
            assert record.rank0 is not None
            was_refused = any(rank.unsaved for rank in record.ranks)
            if record.rank0.checkpoint is not None or not was_refused:
                checkpoints[record.trial.id] = record.rank0.checkpoint
    return Snapshot(
        bits=bits,
        checkpoints=checkpoints,
        records=records,
        unreadable=unreadable,
        mlflow_runs=_mlflow_runs(results.database),
        files=_files(work),
        shared_memory=_unowned_shared_memory(),
    )


def compare(expected: Snapshot, actual: Snapshot) -> list[Finding]:
    """Return what differs from an undisturbed run, once a sweep has run to its end again."""
    findings = [Finding("lost", text) for text in actual.unreadable]
    for trial, bits in expected.bits.items():
        if trial not in actual.bits:
            findings.append(Finding("lost", f"{trial} has no record that is done"))
        elif actual.bits[trial] != bits:
            names = [name for name, value in bits.items() if actual.bits[trial][name] != value]
            findings.append(Finding("differing", f"{trial}: other {', '.join(names)}"))
    for trial, checkpoint in actual.checkpoints.items():
        kept = expected.checkpoints.get(trial)
        if checkpoint != kept:
            findings.append(Finding("differing", f"{trial}: kept {checkpoint}; not {kept}"))
    for trial in expected.mlflow_runs:
        if trial not in actual.mlflow_runs:
            findings.append(Finding("lost", f"{trial} is not in MLflow"))
    findings += _doubled("record", actual.records)
    findings += _doubled("run in MLflow", actual.mlflow_runs)
    for name in sorted(actual.files - expected.files - {PROBE}):
        findings.append(Finding("left", f"the file {name}"))
    for name in sorted(actual.shared_memory - expected.shared_memory):
        findings.append(Finding("left", f"shared memory {name}"))
    return findings


def check_end(ended: Ended, roles: Mapping[int, str], command: str) -> list[Finding]:
    """Return what is wrong with how a command ended, whatever happened to it."""
    findings = []
    if ended.exit_code is None:
        findings.append(Finding("hung", f"{command} still ran at its deadline"))
    if "Traceback (most recent call last)" in ended.output:
        findings.append(Finding("misreported", f"{command}: traceback: {ended.last_line}"))
    for pid, state in ended.left_behind.items():
        role = roles.get(pid, "program")
        findings.append(Finding("left", f"{command} left the process {role} ({state})"))
    return findings


def check_report(ended: Ended, expected: Snapshot, actual: Snapshot) -> list[Finding]:
    """Return what `harness run` says and is not so; `actual` was taken when it had ended.

    A command that was killed says nothing.
    """
    if ended.exit_code is None or ended.exit_code < 0:
        return []
    missing = sorted(set(expected.bits) - set(actual.bits))
    if ended.exit_code == 0 and missing:
        return [Finding("misreported", f"run: exit code 0 without {', '.join(missing)}")]
    complains = any(complaint in ended.output for complaint in COMPLAINTS)
    is_in_mlflow = sorted(actual.bits) == sorted(actual.mlflow_runs)
    if complains or (ended.exit_code == 0 and is_in_mlflow):
        return []
    return [Finding("misreported", f"run: exit code {ended.exit_code}, and no line says why")]


def _doubled(noun: str, trials: Iterable[str]) -> list[Finding]:
    """Return a finding for each trial that is listed more than once."""
    doubled = [trial for trial, count in Counter(trials).items() if count > 1]
    return [Finding("doubled", f"{trial} has more than one {noun}") for trial in doubled]


def _mlflow_runs(database: Path) -> list[str]:
    """Return the trial of each run that MLflow's database shows; none if it can't be read."""
    if not database.exists():
        return []
    with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as connection:
        return [trial for (trial,) in connection.execute(LIVE_RUNS)]
    return []


def _files(work: Path) -> frozenset[str]:
    """Return the masked names of all files and folders, those of MLflow's artifacts excepted.

    The name of a record's columns is a digest of times too. One that no record names stays unmasked.
    """
    names: set[str] = set()
    for folder, folders, files in os.walk(work):
        below = Path(folder).relative_to(work)
        if below == Path("results"):
            folders[:] = [name for name in folders if name != "artifacts"]
        if ATTEMPTS.fullmatch(below.name) and "record.json" not in files:
            folders.clear()  # it was interrupted, and stays as it was
            continue
        columns = set()
        for path in Path(folder).glob("record*.json"):
            with suppress(OSError, ValueError, KeyError, TypeError):
                columns.add(json.loads(path.read_bytes())["arrays"]["file"])
        for entry in (*folders, *files):
            masked = COLUMN_DIGEST.sub("*", entry) if entry in columns else entry
            name = RANDOM_NAMES.sub("*", str(below / masked))
            names.add(ATTEMPTS.sub("attempt-*", name))
    return frozenset(names)


def _unowned_shared_memory() -> frozenset[str]:
    """Return the shared memory that no process has mapped: it would stay for ever."""
    names = {str(path) for path in SHARED_MEMORY.rglob("*") if path.is_file()}
    if not names:
        return frozenset()
    # Not psutil, which reads `smaps`: the kernel counts every page for that, and a process that has
    # torch loaded has millions.
    for path in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # it has ended, or is somebody else's
            mapped = path.read_text(encoding="utf-8", errors="replace")
            names = {name for name in names if f"{name}\n" not in mapped}
    return frozenset(names)
