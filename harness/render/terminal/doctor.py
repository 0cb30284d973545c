"""The doctor's list, as its user sees it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape

from harness.core.paths import Results
from harness.slurm.doctor import job, local
from harness.slurm.doctor.checks import Check
from harness.spec.cluster import Profile

TICKS = {True: "[green]✓[/]", False: "[red]✗[/]", None: "[yellow]–[/]"}


def run(name: str, profile: Profile, results: Results, *, patience: float, as_json: bool) -> bool:
    """Examine what the profile names and print the list; whether all is well."""
    console = Console(highlight=False, stderr=as_json)
    with console.status("") as status:

        def told(text: str) -> None:
            status.update(escape(text))

        if profile.launcher == "slurm":
            checks = job.examine(profile, results, told, patience)
        else:
            checks = local.examine(profile, results, told)
    well = all(check.passed for check in checks)
    if as_json:
        print(
            json.dumps(
                {"cluster": name, "well": well, "checks": [asdict(check) for check in checks]},
                indent=1,
            )
        )
    else:
        show(console, checks)
    return well


def show(console: Console, checks: Sequence[Check]) -> None:
    """A line for each check."""
    width = max(len(check.what) for check in checks)
    for check in checks:
        console.print(
            f"{TICKS[check.passed]} {escape(check.what):{width}}  {escape(check.found)}",
            soft_wrap=True,
        )
