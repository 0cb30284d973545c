"""What the harness costs and saves beside what a user would pick instead: `make bench`.

    python -m tests.programs.perf.bench            half an hour, while nothing else should run
    python -m tests.programs.perf.bench --quick    a minute: whether all of it runs

Each part is a process of its own. The table of all ratios, with hardware, versions, load and what
other programs used, is left in results/bench as JSON and as Markdown. A quick run leaves it in build/bench.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.programs.perf.comparison import ROWS_PATH, Comparison, markdown_table, read_rows
from tests.programs.perf.results import FOLDER, Conditions, Watch, write_results
from tests.support.tree import TOP

# Where `make bench` installs what only loops of the benchmark import.
PACKAGES = TOP / "build" / "bench" / "packages"
QUICK_FOLDER = TOP / "build" / "bench"
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


@dataclass(frozen=True, kw_only=True)
class Part:
    """A benchmark with a command of its own."""

    title: str
    arguments: Sequence[str]  # of Python, or of torchrun
    quick: Sequence[str] | None = None  # more of them for a try; None to leave it out
    ranks: int = 1

    def command(self, *, is_quick: bool) -> list[str]:
        """Return the command to run."""
        launcher = [sys.executable]
        if self.ranks > 1:
            launcher = [TORCHRUN, "--standalone", f"--nproc-per-node={self.ranks}"]
        return [*launcher, *self.arguments, *((self.quick or ()) if is_quick else ())]


PARTS = (
    Part(
        title="The training loop beside others that train the same, with one thread",
        arguments=["-m", "tests.programs.perf.overhead"],
        quick=["--blocks", "2", "--workloads", "mlp"],
    ),
    Part(
        title="The same with two threads",
        arguments=["-m", "tests.programs.perf.overhead", "--threads", "2", "--workloads", "mlp"],
    ),
    Part(
        title="The same with two ranks, and what DDP costs",
        arguments=["-m", "tests.programs.perf.overhead", "--workloads", "mlp", "cnn"],
        quick=["--blocks", "2", "--workloads", "mlp"],
        ranks=2,
    ),
    Part(
        title="A sweep of short trials beside a bare script under torchrun for each of them",
        arguments=["-m", "tests.programs.perf.launcher"],
        quick=["--cells", "4", "--runs", "1", "--scripts", "1"],
    ),
)


def run_part(part: Part, *, is_quick: bool) -> list[Comparison]:
    """Run a part, which prints what it finds, and return its rows.

    Raises CalledProcessError if it fails.
    """
    with tempfile.TemporaryDirectory() as name:
        rows_path = Path(name) / "rows.json"
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{TOP}{os.pathsep}{PACKAGES}",
            ROWS_PATH: str(rows_path),
        }
        subprocess.run(part.command(is_quick=is_quick), env=environment, cwd=TOP, check=True)
        if not rows_path.exists():
            return []
        return read_rows(json.loads(rows_path.read_text(encoding="utf-8")))


def bench_packages() -> dict[str, str]:
    """Return the versions of the packages that only the benchmark uses."""
    versions = {}
    for distribution in importlib.metadata.distributions(path=[str(PACKAGES)]):
        versions[distribution.name] = distribution.version
    return dict(sorted(versions.items()))


def describe(rows: Sequence[Comparison], conditions: Conditions) -> str:
    """Return the table of all rows and what they depend on, as Markdown."""
    return (
        f"{markdown_table(rows)}\nValues are medians, ratios geometric means with Student's intervals over n pairs that"
        f" were measured in turn. {conditions}\n"
    )


def main() -> None:
    """Run all parts, print the table of all ratios and leave it in a file."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.bench", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="try whether all of it runs")
    options = parser.parse_args()
    rows: list[Comparison] = []
    with Watch() as watch:
        for part in PARTS:
            if options.quick and part.quick is None:
                continue
            print(f"==> {part.title}", flush=True)
            rows += run_part(part, is_quick=options.quick)
            watch.probe()
    conditions = watch.conditions(bench_packages())
    text = describe(rows, conditions)
    print(f"==> All ratios\n{text}")
    folder = QUICK_FOLDER if options.quick else FOLDER
    content = {"rows": [asdict(row) for row in rows]}
    path = write_results("bench", content, conditions, folder=folder)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(f"{path} and {path.with_suffix('.md').name} have them.")


if __name__ == "__main__":
    main()
