"""What benchmarks leave in results/bench: figures as JSON, with what they depend on.

with Watch() as watch:
    ...  # measure, and call watch.probe() between parts that take minutes
write_results("scale", {"rows": rows}, watch.conditions())
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any, Self

from harness.core.worktree import run_git
from harness.measure.host import core_seconds
from harness.records.environment import describe_hardware, describe_packages
from tests.support.tree import TOP

FOLDER = TOP / "results" / "bench"
PROBE_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What figures depend on besides the code, for those who read them later."""

    date: str  # UTC, when the last figure was there
    commit: str | None  # of the harness, with a + where files were changed; None outside Git
    cpu: str
    cpu_version: str | None  # family, model and stepping
    cores: int  # that the benchmark may run on
    memory_gib: float
    python: str
    platform: str
    packages: Mapping[str, str]  # versions by name
    seconds: float  # that the whole benchmark took
    load_before: float  # over the minute before it
    # Cores that other programs used while nothing of the benchmark ran, at each probe.
    other_programs: list[float]

    def __str__(self) -> str:
        packages = ", ".join(f"{name} {version}" for name, version in self.packages.items())
        commit = self.commit or "an unknown commit"
        return (
            f"{self.date}, {commit}: {self.cores} cores of {self.cpu} ({self.cpu_version}), "
            f"{self.memory_gib:.0f} GiB, Python {self.python}, {packages}. Load {self.load_before:.2f}"
            f" before; other programs used {fmean(self.other_programs):.2f} cores (at most"
            f" {max(self.other_programs):.2f}) in {len(self.other_programs)} moments between parts."
        )


class Watch:
    """Notes what the machine does besides a benchmark; to be used as a context around it."""

    def __init__(self) -> None:
        self._began = time.time()
        self._load_before = os.getloadavg()[0]
        self._other_programs: list[float] = []

    def __enter__(self) -> Self:
        self.probe()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.probe()

    def probe(self) -> None:
        """Measure for a moment what others use, while nothing of the benchmark runs."""
        before = core_seconds()
        time.sleep(PROBE_SECONDS)
        after = core_seconds()
        busy, process, wall = (after[name] - before[name] for name in ("busy", "process", "wall"))
        self._other_programs.append(max(0.0, busy - process) / wall)

    def conditions(self, packages: Mapping[str, str] | None = None) -> Conditions:
        """Return the conditions, with the versions of more `packages` than the harness's own."""
        hardware = describe_hardware()
        gib = (hardware.memory_bytes or 0) / 2**30
        return Conditions(
            date=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            commit=_describe_commit(),
            cpu=hardware.cpu,
            cpu_version=hardware.cpu_version,
            cores=hardware.usable_cores,
            memory_gib=round(gib, 1),
            python=platform.python_version(),
            platform=platform.platform(),
            packages={**describe_packages(), **(packages or {})},
            seconds=round(time.time() - self._began, 1),
            load_before=round(self._load_before, 2),
            other_programs=[round(cores, 3) for cores in self._other_programs],
        )


def write_results(
    name: str, figures: Mapping[str, Any], conditions: Conditions, *, folder: Path = FOLDER
) -> Path:
    """Write `results/bench/NAME.json`, or in another folder, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    content = {**figures, "conditions": asdict(conditions)}
    text = json.dumps(content, indent=2)
    path.write_text(f"{text}\n", encoding="utf-8")
    return path


def read_results(name: str) -> dict[str, Any]:
    """Return what `write_results` wrote last; raises FileNotFoundError if that was never."""
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return content


def _describe_commit() -> str | None:
    """Return the commit that is measured, with a + where tracked files outside `FOLDER` differ."""
    head = run_git(TOP, "rev-parse", "--short", "HEAD")
    if head.returncode:
        return None
    changes = run_git(
        TOP, "status", "--porcelain", "--untracked-files=no", "--", ".", f":!{FOLDER}"
    )
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "")
