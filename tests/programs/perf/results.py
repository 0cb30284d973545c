"""What benchmarks leave in results/bench: tables in Markdown, and what their figures depend on."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from harness.records.environment import describe_code, describe_hardware, describe_packages
from tests.support.tree import TOP

FOLDER = TOP / "results" / "bench"
QUICK_FOLDER = TOP / "build" / "bench"  # of tries
PROBE_SECONDS = 0.5

Row = Mapping[str, str]  # a column's title -> its cell


def markdown(rows: Sequence[Row]) -> str:
    """Return a table of rows that have the same columns."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


class Benchmark:
    """A program that measures, from its beginning on, and what the machine does besides."""

    def __init__(
        self, name: str, description: str | None, arguments: Sequence[str] | None = None
    ) -> None:
        """Read the command line, of which `--quick` is the only option."""
        parser = argparse.ArgumentParser(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("--quick", action="store_true", help="try whether all of it runs")
        self.name = name
        self.is_quick: bool = parser.parse_args(arguments).quick
        self.load_before = os.getloadavg()[0]
        self.other_programs: list[float] = []  # cores that they used, at each probe
        self.probe()

    def probe(self) -> None:
        """Measure for a moment what others use, while nothing of the benchmark runs."""
        percent = psutil.cpu_percent(interval=PROBE_SECONDS, percpu=True)
        self.other_programs.append(sum(percent) / 100)

    def write(self, tables: str) -> Path:
        """Write `results/bench/NAME.md` and print it; a quick run writes to build/bench."""
        self.probe()
        folder = QUICK_FOLDER if self.is_quick else FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.md"
        page = f"{tables}\n{self._conditions()}\n"
        path.write_text(page, encoding="utf-8")
        print(f"{page}\n{path} has it.")
        return path

    def _conditions(self) -> str:
        """Return what figures depend on besides the code, for those who read them later."""
        code, hardware = describe_code(), describe_hardware()
        commit = code.commit[:8] if code.commit else "an unknown commit"
        if code.dirty:
            commit += "+"
        packages = ", ".join(f"{name} {version}" for name, version in describe_packages().items())
        return (
            f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, {commit}:"
            f" {hardware.usable_cores} cores of {hardware.cpu} ({hardware.cpu_version}), {packages}."
            f" Load {self.load_before:.2f} before; other programs used at most"
            f" {max(self.other_programs):.2f} cores in {len(self.other_programs)} moments between parts."
        )
