"""Signals at random moments: SIGKILL and SIGSTOP of each process of the tree.

Their address is

    signals/ROLE/SIGNAL/MILLISECONDS

after the newest process of that role has appeared. What is stopped stays so, except the command
itself, which goes on after PAUSE seconds. The roles of a trial that torchrun starts begin with
`torchrun-`.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.conftest import free_port
from tests.programs.campaign.oracle import Finding, Snapshot, check_report
from tests.programs.campaign.stage import TWO_RANKS, Stage, run_again, undisturbed
from tests.programs.campaign.warm import is_running
from tests.slurm.cluster import is_listening
from tests.support.running import wait_until

PAUSE = 3.0  # seconds that the command is stopped
START_TIMEOUT = 60.0  # seconds within which a process of a role has to appear
POLL = 0.002  # seconds
ROLES = ("harness", "forkserver", "rank0", "rank1", "worker")
SIGNALS = ("KILL", "STOP")
LONGEST_DELAY = 3000  # milliseconds
TORCHRUN = "torchrun-"
SERVER = "mlflow"
# What the command lines of processes that are not forked have in them.
PROGRAMS = {
    "torchrun-agent": "harness.launch.agent",
    "torchrun-rank": "harness.training.worker",
    SERVER: "--artifacts-destination",
}
STEP_SECONDS = 0.1  # long enough for signals to arrive while ranks train
TIMEOUT = 30.0  # seconds, of a trial: a rank that is stopped costs all of them


@dataclass(frozen=True, kw_only=True)
class SignalFault:
    """One signal to one process."""

    kind: str = "signals"
    role: str
    signal: str  # without the SIG
    moment: int  # in milliseconds, or in steps of a trial

    @property
    def address(self) -> str:
        """Return the text that `parse` reads."""
        return f"{self.kind}/{self.role}/{self.signal}/{self.moment}"

    @property
    def row(self) -> str:
        """Return the row of the table that counts it."""
        return f"{self.signal} {self.role}"

    @classmethod
    def parse(cls, address: str) -> SignalFault:
        """Return the fault with an address; raises ValueError."""
        kind, role, name, moment = address.split("/")
        return cls(kind=kind, role=role, signal=name, moment=int(moment))


@dataclass
class SignalCampaign:
    """Sends signals to each process of a small sweep, whose ranks have a loader worker each."""

    forked: Stage
    torchrun: Stage
    expected: dict[Path, Snapshot]  # by the stage's folder

    @classmethod
    def prepare(cls, folder: Path) -> SignalCampaign:
        """Run the sweep undisturbed; that of torchrun's trials only when it is needed."""
        options = {"step_seconds": STEP_SECONDS}
        axes = {**TWO_RANKS, "num_workers": 1}
        keys = {"timeout": TIMEOUT}
        forked = Stage(folder / "signals", options, axes, keys=keys)
        without = {"forkserver": False}
        torchrun = Stage(folder / "torchrun", options, axes, profile=without, keys={"timeout": 120})
        campaign = cls(forked, torchrun, {})
        campaign._expected(forked)
        return campaign

    def output_files(self) -> list[Path]:
        """Return the files with what the commands of the last fault printed."""
        return [*self.forked.output_files(), *self.torchrun.output_files()]

    def close(self) -> None:
        """End nothing: no process outlives its fault."""

    def faults(self, seed: int) -> list[SignalFault]:
        """Return signals to every role by turns, at moments drawn from `seed`."""
        generator = random.Random(seed)
        faults = []
        for round_ in range(50):
            for role in ROLES:
                faults += [_draw(generator, role, name) for name in SIGNALS]
            if round_ % 2 == 0:  # each of these has to load torch or MLflow
                role = generator.choice(("harness", "agent", "rank"))
                faults.append(_draw(generator, TORCHRUN + role, "KILL"))
                faults.append(_draw(generator, SERVER, generator.choice(SIGNALS)))
        return faults

    def strike(self, fault: SignalFault) -> list[Finding] | None:
        """Send the signal, run the sweep again, and judge; None if no process was there."""
        if fault.role == SERVER:
            return self._strike_server(fault)
        stage = self.torchrun if fault.role.startswith(TORCHRUN) else self.forked
        expected = self._expected(stage)
        stage.restore()
        stage.control.watch(stage.work)
        pid = stage.start(stage.run_command)
        was_sent = self._send(fault, pid)
        (ended,) = stage.wait([pid])
        stage.control.stop()
        if not was_sent:
            return None
        findings = stage.check_end(ended, "run")
        findings += check_report(ended, expected, stage.snapshot(), "run")
        return findings + run_again(stage, expected)

    def _strike_server(self, fault: SignalFault) -> list[Finding] | None:
        """Send the signal to MLflow's server while a run delivers to it, and judge.

        The server has the database of the results folder, to which the next run delivers itself.
        """
        stage = self.forked
        stage.restore()
        stage.control.watch(stage.work)
        port = free_port()
        server = stage.start(["ui", "--port", str(port), "--results", "results"], number=1)
        wait_until(lambda: is_listening(port), START_TIMEOUT)
        uri = f"http://127.0.0.1:{port}"
        command = stage.start([*stage.run_command, "--tracking-uri", uri])
        was_sent = self._send(fault, server)
        (ended,) = stage.wait([command], server=server)
        stage.control.stop()
        if not was_sent:
            return None
        return stage.check_end(ended, "run") + run_again(stage, self._expected(stage))

    def _send(self, fault: SignalFault, command: int) -> bool:
        """Send the signal at its moment; return whether the process was still there."""
        stage = self.torchrun if fault.role.startswith(TORCHRUN) else self.forked
        target = wait_for_role(stage, fault.role, command)
        if target is None:
            return False
        time.sleep(fault.moment / 1000)
        number = getattr(signal, f"SIG{fault.signal}")
        if not is_running(target):
            return False
        os.kill(target, number)
        if number == signal.SIGSTOP and target == command:
            time.sleep(PAUSE)
            os.kill(target, signal.SIGCONT)
        return True

    def _expected(self, stage: Stage) -> Snapshot:
        """Return what an undisturbed run leaves; the first call runs it."""
        if stage.folder not in self.expected:
            stage.prepare()
            self.expected[stage.folder] = undisturbed(stage)
        return self.expected[stage.folder]


def _draw(generator: random.Random, role: str, name: str) -> SignalFault:
    """Return a signal at a random moment."""
    return SignalFault(role=role, signal=name, moment=generator.randrange(LONGEST_DELAY))


def wait_for_role(stage: Stage, role: str, command: int) -> int | None:
    """Return the newest process of a role once there is one; None if the command ends before."""
    deadline = time.monotonic() + START_TIMEOUT
    target = None
    while target is None and time.monotonic() < deadline and psutil.pid_exists(command):
        time.sleep(POLL)
        target = _find(stage, role, command)
    return target


def _find(stage: Stage, role: str, command: int) -> int | None:
    """Return the newest process of a role, None if it has not appeared yet."""
    if role.endswith("harness"):
        return command
    if role in PROGRAMS:
        return _find_program(PROGRAMS[role], command)
    pids = stage.control.process_ids(role)
    return pids[-1] if pids else None


def _find_program(program: str, command: int) -> int | None:
    """Return the last process below a command whose arguments have `program`, None if none has."""
    pid: int | None = None
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(command).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if program in process.cmdline():
                    pid = process.pid
    return pid
