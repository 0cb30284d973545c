"""From what the ranks of a trial left in its folder to its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.core.errors import BadInput, Interrupted, last_log_line
from harness.core.paths import TrialFolder
from harness.hardware.machine import Machine
from harness.hardware.roofline import with_mfu
from harness.measure.summary import mean_loss, summarize, unpack
from harness.measure.validity import violations
from harness.records.assignment import Assignment
from harness.records.record import Failure, RankResult, Record, Status, Summary, read_rank_result
from harness.records.series import Series
from harness.spec.validity import ValidityRules
from harness.training.order import join_digests

INTERRUPTED = Interrupted.__name__


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
    peaks: Mapping[str, Machine] | None = None,
) -> Record:
    """The record of an ended trial. `ended_by` says why it was ended, if it was,
    `observed_failures` which ranks the launcher saw end; a trial that is done and breaks one of
    `rules` is invalid; `peaks` are machines by key.
    """
    trial = assignment.trial
    ranks, unreadable = _read_ranks(folder, trial.cell.axes.world_size)
    failure = ended_by or _failure(
        folder, ranks, observed_failures, unreadable, trial.cell.axes.world_size
    )
    rank0 = next((result.rank0 for result in ranks if result.rank0), None)
    done = failure is None and rank0 is not None
    summary = (
        summarize(ranks, rank0, trial.cell.axes.batch_size, trial.cell.warmup)
        if done and rank0
        else None
    )
    invalid = violations(ranks, summary, rules) if summary else []
    status: Status = "invalid" if invalid else "done" if done else "failed"
    if failure and failure.kind == INTERRUPTED:
        status = "interrupted"
    found = Record(
        sweep=sweep,
        trial=trial,
        status=status,
        attempt=assignment.attempt,
        started=started,
        ended=ended,
        failure=failure,
        violations=invalid,
        previous_failures=previous_failures,
        summary=summary,
        loss=Series.pack(mean_loss(ranks)) if done else None,
        order_digest=join_digests([result.order_sums for result in ranks]) if done else None,
        ranks=ranks,
        rank0=rank0,
        phases=_phases(ranks, started, summary),
    )
    return with_mfu(found, peaks or {})


def _phases(
    ranks: Sequence[RankResult], started: float, summary: Summary | None
) -> dict[str, float]:
    """Of the rank that took longest; steps before the window are warm-up, in so far as they did not
    compile.
    """
    phases = {"startup": max((0.0, *(result.entered_at - started for result in ranks)))}
    for result in ranks:
        for name, seconds in result.phases.items():
            phases[name] = max(phases.get(name, 0.0), seconds)
    if summary and summary.window_start is not None:
        before = max(
            float(unpack(result.step_seconds)[: summary.window_start].sum()) for result in ranks
        )
        phases["warmup"] = max(0.0, before - phases.get("compile", 0.0))
        phases["train"] -= phases["warmup"]
    return phases


def _read_ranks(folder: TrialFolder, world_size: int) -> tuple[list[RankResult], list[Failure]]:
    """The results that are there, by rank, and a failure for each that is there and can't be read."""
    results, unreadable = [], []
    for rank in range(world_size):
        if folder.result_path(rank).exists():
            try:
                results.append(read_rank_result(folder.result_path(rank)))
            except BadInput as error:
                unreadable.append(Failure(kind="BadInput", message=str(error), rank=rank))
    return results, unreadable


def _failure(
    folder: TrialFolder,
    ranks: Sequence[RankResult],
    observed_failures: Sequence[Failure],
    unreadable: Sequence[Failure],
    world_size: int,
) -> Failure | None:
    """The first cause: an interruption, which leaves a checkpoint whatever comes after it, else a
    rank that was killed or exited without a word, else the earliest error that a rank has told of,
    else what is lost.
    """
    ended = [
        failure
        for failure in observed_failures
        if failure.rank is None or not folder.result_path(failure.rank).exists()
    ]
    told = [result.failure for result in ranks if result.failure]
    lost = [
        Failure(
            kind="Lost",
            message=f"left no result; the launcher's last words: {last_log_line(folder.launch_log)}",
            rank=rank,
        )
        for rank in range(world_size)
        if not folder.result_path(rank).exists()
    ]
    interrupted = [
        failure for failure in [*told, *observed_failures] if failure.kind == INTERRUPTED
    ]
    for candidates in (interrupted, ended, told, unreadable, lost):
        if candidates:
            first = min(candidates, key=lambda failure: failure.at)
            own = folder.launch_log if first.rank is None else folder.rank_log(first.rank)
            log = own if own.exists() else folder.launch_log  # it ended before it had its own
            if first.kind == "Exited":
                first = replace(
                    first,
                    message=f"{first.message}; the last words of its log: {last_log_line(log)}",
                )
            return replace(first, log=str(log.relative_to(folder.path)))
    return None
