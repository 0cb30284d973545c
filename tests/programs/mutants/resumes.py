"""Kill and resume: a trial that was ended at any step goes on to the digests of an undisturbed one."""

from __future__ import annotations

import itertools
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from harness.core.paths import TrialFolder
from harness.records.files import read_rank_result
from harness.records.trace import Mark, decode_trace
from harness.reproduce.divergence import compare
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
    """The traces of undisturbed trials, each of which runs once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._traces: dict[Setting, Sequence[Sequence[Mark]]] = {}

    def traces(self, setting: Setting) -> Sequence[Sequence[Mark]]:
        if setting not in self._traces:
            folder = self._folder / f"whole{len(self._traces)}"
            self._traces[setting], _ = run(folder, setting, [])
        return self._traces[setting]


def run(
    folder: Path, setting: Setting, strikes: Sequence[Strike]
) -> tuple[Sequence[Sequence[Mark]], Sequence[int]]:
    """Run a trial until it is done, with a strike in each of its first attempts.

    Returns its ranks' fingerprints, and the steps that attempts resumed from.
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
    interruptions = read_rank_result(trial_folder.result_path(0)).interruptions
    steps = [interruption.step for interruption in interruptions]
    return read_marks(trial_folder, setting.world_size), steps


def read_marks(folder: TrialFolder, world_size: int) -> Sequence[Sequence[Mark]]:
    """Return the fingerprints of a trial's ranks, each in the order of its moments."""
    traces = []
    for rank in range(world_size):
        path = folder.fingerprint_path(rank)
        marks = decode_trace(path.read_bytes(), path)
        traces.append(sorted(marks, key=lambda mark: mark.moment))
    return traces


def problem(whole: Sequence[Sequence[Mark]], resumed: Sequence[Sequence[Mark]]) -> str | None:
    """Return how a resumed trial differs from the undisturbed one, None if it does not."""
    comparison = compare(whole, resumed)
    if comparison.divergence is not None:
        mark = comparison.divergence.earliest.mark
        return f"parts at step {mark.step}, {mark.phase}, {mark.name}"
    if comparison.only_a or comparison.only_b:
        return f"{comparison.only_a} marks are missing and {comparison.only_b} are new"
    return None
