"""Trials that are interrupted and killed: nothing is lost, and all bits are those of an undisturbed one.

A trial saves at intervals. It is struck once or twice, at moments drawn from its whole life: by a signal
to a rank at a step, of which SIGUSR2 has it save and stop, or by SIGKILL at a moment while ranks start,
train, save, evaluate or end. Every third of these waits for the next save, and strikes in the middle of
it. What is killed is one rank, all ranks at once, or the process that started them.
"""

from __future__ import annotations

import itertools
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
import psutil

from harness.core.paths import TrialFolder
from harness.records.files import read_rank_result
from harness.records.record import RankResult
from harness.sweep.cell import CheckpointRules
from tests.programs.mutants.trials import STEPS, Setting, start_attempt

EVERY = 8  # steps between two saves, of 48
SAVES = CheckpointRules(every=f"{EVERY} steps")
STEP_SECONDS = 0.03
TARGETS = ("rank", "all ranks", "leader")
MAX_ATTEMPTS = 6


@dataclass(frozen=True, kw_only=True)
class Strike:
    """What ends an attempt: a signal to a rank at a step, or SIGKILL to a target at a moment."""

    target: str  # one of TARGETS
    rank: int
    step: int = 0  # of the attempt, at which the rank gets the signal; 0 for a moment
    signal: signal.Signals = signal.SIGKILL
    moment: float = 0.0  # as a part of the time that the undisturbed trial took
    in_save: bool = False  # whether it waits for a save to be under way

    @property
    def name(self) -> str:
        """Return what it is, for counts."""
        if self.step:
            return f"{self.signal.name} at a step"
        return f"{self.signal.name} of {self.target}"

    def kill(self, leader: int) -> None:
        """Kill what is to be killed of the ranks that the process `leader` has started."""
        ranks = psutil.Process(leader).children()
        if self.target == "leader":
            ranks = [psutil.Process(leader)]
        elif self.target == "rank":
            ranks = ranks[self.rank : self.rank + 1]
        for victim in ranks:
            with suppress(psutil.NoSuchProcess):
                victim.kill()


def settings() -> list[Setting]:
    """Return all trainings that are struck."""
    drawn = []
    for strategy, ranks, workers in itertools.product(("ddp", "fsdp2"), (2, 4), (0, 2)):
        drawn.append(Setting(strategy, ranks, num_workers=workers, samples=512))
    for workers in (0, 2):  # two ranks can't both be shards and be replicas
        drawn.append(Setting("hsdp", 4, num_workers=workers, samples=512))
        drawn.append(Setting("ddp", 2, num_workers=workers, static_graph=True, samples=512))
    return drawn


def draws(seed: int) -> Iterator[tuple[Setting, Sequence[Strike]]]:
    """Yield settings without end, in rounds of all of them, each with its strikes."""
    for number in itertools.count():
        random = Random(f"strikes {seed} {number}")
        drawn = []
        for setting in settings():
            strikes = [_draw(random, setting) for _ in range(random.choice([1, 2, 2]))]
            drawn.append((setting, strikes))
        random.shuffle(drawn)
        yield from drawn


def _draw(random: Random, setting: Setting) -> Strike:
    rank = random.randrange(setting.world_size)
    if random.random() < 1 / 3:
        number = random.choice([signal.SIGUSR2, signal.SIGUSR2, signal.SIGKILL])
        return Strike(target="rank", rank=rank, step=random.randint(1, STEPS - 2), signal=number)
    target, moment = random.choice(TARGETS), random.uniform(0.05, 1.0)
    return Strike(target=target, rank=rank, moment=moment, in_save=random.random() < 1 / 3)


@dataclass
class Counts:
    """What came of the strikes."""

    strikes: Counter[str] = field(default_factory=Counter)  # that hit an attempt, by name
    in_training: int = 0  # of the kills, once the attempt had computed a step
    in_saves: int = 0  # of the kills, while a checkpoint was being written
    trials: int = 0
    problems: int = 0
    twice: list[int] = field(default_factory=list)  # the steps computed twice, of each strike

    def lines(self) -> list[str]:
        """Return what to print."""
        names = ", ".join(f"{count} {name}" for name, count in sorted(self.strikes.items()))
        beyond = sum(steps > EVERY for steps in self.twice)
        twice = self.twice or [0]
        return [
            f"{self.strikes.total()} strikes in {self.trials} trials: {self.problems} lost or different",
            f"{names}; {self.in_training} after a step of the attempt, {self.in_saves} in a save",
            f"steps computed twice, saves every {EVERY}: median {median(twice):g}, most {max(twice)};"
            f" more than one interval, as the save was under way: {beyond} times",
        ]


class Interrupter:
    """Runs trials, strikes them, and counts what is lost, different, or computed twice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._whole: dict[Setting, tuple[Sequence[RankResult], float]] = {}
        self.counts = Counts()

    def run(self, setting: Setting, strikes: Sequence[Strike]) -> str | None:
        """Run a trial with these strikes until it is done; return what is wrong, None if nothing is."""
        if setting not in self._whole:
            start = time.monotonic()
            results = self._run(self._folder / "whole", setting, [], 0.0)
            self._whole[setting] = results, time.monotonic() - start
        whole, seconds = self._whole[setting]
        self.counts.trials += 1
        try:
            found = problem(whole, self._run(self._folder / "struck", setting, strikes, seconds))
        except RuntimeError as error:
            found = str(error)
        self.counts.problems += found is not None
        return found

    def _run(
        self, folder: Path, setting: Setting, strikes: Sequence[Strike], seconds: float
    ) -> Sequence[RankResult]:
        """Run a trial with a strike in each of its first attempts; return its ranks' results.

        Raises RuntimeError if it is not done then, or began again after an attempt that has saved.
        """
        shutil.rmtree(folder, ignore_errors=True)
        trial_folder = TrialFolder(folder / "trial")
        trial_folder.path.mkdir(parents=True)
        steps, order = folder / "steps", folder / "strike"
        trial = setting.trial(
            folder, step_seconds=STEP_SECONDS, steps=str(steps), strikes=str(order)
        )
        struck: list[Strike] = []
        for attempt in range(1, MAX_ATTEMPTS + 1):
            attack = Attack(None, trial_folder, steps, seconds)
            if attempt <= len(strikes):
                attack.strike = strikes[attempt - 1]
                if attack.strike.step:
                    order.write_text(
                        f"{attack.strike.rank} {attack.strike.step} {int(attack.strike.signal)}",
                        encoding="utf-8",
                    )
            exit_code = start_attempt(
                trial_folder, trial, attempt, saves=SAVES, strike=attack.is_over
            )
            order.unlink(missing_ok=True)
            if exit_code == 0:
                break
            if attack.strike is not None:
                struck.append(attack.strike)
                self.counts.strikes[attack.strike.name] += 1
                self.counts.in_training += attack.had_computed
                self.counts.in_saves += attack.strike.in_save
        else:
            raise RuntimeError(f"{setting} was not done; logs: {trial_folder.log_folder}")
        self.counts.twice += computed_twice(steps, len(struck))
        results = [
            read_rank_result(trial_folder.result_path(rank)) for rank in range(setting.world_size)
        ]
        has_saved = any(strike.signal == signal.SIGUSR2 for strike in struck)
        if has_saved and not results[0].interruptions:
            raise RuntimeError("it started again")
        return results


@dataclass
class Attack:
    """A strike at an attempt that has just begun."""

    strike: Strike | None
    folder: TrialFolder
    steps: Path
    seconds: float  # that the undisturbed trial took
    began_at: float = field(default_factory=time.time)
    started: float = field(default_factory=time.monotonic)
    had_computed: bool = False  # when it was killed

    def is_over(self, leader: int) -> bool:
        """Kill once it is time, and return whether it was; the rank itself sends what comes at a step."""
        if self.strike is None or self.strike.step:
            return True
        if time.monotonic() < self.started + self.strike.moment * self.seconds:
            return False
        if self.strike.in_save and not is_saving(self.folder, self.began_at):
            return False
        self.had_computed = has_computed(self.steps, self.began_at)
        self.strike.kill(leader)
        return True


def has_computed(steps: Path, since: float) -> bool:
    """Return whether a step was added since then to a file of all that were computed."""
    return steps.exists() and steps.stat().st_mtime > since


def is_saving(folder: TrialFolder, since: float) -> bool:
    """Return whether a checkpoint is being written that was begun since then.

    One that is whole has a seal of each rank.
    """
    for step in folder.resume_checkpoints.glob("step-*"):
        with suppress(FileNotFoundError):
            is_whole = len([*step.glob("*.seal")]) == len([*step.glob("*.pt")]) > 0
            if step.stat().st_mtime > since and not is_whole:
                return True
    return False


def computed_twice(steps: Path, strikes: int) -> list[int]:
    """Return for each strike how many steps were computed twice, from the numbers of all steps.

    One after which nothing was computed again counts as 0.
    """
    numbers = [int(line) for line in steps.read_text(encoding="ascii").split()]
    twice = [before - after + 1 for before, after in pairwise(numbers) if after <= before]
    return twice + [0] * (strikes - len(twice))


def problem(whole: Sequence[RankResult], struck: Sequence[RankResult]) -> str | None:
    """Return how a trial that was struck differs from the undisturbed one, None if it does not."""
    for of_whole, of_struck in zip(whole, struck, strict=True):
        expected, found = bits_of(of_whole), bits_of(of_struck)
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
