"""What became of each part, and the page that says so; loads the standard library only."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

from tests.programs.gpu.parts import FIRST, Part

FIGURES = "figures.json"  # that a part leaves in its folder
LOG = "log.txt"
LOG_LINES = 12  # of the end of a log, on the page
MAX_REASON = 90  # characters of it in a row; the end of the log follows the table
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
    part: Part, folder: Path, exit_code: int | None, seconds: float, *, real: bool
) -> Outcome:
    """Return the outcome of a part that has ended; `exit_code` is None where its time was up.

    Goals count only where the machine is what is tried (`real`), not the code.
    """
    figures = read_figures(folder)
    status: Status = "passed"
    reason = ""
    if exit_code is None:
        status, reason = "timed out", f"took more than {part.seconds:.0f} s"
    elif exit_code:
        status, reason = "failed", f"exit code {exit_code}; {last_line(folder / LOG)}"
    elif real:
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


def read_figures(folder: Path) -> Figures:
    """Return the figures that a part has left, none if it left none that can be read."""
    try:
        figures = json.loads((folder / FIGURES).read_text())
    except (OSError, ValueError):
        return {}
    return figures if isinstance(figures, dict) else {}


def last_line(log: Path) -> str:
    """Return the last line of a log that says anything."""
    lines = _lines(log)
    return lines[-1] if lines else "it printed nothing"


def _lines(log: Path) -> list[str]:
    """Return the lines of a log that are not blank."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def write(output: Path, outcomes: Sequence[Outcome], device: str, *, left: int) -> None:
    """Write `results.json` and `page.md`; `left` is how many parts have not been tried yet."""
    results = [asdict(outcome) for outcome in outcomes]
    (output / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (output / "page.md").write_text(page(output, outcomes, device, left=left))


def page(output: Path, outcomes: Sequence[Outcome], device: str, *, left: int) -> str:
    """Return what was tried and what came of it, as Markdown."""
    lines = [f"# What was tried on {'a GPU' if device == 'cuda' else 'a CPU'}", ""]
    lines += [f"{summary(outcomes)}. {_machine(outcomes)}", ""]
    if left:
        lines += [f"**The run is not over: {left} parts are left.**", ""]
    lines += ["| part | shows | outcome | s | figures |", "| --- | --- | --- | ---: | --- |"]
    lines += [_row(outcome) for outcome in outcomes]
    for outcome in outcomes:
        if outcome.status in ("failed", "timed out"):
            log = output / outcome.part.name / LOG
            ending = _lines(log)[-LOG_LINES:] or ["It is empty."]
            lines += ["", f"## The end of {outcome.part.name}/{LOG}", "", "```", *ending, "```"]
    return "\n".join(lines) + "\n"


def _machine(outcomes: Sequence[Outcome]) -> str:
    """Return what was tried on, and when, in a sentence."""
    words = [time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())]
    for outcome in outcomes:
        if outcome.part.name == FIRST:
            words += [f"{name} {_text(value)}" for name, value in outcome.figures.items()]
    return f"{'; '.join(words)}."


def _row(outcome: Outcome) -> str:
    """Return the row of a part; the figures of the machine stand above all rows."""
    figures = ""
    if outcome.part.name != FIRST:
        figures = "; ".join(f"{name} {_text(value)}" for name, value in outcome.figures.items())
    cells = [
        outcome.part.name,
        outcome.part.shows,
        ": ".join(filter(None, [outcome.status, shorten(outcome.reason, MAX_REASON)])),
        f"{outcome.seconds:.0f}" if outcome.seconds else "",
        figures,
    ]
    return f"| {' | '.join(cell.replace('|', '¦') for cell in cells)} |"


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return how many parts there are of each status: `12 passed, 1 failed`."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[outcome.status] = counts.get(outcome.status, 0) + 1
    return ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing was tried"


def _text(value: Any) -> str:
    """Return a figure with four significant digits at most, and a text as it is."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
