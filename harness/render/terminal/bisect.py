"""`harness bisect` as its user sees it: a line for each commit as it is measured, and what is at fault."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Self

from rich.console import Console
from rich.markup import escape

from harness.gate.bisect import BisectOutcome, Step
from harness.gate.history import Commit
from harness.gate.judge import Finding

STYLES = {"bad": "bold red", "good": "green", "skip": "yellow"}


class Progress:
    """On the terminal's other channel, so that the answer stands alone."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.status = self.console.status("starting", refresh_per_second=2)
        self.what = ""

    def __enter__(self) -> Self:
        self.status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.status.stop()

    def on_comparison_start(self, what: str) -> None:
        self.what = what
        self.on_progress("starting")

    def on_progress(self, words: str) -> None:
        self.status.update(escape(f"{self.what}: {words}"))

    def on_step_end(self, step: Step) -> None:
        one, found = step.commit, step.finding
        mark = f"[{STYLES[found.mark]}]{found.mark:<4}[/]"
        self.console.print(
            f"{mark}  {one.short}  {escape(found.description)}  [dim]{escape(one.subject)}[/]"
        )
        if step.remaining:
            self.console.print(f"[dim]{step.remaining}[/]")


def show(found: BisectOutcome) -> None:
    """What is at fault, as git tells it, and how certain that is."""
    console = Console(highlight=False, soft_wrap=True)
    for line in lines(found):
        console.print(escape(line))


def lines(found: BisectOutcome) -> list[str]:
    against = f"each commit against {found.options.good}: {found.count_marked('good')} good, {found.count_marked('bad')} bad"
    tried = f"{found.cell.label}; {against}, {found.count_marked('skip')} skipped"
    if found.against_parent is None:
        listed = [f"  {one.short} {one.subject}{_reason(found, one)}" for one in found.suspects]
        return [
            f"The first bad commit is one of {len(found.suspects)}, which can't be told apart:",
            *listed,
            tried,
        ]
    (one,) = found.suspects
    doubt = (
        ""
        if found.against_parent.mark == "bad"
        else "; so it can't be told for certain that it is this one"
    )
    return [
        f"{one.id} is the first bad commit",
        f"Author: {one.author}",
        f"Date:   {one.date}",
        "",
        f"    {one.subject}",
        "",
        f"against its parent: {found.against_parent.description}{doubt}",
        tried,
    ]


def _reason(found: BisectOutcome, one: Commit) -> str:
    words = [
        step.finding.description
        for step in found.steps
        if step.commit == one and step.finding.mark == "skip"
    ]
    return f": {words[0]}" if words else ""


def as_json(found: BisectOutcome) -> str:
    def plain(one: Finding | None) -> dict[str, Any] | None:
        return None if one is None else asdict(one)

    content = {
        "exit_code": found.exit_code,
        "options": asdict(found.options),
        "cell": found.cell.id,
        "label": found.cell.label,
        "suspects": [asdict(one) for one in found.suspects],
        "against_parent": plain(found.against_parent),
        "steps": [
            {"commit": asdict(step.commit), "finding": plain(step.finding)} for step in found.steps
        ],
    }
    return json.dumps(content, indent=1, allow_nan=False)
