"""A Slurm that is up: asking it, and doing harm to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from dataclasses import dataclass

from harness.core.paths import write_atomically
from tests.slurm.configuration import Configuration, daemons
from tests.support.running import wait_until


@dataclass(frozen=True)
class Slurm:
    """`daemons` names what runs: munged, slurmctld, slurmd-n1, slurmd-n2; slurmdbd and mariadbd with accounting."""

    configuration: Configuration

    @property
    def environment(self) -> dict[str, str]:
        """What every client needs."""
        return {"SLURM_CONF": str(self.configuration.slurm_conf)}

    def ask(self, *command: str) -> str:
        """What a client such as squeue answers; raises CalledProcessError."""
        variables = {**os.environ, **self.environment}
        return subprocess.run(
            command, env=variables, capture_output=True, text=True, check=True
        ).stdout.strip()

    def states(self) -> dict[str, str]:
        """Node -> its state in sinfo's words."""
        return dict(
            line.split()
            for line in self.ask("sinfo", "-N", "-h", "-p", "debug", "-o", "%N %T").splitlines()
        )

    def start(self, daemon: str) -> None:
        """Start a daemon; returns when its process is there."""
        wish = self.configuration.folder / f"{daemon}.start"
        write_atomically(wish, json.dumps(daemons(self.configuration)[daemon]))
        wait_until(lambda: not wish.exists())

    def stop(self, daemon: str, number: int = signal.SIGTERM) -> None:
        """End a daemon, or kill it; returns when it is gone."""
        running = self.configuration.folder / f"{daemon}.running"
        os.kill(int(running.read_text(encoding="ascii")), number)
        wait_until(lambda: not running.exists())

    def clear(self) -> None:
        """Start what is not running, cancel all jobs and bring all nodes back; returns when they are idle."""
        for daemon in daemons(self.configuration):
            if not (self.configuration.folder / f"{daemon}.running").exists():
                self.start(daemon)
        wait_until(lambda: listens(self.configuration.ports.controller))
        self.ask("scancel", "--me")
        for node, state in self.states().items():
            if state.startswith(("drain", "down")):
                self.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
        wait_until(lambda: not self.ask("squeue", "-h") and set(self.states().values()) == {"idle"})


def listens(port: int) -> bool:
    """Whether somebody does, on this port of loopback."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True
