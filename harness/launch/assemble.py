"""Assembles a trial's record from what its ranks left in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.core.errors import BadInput, Interrupted
from harness.core.logs import last_log_line
from harness.core.paths import TrialFolder
from harness.core.text import ranges
from harness.hardware.machine import Machine
from harness.hardware.mfu import mfu_numbers
from harness.measure.numbers import trial_numbers
from harness.measure.summary import summarize
from harness.measure.validity import violations
from harness.records.assignment import Assignment
from harness.records.environment import Environment
from harness.records.files import read_rank_result
from harness.records.record import (
    PEER_FAILURES,
    Failure,
    Rank0Report,
    RankResult,
    Record,
    RunSettings,
    Status,
    Summary,
    losses_of,
)
from harness.spec.validity import ValidityRules
from harness.training.order import join_digests

INTERRUPTED = Interrupted.__name__


@dataclass(frozen=True, kw_only=True)
class RankFiles:
    """What the ranks of a trial left."""

    results: Sequence[RankResult]  # of ranks that left a readable result, by rank
    unreadable: Sequence[Failure]  # of ranks whose result can't be read
    missing: Sequence[int]  # ranks that left no result

    @property
    def rank0_parts(self) -> tuple[Rank0Report | None, Environment | None]:
        """Return what rank 0 alone reports, and its environment."""
        for result in self.results:
            if result.rank0 is not None:
                return result.rank0, result.environment
        return None, None


def assemble(
    folder: TrialFolder,
    sweep: str,
    assignment: Assignment,
    *,
    started: float,
    ended: float,
    previous_failures: Sequence[Failure],
    ended_by: Failure | None,
    rules: ValidityRules,
    observed_failures: Sequence[Failure] = (),
    launcher_end: str = "its launcher left no word of its end",
    peaks: Mapping[str, Machine] | None = None,
    settings: RunSettings | None = None,
    first_started: float | None = None,
) -> Record:
    """Return the record of a trial that has ended.

    `started` and `ended` are in seconds since the epoch. `ended_by` says why it was ended, if it
    was; `observed_failures` are those that the launcher saw, and `launcher_end` says how the
    launcher ended. A trial that finished and breaks one of `rules` is invalid. `peaks` are measured
    machines by their key, for the record's MFU.
    """
    trial = assignment.trial
    files = read_rank_files(folder, trial.cell.axes.world_size)
    ranks = files.results
    failure = ended_by or first_cause(folder, files, observed_failures, launcher_end)
    failure = failure or _uneven_steps(ranks)
    # All of these are only known of a trial that finished.
    summary = None
    order_digest = None
    broken_rules: list[str] = []
    rank0, environment = files.rank0_parts
    if failure is None and rank0 is not None:
        cell = trial.cell
        summary = summarize(ranks, rank0, cell)
        order_sums = [result.order_sums for result in ranks]
        if not cell.workload.is_script:
            order_digest = join_digests(order_sums)
        broken_rules = violations(ranks, summary, rules)
    record = Record(
        sweep=sweep,
        trial=trial,
        status=_status(failure, summary, broken_rules),
        attempt=assignment.attempt,
        started=started,
        ended=ended,
        failure=failure,
        violations=tuple(broken_rules),
        previous_failures=tuple(previous_failures),
        summary=summary,
        order_digest=order_digest,
        load_ranks=lambda: ranks,
        load_losses=lambda: losses_of(ranks),
        rank0=rank0,
        environment=environment,
        settings=settings,
        phases=phase_seconds(ranks, started, summary),
        first_started=first_started,
        lane=assignment.lane,
    )
    return with_ranks(record, ranks, peaks or {})


def with_ranks(record: Record, ranks: Sequence[RankResult], peaks: Mapping[str, Machine]) -> Record:
    """Return a record with these ranks, and with what they come to for readers of headers."""
    problems: list[str] = []
    if ranks:
        problems += [f"not resumed from {refusal}" for refusal in ranks[0].refused_checkpoints]
        problems += ranks[0].unsaved
    record = replace(
        record,
        load_ranks=lambda: ranks,
        load_losses=lambda: losses_of(ranks),
        # Only ranks on a GPU report allocated memory.
        device="cuda" if any("allocated" in rank.memory for rank in ranks) else "cpu",
        nodes=len({rank.host for rank in ranks}),
        interruptions=tuple(ranks[0].interruptions) if ranks else (),
        checkpoint_problems=tuple(problems),
        notes=tuple(ranks[0].notes) if ranks else (),
    )
    numbers = {**trial_numbers(record, ranks), **mfu_numbers(record, ranks, peaks)}
    return replace(record, numbers=numbers)


def _uneven_steps(ranks: Sequence[RankResult]) -> Failure | None:
    """Return the failure of ranks of a script that took different numbers of steps, None if equal."""
    counts = {}
    for result in ranks:
        if result.step_seconds is not None:
            counts[len(result.step_seconds)] = result.rank
    if len(counts) < 2:
        return None
    steps = " and ".join(str(count) for count in sorted(counts))
    return Failure(
        kind="NotApplied",
        message=f"the ranks took {steps} steps; needed: equally many of the first optimizer",
        rank=counts[min(counts)],
    )


def _status(
    failure: Failure | None, summary: Summary | None, broken_rules: Sequence[str]
) -> Status:
    """Return what became of a trial.

    One that finished has a summary; it is `invalid` if its measurement broke a rule. An interrupted
    one can be resumed, so it is no failed one.
    """
    if failure is not None and failure.kind == INTERRUPTED:
        return "interrupted"
    if broken_rules:
        return "invalid"
    if summary is not None:
        return "done"
    return "failed"


def phase_seconds(
    ranks: Sequence[RankResult], started: float, summary: Summary | None
) -> dict[str, float]:
    """Return the seconds that each phase of a trial took at the rank where it took longest.

    The steps before the measured window are warm-up, except for the time that they compiled.
    """
    startup = max((result.entered_at - started for result in ranks), default=0.0)
    phases = {"startup": max(0.0, startup)}
    for result in ranks:
        for name, seconds in result.phases.items():
            phases[name] = max(phases.get(name, 0.0), seconds)
    if summary is None or summary.window_start is None:
        return phases
    # As all ranks wait for the slowest one, its time is the trial's.
    before_window = 0.0
    for result in ranks:
        seconds_before = np.array(result.step_seconds)[: summary.window_start]
        fingerprinted = np.asarray(result.fingerprinted_steps, dtype=int)
        seconds_before[fingerprinted[fingerprinted < summary.window_start]] = 0.0
        before_window = max(before_window, float(seconds_before.sum()))
    phases["warmup"] = max(0.0, before_window - phases.get("compile", 0.0))
    phases["train"] -= phases["warmup"]
    return phases


def read_rank_files(folder: TrialFolder, world_size: int) -> RankFiles:
    """Return what all ranks left in a trial's folder.

    A result that can't be read is a failure of its rank, and stops no other from being read.
    """
    results = []
    unreadable = []
    missing = []
    for rank in range(world_size):
        path = folder.result_path(rank)
        if not path.exists():
            missing.append(rank)
            continue
        try:
            results.append(read_rank_result(path))
        except BadInput as error:
            unreadable.append(Failure(kind="BadInput", message=str(error), rank=rank))
    return RankFiles(results=results, unreadable=unreadable, missing=missing)


def first_cause(
    folder: TrialFolder,
    files: RankFiles,
    observed_failures: Sequence[Failure],
    launcher_end: str,
) -> Failure | None:
    """Return the failure that caused all others, None if there is none.

    That is the earliest one of the first of these kinds that occurs: an interruption, which leaves
    a checkpoint whatever comes after it; a rank that the launcher saw end before it had written a
    result; an error that a rank reports; a result that can't be read; a connection that a rank has
    lost, since the other end of it is the cause; a result that is missing.
    """
    # What the ranks themselves caught and wrote into their results.
    reported = [result.failure for result in files.results if result.failure]
    of_ranks = [failure for failure in reported if failure.kind not in PEER_FAILURES]
    disconnected = _with_missing(reported, files.missing)
    # Ranks that ended without a result. A rank that has written one and is then ended was well.
    ended = []
    for failure in observed_failures:
        if failure.rank is None or not folder.result_path(failure.rank).exists():
            ended.append(failure)
    interruptions = []
    for failure in [*reported, *observed_failures]:
        if failure.kind == INTERRUPTED:
            interruptions.append(failure)
    # If nothing else explains a missing result, the launcher's end or the last line of its log may.
    last_line = last_log_line(folder.launch_log)
    message = f"left no result; {launcher_end}; the last line of the launcher's log: {last_line}"
    lost = [Failure(kind="Lost", message=message, rank=rank) for rank in files.missing]
    for candidates in (interruptions, ended, of_ranks, files.unreadable, disconnected, lost):
        if candidates:
            earliest = min(candidates, key=lambda failure: failure.at)
            return _with_log(earliest, folder)
    return None


def _with_missing(failures: Sequence[Failure], missing: Sequence[int]) -> Sequence[Failure]:
    """Return failures of ranks that lost a connection, with the ranks that left no result.

    One of them is most likely the other end.
    """
    if not missing:
        return failures
    suffix = f"; no result of rank {ranges(missing)}"
    return [replace(failure, message=failure.message + suffix) for failure in failures]


def _with_log(failure: Failure, folder: TrialFolder) -> Failure:
    """Return a failure with the log to look into, whose last line explains it if its rank said nothing."""
    log = folder.launch_log
    if failure.rank is not None and folder.rank_log(failure.rank).exists():
        log = folder.rank_log(failure.rank)
    message = failure.message
    if failure.kind == "Exited":
        message = f"{message}; the last words of its log: {last_log_line(log)}"
    return replace(failure, message=message, log=str(log.relative_to(folder.path)))
