"""A Slurm that is running: how tests ask it, and how they break it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from tests.slurm.configuration import Configuration, daemon_commands
from tests.support.running import wait_until


@dataclass(frozen=True)
class Slurm:
    """A running Slurm. Its daemons are munged, slurmctld and a slurmd-NODE each."""

    configuration: Configuration
    supervisor: subprocess.Popen[str]  # `tests.slurm.supervisor`, which holds the daemons
    pids: dict[str, int] = field(default_factory=dict)  # of daemons, by name

    @property
    def environment(self) -> dict[str, str]:
        """The variables that every client needs."""
        return {"SLURM_CONF": str(self.configuration.slurm_conf)}

    def run(self, *command: str) -> str:
        """Run a client such as squeue and return its output.

        Raises CalledProcessError, with what the client said as a note.
        """
        completed = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True
        )
        try:
            completed.check_returncode()
        except subprocess.CalledProcessError as error:
            error.add_note(completed.stderr.strip())
            raise
        return completed.stdout.strip()

    def node_states(self) -> dict[str, str]:
        """Return the state of each node as sinfo spells it."""
        output = self.run("sinfo", "-N", "-h", "-p", "debug", "-o", "%N %T")
        return dict(line.split() for line in output.splitlines())

    def set_node(self, node: str, state: str) -> None:
        """Set the state of a node, as an administrator does."""
        self.run("scontrol", "update", f"NodeName={node}", f"State={state}", "Reason=test")

    def start(self, daemon: str) -> None:
        """Have the supervisor start a daemon; returns when its process exists."""
        command = daemon_commands(self.configuration)[daemon]
        request = json.dumps([str(self.configuration.log(daemon)), *command])
        assert self.supervisor.stdin is not None
        assert self.supervisor.stdout is not None
        print(request, file=self.supervisor.stdin, flush=True)
        self.pids[daemon] = int(self.supervisor.stdout.readline())

    def stop(self, daemon: str, number: int = signal.SIGTERM) -> None:
        """Send a daemon a signal that ends it; returns when its process is gone."""
        os.kill(self.pids[daemon], number)
        wait_until(lambda: not self.is_up(daemon))

    def is_up(self, daemon: str) -> bool:
        """Return whether the process of a daemon exists."""
        return bool(psutil.pid_exists(self.pids[daemon]))

    def kill_node(self, node: str) -> None:
        """Kill slurmd and all that runs on a node, as a loss of power does."""
        self.stop(f"slurmd-{node}", signal.SIGKILL)
        while processes := self._processes_on(node):
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def _processes_on(self, node: str) -> list[psutil.Process]:
        """Return what jobs run on a node, after each slurmstepd that has started it.

        A slurmstepd has no variable that names its node; what it starts has.
        """
        own = {"SLURM_CONF": str(self.configuration.slurm_conf), "SLURMD_NODENAME": node}
        starters, started = set(), []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if not own.items() <= process.environ().items():
                    continue
                if process.status() != psutil.STATUS_ZOMBIE:
                    started.append(process)
                parent = process.parent()
                if parent is not None and "slurmstepd" in " ".join(parent.cmdline()):
                    starters.add(parent)
        return [*starters, *started]

    def wait_for_controller(self) -> None:
        """Return when the controller accepts connections."""
        wait_until(lambda: is_listening(self.configuration.ports[0]))

    def restore(self) -> None:
        """Start the daemons that are not running, cancel all jobs and resume all nodes; returns
        when they are idle.
        """
        for daemon in daemon_commands(self.configuration):
            if not self.is_up(daemon):
                self.start(daemon)
        self.wait_for_controller()
        self.run("scancel", "--me")
        for node, state in self.node_states().items():
            if state.startswith(("drain", "down")):
                self.set_node(node, "RESUME")
        wait_until(self.is_idle)

    def is_idle(self) -> bool:
        """Return whether there is no job, and every node is ready for one."""
        return not self.run("squeue", "-h") and set(self.node_states().values()) == {"idle"}


def is_listening(port: int) -> bool:
    """Return whether a process listens on this port of loopback."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True
