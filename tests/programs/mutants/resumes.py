"""Kill and resume: a trial that was ended at any step goes on to the results of an undisturbed one."""

from __future__ import annotations

import itertools
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from harness.core.paths import TrialFolder
from harness.records.files import read_rank_result
from harness.records.record import RankResult
from tests.programs.mutants.trials import STEPS, Setting, start_attempt

MAX_ATTEMPTS = 6
SIGNALS = (signal.SIGUSR2, signal.SIGUSR2, signal.SIGKILL)  # the first leaves a checkpoint


@dataclass(frozen=True)
class Strike:
    """A signal to one rank, so many steps after an attempt has begun."""

    rank: int
    step: int
    signal: signal.Signals


@dataclass(frozen=True)
class Interrupted:
    """A trial, and what strikes it, an attempt each."""

    setting: Setting
    strikes: Sequence[Strike]

    @property
    def saves(self) -> bool:
        """Whether any attempt leaves a checkpoint, from which the next has to go on."""
        return any(strike.signal == signal.SIGUSR2 for strike in self.strikes)

    def __str__(self) -> str:
        static = " static_graph" if self.setting.static_graph else ""
        struck = [
            f"{strike.signal.name} at rank {strike.rank} step {strike.step}"
            for strike in self.strikes
        ]
        workers = f" w{self.setting.num_workers}"
        return f"{self.setting}{static}{workers} seed {self.setting.seed}: {', '.join(struck)}"


def draws(seed: int) -> Iterator[Interrupted]:
    """Yield trials without end: rounds of every setting in a drawn order."""
    variants = [("ddp", False), ("ddp", True), ("fsdp2", False)]
    for number in itertools.count():
        random = Random(f"{seed} {number}")
        drawn = []
        for (strategy, static), ranks, workers in itertools.product(variants, (2, 4), (0, 2)):
            setting = Setting(
                strategy, ranks, num_workers=workers, static_graph=static, samples=512
            )
            strikes = []
            for _ in range(random.choice([1, 1, 2])):
                rank, step = random.randrange(ranks), random.randint(1, STEPS - 2)
                strikes.append(Strike(rank, step, random.choice(SIGNALS)))
            drawn.append(Interrupted(setting, strikes))
        random.shuffle(drawn)
        yield from drawn


class Undisturbed:
    """The results of undisturbed trials, each of which runs once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._results: dict[Setting, Sequence[RankResult]] = {}

    def results(self, setting: Setting) -> Sequence[RankResult]:
        if setting not in self._results:
            folder = self._folder / f"whole{len(self._results)}"
            self._results[setting], _ = run(folder, setting, [])
        return self._results[setting]


def run(
    folder: Path, setting: Setting, strikes: Sequence[Strike]
) -> tuple[Sequence[RankResult], Sequence[int]]:
    """Run a trial until it is done, with a strike in each of its first attempts.

    Returns its ranks' results, and the steps that attempts resumed from.
    """
    shutil.rmtree(folder, ignore_errors=True)
    trial_folder = TrialFolder(folder / "trial")
    trial_folder.path.mkdir(parents=True)
    path = folder / "strike"
    trial = setting.trial(folder, strikes=str(path))
    for attempt in range(1, MAX_ATTEMPTS + 1):
        if attempt <= len(strikes):
            strike = strikes[attempt - 1]
            path.write_text(f"{strike.rank} {strike.step} {int(strike.signal)}", encoding="utf-8")
        else:
            path.unlink(missing_ok=True)
        if start_attempt(trial_folder, trial, attempt) == 0:
            break
    else:
        raise RuntimeError(f"{setting} was not done; logs: {trial_folder.log_folder}")
    results = read_results(trial_folder, setting.world_size)
    return results, [interruption.step for interruption in results[0].interruptions]


def read_results(folder: TrialFolder, world_size: int) -> list[RankResult]:
    """Return what the ranks of a trial have left."""
    return [read_rank_result(folder.result_path(rank)) for rank in range(world_size)]


def problem(whole: Sequence[RankResult], resumed: Sequence[RankResult]) -> str | None:
    """Return how a resumed trial differs from the undisturbed one, None if it does not."""
    for of_whole, of_resumed in zip(whole, resumed, strict=True):
        expected, found = bits_of(of_whole), bits_of(of_resumed)
        for name, value in expected.items():
            if found[name] != value:
                return f"other {name} at rank {of_whole.rank}"
    return None


def bits_of(result: RankResult) -> dict[str, Any]:
    """Return all that must have the same bits in a trial that was interrupted, by name."""
    bits: dict[str, Any] = {
        "losses": np.asarray(result.loss).tobytes(),
        "samples": tuple(result.order_sums),
        "random numbers": result.random_digest,
    }
    if result.rank0 is not None:
        bits["parameters"] = result.rank0.parameter_digest
        evaluations = result.rank0.evaluations
        bits["evaluations"] = [(done.step, dict(done.all_metrics)) for done in evaluations]
    return bits
