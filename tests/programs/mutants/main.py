"""Plants defects, compares equal runs, kills and resumes trials, and counts what was found."""

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
from harness.training import interruption, train
from tests.programs.mutants.injections import Injection, injections
from tests.programs.mutants.kills import Killer
from tests.programs.mutants.kills import draws as kill_draws
from tests.programs.mutants.resumes import Undisturbed, draws, problem, run
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
            reference = self._reference(injection.setting)
            folder = self._folder / f"mutant{number}"
            trial = injection.setting.trial(self._folder, **injection.options)
            found = injection.problem(compare(reference, trace(folder, trial)))
            self._note(f"{injection.kind:29} {injection.setting}", str(injection), found)
            if found is None:
                shutil.rmtree(folder)

    def compare_equal(self, count: int) -> None:
        """Run so many trainings again; none may be reported."""
        for number, injection in enumerate(self._injections(count)):
            reference = self._reference(injection.setting)
            folder = self._folder / f"equal{number}"
            comparison = compare(reference, trace(folder, injection.setting.trial(self._folder)))
            found = None
            if comparison.divergence is not None:
                found = f"reported {comparison.divergence.earliest}"
            elif comparison.only_a or comparison.only_b:
                found = "has other marks"
            self._note(f"equal{'':24} {injection.setting}", str(injection.setting), found)
            if found is None:
                shutil.rmtree(folder)

    def compare_strategies(self) -> None:
        """Compare DDP with FSDP2: of two ranks, gradients have one sum, so all bits are the same."""
        comparison = compare(
            _unsharded(self._reference(Setting("ddp", 2))),
            _unsharded(self._reference(Setting("fsdp2", 2))),
        )
        found = None
        if comparison.divergence is not None:
            found = f"reported {comparison.divergence.earliest}"
        elif comparison.only_a or comparison.only_b:
            found = "have other marks"
        self._note("ddp×2 and fsdp2×2", "ddp×2 and fsdp2×2", found)

    def _injections(self, count: int) -> Iterator[Injection]:
        """Yield so many injections, the same in every call."""
        return itertools.islice(injections(self._seed, self._executions), count)

    def resume(self, count: int) -> None:
        """Kill so many trials; each must resume to the bits of an undisturbed one."""
        train.SEGMENT_SECONDS = 1e-9  # a segment is a step, so that every step can be interrupted
        undisturbed = Undisturbed(self._folder)
        for number, drawn in zip(range(count), draws(self._seed), strict=False):
            folder = self._folder / f"resumed{number}"
            results, resumed_at = run(folder, drawn.setting, drawn.strikes)
            found = problem(undisturbed.results(drawn.setting), results)
            if found is None and not resumed_at and drawn.saves:
                found = "it started again"
            static = " static_graph" if drawn.setting.static_graph else ""
            workers = drawn.setting.num_workers
            cell = f"{drawn.setting.strategy}×{drawn.setting.world_size}{static} w{workers}"
            self._note(f"resume {cell}", f"{drawn}; resumed at {list(resumed_at)}", found)
            if found is None:
                shutil.rmtree(folder)

    def kill(self, count: int, minutes: float) -> None:
        """Strike until so many SIGKILLs have hit a trial, or the time is over."""
        if not count:
            return
        train.SEGMENT_SECONDS = 1e-9
        killer = Killer(self._folder)
        deadline = time.monotonic() + 60 * minutes
        for setting, kills in kill_draws(self._seed):
            if killer.counts.kills.total() >= count or time.monotonic() > deadline:
                break
            found = killer.run(setting, kills)
            cell = f"{setting.strategy}×{setting.world_size} w{setting.num_workers}"
            self._note(f"killed {cell}", f"{cell}, killed {len(kills)} times", found)
        print(*killer.counts.lines(), sep="\n", flush=True)

    def kill_jobs(self, count: int, minutes: float) -> None:
        """Do so to jobs on a real Slurm, its daemons and nodes."""
        if not count:
            return
        # `warm_up` has blocked it, and what is started from here would inherit that.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {interruption.SIGNAL})
        with slurm_of_two_nodes() as slurm:
            killer = SlurmKiller(self._folder / "jobs", slurm, self._seed)
            for description, found in killer.run(count, minutes):
                self._note("killed on Slurm", description, found)
        print("On Slurm:", *killer.counts.lines(), sep="\n", flush=True)

    def _reference(self, setting: Setting) -> Traces:
        """Return the traces of a training without a defect."""
        if setting not in self._references:
            folder = self._folder / f"reference{len(self._references)}"
            self._references[setting] = trace(folder, setting.trial(self._folder))
            shutil.rmtree(folder)
        return self._references[setting]

    def _note(self, group: str, description: str, found: str | None) -> None:
        """Count a run, and print its line."""
        if found is None:
            self.passed[group] += 1
        else:
            self.failed.append(f"{description}: {found}")
        stamp = time.strftime("%H:%M:%S")
        print(
            f"{stamp} {'ok  ' if found is None else 'FAIL'} {description}", found or "", flush=True
        )


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
    parser.add_argument("--resumes", type=int, default=100)
    parser.add_argument("--kills", type=int, default=100, help="SIGKILLs at random moments")
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
    proof.resume(options.resumes)
    proof.kill(options.kills, options.kill_minutes)
    proof.kill_jobs(options.slurm_kills, options.kill_minutes)
    print()
    for group, count in sorted(proof.passed.items()):
        print(f"{count:5} {group}")
    print(f"{sum(proof.passed.values())} as they must be, {len(proof.failed)} not")
    for line in proof.failed:
        print(line)
    sys.exit(bool(proof.failed))
