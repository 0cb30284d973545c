"""`harness bisect` as its user sees it: a line for each commit as it is measured, and what is at fault."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Self

from rich.console import Console
from rich.markup import escape

from harness.gate.bisect import Outcome, Step
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

    def trying(self, what: str) -> None:
        self.what = what
        self.told("starting")

    def told(self, words: str) -> None:
        self.status.update(escape(f"{self.what}: {words}"))

    def tried(self, step: Step) -> None:
        one, found = step.commit, step.found
        mark = f"[{STYLES[found.mark]}]{found.mark:<4}[/]"
        self.console.print(
            f"{mark}  {one.short}  {escape(found.words)}  [dim]{escape(one.subject)}[/]"
        )
        if step.left:
            self.console.print(f"[dim]{step.left}[/]")


def show(found: Outcome) -> None:
    """What is at fault, as git tells it, and how certain that is."""
    console = Console(highlight=False, soft_wrap=True)
    for line in lines(found):
        console.print(escape(line))


def lines(found: Outcome) -> list[str]:
    against = f"each commit against {found.asked.good}: {found.marked('good')} good, {found.marked('bad')} bad"
    tried = f"{found.cell.label}; {against}, {found.marked('skip')} skipped"
    if found.own is None:
        listed = [f"  {one.short} {one.subject}{_reason(found, one)}" for one in found.suspects]
        return [
            f"The first bad commit is one of {len(found.suspects)}, which can't be told apart:",
            *listed,
            tried,
        ]
    (one,) = found.suspects
    doubt = (
        "" if found.own.mark == "bad" else "; so it can't be told for certain that it is this one"
    )
    return [
        f"{one.id} is the first bad commit",
        f"Author: {one.author}",
        f"Date:   {one.date}",
        "",
        f"    {one.subject}",
        "",
        f"against its parent: {found.own.words}{doubt}",
        tried,
    ]


def _reason(found: Outcome, one: Commit) -> str:
    words = [
        step.found.words for step in found.steps if step.commit == one and step.found.mark == "skip"
    ]
    return f": {words[0]}" if words else ""


def as_json(found: Outcome) -> str:
    def plain(one: Finding | None) -> dict[str, Any] | None:
        return None if one is None else asdict(one)

    content = {
        "exit_code": found.exit_code,
        "asked": asdict(found.asked),
        "cell": found.cell.id,
        "label": found.cell.label,
        "suspects": [asdict(one) for one in found.suspects],
        "against_parent": plain(found.own),
        "steps": [
            {"commit": asdict(step.commit), "found": plain(step.found)} for step in found.steps
        ],
    }
    return json.dumps(content, indent=1, allow_nan=False)
