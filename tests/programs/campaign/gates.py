"""SIGKILL at random moments of each process of `harness gate` and `harness bisect`.

Their address is

    gates/COMMAND/ROLE/MILLISECONDS

after the newest process of that role has appeared. Both commands measure a small repository of
three commits, in the second of which the losses change. The next command has to give the answer of
an undisturbed one, and to remove what the killed one left: worktrees, scratch folders, sockets.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.programs.campaign.oracle import Finding, Snapshot, compare
from tests.programs.campaign.signals import wait_for_role
from tests.programs.campaign.stage import Stage
from tests.programs.campaign.warm import Ended, is_running
from tests.support.repository import Repository
from tests.support.running import local_profile

# Effects that no machine is too busy to tell from none, so that the answer is always the same.
MEASURE = ("sweep.yaml", "--cluster", "local.yaml", "--min-effect", "90%", "--budget", "2s")
COMMANDS: Mapping[str, Sequence[str]] = {
    "gate": ("gate", "--against", "HEAD", *MEASURE, "--inconclusive", "ignore"),
    "bisect": ("bisect", "HEAD~2", "HEAD", *MEASURE, "--bits"),
}
# What the shim calls the processes: those of the forkserver are ranks here.
ROLES = {"harness": "harness", "forkserver": "forkserver", "rank": "rank0", "worker": "worker"}
SCRATCH_NAMES = re.compile(r"harness-[a-z]+-\w{8}")  # folders of logs, in an error
LONGEST_DELAY = 4000  # milliseconds
OTHER_LOSSES = """
from torch.optim import SGD

Slowed.optimizer = lambda self, model: SGD(model.parameters(), lr=0.1)
"""


@dataclass(frozen=True, kw_only=True)
class GateFault:
    """One process of one command that is killed."""

    command: str
    role: str
    milliseconds: int

    @property
    def address(self) -> str:
        """Return the text that `parse` reads."""
        return f"gates/{self.command}/{self.role}/{self.milliseconds}"

    @property
    def row(self) -> str:
        """Return the row of the table that counts it."""
        return f"{self.command}: SIGKILL {self.role}"

    @classmethod
    def parse(cls, address: str) -> GateFault:
        """Return the fault with an address; raises ValueError."""
        _, command, role, milliseconds = address.split("/")
        return cls(command=command, role=role, milliseconds=int(milliseconds))


@dataclass
class GateCampaign:
    """Kills processes of commands that measure a repository of their own."""

    stage: Stage
    expected: Mapping[str, Snapshot]  # by command

    @classmethod
    def prepare(cls, folder: Path) -> GateCampaign:
        """Make the repository, and run each command undisturbed."""
        stage = Stage(folder / "gates", write=_write_repository)
        stage.prepare_files()
        campaign = cls(stage, {})
        campaign.expected = {name: campaign._undisturbed(name) for name in COMMANDS}
        return campaign

    def output_files(self) -> list[Path]:
        """Return the files with what the commands of the last fault printed."""
        return self.stage.output_files()

    def close(self) -> None:
        """End nothing: no process outlives its fault."""

    def faults(self, seed: int) -> list[GateFault]:
        """Return both commands and all roles by turns, at moments drawn from `seed`."""
        generator = random.Random(seed)
        faults = []
        for _ in range(50):
            for role in ROLES:
                for command in COMMANDS:
                    milliseconds = generator.randrange(LONGEST_DELAY)
                    faults.append(GateFault(command=command, role=role, milliseconds=milliseconds))
        return faults

    def strike(self, fault: GateFault) -> list[Finding] | None:
        """Kill the process, run the command again, and judge; None if no process was there."""
        stage = self.stage
        stage.restore()
        stage.control.watch(stage.work)
        command = stage.start(COMMANDS[fault.command])
        was_sent = self._kill(fault, command)
        (ended,) = stage.wait([command])
        stage.control.stop()
        if not was_sent:
            return None
        findings = stage.check_end(ended, fault.command)
        if ended.exit_code not in (None, -signal.SIGKILL) and "harness: " not in ended.output:
            findings += self._check_answer(fault.command, ended)
        named = set(SCRATCH_NAMES.findall(ended.output))
        stage.output(0).rename(stage.folder / "output-disturbed")
        ended = self._run(fault.command)
        findings += stage.check_end(ended, f"{fault.command} again")
        findings += compare(self.expected[fault.command], self._snapshot(ended))
        # The logs that an error names stay for the user.
        return [finding for finding in findings if not named & set(finding.text.split("/"))]

    def _kill(self, fault: GateFault, command: int) -> bool:
        """Kill the process at its moment; return whether it was still there."""
        target = command
        if fault.role != "harness":
            found = wait_for_role(self.stage, ROLES[fault.role], command)
            if found is None:
                return False
            target = found
        time.sleep(fault.milliseconds / 1000)
        if not is_running(target):
            return False
        os.kill(target, signal.SIGKILL)
        return True

    def _check_answer(self, command: str, ended: Ended) -> list[Finding]:
        """Return a finding if a command that lost a process gives the answer all the same, or none.

        It may have had the answer already. Any other ending has to say why.
        """
        if self._snapshot(ended).bits == self.expected[command].bits or "failed" in ended.output:
            return []
        text = f"{command}: exit code {ended.exit_code}, and no line says why"
        return [Finding("misreported", text)]

    def _undisturbed(self, command: str) -> Snapshot:
        """Run a command, and return what it leaves."""
        self.stage.restore()
        ended = self._run(command)
        findings = self.stage.check_end(ended, command)
        if ended.exit_code or findings:
            raise RuntimeError(f"the undisturbed {command}: {findings}\n{ended.output}")
        return self._snapshot(ended)

    def _run(self, command: str) -> Ended:
        """Run a command to its end."""
        self.stage.control.watch(self.stage.work)
        ended = self.stage.run(COMMANDS[command])
        self.stage.control.stop()
        return ended

    def _snapshot(self, ended: Ended) -> Snapshot:
        """Return what the oracle sees: the answer, in place of a trial's bits, and what is left."""
        snapshot = self.stage.snapshot()
        bits = {"the answer": f"exit code {ended.exit_code}"}
        return Snapshot(
            bits=bits,
            checkpoints={},
            records=[],
            unreadable=[],
            mlflow_runs=[],
            files=frozenset(name for name in snapshot.files if "__pycache__" not in name),
            shared_memory=snapshot.shared_memory,
        )


def _write_repository(work: Path) -> None:
    """Write a repository whose second commit changes the losses, and a profile."""
    axes = {"num_workers": 1}
    repository = Repository(work, matrix=axes, evaluate={"epochs": 1})
    content = yaml.safe_load(repository.sweep.read_text(encoding="utf-8"))
    content["workloads"]["own"]["options"] = {"hidden": [8]}
    repository.sweep.write_text(yaml.safe_dump(content), encoding="utf-8")
    local_profile(work, slots=2)
    (work / ".gitignore").write_text("__pycache__/\ntmp/\nresults/\n", encoding="utf-8")
    repository.commit("first")
    repository.write(0.0, more=OTHER_LOSSES)
    repository.commit("other losses")
    (work / "note").write_text("", encoding="utf-8")
    repository.commit("last")
