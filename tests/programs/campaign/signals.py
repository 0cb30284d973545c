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
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from harness.core.ports import free_port
from tests.programs.campaign.commands import is_running
from tests.programs.campaign.oracle import Finding, check_report, take_snapshot
from tests.programs.campaign.stage import RUN, Stage, SweepStage
from tests.slurm.cluster import is_listening
from tests.support.running import wait_until

PAUSE = 3.0  # seconds that the command is stopped
START_TIMEOUT = 60.0  # seconds within which a process of a role has to appear
POLL = 0.002  # seconds
ROLES = ("harness", "forkserver", "rank0", "rank1", "worker")
SIGNALS = ("KILL", "STOP")
LONGEST_DELAY = 6000  # milliseconds
TORCHRUN = "torchrun-"
SERVER = "mlflow"
# What the command lines of processes that are not forked have in them.
PROGRAMS = {
    "torchrun-agent": "harness.launch.agent",
    "torchrun-rank": "harness.training.worker",
    SERVER: "--artifacts-destination",
}
TORCHRUN_TIMEOUT = 120.0  # seconds, of a trial


class SignalCampaign:
    """Sends signals to each process of a small sweep, whose ranks have a loader worker each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stage = SweepStage(folder / "signals", num_workers=1)
        self.torchrun: SweepStage | None = None  # made when it is needed

    def faults(self, generator: random.Random) -> Sequence[str]:
        """Return signals to every role by turns, at random moments."""
        faults = []
        for round_ in range(50):
            chosen = [(role, name) for role in ROLES for name in SIGNALS]
            if round_ % 2 == 0:  # each of these has to load torch or MLflow
                chosen.append((TORCHRUN + generator.choice(("harness", "agent", "rank")), "KILL"))
                chosen.append((SERVER, generator.choice(SIGNALS)))
            for role, name in chosen:
                faults.append(f"signals/{role}/{name}/{generator.randrange(LONGEST_DELAY)}")
        return faults

    def row(self, address: str) -> str:
        """Return the signal and the role."""
        _, role, name, _ = address.split("/")
        return f"{name} {role}"

    def strike(self, address: str) -> list[Finding] | None:
        """Send the signal, run the sweep again, and judge; None if no process was there.

        MLflow's server gets it while a run delivers to it. The server has the database of the results
        folder, to which the next run delivers itself.
        """
        _, role, name, milliseconds = address.split("/")
        stage = self._stage(role)
        stage.restore()
        run: Sequence[str] = RUN
        server = None
        with stage.watching():
            if role == SERVER:
                port = free_port()
                server = stage.start(["ui", "--port", str(port)], number=1)
                wait_until(lambda: is_listening(port), START_TIMEOUT)
                run = [*RUN, "--tracking-uri", f"http://127.0.0.1:{port}"]
            command = stage.start(run)
            root = command if server is None else server
            number = getattr(signal, f"SIG{name}")
            was_sent = send(stage, role, number, int(milliseconds), root.pid)
            (ended,) = stage.wait([command], server=server)
        if not was_sent:
            return None
        findings = stage.check_end(ended, "run")
        if server is None:
            findings += check_report(ended, stage.expected, take_snapshot(stage.work))
        return findings + stage.run_again(stage.expected)

    def _stage(self, role: str) -> SweepStage:
        """Return the stage on which there are processes of a role."""
        if not role.startswith(TORCHRUN):
            return self.stage
        if self.torchrun is None:
            self.torchrun = SweepStage(
                self.folder / "torchrun", num_workers=1, timeout=TORCHRUN_TIMEOUT, forkserver=False
            )
        return self.torchrun


def send(stage: Stage, role: str, number: signal.Signals, milliseconds: int, command: int) -> bool:
    """Send a signal so long after a process of a role has appeared; return whether it still ran."""
    deadline = time.monotonic() + START_TIMEOUT
    target = None
    while target is None and time.monotonic() < deadline and psutil.pid_exists(command):
        time.sleep(POLL)
        target = _find(stage, role, command)
    if target is None:
        return False
    time.sleep(milliseconds / 1000)
    if not is_running(target):
        return False
    os.kill(target, number)
    if number == signal.SIGSTOP and target == command:
        time.sleep(PAUSE)
        os.kill(target, signal.SIGCONT)
    return True


def _find(stage: Stage, role: str, command: int) -> int | None:
    """Return the newest process of a role, None if it has not appeared yet."""
    if role.endswith("harness"):
        return command
    pids = []
    if role in PROGRAMS:
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(command).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if PROGRAMS[role] in process.cmdline():
                        pids.append(process.pid)
    else:
        pids = [pid for pid, its_role in stage.control.roles().items() if its_role == role]
    return pids[-1] if pids else None
