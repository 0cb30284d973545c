"""Shows `harness doctor`: examines what a profile names, and prints the checks.

Progress is shown on standard error if the checks are printed as JSON, so that the output can be
piped into another program.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape

from harness.core.paths import Results
from harness.render.terminal.console import TerminalConsole
from harness.slurm.doctor.checks import Check
from harness.slurm.doctor.cluster import examine_cluster
from harness.slurm.doctor.machine import examine_machine
from harness.spec.cluster import Profile

TICKS = {  # by `Check.passed`
    True: "[green]✓[/]",
    False: "[red]✗[/]",
    None: "[yellow]–[/]",  # not tried, because of what failed before
}


def run(
    name: str,
    profile: Profile,
    results: Results,
    *,
    patience: float,
    all_nodes: bool,
    as_json: bool,
) -> bool:
    """Examine what the profile launches on, print the checks, and return whether all have passed.

    `name` is the profile's, `patience` is how many seconds the doctor's job may be pending in
    Slurm's queue, and `all_nodes` has it examine every node of the partition. With `as_json`, the
    checks are printed as JSON.

    Raises BadInput if results can't be written.
    """
    console = TerminalConsole(stderr=as_json)
    with console.status("") as spinner:

        def report_progress(text: str) -> None:
            """Show what the doctor is doing beside the spinner."""
            spinner.update(escape(text))

        if profile.launcher == "slurm":
            checks = examine_cluster(
                profile, results, report_progress, patience, all_nodes=all_nodes
            )
        else:
            checks = examine_machine(profile, results, report_progress)
    passed = all(check.passed for check in checks)  # what was not tried has not passed
    if as_json:
        content = {
            "cluster": name,
            "passed": passed,
            "checks": [asdict(check) for check in checks],
        }
        print(json.dumps(content, indent=1))
    else:
        show(console, checks)
    return passed


def show(console: Console, checks: Sequence[Check]) -> None:
    """Print a line for each check: whether it passed, its name, and its detail.

    The order is that of the examination: what failed first may be the reason for what follows.
    """
    width = max(len(check.name) for check in checks)
    for check in checks:
        name = f"{escape(check.name):{width}}"
        console.print(f"{TICKS[check.passed]} {name}  {escape(check.detail)}", soft_wrap=True)
