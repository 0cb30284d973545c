"""Examines a Slurm cluster with one small job, which this module submits, waits for and judges.

The job is submitted exactly as those of a sweep are, with the profile's options, its setup and its
Python, for as many nodes and ranks as the profile allows. So what is wrong with any of these shows
here, before hours are spent. The checks come in three steps, each of which needs the one before it:
Slurm answers, the job runs, and the job has seen no problem.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from harness.core.errors import BadInput, HarnessError, one_line
from harness.core.import_path import module_command
from harness.core.logs import last_log_line
from harness.core.paths import Results
from harness.core.private import user_name
from harness.launch.controller import run_client
from harness.launch.probe import make_folder
from harness.slurm import queue as queues
from harness.slurm.doctor import allocation
from harness.slurm.doctor.checks import (
    Check,
    checks_of_job,
    checks_of_measurement,
    make_check,
    nodes_with_other_bits,
)
from harness.slurm.doctor.measurement import NodeMeasurement
from harness.slurm.doctor.node import answer_path, installed_software, token_path
from harness.slurm.nodes import NodeFinding, keep_findings
from harness.slurm.packing import JobArray
from harness.slurm.queue import QueuedJob
from harness.slurm.submission import SubmissionFolder
from harness.slurm.submit import (
    SETUP_FAILED,
    call_sbatch,
    check_folder,
    job_executor,
    leader_python,
)
from harness.spec import partitions
from harness.spec.cluster import Profile

POLL_SECONDS = 0.5  # between looks at the queue
# A shared folder may show what a job wrote only after so long: man nfs, acdirmax.
LAG_SECONDS = 70.0
MAX_MINUTES = 10  # that the job asks for; short jobs start sooner


def examine_cluster(
    profile: Profile,
    results: Results,
    report_progress: Callable[[str], None],
    queue_seconds: float,
    *,
    all_nodes: bool,
    measure: bool,
) -> list[Check]:
    """Return the checks of a cluster, up to the one that makes the others pointless.

    `report_progress` is called with what the job is doing, again and again. `queue_seconds` is how
    long the job may be pending before it is cancelled. The job takes as many nodes as one of a
    sweep at most, or with `all_nodes` every node of the partition. With `measure`, it measures them, and
    what it finds is kept in the results folder. The folder of the job is removed if all is
    well; otherwise it stays, with the job's log.

    Raises BadInput if results can't be written, or not be shared with the nodes.
    """
    check_folder(profile, results.path)
    ping = run_client(["scontrol", "ping"])
    if ping.returncode:
        return [Check(name="Slurm", passed=False, detail=one_line(ping.stdout + ping.stderr))]
    if all_nodes:
        count = partitions.count_nodes(profile.slurm) or profile.slurm.nodes
        profile = replace(profile, slurm=replace(profile.slurm, nodes=count))
    folder = SubmissionFolder(path=make_folder(results.path, "doctor-"))
    try:
        # Every node is to read it. One that sees another folder of the same name can't know it.
        token_path(folder.path).write_text(secrets.token_hex(), encoding="ascii")
    except OSError as error:
        raise BadInput(f"--results: {results.path}: can't be written: {error.strerror}") from None
    checks = [
        Check(name="Slurm", passed=True, detail=one_line(ping.stdout)),
        *_run_job(profile, folder, report_progress, queue_seconds, measure=measure),
    ]
    if measure and allocation.report_path(folder.path).exists():
        measurement = allocation.read_examination(folder.path).measurement
        checks += checks_of_measurement(measurement)
        if isinstance(measurement, NodeMeasurement):
            keep_findings(results.nodes_path, _findings(measurement))
    if all(check.passed for check in checks):
        shutil.rmtree(folder.path)  # otherwise it holds the job's log
    return checks


def _run_job(
    profile: Profile,
    folder: SubmissionFolder,
    report_progress: Callable[[str], None],
    queue_seconds: float,
    *,
    measure: bool,
) -> list[Check]:
    """Submit the job, wait for its end, and return the checks of both and of what it has seen.

    If it is interrupted, the job is cancelled.
    """
    try:
        job_id = _submit(folder, profile, measure=measure)
    except HarnessError as error:
        return [Check(name="job", passed=False, detail=str(error))]
    try:
        job_check = _wait(job_id, folder, report_progress, queue_seconds)
    except BaseException:  # above all KeyboardInterrupt
        run_client(["scancel", job_id])
        raise
    if not job_check.passed:
        return [job_check]
    checks = [job_check]
    if profile.slurm.setup:
        checks.append(_check_setup(folder.log(job_id)))
    return checks + _check_examination(profile, folder)


def _check_setup(log: Path) -> Check:
    """Check that every line of the profile's `setup` succeeded.

    The job goes on after a line that fails, as any batch script does, and reports it in its log.
    """
    failed = []
    if log.exists():
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(SETUP_FAILED):
                failed.append(one_line(line.removeprefix(SETUP_FAILED)))
    return make_check("setup", failed, "every line succeeded")


def _findings(measurement: NodeMeasurement) -> list[NodeFinding]:
    """Return what is kept of each node that was measured now."""
    other_bits = nodes_with_other_bits(measurement.trainings)
    speeds = {speed.node: speed for speed in measurement.speeds()}
    findings = []
    for node in dict.fromkeys(training.node for training in measurement.trainings):
        findings.append(
            NodeFinding(
                node=node,
                measured_at=time.time(),
                speed=speeds.get(node),
                other_bits=other_bits.get(node),
            )
        )
    return findings


def _submit(folder: SubmissionFolder, profile: Profile, *, measure: bool) -> str:
    """Submit a short job for as many ranks as the profile allows, and return its id.

    Raises HarnessError with sbatch's message.
    """
    slurm = profile.slurm
    # The warning ahead of the limit is of no use here, and has to be shorter than the limit.
    if slurm.time_limit_seconds > 60 * MAX_MINUTES:
        slurm = replace(slurm, time=str(MAX_MINUTES), warning=1)
    array = JobArray(
        nodes=slurm.nodes,
        ranks_per_node=slurm.ranks_per_node,
        trial_ids=[[]],
        estimated_seconds=[None],
    )
    allocation.write_profile(folder.path, profile)
    module = module_command(leader_python(slurm), "harness.slurm.doctor.allocation")
    command = [*module, str(folder.path), *([allocation.MEASURE] if measure else [])]
    executor = job_executor(folder, slurm, array, "harness-doctor")
    return call_sbatch(executor, f"exec {shlex.join(command)}")


def _wait(
    job_id: str,
    folder: SubmissionFolder,
    report_progress: Callable[[str], None],
    queue_seconds: float,
) -> Check:
    """Wait until the job has left its report, or has ended without one.

    A job that is pending for longer than `queue_seconds` is cancelled.
    """
    user = user_name(os.getuid())
    submitted_at = time.monotonic()
    pending_seconds: float | None = None
    while not allocation.report_path(folder.path).exists():
        queued: QueuedJob | None = queues.query([user]).get(job_id)
        waited = time.monotonic() - submitted_at
        if queued is None:
            return _check_ended(job_id, folder)
        if not queued.is_pending:
            if pending_seconds is None:
                pending_seconds = waited
            report_progress(f"job {job_id} runs on {queued.nodes}")
        elif waited > queue_seconds:
            run_client(["scancel", job_id])
            detail = (
                f"job {job_id} was pending for {queue_seconds:g} s ({queued.reason})"
                " and was cancelled"
            )
            return Check(name="job", passed=False, detail=detail)
        else:
            report_progress(f"job {job_id} is pending: {queued.reason}")
        time.sleep(POLL_SECONDS)
    detail = f"job {job_id} ran after {pending_seconds or 0:.0f} s in the queue"
    return Check(name="job", passed=True, detail=detail)


def _check_ended(job_id: str, folder: SubmissionFolder) -> Check:
    """Return the check of a job that has left the queue.

    Its report may only be late, on a shared folder that lags. If it does not come, the detail says
    what Slurm and the job's log say.
    """
    if _appears(allocation.report_path(folder.path)):
        return Check(name="job", passed=True, detail=f"job {job_id} ran")
    # Lines such as `JobId=7 JobName=x JobState=FAILED ...`; a value with a space loses its end.
    shown = run_client(["scontrol", "--oneliner", "show", "job", job_id]).stdout
    fields = dict(re.findall(r"(\w+)=(\S*)", shown))
    nodes = fields.get("NodeList", "?")
    state = fields.get("JobState", "unknown")
    log = folder.log(job_id)
    if log.exists():
        reason = f"the last line of its log is: {last_log_line(log)}; log: {log}"
    else:
        node = fields.get("BatchHost", "its first node")
        reason = (
            f"it wrote nothing to {folder.path}: does {node} see this folder?"
            " It has to be on a shared file system"
        )
    detail = f"job {job_id} on {nodes} ended without a report ({state}); {reason}"
    return Check(name="job", passed=False, detail=detail)


def _check_examination(profile: Profile, folder: SubmissionFolder) -> list[Check]:
    """Return the checks of what the job has seen, and of whether this machine sees what nodes
    wrote.
    """
    software = installed_software()
    examination = allocation.read_examination(folder.path)
    token = token_path(folder.path).read_bytes()
    unseen = []
    for report in examination.reports:
        answer = answer_path(folder.path, report.node)
        if not report.folder_error and not (_appears(answer) and answer.read_bytes() == token):
            unseen.append(
                f"{report.node} wrote to {folder.path}, and this machine does not see it:"
                " the node has another folder of this name"
            )
    checks = []
    # That a node has read the token is not enough. What it writes may not reach this machine, as
    # with a folder that is copied to the nodes.
    for check in checks_of_job(profile, folder.path, software, examination):
        if check.name == "folder" and check.passed:
            check = make_check("folder", unseen, check.detail)
        if check.name == "nodes" and check.passed:
            count = partitions.count_nodes(profile.slurm)
            examined = len(examination.nodes)
            if count is not None and count > examined:
                rest = f"{examined} of the {count} nodes of the partition: --all-nodes examines the others too"
                check = replace(check, detail=f"{check.detail}; {rest}")
        checks.append(check)
    return checks


def _appears(path: Path) -> bool:
    """Return whether a file exists, or comes into sight while a shared folder may still lag."""
    deadline = time.monotonic() + LAG_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
