"""Processes of a real two-node Slurm that are killed or stopped; only where it is asked for by name.

Their address is

    slurm/ROLE/SIGNAL/STEP

and the signal is sent once the first trial has reached that step, or, from LAST_STEP on, the second one
the step beyond. Both run in the same step of the job, which stays. A daemon that was killed is started
again after OUTAGE seconds, and one that was stopped goes on. Other addresses are those of commands
that meet, and of moments at which a command is killed:

    slurm/submit+submit/at/MILLISECONDS      a second one, so much later
    slurm/run+leader/at/STEP                 a run on this machine beside the job
    slurm/submit/KILL-before-note/0          between sbatch's return and the note of its job
    slurm/leader/KILL-after-requeue/STEP     between the requeue and leaving out a node
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

from tests.programs.campaign import shim, warm
from tests.programs.campaign.oracle import Finding
from tests.programs.campaign.signals import SIGNALS, SignalFault
from tests.slurm.cluster import Slurm
from tests.slurm.daemons import missing, running
from tests.slurm.sweeps import (
    LocalOutcomes,
    Outcomes,
    computed,
    hurry_up,
    read_records,
    slow_sweep,
    slurm_profile,
    submit,
    trial_states,
    wait_for_step,
)
from tests.support.commands import harness
from tests.support.running import local_profile, wait_until

# What the command lines of a job's processes have in them.
PROGRAMS = {
    "leader": "harness.slurm.leader",
    "step": "slurmstepd",
    "srun": "srun",
    "rank": "harness.training.worker",
}
DAEMONS = ("slurmctld", "slurmd-n1")
AFTER_REQUEUE = "KILL-after-requeue"
MEETINGS = (
    ("submit", "KILL-before-note"),
    ("leader", AFTER_REQUEUE),
    ("submit+submit", "at"),
    ("run+leader", "at"),
)
OUTAGE = 20.0  # seconds
DEADLINE = 400.0  # seconds until every trial is over
SUBMISSIONS = 3  # until a trial counts as lost
LAST_STEP = 60  # at which a signal is sent; a trial has 100
STRATEGIES = ("ddp", "fsdp2")  # of two ranks each
FINAL_STATES = {"done", "failed", "invalid", "lost", "cancelled"}


@dataclass
class SlurmCampaign:
    """Sends signals to the processes of a Slurm while it runs two trials of two ranks."""

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
        # Sockets lie in it, so its path must be short. A TemporaryDirectory would be removed by
        # every command that is forked from here, at its end.
        short = Path(tempfile.mkdtemp(prefix="slurm-"))
        stack.callback(shutil.rmtree, short)
        slurm = stack.enter_context(running(short))
        os.environ.update(slurm.environment)
        return cls(folder / "slurm", slurm, LocalOutcomes(_new(folder / "local")), stack)

    def faults(self, seed: int) -> list[SignalFault]:
        """Return all roles and meetings by turns, at moments drawn from `seed`."""
        generator = random.Random(seed)
        kinds = [*MEETINGS, *((role, name) for role in (*PROGRAMS, *DAEMONS) for name in SIGNALS)]
        faults = []
        for _ in range(20):
            for role, name in kinds:
                moment = 0 if role == "submit" else generator.randrange(2 * LAST_STEP)
                faults.append(SignalFault(kind="slurm", role=role, signal=name, moment=moment))
        return faults

    def strike(self, fault: SignalFault) -> list[Finding] | None:
        """Disturb the sweep, submit again what has not ended well, and judge."""
        folder = _new(self.folder)
        results = folder / "results"
        sweep = slow_sweep(folder, strategies=STRATEGIES)
        disturb = {
            "submit": self._kill_submit,
            "submit+submit": self._submit_twice,
            "run+leader": self._run_beside_leader,
        }.get(fault.role, self._disturb_job)
        findings = disturb(fault, sweep, results)
        if findings is None:
            return None
        hurry_up(folder)
        for attempt in range(SUBMISSIONS):
            if attempt or fault.role == "submit":
                submit(sweep, results)
            try:
                wait_until(lambda: set(trial_states(results)) <= FINAL_STATES, DEADLINE, every=1.0)
            except TimeoutError:
                states = ", ".join(trial_states(results))
                findings.append(Finding("hung", f"after {DEADLINE:g} s: {states}"))
                self.slurm.restore()
            if set(trial_states(results)) == {"done"}:
                break
        findings += self._compare(results)
        _wake_stopped()
        self.slurm.restore()
        return findings

    def _disturb_job(self, fault: SignalFault, sweep: Path, results: Path) -> list[Finding] | None:
        """Send a signal to a process of the job; None if there is none."""
        wrapped = ""
        if fault.signal == AFTER_REQUEUE:
            wrapped = f"export PATH={_wrap_scontrol(sweep.parent)}:$PATH"
        submit(sweep, results, setup=[wrapped] if wrapped else [], exclusive=bool(wrapped))
        wait_for_step(results, *divmod(fault.moment, LAST_STEP))
        if wrapped:  # the wrapper kills the leader, once this makes it ask for the requeue
            self.slurm.run("srun", "--partition=urgent", "--nodes=2", "--exclusive", "true")
            return [] if not (sweep.parent / "armed").exists() else None
        return [] if self._send(fault) else None

    def _kill_submit(self, fault: SignalFault, sweep: Path, results: Path) -> list[Finding] | None:
        """Kill `harness submit` once sbatch has returned; None if it was not."""
        control = shim.Control(Path(os.environ[shim.CONTROL_VARIABLE]))
        control.watch(sweep.parent)
        # It is written for the first time before sbatch is called.
        note = "results/runs/line/jobs/*/submission.json"
        control.arm(role="harness", call="rename", pattern=note, number=2, action="kill-before")
        os.waitpid(self._start_submit(sweep, results, 0), 0)
        control.stop()
        return [] if control.has_fired else None

    def _submit_twice(self, fault: SignalFault, sweep: Path, results: Path) -> list[Finding]:
        """Submit the sweep twice at once; each has a job of its own, or is refused."""
        first = self._start_submit(sweep, results, 0)
        time.sleep(fault.moment / 1000)
        second = self._start_submit(sweep, results, 1)
        findings = []
        for number, pid in enumerate((first, second)):
            exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            output = (self.folder / f"output-{number}").read_text(encoding="utf-8")
            if exit_code not in (0, 2) or (exit_code == 2 and "harness: " not in output):
                text = f"submit: exit code {exit_code} beside another: {output[-200:]!r}"
                findings.append(Finding("misreported", text))
        jobs = self.slurm.run("squeue", "-h", "--array", "-o", "%i").split()
        if len(jobs) > 1:
            findings.append(Finding("doubled", f"{len(jobs)} jobs of one block"))
        return findings

    def _run_beside_leader(self, fault: SignalFault, sweep: Path, results: Path) -> list[Finding]:
        """Run the sweep on this machine while a job has its trial: it has to be refused."""
        submit(sweep, results)
        wait_for_step(results, *divmod(fault.moment, LAST_STEP))
        profile = local_profile(sweep.parent, slots=2)
        ended = harness("run", str(sweep), "--cluster", str(profile), "--results", str(results))
        if ended.code == 2 and "are running this sweep" in ended.err:
            return []
        return [Finding("misreported", f"run: exit code {ended.code} beside a job: {ended.err}")]

    def _start_submit(self, sweep: Path, results: Path, number: int) -> int:
        """Start `harness submit` and return its process id."""
        profile = slurm_profile(sweep.parent)
        arguments = ["submit", str(sweep), "--cluster", str(profile), "--results", str(results)]
        output = self.folder / f"output-{number}"
        return warm.start(arguments, folder=sweep.parent, variables={}, output=output)

    def output_files(self) -> list[Path]:
        """Return the logs of the trial of the last fault, and what commands printed."""
        logs = self.folder.glob("results/runs/line/*/attempt-*/logs/*")
        return [*logs, *self.folder.glob("output-*")]

    def close(self) -> None:
        """End all daemons."""
        self.stack.close()

    def _send(self, fault: SignalFault) -> bool:
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
        """Return how the trials differ from those that were not disturbed."""
        records = list(read_records(results).values())
        if len(records) < len(STRATEGIES):
            return [Finding("lost", f"{len(records)} records of two trials")]
        if len(records) > len(STRATEGIES):
            return [Finding("doubled", f"{len(records)} records of two trials")]
        findings = []
        for record in records:
            strategy = record.trial.cell.axes.strategy
            if record.status != "done":
                reason = f"not done after {SUBMISSIONS} submissions: {record.failure}"
                findings.append(Finding("lost", reason))
            elif computed(record) != self.expected[strategy, 0]:
                findings.append(Finding("differing", f"{record.trial.id} has other bits"))
        return findings


def _wrap_scontrol(folder: Path) -> Path:
    """Return a folder with an scontrol that kills the leader, its parent, after the next requeue."""
    (folder / "armed").touch()
    wrapper = folder / "bin" / "scontrol"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f"""#!/bin/sh
{shutil.which("scontrol")} "$@"
code=$?
[ "$1" = requeue ] && rm {folder}/armed 2>/dev/null && kill -KILL $PPID
exit $code
"""
    )
    wrapper.chmod(0o755)
    return wrapper.parent


def _new(folder: Path) -> Path:
    """Return the folder, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _wake_stopped() -> None:
    """Let stopped processes go on: a slurmstepd that is stopped would keep its node."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_STOPPED:
                process.send_signal(signal.SIGCONT)


def _find(program: str) -> list[psutil.Process]:
    """Return the processes that this one has started whose command line names a program."""
    processes = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any(program in argument for argument in process.cmdline()):
                processes.append(process)
    return processes
