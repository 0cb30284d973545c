"""SIGKILL at random moments of trials that save at intervals: nothing is lost, and all bits are the same.

A trial is killed once or twice, at moments drawn from its whole life: while ranks start, train, save,
evaluate or end. Every third kill waits for the next save, and strikes in the middle of it. What is
killed is one rank, all ranks at once, or the process that started them.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median

import psutil

from harness.core.paths import TrialFolder
from harness.records.record import RankResult
from harness.sweep.saving import CheckpointRules
from tests.programs.mutants.resumes import problem, read_results
from tests.programs.mutants.trials import Setting, start_attempt

EVERY = 8  # steps between two saves, of 48
SAVES = CheckpointRules(every=f"{EVERY} steps")
STEP_SECONDS = 0.03
TARGETS = ("rank", "all ranks", "leader")
STRATEGIES = ("ddp", "fsdp2", "hsdp")
MAX_ATTEMPTS = 6


@dataclass(frozen=True)
class Kill:
    """A SIGKILL, so far into the life of an attempt."""

    target: str
    rank: int
    moment: float  # as a part of the time that the undisturbed trial took
    in_save: bool = False  # whether it waits for a save to be under way

    def strike(self, leader: int) -> None:
        """Kill what is to be killed of the ranks that the process `leader` has started."""
        ranks = psutil.Process(leader).children()
        if self.target == "leader":
            victims = [psutil.Process(leader)]
        elif self.target == "all ranks":
            victims = ranks
        else:
            victims = ranks[self.rank : self.rank + 1]
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.kill()


@dataclass
class KillCounts:
    """What came of the kills."""

    kills: Counter[str] = field(default_factory=Counter)  # that hit a running attempt, by target
    in_training: int = 0  # of these, once the attempt had computed a step
    in_saves: int = 0  # of these, while a checkpoint was being written
    trials: int = 0
    lost: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    # Of each kill, the steps that were computed twice.
    twice: list[int] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return what to print."""
        targets = ", ".join(f"{count} of {name}" for name, count in sorted(self.kills.items()))
        beyond = sum(steps > EVERY for steps in self.twice)
        steps = "none"
        if self.twice:
            share = beyond / len(self.twice)
            steps = (
                f"median {median(self.twice):g}, most {max(self.twice)};"
                f" more than one interval, as the save was under way: {beyond} times ({share:.1%})"
            )
        return [
            f"{self.kills.total()} SIGKILLs in {self.trials} trials:"
            f" {len(self.lost)} lost, {len(self.different)} different",
            f"{targets}; {self.in_training} after a step of the attempt, {self.in_saves} in the middle of a save",
            f"steps computed twice, saves every {EVERY}: {steps}",
            *self.lost,
            *self.different,
        ]


def settings() -> list[Setting]:
    """Return all trainings that are killed."""
    found = []
    for strategy, ranks, workers in itertools.product(STRATEGIES, (2, 4), (0, 2)):
        if strategy == "hsdp" and ranks == 2:
            continue  # two ranks can't both be shards and be replicas
        found.append(Setting(strategy, ranks, num_workers=workers, samples=512))
    return found


def draws(seed: int) -> Iterator[tuple[Setting, Sequence[Kill]]]:
    """Yield settings without end, in rounds of all of them, each with its kills."""
    for number in itertools.count():
        random = Random(f"kills {seed} {number}")
        drawn = []
        for setting in settings():
            kills = []
            for _ in range(random.choice([1, 2, 2])):
                target = random.choice(TARGETS)
                rank, moment = random.randrange(setting.world_size), random.uniform(0.05, 1.0)
                kills.append(Kill(target, rank, moment, in_save=random.random() < 1 / 3))
            drawn.append((setting, kills))
        random.shuffle(drawn)
        yield from drawn


class Killer:
    """Runs trials, kills them, and counts what is lost, different, or computed twice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._whole: dict[Setting, tuple[Sequence[RankResult], float]] = {}
        self.counts = KillCounts()

    def run(self, setting: Setting, kills: Sequence[Kill]) -> str | None:
        """Run a trial with these kills until it is done; return what is wrong, None if nothing is."""
        whole, seconds = self._undisturbed(setting)
        folder = self._folder / "killed"
        results = self._run(folder, setting, kills, seconds)
        self.counts.trials += 1
        if results is None:
            self.counts.lost.append(f"{setting}: lost after {kills}")
            return "lost"
        found = problem(whole, results)
        if found is not None:
            self.counts.different.append(f"{setting}: {found} after {kills}")
        return found

    def _undisturbed(self, setting: Setting) -> tuple[Sequence[RankResult], float]:
        """Return the results of the undisturbed trial, and how long it took."""
        if setting not in self._whole:
            start = time.monotonic()
            results = self._run(self._folder / "whole", setting, [], 0.0)
            if results is None:
                raise RuntimeError(f"{setting} is not done undisturbed")
            self._whole[setting] = results, time.monotonic() - start
        return self._whole[setting]

    def _run(
        self, folder: Path, setting: Setting, kills: Sequence[Kill], seconds: float
    ) -> Sequence[RankResult] | None:
        """Run a trial with a kill in each of its first attempts; None if it is not done then."""
        shutil.rmtree(folder, ignore_errors=True)
        trial_folder = TrialFolder(folder / "trial")
        trial_folder.path.mkdir(parents=True)
        steps = folder / "steps"
        trial = setting.trial(folder, step_seconds=STEP_SECONDS, steps=str(steps))
        struck = 0
        for attempt in range(1, MAX_ATTEMPTS + 1):
            kill = kills[attempt - 1] if attempt <= len(kills) else None
            started, began_at = time.monotonic(), time.time()
            had_computed: list[bool] = []

            def strike(
                leader: int,
                kill: Kill | None = kill,
                started: float = started,
                began_at: float = began_at,
                had_computed: list[bool] = had_computed,
            ) -> bool:
                """Kill once it is time, and return whether it was."""
                if kill is None or time.monotonic() < started + kill.moment * seconds:
                    return False
                if kill.in_save and not is_saving(trial_folder, began_at):
                    return False
                had_computed.append(has_computed(steps, began_at))
                kill.strike(leader)
                return True

            exit_code = start_attempt(trial_folder, trial, attempt, saves=SAVES, strike=strike)
            if exit_code == 0:
                self.counts.twice += computed_twice(steps, struck)
                return read_results(trial_folder, setting.world_size)
            if kill is not None:
                struck += 1
                self.counts.kills[kill.target] += 1
                self.counts.in_training += any(had_computed)
                self.counts.in_saves += kill.in_save
        return None


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


def computed_twice(steps: Path, kills: int) -> list[int]:
    """Return for each kill how many steps were computed twice, from the numbers of all steps.

    A kill after which nothing was computed again counts as 0.
    """
    numbers = [int(line) for line in steps.read_text(encoding="ascii").split()]
    twice = [before - after + 1 for before, after in pairwise(numbers) if after <= before]
    return twice + [0] * (kills - len(twice))
