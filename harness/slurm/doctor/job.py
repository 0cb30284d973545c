"""The tiny job that examines a cluster, as its submitter sees it."""

from __future__ import annotations

import contextlib
import io
import os
import pwd
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from harness.core.errors import BadInput, HarnessError, last_log_line, one_line
from harness.core.paths import Results
from harness.slurm import queue
from harness.slurm.doctor import lead as job
from harness.slurm.doctor.checks import Check, check, of_job
from harness.slurm.doctor.node import answer, software, token
from harness.slurm.submission import JobArray, SubmissionFolder
from harness.slurm.submit import SETUP, batch, check_folder
from harness.spec.cluster import Profile

POLL = 0.5  # seconds between looks at the queue
LAG = 70.0  # seconds that a shared folder may take to show what a job has left: man nfs, acdirmax
SHORT = 10  # minutes that the job may take: short jobs start sooner


def examine(
    profile: Profile, results: Results, told: Callable[[str], None], patience: float
) -> list[Check]:
    """The checks, without those that an earlier one has made pointless; `told` hears of the job.

    `patience` is how many seconds the job may wait in the queue. Raises BadInput for results that
    can't be written or not be shared.
    """
    check_folder(profile, results.path)
    asked = _ask("scontrol", "ping")
    if asked.returncode:
        return [Check(what="Slurm", passed=False, found=one_line(asked.stdout + asked.stderr))]
    place = SubmissionFolder(path=_make_folder(results))
    checks = [
        Check(what="Slurm", passed=True, found=one_line(asked.stdout)),
        *_run(profile, place, told, patience),
    ]
    if all(one.passed for one in checks):
        shutil.rmtree(place.path)
    return checks


def _make_folder(results: Results) -> Path:
    """A fresh one among the results, where trials will write too, with the token in it."""
    try:
        results.path.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="doctor-", dir=results.path.absolute()))
        token(folder).write_text(secrets.token_hex(), encoding="ascii")
    except OSError as error:
        raise BadInput(f"--results: {results.path}: can't be written: {error.strerror}") from None
    return folder


def _run(
    profile: Profile, place: SubmissionFolder, told: Callable[[str], None], patience: float
) -> list[Check]:
    try:
        number = _submit(place, profile)
    except HarnessError as error:
        return [Check(what="job", passed=False, found=str(error))]
    try:
        ended = _wait(number, place, told, patience)
    except BaseException:
        _ask("scancel", number)
        raise
    setup = [_set_up(place.log(number))] if profile.slurm.setup else []
    return [ended, *setup, *_conclude(profile, place)] if ended.passed else [ended]


def _set_up(log: Path) -> Check:
    """Whether the profile's own lines ran without an error; the job goes on after one, as any batch script."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    failed = [one_line(line.removeprefix(SETUP)) for line in lines if line.startswith(SETUP)]
    return Check(what="setup", passed=not failed, found="; ".join(failed) or "every line ran")


def _submit(place: SubmissionFolder, profile: Profile) -> str:
    """The id of a short job for as many ranks as the profile allows. Raises HarnessError with sbatch's own words."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    slurm = profile.slurm
    if slurm.time_limit_seconds > 60 * SHORT:
        slurm = replace(slurm, time=str(SHORT), warning=1)
    array = JobArray(
        nodes=slurm.nodes, ranks_per_node=slurm.ranks_per_node, loads=[[]], seconds=[None]
    )
    quiet = contextlib.redirect_stderr(
        io.StringIO()
    )  # where submitit repeats the words that the error holds
    try:
        with quiet:
            submitted = batch(place, slurm, array, "harness-doctor").submit(
                job.lead, str(place.path), profile
            )
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        raise HarnessError(one_line(error)) from None
    return str(submitted.job_id)


def _wait(
    number: str, place: SubmissionFolder, told: Callable[[str], None], patience: float
) -> Check:
    """Until it has left its report, or has ended without; cancelled if it waits too long in the queue."""
    user, began, report = (
        pwd.getpwuid(os.getuid()).pw_name,
        time.monotonic(),
        job.report_of(place.path),
    )
    started: float | None = None
    while not report.exists():
        queued = queue.ask([user]).get(number)
        waited = time.monotonic() - began
        if queued is None:
            return _ended(number, place)
        if not queued.waiting:
            started = waited if started is None else started
            told(f"job {number} runs on {queued.nodes}")
        elif waited > patience:
            _ask("scancel", number)
            why = f"job {number} waited {patience:g} s in the queue ({queued.reason}) and was cancelled"
            return Check(what="job", passed=False, found=why)
        else:
            told(f"job {number} waits: {queued.reason}")
        time.sleep(POLL)
    return Check(
        what="job", passed=True, found=f"job {number} ran after {started or 0:.0f} s in the queue"
    )


def _ended(number: str, place: SubmissionFolder) -> Check:
    """Why a job has ended without a report, as far as it can be told from here."""
    deadline = time.monotonic() + LAG
    while time.monotonic() < deadline and not job.report_of(place.path).exists():
        time.sleep(POLL)
    if job.report_of(place.path).exists():
        return Check(what="job", passed=True, found=f"job {number} ran")
    log = place.log(number)
    known = dict(
        re.findall(r"(\w+)=(\S*)", _ask("scontrol", "--oneliner", "show", "job", number).stdout)
    )
    what = f"job {number} on {known.get('NodeList', '?')} ended without a report ({known.get('JobState', 'unknown')})"
    if not log.exists():
        first = known.get("BatchHost", "its first node")
        why = f"it left no word in {place.path}: does {first} see this folder? It has to be on a shared file system"
    else:
        why = f"its last words: {last_log_line(log)}; log: {log}"
    return Check(what="job", passed=False, found=f"{what}; {why}")


def _conclude(profile: Profile, place: SubmissionFolder) -> list[Check]:
    """The job's own checks, and whether what nodes have left in the folder is to be seen here."""
    here = software()
    found = job.read(place.path)
    secret = token(place.path).read_bytes()
    unseen = [
        f"{one.node} has written to {place.path}, and it is not seen here: it has another folder of this name"
        for one in found.reports
        if not one.folder and not _holds(answer(place.path, one.node), secret)
    ]
    checks = of_job(profile, place.path, here, found)
    return [
        check("folder", unseen, one.found) if one.what == "folder" and one.passed else one
        for one in checks
    ]


def _holds(path: Path, content: bytes) -> bool:
    deadline = time.monotonic() + LAG
    while time.monotonic() < deadline:
        if path.exists():
            return path.read_bytes() == content
        time.sleep(POLL)
    return False


def _ask(*command: str) -> subprocess.CompletedProcess[str]:
    """A client of Slurm's; where there is none, its absence is the error."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", f"{command[0]}: {error.strerror}")
