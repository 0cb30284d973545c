"""Trains cells of two revisions to the end and compares their target metric.

A change may keep the speed and worsen the accuracy. Only training to the end shows it, with several
seeds, because one may be lucky. Both revisions train the same seeds, which are compared in pairs.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.analysis.questions import MetricDifference, metric_difference
from harness.analysis.result import CellResult, TrialResult
from harness.core.errors import BadInput, HarnessError, one_line
from harness.core.logs import last_log_line
from harness.core.paths import TrialFolder
from harness.core.processes import Process
from harness.core.redaction import redact_text, secret_values
from harness.core.scratch import ScratchFolder
from harness.core.worktree import Tree
from harness.gate.ranks import rank_requests, server_of, start_ranks
from harness.launch.logs import scrub_logs
from harness.launch.torchrun import Torchrun
from harness.records.files import read_rank_result
from harness.records.record import RankResult
from harness.spec.cell import Cell, Trial
from harness.spec.cluster import Profile
from harness.statistics.verdict import ALPHA, MetricVerdict, judge

POLL = 0.2  # seconds between two checks of ranks that train

# `not worse`: a loss as large as the margin is ruled out, but a gain is not.
AccuracyOutcome = Literal["better", "same", "not worse", "worse", "inconclusive", "failed"]


@dataclass(frozen=True, kw_only=True)
class AccuracyResult:
    """The accuracy of a cell in the working tree, compared with the revision."""

    outcome: AccuracyOutcome
    metric: str = ""  # its name
    before: float | None = None  # the mean over seeds of the revision
    now: float | None = None  # the mean over seeds of the working tree
    # The interval of the difference that the outcome rests on, in the metric's unit.
    low: float | None = None
    high: float | None = None
    seeds: int = 0
    margin: float = 0.0  # the smallest difference that matters
    failure: str | None = None  # why it could not be trained


@dataclass(frozen=True, kw_only=True)
class TrainedCell:
    """A cell that both revisions have trained, or why one of them could not."""

    before: CellResult | None = None
    now: CellResult | None = None
    failure: str | None = None


class RevisionTrainer:
    """Trains trials of two trees, one after the other."""

    def __init__(
        self,
        trees: Mapping[str, Tree],
        base: Path,
        profile: Profile,
        timeout: float,
        scratch: ScratchFolder,
    ) -> None:
        """Prepare to train trials in `scratch`, each for at most `timeout` seconds.

        Paths of cells are relative to the folder `base`.
        """
        self.trees = trees
        self.base = base
        self.profile = profile
        self.timeout = timeout
        self.scratch = scratch  # its logs stay if a failure names one
        self.secrets = secret_values(os.environ, profile.environment)

    def train(
        self, cell: Cell, seeds: Sequence[int], on_progress: Callable[[str], None]
    ) -> TrainedCell:
        """Train a cell in tree `a` and tree `b`, one trial for each seed."""
        trials: dict[str, list[TrialResult]] = {"a": [], "b": []}
        parts: dict[str, CellResult] = {}
        try:
            for number, seed in enumerate(seeds, start=1):
                on_progress(f"training seed {number} of {len(seeds)}")
                for key, of_tree in trials.items():
                    result = self._run(key, Trial(cell=cell.with_any_code(), seed=seed))
                    of_tree.append(_trial_result(result, seed))
                    assert result.rank0 is not None
                    parts[key] = CellResult(
                        cell=cell,
                        target=result.rank0.target,
                        conditions={},
                        trials=list(of_tree),
                        left_out={},
                    )
        except HarnessError as error:
            if str(self.scratch.path) in str(error):  # it names a log, which stays, without secrets
                for path in self.scratch.path.iterdir():
                    if path.is_dir():
                        scrub_logs(TrialFolder(path), self.secrets)
                self.scratch.keep()
            return TrainedCell(failure=str(error))
        return TrainedCell(before=parts["a"], now=parts["b"])

    def _run(self, key: str, trial: Trial) -> RankResult:
        """Train a trial in a tree and return the result of rank 0; raises HarnessError if it fails."""
        tree = self.trees[key]
        folder = TrialFolder(self.scratch.path / f"{key}-{trial.id}")
        axes = trial.cell.axes
        launcher = Torchrun(environment=self.profile.environment)
        variables = launcher.variables(axes.num_threads, trial.cell.environment)
        requests = rank_requests(
            trial,
            tree,
            folder,
            self.base,
            self.profile,
            module="harness.training.worker",
            variables=variables,
        )
        with ExitStack() as stack:
            server = server_of([tree], variables, self.profile)
            processes = start_ranks(server, [(tree, request) for request in requests], stack)
            is_in_time = self._wait(processes)
        results = []
        for rank in range(axes.world_size):
            with suppress(BadInput):  # a rank that was killed has no result
                results.append(read_rank_result(folder.result_path(rank)))
        for result in results:
            if result.rank == 0 and result.rank0 is not None and result.rank0.evaluations:
                return result
        reason = self._describe_failure(results, folder, is_in_time=is_in_time)
        raise HarnessError(f"{tree.name}: seed {trial.seed}: {reason}; log: {folder.launch_log}")

    def _wait(self, processes: Sequence[Process]) -> bool:
        """Wait until all ranks have ended or one has failed; return False if the time is over before."""
        deadline = time.monotonic() + self.timeout
        while time.monotonic() < deadline:
            exit_codes = [process.poll() for process in processes]
            if any(exit_codes) or None not in exit_codes:
                return True
            with suppress(subprocess.TimeoutExpired):
                processes[exit_codes.index(None)].wait(POLL)
        return False

    def _describe_failure(
        self, results: Sequence[RankResult], folder: TrialFolder, *, is_in_time: bool
    ) -> str:
        """Return why a trial has failed: the failure that a rank reports, or the last log line."""
        for result in results:
            if result.failure is not None:
                text = f"{result.failure.kind}: {result.failure.message}"
                return one_line(redact_text(text, self.secrets))
        last_line = redact_text(last_log_line(folder.launch_log), self.secrets)
        end = f"it did not end within {self.timeout:g} s"
        if any(result.rank0 is not None for result in results):
            end = "it ended without an evaluation"
        elif is_in_time:
            end = "a rank ended without a result"
        return f"{end}; its last output: {last_line}"


def _trial_result(result: RankResult, seed: int) -> TrialResult:
    """Return a trial with the fields that a comparison of accuracy needs, without its speed."""
    report = result.rank0
    assert report is not None
    final = report.final_evaluation
    return TrialResult(
        sweep="gate",
        seed=seed,
        repeat=0,
        started=result.entered_at,
        ended=time.time(),
        throughput=None,
        settled=None,
        window_steps=0,
        metric=None if final is None else final.metrics.get(report.target.name),
        parameter_digest=report.parameter_digest,
        test_samples=report.test_samples,
        order_digest=None,
    )


def judge_accuracy(cells: Sequence[TrainedCell], margin: float) -> list[AccuracyResult]:
    """Return the accuracy of each cell, with false alarms controlled over all of them."""
    differences: list[MetricDifference | None] = []
    for cell in cells:
        difference = None
        if cell.before is not None and cell.now is not None:
            difference = metric_difference(cell.before, cell.now, margin)
        differences.append(difference)
    questions = [difference.question for difference in differences if difference is not None]
    verdicts = iter(judge(questions))
    results = []
    for cell, difference in zip(cells, differences, strict=True):
        if difference is None:
            failure = cell.failure or "the target metrics differ, so they can't be compared"
            results.append(AccuracyResult(outcome="failed", failure=failure, margin=margin))
        else:
            results.append(_result(difference, next(verdicts), len(questions)))
    return results


def _result(difference: MetricDifference, verdict: MetricVerdict, family: int) -> AccuracyResult:
    """Return the result of one of `family` cells."""
    outcome = _outcome(verdict, family)
    interval = verdict.interval
    if interval and outcome == "not worse":
        interval = verdict.estimate.interval(_loss_confidence(family))
    elif interval and outcome == "inconclusive":
        # The wider interval contains both a loss and no change, so it shows why nothing is certain.
        wider = max(verdict.confidence, _loss_confidence(family))
        interval = verdict.estimate.interval(wider)
    return AccuracyResult(
        outcome=outcome,
        metric=verdict.metric.name,
        before=difference.mean_a,
        now=difference.mean_b,
        low=interval[0] if interval else None,
        high=interval[1] if interval else None,
        seeds=verdict.estimate.count,
        margin=verdict.metric.min_effect,
    )


def _loss_confidence(family: int) -> float:
    """Return the confidence of the interval that shows whether a loss of the margin is ruled out."""
    return 1 - 2 * ALPHA / family


def _outcome(verdict: MetricVerdict, family: int) -> AccuracyOutcome:
    """Return the verdict, or `not worse` if it is inconclusive but a loss of the margin is ruled out.

    `not worse` is a test of non-inferiority, at the family's level by Bonferroni.
    """
    if verdict.outcome != "inconclusive":
        return verdict.outcome
    estimate, margin = verdict.estimate, verdict.metric.min_effect
    if verdict.metric.higher_is_better:
        p_value = estimate.p_above(-margin)
    else:
        p_value = estimate.p_below(margin)
    return "not worse" if p_value * family <= ALPHA else "inconclusive"


def choose_seeds(declared: Sequence[int], count: int) -> list[int]:
    """Return `count` seeds: those that the sweep declares, then the smallest others."""
    seeds = list(dict.fromkeys(declared))[:count]
    candidate = 0
    while len(seeds) < count:
        if candidate not in seeds:
            seeds.append(candidate)
        candidate += 1
    return seeds
