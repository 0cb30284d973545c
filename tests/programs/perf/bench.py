"""What the harness costs and saves beside what a user would pick instead: `make bench`.

    python -m tests.programs.perf.bench            half an hour, while nothing else should run
    python -m tests.programs.perf.bench --quick    a minute: whether all of it runs

Each part is a process of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.programs.perf.comparison import ROWS_PATH, Comparison, markdown_table, read_rows
from tests.programs.perf.results import Watch, write_results
from tests.support.tree import TOP

TORCHRUN = (str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node=2")
OVERHEAD = ("-m", "tests.programs.perf.overhead")
LAUNCHER = ("-m", "tests.programs.perf.launcher")
TWO_WORKLOADS = ("--workloads", "mlp", "cnn")
# Title, command, and more arguments for a try.
PARTS: Sequence[tuple[str, Sequence[str], Sequence[str]]] = (
    (
        "The training loop beside others that train the same",
        (sys.executable, *OVERHEAD),
        ("--blocks", "2", "--workloads", "mlp"),
    ),
    (
        "The same with two ranks",
        (*TORCHRUN, *OVERHEAD, *TWO_WORKLOADS),
        ("--blocks", "2", "--workloads", "mlp"),
    ),
    (
        "A sweep of short trials beside a bare script under torchrun for each of them",
        (sys.executable, *LAUNCHER),
        ("--cells", "4", "--runs", "1", "--scripts", "1"),
    ),
)


def run_part(command: Sequence[str]) -> list[Comparison]:
    """Run a part and return its rows; raises CalledProcessError if it fails."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "rows.json"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", ROWS_PATH: str(path)}
        subprocess.run(command, env=environment, cwd=TOP, check=True)
        return read_rows(path)


def main() -> None:
    """Run all parts, print the table of all ratios and leave it in a file."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.bench", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="try whether all of it runs")
    is_quick = parser.parse_args().quick
    rows: list[Comparison] = []
    watch = Watch()
    for title, command, quick in PARTS:
        print(f"==> {title}", flush=True)
        rows += run_part([*command, *quick] if is_quick else command)
        watch.probe()
    table = (
        f"{markdown_table(rows)}\nValues are medians, ratios geometric means with Student's"
        " intervals over n pairs that were measured in turn."
    )
    figures = {"rows": [asdict(row) for row in rows]}
    write_results("bench", figures, table, watch, is_quick=is_quick)


if __name__ == "__main__":
    main()
