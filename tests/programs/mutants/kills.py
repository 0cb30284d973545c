"""SIGKILL at random moments of trials that save at intervals: nothing is lost, and all bits are the same.

A trial is killed once or twice, at moments drawn from its whole life: while ranks start, train, save,
evaluate or end. What is killed is one rank, all ranks at once, or the process that started them.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

import psutil

from harness.core.paths import TrialFolder
from harness.records.trace import Mark
from harness.spec.saving import SavePlan
from tests.programs.mutants.resumes import problem, read_marks
from tests.programs.mutants.trials import Setting, start_attempt

EVERY = 8  # steps between two saves, of 48
SAVES = SavePlan(every=f"{EVERY} steps", keep=2, mean_seconds_between_failures=1e5)
STEP_SECONDS = 0.02
TARGETS = ("rank", "all ranks", "leader")
STRATEGIES = ("ddp", "fsdp2", "hsdp")
MAX_ATTEMPTS = 6


@dataclass(frozen=True)
class Kill:
    """A SIGKILL, so far into the life of an attempt."""

    target: str
    rank: int
    moment: float  # as a part of the time that the undisturbed trial took

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

    kills: int = 0  # that hit a running attempt
    trials: int = 0
    lost: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    twice: list[int] = field(
        default_factory=list
    )  # of each kill, the steps that were computed twice

    def lines(self) -> list[str]:
        """Return what to print."""
        beyond = sum(steps > EVERY for steps in self.twice)
        steps = f"median {median(self.twice):g}, most {max(self.twice)}" if self.twice else "none"
        return [
            f"{self.kills} SIGKILLs in {self.trials} trials:"
            f" {len(self.lost)} lost, {len(self.different)} different",
            f"steps computed twice, saves every {EVERY}: {steps};"
            f" more than one interval, as the save was under way: {beyond} times",
            *self.lost,
            *self.different,
        ]


def draws(seed: int) -> Iterator[tuple[Setting, Sequence[Kill]]]:
    """Yield settings without end, in rounds of all of them, each with its kills."""
    for number in itertools.count():
        random = Random(f"kills {seed} {number}")
        drawn = []
        for strategy, ranks, workers in itertools.product(STRATEGIES, (2, 4), (0, 2)):
            if strategy == "hsdp" and ranks == 2:
                continue  # two ranks can't both be shards and be replicas
            setting = Setting(strategy, ranks, num_workers=workers, samples=512)
            kills = []
            for _ in range(random.choice([1, 2, 2])):
                target = random.choice(TARGETS)
                kills.append(Kill(target, random.randrange(ranks), random.uniform(0.05, 1.0)))
            drawn.append((setting, kills))
        random.shuffle(drawn)
        yield from drawn


class Killer:
    """Runs trials, kills them, and counts what is lost, different, or computed twice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._whole: dict[Setting, tuple[Sequence[Sequence[Mark]], float]] = {}
        self.counts = KillCounts()

    def run(self, setting: Setting, kills: Sequence[Kill]) -> str | None:
        """Run a trial with these kills until it is done; return what is wrong, None if nothing is."""
        whole, seconds = self._undisturbed(setting)
        folder = self._folder / "killed"
        marks = self._run(folder, setting, kills, seconds)
        self.counts.trials += 1
        if marks is None:
            self.counts.lost.append(f"{setting}: lost after {kills}")
            return "lost"
        found = problem(whole, marks)
        if found is not None:
            self.counts.different.append(f"{setting}: {found} after {kills}")
        return found

    def _undisturbed(self, setting: Setting) -> tuple[Sequence[Sequence[Mark]], float]:
        """Return the fingerprints of the undisturbed trial, and how long it took."""
        if setting not in self._whole:
            start = time.monotonic()
            marks = self._run(self._folder / "whole", setting, [], 0.0)
            if marks is None:
                raise RuntimeError(f"{setting} is not done undisturbed")
            self._whole[setting] = marks, time.monotonic() - start
        return self._whole[setting]

    def _run(
        self, folder: Path, setting: Setting, kills: Sequence[Kill], seconds: float
    ) -> Sequence[Sequence[Mark]] | None:
        """Run a trial with a kill in each of its first attempts; None if it is not done then."""
        shutil.rmtree(folder, ignore_errors=True)
        trial_folder = TrialFolder(folder / "trial")
        trial_folder.path.mkdir(parents=True)
        steps = folder / "steps"
        trial = setting.trial(folder, step_seconds=STEP_SECONDS, steps=str(steps))
        reached: int | None = None
        for attempt in range(1, MAX_ATTEMPTS + 1):
            steps.unlink(missing_ok=True)
            resumed_at = _newest_save(trial_folder)
            if reached is not None:
                self.counts.twice.append(reached - resumed_at)
            kill = kills[attempt - 1] if attempt <= len(kills) else None
            started = time.monotonic()

            def strike(leader: int, kill: Kill | None = kill, started: float = started) -> bool:
                """Kill once it is time, and return whether it was."""
                if kill is None or time.monotonic() < started + kill.moment * seconds:
                    return False
                kill.strike(leader)
                return True

            exit_code = start_attempt(trial_folder, trial, attempt, saves=SAVES, strike=strike)
            if exit_code == 0:
                return read_marks(trial_folder, setting.world_size)
            self.counts.kills += kill is not None
            reached = resumed_at + (steps.stat().st_size if steps.exists() else 0)
        return None


def _newest_save(folder: TrialFolder) -> int:
    """Return the step of the newest whole checkpoint, 0 if there is none."""
    paths = [*folder.resume_checkpoints.glob("step-*"), *folder.best_checkpoints.glob("step-*")]
    return max((int(path.name.removeprefix("step-")) for path in paths), default=0)
