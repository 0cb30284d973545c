"""Shows `harness machine doctor`: the checks of what a profile launches on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.markup import escape

from harness.render.terminal.console import TerminalConsole, styled
from harness.slurm.doctor.checks import Check

TICKS: Mapping[bool | None, str] = {  # by `Check.passed`
    True: styled("✓", "better"),
    False: styled("✗", "failed"),
    None: styled("–", "open"),  # not tried, because an earlier check failed
}


def show(cluster: str, checks: Sequence[Check], *, passed: bool, as_json: bool) -> None:
    """Print a line for each check: whether it passed, its name, and its detail.

    The order is that of the examination: what failed first may be the reason for what follows.
    `cluster` is the name of the profile.
    """
    if as_json:
        content = {
            "cluster": cluster,
            "passed": passed,
            "checks": [asdict(check) for check in checks],
        }
        print(json.dumps(content, indent=1))
        return
    console = TerminalConsole()
    width = max(len(check.name) for check in checks)
    for check in checks:
        name = f"{escape(check.name):{width}}"
        console.print(f"{TICKS[check.passed]} {name}  {escape(check.detail)}", soft_wrap=True)
