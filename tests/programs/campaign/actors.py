"""Two commands at once on the same sweep.

Their address is

    actors/FIRST+SECOND/MILLISECONDS

the two commands, and how much later the second one starts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from harness.core.ports import free_port
from tests.programs.campaign.oracle import Finding
from tests.programs.campaign.stage import RUN, SweepStage

COMMANDS = {
    "run": RUN,
    "force": (*RUN, "--force"),
    "collect": ("collect", "campaign"),
    "show": ("show", "campaign"),
    "status": ("status", "campaign"),
    "watch": ("status", "campaign", "--watch"),
    "report": ("report", "campaign"),
    "ui": ("ui",),
}
SERVER = "ui"  # it ends by Ctrl-C, once the other command has ended
PAIRS = (
    "run+run", "run+force", "run+collect", "run+watch", "run+status", "run+show", "run+report",
    "collect+run", "collect+collect", "report+report", "run+ui", "collect+ui",
)  # fmt: skip
LONGEST_DELAY = 8000  # milliseconds
ALLOWED_EXIT_CODES = (0, 2)  # 2 where another command holds the sweep


class ActorCampaign:
    """Runs two commands on the same small sweep."""

    def __init__(self, stage: SweepStage) -> None:
        self.stage = stage

    def faults(self, generator: random.Random) -> Sequence[str]:
        """Return every pair by turns, at random delays."""
        return [f"actors/{pair}/{generator.randrange(LONGEST_DELAY)}" for pair in 50 * PAIRS]

    def row(self, address: str) -> str:
        """Return the pair."""
        return address.split("/")[1]

    def strike(self, address: str) -> list[Finding]:
        """Run both commands, run the sweep again, and judge."""
        _, pair, milliseconds = address.split("/")
        stage = self.stage
        stage.restore()
        names = pair.split("+")
        commands = []
        with stage.watching():
            for number, name in enumerate(names):
                time.sleep(number * int(milliseconds) / 1000)
                arguments = COMMANDS[name]
                if name == SERVER:
                    arguments = (*arguments, "--port", str(free_port()))
                commands.append(stage.start(arguments, number=number))
            server = commands.pop() if SERVER in names else None
            all_ended = stage.wait(commands, server=server)
        findings = []
        for name, ended in zip(names, all_ended, strict=False):
            findings += stage.check_end(ended, name)
            if ended.exit_code not in ALLOWED_EXIT_CODES:
                text = f"{name}: exit code {ended.exit_code} beside another command"
                findings.append(Finding("misreported", text))
            if ended.exit_code == 2 and "harness: " not in ended.output:
                findings.append(Finding("misreported", f"{name}: refused, and no line says why"))
        (stage.work / "results/runs/campaign/report.html").unlink(missing_ok=True)
        return findings + stage.run_again(stage.expected)
