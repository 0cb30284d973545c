"""Examines what a profile launches on, with one trial of the ready sweep `doctor` on the normal path.

What is wrong with a profile's options, setup, Python, folder or network shows in that trial as it
would in a user's, before hours are spent.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from harness.core.cores import usable_cores
from harness.core.errors import BadInput, HarnessError, one_line
from harness.core.paths import Results, SweepFolder
from harness.core.progress import report_progress
from harness.core.scratch import ScratchFolder
from harness.launch import sweep as local
from harness.launch.runner import TrialListener
from harness.launch.srun import run_client
from harness.records.files import read_record_if_exists
from harness.records.numbers import RATE
from harness.records.record import Record
from harness.slurm.status import SweepStatus, TrialState, read_statuses, until_over
from harness.slurm.submit import cancel, submit
from harness.sweep.cluster import Profile, SlurmOptions, available_slots
from harness.sweep.sweep import Sweep, find_sweep_file, load_sweep

MAX_RANKS_HERE = 2  # of the trial on this machine
POLL_SECONDS = 2.0  # between looks at the queue
PATIENCE_SECONDS = 600.0  # that a job may be pending
MAX_MINUTES = 10  # that a job asks for; short jobs start sooner


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    passed: bool
    detail: str  # what was seen, or what is wrong


def examine(profile: Profile, results: Results, *, all_nodes: bool) -> list[Check]:
    """Return the checks of a profile.

    With `all_nodes`, every node that responds gets a trial. The folder of trials
    stays, with their logs, if a check fails.

    Raises BadInput if results can't be written, or not be shared with nodes.
    """
    detail = f"{len(usable_cores())} cores, Python {platform.python_version()}"
    detail += f", torch {version('torch')}; results in {results.path.absolute()}"
    checks = [Check(name="machine", passed=True, detail=detail)]
    try:
        results.path.mkdir(parents=True, exist_ok=True)
        scratch = ScratchFolder("doctor", results.path.absolute())
    except OSError as error:
        raise BadInput(f"--results: {results.path}: can't be written: {error.strerror}") from None
    with scratch:
        if profile.launcher == "slurm":
            checks += _examine_cluster(profile, scratch.path, all_nodes=all_nodes)
        else:
            checks.append(_run_here(profile, Results(scratch.path)))
        if not all(check.passed for check in checks):
            scratch.keep()
            checks.append(Check(name="logs", passed=False, detail=f"{scratch.path} has them"))
    return checks


def _doctor_sweep(ranks: int) -> Sweep:
    """Return the ready sweep for a trial over some ranks."""
    strategy = "ddp" if ranks > 1 else "single"
    settings = [f"strategy={strategy}", f"world_size={ranks}", f"batch_size={8 * ranks}"]
    return load_sweep(find_sweep_file("doctor"), settings)


def _run_here(profile: Profile, results: Results) -> Check:
    """Run the trial on this machine, and return what became of it."""
    slots, reason = available_slots(profile)
    if not slots:
        return Check(name="trial", passed=False, detail=f"room for no rank: {reason}")
    sweep = _doctor_sweep(min(MAX_RANKS_HERE, slots))
    report_progress("a trial on this machine")
    quick = replace(profile, validity=replace(profile.validity, contention=None))
    folder = results.sweep_folder(sweep.name)
    (record,) = local.run(sweep, quick, folder, TrialListener(), redo="missing", fail_fast=True)
    return _check_record("trial", record)


def _check_record(name: str, record: Record) -> Check:
    """Return the check of a trial that has ended."""
    if record.status != "done":
        detail = str(record.failure or "; ".join(record.violations) or record.status)
        return Check(name=name, passed=False, detail=detail)
    axes = record.trial.cell.axes
    detail = f"{axes.world_size} ranks ({axes.strategy}), {record.numbers[RATE]:,.0f} samples/s"
    return Check(name=name, passed=True, detail=detail)


def _examine_cluster(profile: Profile, folder: Path, *, all_nodes: bool) -> list[Check]:
    """Submit the trial, or one for each node, wait for the jobs, and return what became of them."""
    ping = run_client(["scontrol", "ping"])
    detail = one_line(ping.stdout + ping.stderr)
    checks = [Check(name="Slurm", passed=not ping.returncode, detail=detail)]
    if ping.returncode:
        return checks
    # The warning ahead of the limit is of no use here.
    slurm = replace(profile.slurm, sbatch=profile.slurm.sbatch | {"time": MAX_MINUTES}, warning=1)
    profiles = {"trial": replace(profile, slurm=slurm)}
    if all_nodes:
        profiles = {}
        for node in _nodes(slurm):
            options = replace(slurm, nodes=1, sbatch={**slurm.sbatch, "nodelist": node})
            profiles[node] = replace(profile, slurm=options)
    try:
        rows = _run_jobs(profiles, folder)
    except HarnessError as error:
        return [*checks, Check(name="job", passed=False, detail=str(error))]
    digests: dict[str, str] = {}
    for name, (row, record_path) in rows.items():
        record = read_record_if_exists(record_path)
        if record is None:
            detail = ", ".join(filter(None, [row.job, row.state, row.detail]))
            checks.append(Check(name=name, passed=False, detail=detail))
            continue
        checks.append(_check_record(name, record))
        if record.rank0 is not None and record.rank0.parameter_digest:
            digests[name] = record.rank0.parameter_digest
    if len(digests) > 1:
        checks.append(_check_bits(digests))
    return checks


def _run_jobs(profiles: Mapping[str, Profile], folder: Path) -> dict[str, tuple[TrialState, Path]]:
    """Run the trial once with each profile, and return its last state and its record's path, by name.

    Jobs that have not ended once this returns, or raises, are cancelled.
    """
    sweeps: list[tuple[Sweep, SweepFolder]] = []
    statuses: list[SweepStatus] = []
    try:
        for name, profile in profiles.items():
            sweep = _doctor_sweep(profile.slurm.max_ranks)
            sweeps.append((sweep, Results(folder / name).sweep_folder(sweep.name)))
            submit(sweep, profile, sweeps[-1][1])
        deadline = time.monotonic() + PATIENCE_SECONDS
        for statuses in until_over(lambda: read_statuses(sweeps), POLL_SECONDS):
            states = Counter(status.trials[0].state for status in statuses)
            report_progress(", ".join(f"{count} {state}" for state, count in states.items()))
            if states["queued"] and not states["running"] and time.monotonic() > deadline:
                break
    finally:
        for number, (_, sweep_folder) in enumerate(sweeps):
            if not statuses or not statuses[number].is_over:
                cancel(sweep_folder)
    rows = {}
    for name, (_, sweep_folder), status in zip(profiles, sweeps, statuses, strict=True):
        row = status.trials[0]
        rows[name] = row, sweep_folder.trial_folder(row.trial).record_path
    return rows


def _nodes(slurm: SlurmOptions) -> list[str]:
    """Return the nodes of the profile's partition that respond; raises BadInput for none."""
    command = ["sinfo", "--Node", "--responding", "--noheader", "--format=%N"]
    if "partition" in slurm.options:
        command.append(f"--partition={slurm.options['partition']}")
    nodes = sorted(set(run_client(command).stdout.split()))
    if not nodes:
        raise BadInput("--all-nodes: found no node that responds")
    return nodes


def _check_bits(digests: Mapping[str, str]) -> Check:
    """Check that all nodes have computed the same parameters, of which these are the digests."""
    ((usual, count),) = Counter(digests.values()).most_common(1)
    others = [node for node, digest in digests.items() if digest != usual]
    detail = f"the same on {len(digests)} nodes"
    if others:
        detail = f"{', '.join(others)} compute other bits than {count} other nodes"
    return Check(name="bits", passed=not others, detail=detail)
