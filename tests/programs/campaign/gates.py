"""SIGKILL at random moments of each process of `harness gate` and `harness bisect`.

Their address is

    gates/COMMAND/ROLE/MILLISECONDS

after the newest process of that role has appeared. Both commands measure a small repository of
three commits, in the second of which the losses change. The next command has to give the answer of
an undisturbed one, and to remove what the killed one left: worktrees, scratch folders, sockets.
"""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.programs.campaign.commands import Ended
from tests.programs.campaign.oracle import Finding, Snapshot, compare, take_snapshot
from tests.programs.campaign.signals import send
from tests.programs.campaign.stage import Stage
from tests.support.repository import Repository
from tests.support.running import local_profile

# Effects that no machine is too busy to tell from none, so that the answer is always the same.
MEASURE = ("sweep.yaml", "--cluster", "local.yaml", "--min-effect", "90%", "--budget", "20s")
COMMANDS: Mapping[str, Sequence[str]] = {
    "gate": ("gate", "--against", "HEAD", *MEASURE),
    "bisect": ("bisect", "HEAD~2", "HEAD", *MEASURE, "--bits"),
}
# What the shim calls the processes: those of the forkserver are ranks here.
ROLES = {"harness": "harness", "forkserver": "forkserver", "rank": "rank0", "worker": "worker"}
SCRATCH_NAMES = re.compile(r"harness-[a-z]+-\w{8}")  # folders of logs, in an error
LONGEST_DELAY = 8000  # milliseconds
SMALL = {"own": {"uses": "own.py:Slowed", "data": {"source": "digits"}, "options": {"hidden": [8]}}}
OTHER_LOSSES = """
from torch.optim import SGD

Slowed.optimizer = lambda self, model: SGD(model.parameters(), lr=0.1)
"""


class GateCampaign:
    """Kills processes of commands that measure a repository of their own."""

    def __init__(self, folder: Path) -> None:
        self.stage = Stage(folder, _write_repository)
        self.expected: dict[str, Snapshot] = {}
        for name, arguments in COMMANDS.items():
            self.stage.restore()
            self.expected[name] = self._snapshot(self.stage.run_undisturbed(arguments))

    def faults(self, generator: random.Random) -> Sequence[str]:
        """Return both commands and all roles by turns, at random moments."""
        pairs = [(command, role) for role in ROLES for command in COMMANDS]
        return [
            f"gates/{command}/{role}/{generator.randrange(LONGEST_DELAY)}"
            for command, role in 50 * pairs
        ]

    def row(self, address: str) -> str:
        """Return the command and the role."""
        _, command, role, _ = address.split("/")
        return f"{command}: SIGKILL {role}"

    def strike(self, address: str) -> list[Finding] | None:
        """Kill the process, run the command again, and judge; None if no process was there."""
        _, name, role, milliseconds = address.split("/")
        stage = self.stage
        stage.restore()
        with stage.watching():
            command = stage.start(COMMANDS[name])
            was_sent = send(stage, ROLES[role], signal.SIGKILL, int(milliseconds), command.pid)
            (ended,) = stage.wait([command])
        if not was_sent:
            return None
        findings = stage.check_end(ended, name)
        # It may have had the answer already. Any other ending has to say why.
        says_why = "harness: " in ended.output or "failed" in ended.output
        has_answer = self._snapshot(ended).bits == self.expected[name].bits
        if ended.exit_code not in (None, -signal.SIGKILL) and not says_why and not has_answer:
            text = f"{name}: exit code {ended.exit_code}, and no line says why"
            findings.append(Finding("misreported", text))
        # The logs that an error names stay for the user.
        named = set(SCRATCH_NAMES.findall(ended.output))
        stage.keep_output()
        ended = stage.run(COMMANDS[name])
        findings += stage.check_end(ended, f"{name} again")
        findings += compare(self.expected[name], self._snapshot(ended))
        return [finding for finding in findings if not named & set(finding.text.split("/"))]

    def _snapshot(self, ended: Ended) -> Snapshot:
        """Return what the oracle sees: the answer, in place of a trial's bits, and what is left."""
        snapshot = take_snapshot(self.stage.work)
        return Snapshot(
            bits={"the answer": {"exit code": ended.exit_code}},
            files=frozenset(name for name in snapshot.files if "__pycache__" not in name),
            shared_memory=snapshot.shared_memory,
        )


def _write_repository(work: Path) -> None:
    """Write a repository whose second commit changes the losses, and a profile."""
    repository = Repository(
        work, workloads=SMALL, matrix={"num_workers": 1}, evaluate={"epochs": 1}
    )
    local_profile(work, slots=2)
    (work / ".gitignore").write_text("__pycache__/\ntmp/\nresults/\n", encoding="utf-8")
    repository.commit("first")
    repository.write(0.0, more=OTHER_LOSSES)
    repository.commit("other losses")
    (work / "note").write_text("", encoding="utf-8")
    repository.commit("last")
