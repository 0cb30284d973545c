"""Two commands at once on the same sweep.

Their address is

    actors/FIRST+SECOND/MILLISECONDS

the two commands, and how much later the second one starts.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import free_port
from tests.programs.campaign.oracle import Finding, Snapshot
from tests.programs.campaign.stage import Stage, run_again, undisturbed

RESULTS = ("--results", "results")
RUN = ("run", "line.yaml", "--cluster", "local.yaml", *RESULTS)
COMMANDS = {
    "run": RUN,
    "force": (*RUN, "--force"),
    "collect": ("collect", "campaign", *RESULTS),
    "show": ("show", "campaign", *RESULTS),
    "status": ("status", "campaign", *RESULTS),
    "watch": ("status", "campaign", "--watch", *RESULTS),
    "report": ("report", "campaign", *RESULTS),
    "ui": ("ui", *RESULTS),
}
SERVER = "ui"  # it ends by Ctrl-C, once the other command has ended
PAIRS = (
    "run+run", "run+force", "run+collect", "run+watch", "run+status", "run+show", "run+report",
    "collect+run", "collect+collect", "report+report", "run+ui", "collect+ui",
)  # fmt: skip
LONGEST_DELAY = 4000  # milliseconds
ALLOWED_EXIT_CODES = (0, 2)  # 2 where another command holds the sweep


@dataclass(frozen=True, kw_only=True)
class ActorFault:
    """Two commands at once."""

    pair: str
    milliseconds: int

    @property
    def address(self) -> str:
        """Return the text that `parse` reads."""
        return f"actors/{self.pair}/{self.milliseconds}"

    @property
    def row(self) -> str:
        """Return the row of the table that counts it."""
        return self.pair

    @classmethod
    def parse(cls, address: str) -> ActorFault:
        """Return the fault with an address; raises ValueError."""
        _, pair, milliseconds = address.split("/")
        return cls(pair=pair, milliseconds=int(milliseconds))


@dataclass
class ActorCampaign:
    """Runs two commands on the same small sweep."""

    stage: Stage
    expected: Snapshot

    @classmethod
    def prepare(cls, folder: Path) -> ActorCampaign:
        """Run the sweep undisturbed."""
        stage = Stage(folder / "actors")
        stage.prepare()
        return cls(stage, undisturbed(stage))

    def output_files(self) -> list[Path]:
        """Return the files with what the commands of the last fault printed."""
        return self.stage.output_files()

    def close(self) -> None:
        """End nothing: no process outlives its fault."""

    def faults(self, seed: int) -> list[ActorFault]:
        """Return every pair by turns, at delays drawn from `seed`."""
        generator = random.Random(seed)
        return [
            ActorFault(pair=pair, milliseconds=generator.randrange(LONGEST_DELAY))
            for _ in range(50)
            for pair in PAIRS
        ]

    def strike(self, fault: ActorFault) -> list[Finding]:
        """Run both commands, run the sweep again, and judge."""
        stage = self.stage
        stage.restore()
        stage.control.watch(stage.work)
        pids = {}
        for number, name in enumerate(fault.pair.split("+")):
            time.sleep(number * fault.milliseconds / 1000)
            arguments = COMMANDS[name]
            if name == SERVER:
                arguments = (*arguments, "--port", str(free_port()))
            pids[name, number] = stage.start(arguments, number=number)
        findings = []
        server = pids.get((SERVER, 1))
        commands = {key: pid for key, pid in pids.items() if pid != server}
        all_ended = stage.wait(list(commands.values()), server=server)
        for (name, _), ended in zip(commands, all_ended, strict=True):
            findings += stage.check_end(ended, name)
            if ended.exit_code not in ALLOWED_EXIT_CODES:
                text = f"{name}: exit code {ended.exit_code} beside another command"
                findings.append(Finding("misreported", text))
            if ended.exit_code == 2 and "harness: " not in ended.output:
                findings.append(Finding("misreported", f"{name}: refused, and no line says why"))
        stage.control.stop()
        (stage.work / "results/runs/campaign/report.html").unlink(missing_ok=True)
        return findings + run_again(stage, self.expected)
