"""Plants defects, compares equal runs, interrupts and kills trials, and counts what was found."""

from __future__ import annotations

import argparse
import itertools
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.reproduce.divergence import Traces, compare
from harness.training import progress, train
from tests.programs.mutants.injections import Injection, injections
from tests.programs.mutants.interruptions import Interrupter, draws
from tests.programs.mutants.slurm_kills import SlurmKiller, slurm_of_two_nodes
from tests.programs.mutants.trials import Setting, trace, warm_up

# Compiled trainings take several times as long.
EXECUTIONS = ("eager",) * 7 + ("compile",)


class Proof:
    """Runs of one seed, with a line for each, and counts of those that went as they must."""

    def __init__(self, folder: Path, seed: int, executions: Sequence[str]) -> None:
        self._folder = folder
        self._seed = seed
        self._executions = executions
        self._references: dict[Setting, Traces] = {}
        self.passed: Counter[str] = Counter()
        self.failed: list[str] = []

    def inject(self, count: int) -> None:
        """Plant so many defects; each must be named as what it is."""
        for number, injection in enumerate(self._injections(count)):
            folder = self._folder / f"mutant{number}"
            trial = injection.setting.trial(self._folder, **injection.options)
            comparison = compare(self._reference(injection.setting), trace(folder, trial))
            group = f"{injection.kind:29} {injection.setting}"
            self._note(group, str(injection), injection.problem(comparison), folder)

    def compare_equal(self, count: int) -> None:
        """Run so many trainings again; none may be reported."""
        for number, injection in enumerate(self._injections(count)):
            setting, folder = injection.setting, self._folder / f"equal{number}"
            found = _difference(
                self._reference(setting), trace(folder, setting.trial(self._folder))
            )
            self._note(f"{'equal':29} {setting}", str(setting), found, folder)

    def compare_strategies(self) -> None:
        """Compare DDP with FSDP2: of two ranks, gradients have one sum, so all bits are the same."""
        ddp, fsdp2 = (self._reference(Setting(strategy, 2)) for strategy in ("ddp", "fsdp2"))
        self._note("ddp×2 and fsdp2×2", "", _difference(_unsharded(ddp), _unsharded(fsdp2)))

    def interrupt(self, count: int, minutes: float) -> None:
        """Strike until so many strikes have hit a trial, or the time is over."""
        if not count:
            return
        train.SEGMENT_SECONDS = 1e-9  # a segment is a step, so that every step can be interrupted
        interrupter = Interrupter(self._folder)
        deadline = time.monotonic() + 60 * minutes
        for setting, strikes in draws(self._seed):
            if interrupter.counts.strikes.total() >= count or time.monotonic() > deadline:
                break
            found = interrupter.run(setting, strikes)
            description = f"{setting.name}: {', '.join(strike.name for strike in strikes)}"
            self._note(f"interrupted {setting.name}", description, found)
        print(*interrupter.counts.lines(), sep="\n", flush=True)

    def kill_jobs(self, count: int, minutes: float) -> None:
        """Kill jobs on a real Slurm, its daemons and nodes, so many times."""
        if not count:
            return
        # `warm_up` has blocked it, and what is started from here would inherit that.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {progress.SIGNAL})
        with slurm_of_two_nodes() as slurm:
            killer = SlurmKiller(self._folder / "jobs", slurm, self._seed)
            for description, found in killer.run(count, minutes):
                self._note("killed on Slurm", description, found)
        print("On Slurm:", *killer.counts.lines(), sep="\n", flush=True)

    def _injections(self, count: int) -> Iterator[Injection]:
        """Yield so many injections, the same in every call."""
        return itertools.islice(injections(self._seed, self._executions), count)

    def _reference(self, setting: Setting) -> Traces:
        """Return the traces of a training without a defect."""
        if setting not in self._references:
            folder = self._folder / f"reference{len(self._references)}"
            self._references[setting] = trace(folder, setting.trial(self._folder))
            shutil.rmtree(folder)
        return self._references[setting]

    def _note(
        self, group: str, description: str, found: str | None, folder: Path | None = None
    ) -> None:
        """Count a run and print its line; a folder stays if something was wrong."""
        if found is None:
            self.passed[group] += 1
            if folder is not None:
                shutil.rmtree(folder)
        else:
            self.failed.append(f"{group} {description}: {found}")
        verdict = "ok  " if found is None else "FAIL"
        stamp = time.strftime("%H:%M:%S")
        print(f"{stamp} {verdict} {description or group} {found or ''}", flush=True)


def _difference(a: Traces, b: Traces) -> str | None:
    """Return how two trainings that should be equal differ, None if they do not."""
    comparison = compare(a, b)
    if comparison.divergence is not None:
        return f"reported {comparison.divergence.earliest}"
    if comparison.only_a or comparison.only_b:
        return "has other marks"
    return None


def _unsharded(traces: Traces) -> Traces:
    """Return traces without what FSDP2 has another of: flattened gradients, and a rank's buffers."""
    unalike = ("backward", "buffers before", "buffers")
    return [[mark for mark in trace if mark.phase not in unalike] for trace in traces]


def main() -> None:
    """Run the proof; exit with 1 if a defect was not named, or an equal run reported."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.mutants", description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--injections", type=int, default=200)
    parser.add_argument("--equal", type=int, default=200)
    parser.add_argument("--kills", type=int, default=300, help="interruptions and SIGKILLs")
    parser.add_argument("--slurm-kills", type=int, default=0, help="of jobs; needs root and Slurm")
    parser.add_argument("--kill-minutes", type=float, default=60, help="start no kill after these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--executions", nargs="+", default=EXECUTIONS)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    proof = Proof(options.output, options.seed, options.executions)
    warm_up(options.output / "cache", compiles="compile" in options.executions)
    if options.injections:
        proof.compare_strategies()
    proof.inject(options.injections)
    proof.compare_equal(options.equal)
    proof.interrupt(options.kills, options.kill_minutes)
    proof.kill_jobs(options.slurm_kills, options.kill_minutes)
    print()
    for group, count in sorted(proof.passed.items()):
        print(f"{count:5} {group}")
    print(f"{sum(proof.passed.values())} as they must be, {len(proof.failed)} not")
    print(*proof.failed, sep="\n")
    sys.exit(bool(proof.failed))


if __name__ == "__main__":
    main()
