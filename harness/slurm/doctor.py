"""Examines what a profile launches on, with one trial of the ready sweep `doctor` on the normal path.

What is wrong with a profile's options, setup, Python, folder or network shows in that trial as it
would in a user's, before hours are spent.
"""

from __future__ import annotations

import platform
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import psutil

from harness.core.cores import usable_cores
from harness.core.errors import BadInput, HarnessError, one_line
from harness.core.paths import Results, SweepFolder
from harness.launch import sweep as local
from harness.launch.controller import run_client
from harness.launch.runner import TrialListener
from harness.records.files import read_record
from harness.records.record import Record
from harness.slurm.cancel import cancel
from harness.slurm.status import SweepStatus, read_statuses
from harness.slurm.submit import check_folder, submit
from harness.spec.cluster import Profile, available_slots
from harness.spec.slurm import SlurmOptions
from harness.spec.sweep import Sweep, find_sweep_file, load_sweep

MAX_RANKS_HERE = 2  # of the trial on this machine
POLL_SECONDS = 2.0  # between looks at the queue
LAG_SECONDS = 70.0  # a shared folder may show a record only after so long: man nfs, acdirmax
MAX_MINUTES = 10  # that a job asks for; short jobs start sooner
GIB = 2**30  # bytes


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    passed: bool
    detail: str  # what was seen, or what is wrong


def examine(
    profile: Profile,
    results: Results,
    *,
    patience: float,
    all_nodes: bool,
    on_progress: Callable[[str], None],
) -> list[Check]:
    """Return the checks of a profile, up to one that makes the others pointless.

    `patience` is how many seconds a job may be pending. With `all_nodes`, every node that responds gets
    a trial. The trials' folder stays, with their logs, if a check fails.

    Raises BadInput if results can't be written, or not be shared with nodes.
    """
    checks = [_describe_machine(results)]
    results.path.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="doctor-", dir=results.path))
    try:
        if profile.launcher == "slurm":
            checks += _examine_cluster(
                profile, folder, patience=patience, all_nodes=all_nodes, on_progress=on_progress
            )
        else:
            checks.append(_run_here(profile, folder, on_progress))
    except BaseException:  # above all KeyboardInterrupt
        shutil.rmtree(folder)
        raise
    if all(check.passed for check in checks):
        shutil.rmtree(folder)
    else:
        checks.append(Check(name="logs", passed=False, detail=f"{folder} has them"))
    return checks


def _describe_machine(results: Results) -> Check:
    """Return what this machine has; there is nothing about it that fails."""
    cores = len(usable_cores())
    memory = psutil.virtual_memory().total / GIB
    detail = f"{cores} cores, {memory:.0f} GiB, Python {platform.python_version()}"
    detail += f", torch {version('torch')}; results in {results.path.absolute()}"
    return Check(name="machine", passed=True, detail=detail)


def _doctor_sweep(ranks: int) -> Sweep:
    """Return the ready sweep for a trial over some ranks."""
    strategy = "ddp" if ranks > 1 else "single"
    settings = [f"strategy={strategy}", f"world_size={ranks}", f"batch_size={8 * ranks}"]
    return load_sweep(find_sweep_file("doctor"), settings)


def _run_here(profile: Profile, folder: Path, on_progress: Callable[[str], None]) -> Check:
    """Run the trial on this machine, and return what became of it."""
    slots, reason = available_slots(profile)
    if not slots:
        return Check(name="trial", passed=False, detail=f"room for no rank: {reason}")
    sweep = _doctor_sweep(min(MAX_RANKS_HERE, slots))
    on_progress(f"a trial of {min(MAX_RANKS_HERE, slots)} ranks")
    validity = replace(profile.validity, contention=None)  # it is not measured
    sweep_folder = Results(folder).sweep_folder(sweep.name)
    (record,) = local.run(
        sweep,
        replace(profile, validity=validity),
        sweep_folder,
        TrialListener(),
        redo="missing",
        fail_fast=True,
    )
    return _check_record("trial", record)


def _check_record(name: str, record: Record) -> Check:
    """Return the check of a trial that has ended."""
    if record.status != "done" or record.summary is None or record.rank0 is None:
        detail = str(record.failure or "; ".join(record.violations) or record.status)
        return Check(name=name, passed=False, detail=detail)
    axes = record.trial.cell.axes
    detail = (
        f"{axes.world_size} ranks ({axes.strategy}), {record.summary.throughput:,.0f} samples/s"
    )
    return Check(name=name, passed=True, detail=detail)


def _examine_cluster(
    profile: Profile,
    folder: Path,
    *,
    patience: float,
    all_nodes: bool,
    on_progress: Callable[[str], None],
) -> list[Check]:
    """Submit the trial, or one for each node, wait for the jobs, and return what became of them."""
    check_folder(folder)
    ping = run_client(["scontrol", "ping"])
    if ping.returncode:
        return [Check(name="Slurm", passed=False, detail=one_line(ping.stdout + ping.stderr))]
    checks = [Check(name="Slurm", passed=True, detail=one_line(ping.stdout))]
    slurm = profile.slurm
    if slurm.time_limit_seconds > 60 * MAX_MINUTES:
        # The warning ahead of the limit is of no use here, and has to be shorter than the limit.
        slurm = replace(slurm, sbatch={**slurm.sbatch, "time": MAX_MINUTES}, warning=1)
    profiles = {"trial": replace(profile, slurm=slurm)}
    if all_nodes:
        profiles = {node: replace(profile, slurm=_on_node(slurm, node)) for node in _nodes(slurm)}
    submitted: dict[str, tuple[Sweep, SweepFolder]] = {}
    try:
        for name, job_profile in profiles.items():
            sweep = _doctor_sweep(job_profile.slurm.max_ranks)
            sweep_folder = Results(folder / name).sweep_folder(sweep.name)
            submitted[name] = sweep, sweep_folder
            submit(
                sweep,
                job_profile,
                sweep_folder,
                redo="missing",
                on_prepared=lambda prepared: None,
                on_wait=on_progress,
            )
        trouble = _wait(list(submitted.values()), patience, on_progress)
    except HarnessError as error:
        return [*checks, Check(name="job", passed=False, detail=str(error))]
    except KeyboardInterrupt:
        for _, sweep_folder in submitted.values():
            cancel(sweep_folder)
        raise
    records: dict[str, Record] = {}
    for name, (sweep, sweep_folder) in submitted.items():
        (trial,) = sweep.trials()
        path = sweep_folder.trial_folder(trial.id).record_path
        if path.exists():
            records[name] = read_record(path)
            checks.append(_check_record(name, records[name]))
        else:
            checks.append(Check(name=name, passed=False, detail=trouble[sweep_folder]))
    return [*checks, *_check_bits(records)]


def _on_node(slurm: SlurmOptions, node: str) -> SlurmOptions:
    """Return the options for a job on one node."""
    return replace(slurm, nodes=1, sbatch={**slurm.sbatch, "nodelist": node})


def _nodes(slurm: SlurmOptions) -> list[str]:
    """Return the nodes of the profile's partition that respond; raises BadInput for none."""
    command = ["sinfo", "--Node", "--responding", "--noheader", "--format=%N"]
    if "partition" in slurm.options:
        command.append(f"--partition={slurm.options['partition']}")
    nodes = sorted(set(run_client(command).stdout.split()))
    if not nodes:
        raise BadInput("--all-nodes: found no node that responds")
    return nodes


def _wait(
    sweeps: Sequence[tuple[Sweep, SweepFolder]],
    patience: float,
    on_progress: Callable[[str], None],
) -> dict[SweepFolder, str]:
    """Wait until all trials have ended; return why one has not, by the folder of its sweep.

    Jobs that are pending for longer than `patience` seconds are cancelled.
    """
    submitted_at = time.monotonic()
    over_at: float | None = None
    while True:
        statuses = read_statuses(sweeps)
        trouble: dict[SweepFolder, str] = {}
        for status, (_, sweep_folder) in zip(statuses, sweeps, strict=True):
            trouble[sweep_folder] = _describe(status)
        if all(status.is_over for status in statuses):
            over_at = over_at or time.monotonic()
            is_any_lost = any(
                trial.state == "lost" for status in statuses for trial in status.trials
            )
            if not is_any_lost or time.monotonic() > over_at + LAG_SECONDS:
                return trouble
        pending = [
            folder
            for status, (_, folder) in zip(statuses, sweeps, strict=True)
            if any(trial.state in ("queued", "held") for trial in status.trials)
        ]
        if pending and time.monotonic() > submitted_at + patience:
            for sweep_folder in pending:
                cancel(sweep_folder)
            return trouble
        on_progress("; ".join(dict.fromkeys(trouble.values())))
        time.sleep(POLL_SECONDS)


def _describe(status: SweepStatus) -> str:
    """Return the state of the only trial of a sweep."""
    trial = status.trials[0]
    words = [f"job {trial.job}" if trial.job else "", trial.state, trial.detail]
    return ", ".join(word for word in words if word)


def _check_bits(records: dict[str, Record]) -> list[Check]:
    """Check that all nodes have computed the same parameters, where several were examined."""
    digests: dict[str, str] = {}
    for node, record in records.items():
        if record.rank0 is not None and record.rank0.parameter_digest:
            digests[node] = record.rank0.parameter_digest
    if len(digests) < 2:
        return []
    (usual, count), *_ = Counter(digests.values()).most_common(1)
    others = sorted(node for node, digest in digests.items() if digest != usual)
    if others:
        detail = f"{', '.join(others)} compute other bits than {count} other nodes"
        return [Check(name="bits", passed=False, detail=detail)]
    return [Check(name="bits", passed=True, detail=f"the same on {len(digests)} nodes")]
