"""From what the ranks of a trial left in its folder to its record."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.cell import Assignment
from harness.errors import BadInput, one_line
from harness.machine import Machine
from harness.order import join_digests
from harness.paths import TrialFolder
from harness.record import Failure, Learned, RankResult, Record, Summary, read_rank
from harness.roofline import rated
from harness.series import Numbers, Series


def assemble(
    folder: TrialFolder,
    sweep: str,
    assignment: Assignment,
    *,
    started: float,
    ended: float,
    earlier: Sequence[Failure],
    stopped: Failure | None,
    peaks: Mapping[str, Machine] | None = None,
) -> Record:
    """The record of an ended trial. `stopped` says why the launcher ended it if it did; `peaks` are machines by key."""
    trial = assignment.trial
    ranks, unreadable = _read_ranks(folder, trial.cell.axes.world_size)
    failure = stopped or _failure(folder, ranks, unreadable, trial.cell.axes.world_size)
    learned = next((result.learned for result in ranks if result.learned), None)
    done = failure is None and learned is not None
    phases = _phases(ranks, started)
    found = Record(
        sweep=sweep,
        trial=trial,
        status="done" if done else "failed",
        attempt=assignment.attempt,
        started=started,
        ended=ended,
        failure=failure,
        earlier=earlier,
        summary=summarize(ranks, learned, trial.cell.axes.batch_size, trial.cell.warmup) if done and learned else None,
        loss=Series.pack(_mean_loss(ranks)) if done else None,
        order_digest=join_digests([result.order for result in ranks]) if done else None,
        ranks=ranks,
        learned=learned,
        phases=phases,
    )
    return rated(found, peaks or {})


def summarize(ranks: Sequence[RankResult], learned: Learned, batch_size: int, warmup: int) -> Summary:
    """The measured window is every step but the first `warmup`, and as many after each resumption.

    Its throughput is its samples over the time of the rank that took longest; a step takes as long as at its slowest
    rank.
    """
    steps = np.stack([_unpack(result.step_seconds) for result in ranks])
    waits = np.stack([_unpack(result.wait_seconds) for result in ranks])
    inside = np.ones(steps.shape[1], dtype=bool)
    for first in (0, *ranks[0].resumed_at):
        inside[first : first + warmup] = False
    spent = steps[:, inside].sum(axis=1)
    measured = bool(inside.sum() >= 2)
    p50, p90, p99 = np.percentile(steps[:, inside].max(axis=0), (50, 90, 99)) if measured else (None, None, None)
    best = learned.target.best(learned.evaluations)
    last = learned.evaluations[-1] if learned.evaluations else None
    return Summary(
        throughput=float(inside.sum() * batch_size / spent.max()) if measured else None,
        window_steps=int(inside.sum()),
        step_p50=_number(p50),
        step_p90=_number(p90),
        step_p99=_number(p99),
        wait_share=float((waits[:, inside].sum(axis=1) / spent).max()) if measured else None,
        final_loss=_number(_mean_loss(ranks)[-1:].mean() if steps.shape[1] else None),
        final=last.metrics[learned.target.name] if last else None,
        best=best.metrics[learned.target.name] if best else None,
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _unpack(series: Series | None) -> Numbers:
    return np.empty(0) if series is None else series.unpack()


def _mean_loss(ranks: Sequence[RankResult]) -> Numbers:
    """Over ranks, in double precision: their parts of a global batch are equally large."""
    losses: Numbers = np.stack([_unpack(result.loss).astype(np.float64) for result in ranks]).mean(axis=0)
    return losses


def _phases(ranks: Sequence[RankResult], started: float) -> dict[str, float]:
    phases = {"startup": max((result.entered - started for result in ranks), default=0.0)}
    for result in ranks:
        for name, seconds in result.phases.items():
            phases[name] = max(phases.get(name, 0.0), seconds)
    return phases


def _read_ranks(folder: TrialFolder, world_size: int) -> tuple[list[RankResult], list[Failure]]:
    """The results that are there, by rank, and a failure for each that is there and can't be read."""
    results, unreadable = [], []
    for rank in range(world_size):
        if folder.result(rank).exists():
            try:
                results.append(read_rank(folder.result(rank)))
            except BadInput as error:
                unreadable.append(Failure(kind="BadInput", message=str(error), rank=rank))
    return results, unreadable


def _failure(
    folder: TrialFolder, ranks: Sequence[RankResult], unreadable: Sequence[Failure], world_size: int
) -> Failure | None:
    """The first cause: a rank that was killed, else the earliest error that a rank has told of, else what is lost."""
    killed = [
        Failure(kind="Killed", message=f"ended by {signal.Signals(-code).name}", rank=rank, at=at)
        for rank, code, at in _exit_codes(folder)
        if code < 0 and -code != signal.SIGTERM and not folder.result(rank).exists()
    ]
    told = [result.failure for result in ranks if result.failure]
    lost = [
        Failure(kind="Lost", message=f"left no result; torchrun's last words: {_last_line(folder)}", rank=rank)
        for rank in range(world_size)
        if not folder.result(rank).exists()
    ]
    for candidates in (killed, told, unreadable, lost):
        if candidates:
            first = min(candidates, key=lambda failure: failure.at)
            log = folder.launch_log if first.rank is None else folder.log(first.rank)
            return _at(first, str(log.relative_to(folder.path)))
    return None


def _at(failure: Failure, log: str) -> Failure:
    return Failure(**{**failure.__dict__, "log": log})


def _exit_codes(folder: TrialFolder) -> list[tuple[int, int, float]]:
    """(rank, exit code, time) of every rank that torchrun saw fail."""
    if not folder.failures.exists():
        return []
    content = json.loads(folder.failures.read_text(encoding="utf-8"))
    return [(int(rank), found["exitcode"], float(found["at"])) for rank, found in content.items()]


def _last_line(folder: TrialFolder) -> str:
    try:
        lines = folder.launch_log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "none"
    return one_line(next((line for line in reversed(lines) if line.strip(" =-")), "none"))
