"""Plants defects, compares equal runs, kills trials, and counts what was found."""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from harness.reproduce.divergence import Traces, compare
from tests.programs.mutants.injections import Injection, Setting, injections
from tests.programs.mutants.kills import Killer, Local, OnSlurm, Place, slurm_of_two_nodes

KILL_MINUTES = 60.0  # after which no trial is killed any more


class Proof:
    """Runs of one seed, with a line for each, and counts of those that went as they must."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._seed = seed
        self._references: dict[Setting, Traces] = {}
        self.passed: Counter[str] = Counter()
        self.failed: list[str] = []

    def inject(self, count: int) -> None:
        """Plant so many defects; each must be named as what it is."""
        for number, injection in enumerate(self._injections(count)):
            folder = self._folder / f"mutant{number}"
            traces = injection.setting.trace(folder, **injection.options)
            found = injection.problem(compare(self._reference(injection.setting), traces))
            group = f"{injection.kind:29} {injection.setting}"
            self._note(group, str(injection), found, folder)

    def compare_equal(self, count: int) -> None:
        """Run so many trainings again; none may be reported."""
        for number, injection in enumerate(self._injections(count)):
            setting, folder = injection.setting, self._folder / f"equal{number}"
            found = _difference(self._reference(setting), setting.trace(folder))
            self._note(f"{'equal':29} {setting}", str(setting), found, folder)

    def kill(self, place: Place, count: int) -> None:
        """Strike trials at a place until so many strikes have hit one, or the time is over."""
        name = type(place).__name__
        killer = Killer(self._folder / name, place, self._seed)
        for description, found in killer.run(count, KILL_MINUTES):
            self._note(f"killed, {name}", description, found)
        print(f"{name}:", *killer.lines(), sep="\n", flush=True)

    def _injections(self, count: int) -> Iterator[Injection]:
        """Yield so many injections, the same in every call."""
        return itertools.islice(injections(self._seed), count)

    def _reference(self, setting: Setting) -> Traces:
        """Return the traces of a training without a defect."""
        if setting not in self._references:
            folder = self._folder / f"reference{len(self._references)}"
            self._references[setting] = setting.trace(folder)
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
        print(f"{stamp} {verdict} {description} {found or ''}", flush=True)


def _difference(a: Traces, b: Traces) -> str | None:
    """Return how two trainings that should be equal differ, None if they do not."""
    comparison = compare(a, b)
    if comparison.divergence is not None:
        return f"reported {comparison.divergence.earliest}"
    if comparison.only_a or comparison.only_b:
        return "has other marks"
    return None


def main() -> None:
    """Run the proof; exit with 1 if a defect was not named, or an equal run reported."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.mutants", description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--mutants", type=int, default=200, help="and as many equal runs")
    parser.add_argument("--kills", type=int, default=300, help="of trials on this machine")
    parser.add_argument("--slurm-kills", type=int, default=0, help="of jobs; needs root and Slurm")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    output = options.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    proof = Proof(output, options.seed)
    proof.inject(options.mutants)
    proof.compare_equal(options.mutants)
    if options.kills:
        proof.kill(Local(), options.kills)
    if options.slurm_kills:
        with slurm_of_two_nodes() as slurm:
            proof.kill(OnSlurm(slurm), options.slurm_kills)
    print()
    for group, count in sorted(proof.passed.items()):
        print(f"{count:5} {group}")
    print(f"{sum(proof.passed.values())} as they must be, {len(proof.failed)} not")
    print(*proof.failed, sep="\n")
    sys.exit(bool(proof.failed))


if __name__ == "__main__":
    main()
