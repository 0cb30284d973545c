"""What has become of every trial: by the shared folder first, and by one look at Slurm's queue second."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic_core import from_json

from harness.core.errors import BadInput, last_log_line, one_line
from harness.core.paths import SweepFolder, TrialFolder
from harness.launch.runner import RETRIED_FAILURES, read_progress
from harness.launch.sweep import is_locked
from harness.records.record import Failure
from harness.slurm import queue as queues
from harness.slurm import submission as submissions
from harness.slurm.leader import RETRIES
from harness.slurm.queue import Queued, SlurmDown
from harness.slurm.submission import Submission
from harness.spec.cell import Trial
from harness.spec.sweep import Sweep

State = Literal[
    "queued", "running", "done", "failed", "invalid", "interrupted", "cancelled", "lost", "missing"
]  # lost: its job has ended without a word of it; missing: never submitted
OPEN = {"queued", "running", "interrupted"}  # where more is to come if Slurm still has the job


@dataclass(frozen=True, kw_only=True)
class RecordHeader:
    """What counts of a record here."""

    status: Literal["done", "failed", "invalid", "interrupted"]
    attempt: int
    why: str
    seconds: float = 0.0  # that it took
    failures: Sequence[Failure] = ()  # of all attempts, the first one's first

    def runs_again(self, first: int) -> bool:
        """Whether the job that has it tries once more by itself, having begun with attempt `first`."""
        lost = [failure.kind in RETRIED_FAILURES for failure in self.failures[first - 1 :]]
        return self.status == "failed" and lost[-1:] == [True] and sum(lost) <= RETRIES


@dataclass(frozen=True, kw_only=True)
class Found:
    """What lies in a trial's folder."""

    record: RecordHeader | None = None
    progress: Mapping[str, Any] | None = None  # of a trial at work, or of one that was ended there


@dataclass(frozen=True, kw_only=True)
class TrialState:
    """One row of the status."""

    trial: str
    label: str
    seed: int
    repeat: int
    state: State
    job: str | None = None
    nodes: str = ""
    step: int | None = None
    steps: int | None = None
    rate: float | None = None  # samples/s over all ranks, when it last told
    left: float | None = None  # seconds, at that rate
    took: float | None = None  # seconds, of one that is done
    detail: str = ""
    live: bool = (
        False  # whether a job that has not ended has it, or a run on this machine that goes on
    )

    @property
    def over(self) -> bool:
        """Whether its record stays: while a job has it, a trial that failed or was invalid may run again."""
        return self.state == "done" or (self.state in ("failed", "invalid") and not self.live)


@dataclass(frozen=True, kw_only=True)
class Status:
    """Of a sweep."""

    sweep: Sweep
    trials: Sequence[TrialState]
    bad_nodes: Mapping[str, int]  # node -> attempts that were lost with it
    trouble: str | None  # why Slurm could not be asked

    @property
    def left(self) -> float | None:
        """Seconds until all is over, if the others take what those took that are done, as many at once as now."""
        took: dict[str, list[float]] = {}
        for one in self.trials:
            if one.took is not None:
                took.setdefault(one.label, []).append(one.took)
        at_work = [
            one for one in self.trials if one.state in OPEN and (one.live or one.state == "running")
        ]
        if not took or not at_work:
            return None
        usual = fmean(seconds for found in took.values() for seconds in found)
        work = sum(
            fmean(took.get(one.label, [usual])) if one.left is None else one.left for one in at_work
        )
        return work / max(1, sum(one.state == "running" for one in at_work))

    @property
    def over(self) -> bool:
        silent = self.trouble is not None  # then nobody knows which jobs are left
        return not any(
            one.live or one.state == "running" or (silent and one.state in OPEN)
            for one in self.trials
        )


def states(
    trials: Sequence[Trial],
    submitted: Sequence[Submission],
    found: Mapping[str, Found],
    queue: Mapping[str, Queued] | None,
    *,
    here: bool = False,
    folder: SweepFolder = SweepFolder(Path()),  # noqa: B008 - frozen
) -> list[TrialState]:
    """The state of every trial: pure but for the last words of jobs, below `folder`, that lost one. `submitted` are
    oldest first, `found` is by trial; `queue` is None where Slurm does not answer; `here`: a run on this machine goes
    through what was not submitted."""
    whole = queues.adopt(submitted, queue or {})
    owners: dict[str, tuple[Submission, str | None]] = {
        trial: (one, one.arrays[number].job_id(element))
        for one in whole
        for number, element, load in one.elements()
        for trial in load
    }
    live = None if queue is None else queues.live(submitted, queue)
    rows, words = [], cache(last_log_line)  # a job may have lost many
    for trial in trials:
        submission, job = owners.get(trial.id, (None, None))
        row = _state(trial, submission, job, found.get(trial.id, Found()), live)
        if row.state == "lost" and submission and job:
            log = submissions.folder_of(folder, submission.id).log(job)
            row = replace(row, detail=f"{row.detail}; its last words: {words(log)}; log: {log}")
        if here and submission is None and row.state in ("missing", "interrupted", "running"):
            row = replace(row, state="queued" if row.state == "missing" else row.state, live=True)
        rows.append(row)
    return rows


def _state(
    trial: Trial,
    submission: Submission | None,
    job: str | None,
    found: Found,
    live: Mapping[str, Queued] | None,
) -> TrialState:
    """`live` are the trials that jobs have, None where Slurm does not answer."""
    slurm = (live or {}).get(trial.id)
    known, told = found.record, found.progress
    if (
        known is not None
        and submission is not None
        and known.attempt < submission.attempts[trial.id]
    ):
        known = None  # of an earlier submission
    state: State
    detail, cancelled = known.why if known else "", submission is not None and submission.cancelled
    if told and ((slurm is not None and not slurm.waiting) or submission is None or live is None):
        state = "running"
    elif (
        known
        and submission
        and (slurm or live is None)
        and known.runs_again(submission.attempts[trial.id])
    ):
        state, detail = (
            "queued",
            f"to run again{'' if slurm else ', if its job is still there'}: {detail}",
        )
    elif known is not None and (
        known.status != "interrupted" or slurm or (live is None and not cancelled)
    ):
        state = known.status
    elif slurm is not None:
        state, detail = (
            "queued",
            slurm.reason if slurm.waiting else "its job is at another trial, or starts this one",
        )
    elif submission is None:
        state = "interrupted" if known else "missing"
    elif cancelled:
        state = "cancelled"
    elif live is None:
        state, detail = "queued", "Slurm does not say whether its job is there"
    else:
        state = "lost"
        where = f"job {job} ended" if job else "whoever submitted it ended before it had a job"
        detail = where + (f"; {detail}" if detail else " without a record of it")
    running = told if state == "running" and told else {}
    if running.get("phase", "train") != "train":
        detail = str(running["phase"])
    step, steps, rate = (running.get(name) for name in ("step", "steps", "rate"))
    return TrialState(
        trial=trial.id,
        label=trial.cell.label,
        seed=trial.seed,
        repeat=trial.repeat,
        state=state,
        job=job,
        nodes=slurm.nodes if slurm else "",
        step=step,
        steps=steps,
        rate=rate,
        left=(steps - step) * trial.cell.axes.batch_size / rate
        if rate and steps is not None
        else None,
        took=known.seconds if known and state == "done" else None,
        detail=detail,
        live=slurm is not None,
    )


def look(sweeps: Sequence[tuple[Sweep, SweepFolder]]) -> list[Status]:
    """Read the folders, and ask Slurm once if any was ever submitted. Raises BadInput for what can't be read."""
    submitted = [submissions.read_all(folder) for _, folder in sweeps]
    users = {one.user for found in submitted for one in found}
    queue, trouble = {}, None
    try:
        queue = queues.ask(users) if users else {}
    except SlurmDown as error:
        trouble = str(error)
    return [
        _look(sweep, folder, own, None if trouble else queue, trouble if own else None)
        for (sweep, folder), own in zip(sweeps, submitted, strict=True)
    ]


def _look(
    sweep: Sweep,
    folder: SweepFolder,
    submitted: Sequence[Submission],
    queue: Mapping[str, Queued] | None,
    trouble: str | None,
) -> Status:
    trials = {
        trial.id: trial
        for one in [*(own.sweep for own in submitted), sweep]
        for trial in one.trials()
    }
    found = {trial: look_at(folder.trial_folder(trial)) for trial in trials}
    here = is_locked(folder)
    since = _changed(folder.lock_path) if here else math.inf
    elsewhere = {trial for one in submitted for _, _, load in one.elements() for trial in load}
    for name in found.keys() - elsewhere:
        found[name] = replace(
            found[name], progress=_progress_here(found[name], folder.trial_folder(name), since)
        )
    rows = states(list(trials.values()), submitted, found, queue, here=here, folder=folder)
    failures = [failure for one in found.values() if one.record for failure in one.record.failures]
    if all(row.state not in OPEN for row in rows):
        trouble = None  # Slurm could not change what is over
    bad = Counter(failure.bad_node for failure in failures if failure.bad_node)
    return Status(sweep=sweep, trials=rows, bad_nodes=bad, trouble=trouble)


def look_at(place: TrialFolder) -> Found:
    """Raises BadInput."""
    try:
        known = _outline(place.record_path, place.record_path.stat().st_mtime_ns)
    except FileNotFoundError:
        known = None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{place.record_path}: can't be read as a record: {one_line(error)}"
        ) from None
    return Found(record=known, progress=read_progress(place) or None)


@cache
def _outline(path: Path, _changed: int) -> RecordHeader:
    """Read once for each time that a record was written, as who watches looks again and again."""
    content = from_json(path.read_bytes())  # twice as fast as json, and records are large
    failures = [
        Failure(**one) for one in [*content["previous_failures"], content["failure"]] if one
    ]
    why = str(failures[-1]) if content["failure"] else "; ".join(content["violations"])
    return RecordHeader(
        status=content["status"],
        attempt=content["attempt"],
        why=one_line(why),
        failures=failures,
        seconds=content["ended"] - content["started"],
    )


def _progress_here(found: Found, place: TrialFolder, since: float) -> Mapping[str, Any] | None:
    """Of a trial that a run on this machine, begun at `since`, is at; what is older was left by one that was killed."""
    begun = _changed(place.assignment_path)
    if begun < since or begun < _changed(place.record_path):
        return None
    return found.progress or {"phase": "starting"}


def _changed(path: Path) -> float:
    """When a file was written; long ago if it is not there."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
