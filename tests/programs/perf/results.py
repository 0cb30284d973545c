"""What benchmarks leave in results/bench: figures as JSON, tables as Markdown, and what both depend on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.core.worktree import run_git
from harness.measure.telemetry import core_seconds
from harness.records.environment import describe_hardware, describe_packages
from tests.support.tree import TOP

FOLDER = TOP / "results" / "bench"
QUICK_FOLDER = TOP / "build" / "bench"  # of tries
PROBE_SECONDS = 0.5


@dataclass
class Watch:
    """Notes what the machine does besides a benchmark, from its beginning on."""

    load_before: float = field(default_factory=lambda: os.getloadavg()[0])
    other_programs: list[float] = field(default_factory=list)  # cores that they used, at each probe

    def __post_init__(self) -> None:
        self.probe()

    def probe(self) -> None:
        """Measure for a moment what others use, while nothing of the benchmark runs."""
        before = core_seconds()
        time.sleep(PROBE_SECONDS)
        after = core_seconds()
        busy, process, wall = (after[name] - before[name] for name in ("host", "process", "wall"))
        self.other_programs.append(round(max(0.0, busy - process) / wall, 3))

    def conditions(self) -> str:
        """Return what figures depend on besides the code, for those who read them later."""
        hardware = describe_hardware()
        packages = ", ".join(f"{name} {version}" for name, version in describe_packages().items())
        return (
            f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, {_describe_commit()}:"
            f" {hardware.usable_cores} cores of {hardware.cpu} ({hardware.cpu_version}), {packages}."
            f" Load {self.load_before:.2f} before; other programs used at most"
            f" {max(self.other_programs):.2f} cores in {len(self.other_programs)} moments between parts."
        )


def write_results(
    name: str, figures: Mapping[str, Any], tables: str, watch: Watch, *, is_quick: bool
) -> Path:
    """Write `results/bench/NAME.json` and `.md` and print the tables; a quick run writes to build/bench."""
    watch.probe()
    conditions = watch.conditions()
    folder = QUICK_FOLDER if is_quick else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    text = json.dumps({**figures, "conditions": conditions}, indent=2)
    path.write_text(f"{text}\n", encoding="utf-8")
    page = f"{tables}\n{conditions}\n"
    path.with_suffix(".md").write_text(page, encoding="utf-8")
    print(f"{page}\n{path} and {path.with_suffix('.md').name} have them.")
    return path


def _describe_commit() -> str:
    """Return the commit that is measured, with a + where tracked files outside `FOLDER` differ."""
    head = run_git(TOP, "rev-parse", "--short", "HEAD")
    if head.returncode:
        return "an unknown commit"
    tracked = ("--porcelain", "--untracked-files=no", "--", ".", f":!{FOLDER}")
    changes = run_git(TOP, "status", *tracked)
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "")
