"""What became of each part, and the page that says so; loads the standard library only."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

from tests.programs.gpu.parts import FIRST, Part

FIGURES = "figures.json"  # that a part leaves in its folder
LOG = "log.txt"
MAX_REASON = 90  # characters of it in a row
Status = Literal["passed", "goal missed", "failed", "timed out", "skipped"]
Figures = Mapping[str, Any]  # name -> number or text


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one part."""

    part: Part
    status: Status
    seconds: float = 0.0
    reason: str = ""  # of what did not pass
    figures: Figures = field(default_factory=dict)


def judge(
    part: Part, folder: Path, exit_code: int | None, seconds: float, *, is_real: bool
) -> Outcome:
    """Return the outcome of a part that has ended; `exit_code` is None where its time was up.

    Goals count only where the machine is what is tried, not the code.
    """
    figures: Figures = {}
    if (folder / FIGURES).exists():
        figures = json.loads((folder / FIGURES).read_text())
    status: Status = "passed"
    reason = ""
    if exit_code is None:
        status, reason = "timed out", f"took more than {part.seconds:.0f} s"
    elif exit_code:
        status, reason = "failed", f"exit code {exit_code}; {last_line(folder / LOG)}"
    elif is_real:
        reason = "; ".join(missed_goals(part, figures))
        if reason:
            status = "goal missed"
    return Outcome(part=part, status=status, seconds=seconds, reason=reason, figures=figures)


def missed_goals(part: Part, figures: Figures) -> list[str]:
    """Return what to say of each goal that a part did not reach, or has no figure for."""
    missed = []
    for name, least in part.goals.items():
        value = figures.get(name)
        if value is None:
            missed.append(f"{name}: not measured; wanted: {least:g}")
        elif value < least:
            missed.append(f"{name}: {value:.3g}; wanted: {least:g}")
    return missed


def last_line(log: Path) -> str:
    """Return the last line of a log that says anything."""
    return log.read_text(errors="replace").rstrip().rpartition("\n")[2] or "it printed nothing"


def write(output: Path, outcomes: Sequence[Outcome], device: str, *, left: int) -> None:
    """Write the page: what was tried and what came of it; `left` is how many parts have yet to be tried."""
    on = [time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), *_texts(outcomes[0].figures)]
    lines = [
        f"# What was tried on {'a GPU' if device == 'cuda' else 'a CPU'}",
        "",
        f"{summary(outcomes)}. {'; '.join(on)}.",
        "",
    ]
    if left:
        lines += [f"**The run is not over: {left} parts are left.**", ""]
    lines += ["| part | shows | outcome | s | figures |", "| --- | --- | --- | ---: | --- |"]
    for outcome in outcomes:
        figures = [] if outcome.part.name == FIRST else _texts(outcome.figures)
        cells = [
            outcome.part.name,
            outcome.part.shows,
            ": ".join(filter(None, [outcome.status, shorten(outcome.reason, MAX_REASON)])),
            f"{outcome.seconds:.0f}",
            "; ".join(figures),
        ]
        lines.append(f"| {' | '.join(cell.replace('|', '¦') for cell in cells)} |")
    lines += ["", f"What a part printed is in its folder, in {LOG}."]
    (output / "page.md").write_text("\n".join(lines) + "\n")


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return how many parts there are of each status: `12 passed, 1 failed`."""
    counts = Counter(outcome.status for outcome in outcomes)
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _texts(figures: Figures) -> list[str]:
    """Return figures with their names: numbers with four significant digits at most, texts as they are."""
    texts = []
    for name, value in figures.items():
        text = str(value)
        if isinstance(value, int | float):
            text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        texts.append(f"{name} {text}")
    return texts
