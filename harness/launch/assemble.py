"""Assembles a trial's record from what its ranks left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from harness.hardware.machine import Machine
from harness.hardware.mfu import mfu_numbers
from harness.launch.ranks import INTERRUPTED, Ended
from harness.measure.numbers import straggler_notes, trial_numbers
from harness.measure.validity import violations
from harness.measure.window import Window, measured_window
from harness.records.assignment import Assignment
from harness.records.environment import Environment
from harness.records.record import (
    Failure,
    Interruption,
    Rank0Report,
    RankResult,
    Record,
    RunSettings,
    Status,
)
from harness.sweep.cluster import ValidityRules
from harness.training.order import join_digests


def assemble(
    sweep: str,
    assignment: Assignment,
    ended: Ended,
    rules: ValidityRules,
    *,
    previous_failures: Sequence[Failure] = (),
    peaks: Mapping[str, Machine] | None = None,
    settings: RunSettings | None = None,
) -> Record:
    """Return the record of a trial that has ended.

    One that finished and breaks one of `rules` is invalid. `peaks` are measured machines by their key,
    for the record's MFU.
    """
    trial, ranks = assignment.trial, ended.ranks
    failure = ended.failure
    steps = {len(rank.step_seconds): rank.rank for rank in ranks if rank.step_seconds is not None}
    if failure is None and len(steps) > 1:  # which only ranks of a script can take
        counts = " and ".join(map(str, sorted(steps)))
        message = f"the ranks took {counts} steps; needed: equally many of the first optimizer"
        failure = Failure(kind="NotApplied", message=message, rank=steps[min(steps)])
    rank0: Rank0Report | None = None
    environment: Environment | None = None
    for result in ranks:
        if result.rank0 is not None:
            rank0, environment = result.rank0, result.environment
    status: Status = "failed"
    order_digest: str | None = None  # only known of a trial that finished
    if failure is not None and failure.kind == INTERRUPTED:  # it can be resumed
        status = "interrupted"
    if failure is None and rank0 is not None:
        status = "done"
        if not trial.cell.workload.is_script:
            order_digest = join_digests([result.order_sums for result in ranks])
    record = Record(
        sweep=sweep,
        trial=trial,
        status=status,
        attempt=assignment.attempt,
        started=ended.started,
        ended=ended.ended,
        failure=failure,
        previous_failures=tuple(previous_failures),
        order_digest=order_digest,
        load_ranks=lambda: ranks,
        rank0=rank0,
        environment=environment,
        settings=settings,
        lane=assignment.lane,
    )
    record = with_ranks(record, ranks, peaks or {})
    broken_rules = violations(ranks, record.numbers, rules)
    if status == "done" and broken_rules:
        return replace(record, status="invalid", violations=tuple(broken_rules))
    return record


def with_ranks(record: Record, ranks: Sequence[RankResult], peaks: Mapping[str, Machine]) -> Record:
    """Return a record with these ranks, and with what they come to for readers of headers."""
    window: Window | None = None
    if record.is_complete:
        window = measured_window(ranks, record.trial.cell)
    problems: list[str] = []
    interruptions: Sequence[Interruption] = ()
    for rank in ranks[:1]:  # all ranks stop and save together
        problems += [f"not resumed from {refusal}" for refusal in rank.refused_checkpoints]
        problems += rank.unsaved
        interruptions = rank.interruptions
    # Only ranks on a GPU report allocated memory.
    is_on_gpu = any("memory_allocated_mib" in rank.numbers for rank in ranks)
    hosts = {rank.host for rank in ranks}
    record = replace(
        record,
        load_ranks=lambda: ranks,
        device="cuda" if is_on_gpu else "cpu",
        hosts=tuple(sorted(hosts)),
        settled=window.settled if window else None,
        phases=phase_seconds(ranks, record.started, window),
        interruptions=tuple(interruptions),
        checkpoint_problems=tuple(problems),
        notes=tuple(straggler_notes(ranks, window)),
    )
    record = replace(record, numbers=trial_numbers(record, ranks, window))
    return replace(record, numbers={**record.numbers, **mfu_numbers(record, ranks, peaks)})


def phase_seconds(
    ranks: Sequence[RankResult], started: float, window: Window | None
) -> dict[str, float]:
    """Return the seconds that each phase of a trial took at the rank where it took longest.

    The steps before the measured window are warm-up, except for the time that they compiled.
    """
    phases = {"startup": 0.0}
    for result in ranks:
        of_rank = {"startup": result.entered_at - started, **result.phases}
        for name, seconds in of_rank.items():
            phases[name] = max(phases.get(name, 0.0), seconds)
    if window is None or not window.mask.any():
        return phases
    window_start = int(window.mask.argmax())
    # As all ranks wait for the slowest one, its time is the trial's.
    before_window = 0.0
    for result in ranks:
        seconds_before = np.asarray(result.step_seconds)[:window_start]
        before_window = max(before_window, float(seconds_before.sum()))
    phases["warmup"] = max(0.0, before_window - phases.get("compile", 0.0))
    phases["train"] -= phases["warmup"]
    return phases
