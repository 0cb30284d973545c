"""Processes of a real two-node Slurm that are killed or stopped; only where it is asked for by name.

Their address is

    slurm/ROLE/SIGNAL/STEP

and the signal is sent once the trial has reached that step. A daemon that was killed is started
again after OUTAGE seconds, and one that was stopped goes on.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.campaign.oracle import Finding
from tests.slurm.cluster import Slurm
from tests.slurm.daemons import missing, running
from tests.slurm.sweeps import (
    Outcomes,
    computed,
    hurry_up,
    read_records,
    run_locally,
    slow_sweep,
    submit,
    trial_states,
    wait_for_step,
)
from tests.support.running import wait_until

# What the command lines of a job's processes have in them.
PROGRAMS = {
    "leader": "harness.slurm.leader",
    "step": "slurmstepd",
    "srun": "srun",
    "rank": "harness.training.worker",
}
DAEMONS = ("slurmctld", "slurmd-n1")
OUTAGE = 20.0  # seconds
DEADLINE = 400.0  # seconds until every trial is over
SUBMISSIONS = 3  # until a trial counts as lost
LAST_STEP = 200  # at which a signal is sent; a trial has 300
FINAL_STATES = {"done", "failed", "invalid", "lost", "cancelled"}


@dataclass(frozen=True, kw_only=True)
class SlurmFault:
    """One signal to one process."""

    role: str
    signal: str
    step: int

    @property
    def address(self) -> str:
        """Return the text that `parse` reads."""
        return f"slurm/{self.role}/{self.signal}/{self.step}"

    @property
    def row(self) -> str:
        """Return the row of the table that counts it."""
        return f"SIG{self.signal} {self.role}"

    @classmethod
    def parse(cls, address: str) -> SlurmFault:
        """Return the fault with an address; raises ValueError."""
        _, role, name, step = address.split("/")
        return cls(role=role, signal=name, step=int(step))


@dataclass
class SlurmCampaign:
    """Sends signals to the processes of a Slurm while it runs a trial of two ranks."""

    folder: Path
    slurm: Slurm
    expected: Outcomes
    stack: ExitStack  # ends the daemons when it is closed

    @classmethod
    def prepare(cls, folder: Path) -> SlurmCampaign:
        """Start the Slurm, and run the sweep locally and undisturbed."""
        reason = missing()
        if reason is not None:
            raise RuntimeError(f"no Slurm: {reason}")
        stack = ExitStack()
        # Sockets lie in it, so its path must be short.
        short = stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-"))
        slurm = stack.enter_context(running(Path(short)))
        os.environ.update(slurm.environment)
        return cls(folder / "slurm", slurm, run_locally(_new(folder / "local")), stack)

    def faults(self, seed: int) -> list[SlurmFault]:
        """Return signals to every role by turns, at steps drawn from `seed`."""
        generator = random.Random(seed)
        faults = []
        for _ in range(20):
            for role in (*PROGRAMS, *DAEMONS):
                for name in ("KILL", "STOP"):
                    step = generator.randrange(LAST_STEP)
                    faults.append(SlurmFault(role=role, signal=name, step=step))
        return faults

    def strike(self, fault: SlurmFault) -> list[Finding] | None:
        """Send the signal, submit again what has not ended well, and judge."""
        folder = _new(self.folder)
        results = folder / "results"
        sweep = slow_sweep(folder, strategies=["ddp"])
        submit(sweep, results)
        wait_for_step(results, 0, fault.step)
        if not self._send(fault):
            return None
        hurry_up(folder)
        findings = []
        for attempt in range(SUBMISSIONS):
            if attempt:
                submit(sweep, results)
            try:
                wait_until(lambda: set(trial_states(results)) <= FINAL_STATES, DEADLINE, every=1.0)
            except TimeoutError:
                states = ", ".join(trial_states(results))
                findings.append(Finding("hung", f"after {DEADLINE:g} s: {states}"))
                self.slurm.restore()
            if trial_states(results) == ["done"]:
                break
        findings += self._compare(results)
        self.slurm.restore()
        return findings

    def output_files(self) -> list[Path]:
        """Return the logs of the trial of the last fault."""
        return list(self.folder.glob("results/runs/line/*/logs/*"))

    def close(self) -> None:
        """End all daemons."""
        self.stack.close()

    def _send(self, fault: SlurmFault) -> bool:
        """Send the signal, and mend what it did to a daemon; return whether there was a process."""
        number = getattr(signal, f"SIG{fault.signal}")
        if fault.role in DAEMONS and number == signal.SIGKILL:
            self.slurm.stop(fault.role, number)
            time.sleep(OUTAGE)
            self.slurm.start(fault.role)
            return True
        processes = _find(PROGRAMS.get(fault.role, fault.role.partition("-")[0]))
        if not processes:
            return False
        with suppress(psutil.NoSuchProcess):
            processes[-1].send_signal(number)
        if fault.role in DAEMONS:
            time.sleep(OUTAGE)
            processes[-1].send_signal(signal.SIGCONT)
        return True

    def _compare(self, results: Path) -> list[Finding]:
        """Return how the trial differs from one that was not disturbed."""
        records = list(read_records(results).values())
        if len(records) > 1:
            return [Finding("doubled", f"{len(records)} records of one trial")]
        if not records or records[0].status != "done":
            why = records[0].failure if records else "no record"
            return [Finding("lost", f"not done after {SUBMISSIONS} submissions: {why}")]
        if computed(records[0]) != self.expected["ddp", 0]:
            return [Finding("differing", f"{records[0].trial.id} has other bits")]
        return []


def _new(folder: Path) -> Path:
    """Return the folder, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _find(program: str) -> list[psutil.Process]:
    """Return the processes that this one has started whose command line names a program."""
    processes = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any(program in argument for argument in process.cmdline()):
                processes.append(process)
    return processes
