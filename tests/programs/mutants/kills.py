"""Trials that are killed at random moments: nothing is lost, and all bits are those of undisturbed ones.

A sweep of all settings, which save at intervals, runs by `harness run` on this machine, or as jobs on a real Slurm
of two emulated nodes. What gets SIGKILL is one rank of a trial, all of them, or what has started them: the
forkserver and the command here, the leader of the job on Slurm, where a node's slurmd and a whole node are killed
too. A daemon comes back before Slurm has noticed, or after. Here a rank may get the signal to save and stop
instead. Every third strike waits until a save is under way.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import psutil
import yaml

from harness.core.paths import Results, TrialFolder
from harness.launch.forkserver import PROGRAM
from harness.records.assignment import Heartbeat, read_heartbeats
from harness.records.files import read_record
from harness.records.record import Record
from harness.sweep.cell import Trial
from harness.sweep.sweep import load_sweep
from harness.training.progress import SIGNAL
from tests.programs.mutants.injections import Setting
from tests.slurm.cluster import Slurm
from tests.slurm.daemons import missing, running
from tests.slurm.sweeps import FINAL_STATES, computed, submit, trial_rows, trial_states
from tests.support.running import local_profile, wait_until

EVERY = 8  # steps between two saves, of 48
NODES = ("n1", "n2")
OUTAGES = (2.0, 16.0)  # seconds without a daemon: less than Slurm's node_timeout, and more
WAIT_SECONDS = 120.0  # that a strike waits for a save to be under way
KILLS_PER_TRIAL = 3  # that are aimed at it
DEADLINE = 3000.0  # seconds in which all trials of a start have to be over
FRESH = 6.0  # seconds; the heartbeat of a rank that lives is not older


class Local:
    """`harness run` on this machine."""

    targets = ("rank", "all ranks", "forkserver", "command", "rank that saves and stops")
    step_seconds = 0.1
    pause = 2.0  # seconds between two strikes, at most
    starts = 40  # of the sweep, until a trial counts as lost

    def start(self, sweep: Path, results: Results) -> None:
        """Begin to run the trials that are not done."""
        profile = local_profile(sweep.parent, slots=4)
        command = [sys.executable, "-m", "harness.cli", "--results", str(results.path)]
        with (sweep.parent / "run.log").open("ab") as log:
            self.command = subprocess.Popen(
                [*command, "run", str(sweep), "--cluster", str(profile)], stdout=log, stderr=log
            )

    def is_over(self, results: Results) -> bool:
        """Return whether no trial is going to run by itself."""
        return self.command.poll() is not None

    def strike(self, target: str, rank: Heartbeat, random: Random) -> bool:
        """Kill what `target` names besides ranks, or interrupt one; return whether it was there."""
        if target == "command":
            return kill([self.command.pid])
        if target == "forkserver":
            pids = []
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(self.command.pid).children():
                    if str(PROGRAM) in child.cmdline():
                        pids.append(child.pid)
            return kill(pids)
        return kill([rank.pid], SIGNAL)

    def restore(self) -> None:
        """Wait until nothing runs."""
        self.command.wait()


class OnSlurm:
    """Jobs on a real Slurm, which clients in this process ask."""

    targets = ("rank", "all ranks", "leader", "slurmd", "node")
    step_seconds = 0.2
    pause = 6.0
    starts = 3

    def __init__(self, slurm: Slurm) -> None:
        self.slurm = slurm

    def start(self, sweep: Path, results: Results) -> None:
        """Submit the trials that are not done."""
        submit(sweep, results.path, ranks_per_node=2, cpus_per_rank=1, requeues=100)

    def is_over(self, results: Results) -> bool:
        """Let jobs run besides that Slurm holds after many requeues, as `harness status` shows."""
        rows = trial_rows(results.path)
        for job in {row["job"] for row in rows if row["job"] and "Hold" in row["detail"]}:
            subprocess.run(["scontrol", "release", str(job)], check=True)
        return {row["state"] for row in rows} <= FINAL_STATES

    def strike(self, target: str, rank: Heartbeat, random: Random) -> bool:
        """Kill what `target` names besides ranks; return whether it was there."""
        if target == "leader":
            return kill(leaders_of(rank.pid))
        daemon = f"slurmd-{rank.host}"
        if target == "node":
            self.slurm.kill_node(rank.host)
        else:
            self.slurm.stop(daemon, signal.SIGKILL)
        time.sleep(random.choice(OUTAGES))
        self.slurm.start(daemon)
        return True

    def restore(self) -> None:
        """Have all daemons run again."""
        self.slurm.restore()


Place = Local | OnSlurm


@contextmanager
def slurm_of_two_nodes() -> Iterator[Slurm]:
    """Run a Slurm as long as the block lasts, which clients in this process ask."""
    reason = missing()
    if reason is not None:
        raise RuntimeError(f"no Slurm: {reason}")
    # Sockets are in it, so its path must be short.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        with running(folder, nodes=NODES) as slurm:
            os.environ.update(slurm.environment)
            yield slurm
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Killer:
    """Runs rounds of all settings at a place, kills what runs there, and compares the trials."""

    def __init__(self, folder: Path, place: Place, seed: int) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.folder, self.place, self.seed = folder, place, seed
        self.steps, self.hurry = folder / "steps", folder / "hurry"
        self.steps.mkdir(parents=True)
        self.sweep = self._write_sweep()
        self.results, self.whole = Results(folder / "results"), Results(folder / "whole")
        self.strikes: Counter[str] = Counter()  # that hit a trial, by their target
        self.in_training = 0  # of the strikes, once the attempt had computed a step
        self.in_saves = 0  # of the strikes, while a checkpoint was being written
        self.twice: list[int] = []  # the steps computed twice, of each strike

    def run(self, count: int, minutes: float) -> Iterator[tuple[str, str | None]]:
        """Run rounds until so many strikes have hit a trial, or the time is over.

        Yields a description of each trial, and what is wrong with it, None if nothing is.
        """
        deadline = time.monotonic() + 60 * minutes
        undisturbed = Local()
        self.hurry.touch()
        undisturbed.start(self.sweep, self.whole)
        undisturbed.restore()
        if undisturbed.command.returncode:
            raise RuntimeError(f"the undisturbed trials are not done: {self.folder / 'run.log'}")
        for number in itertools.count(1):
            if self.strikes.total() >= count or time.monotonic() > deadline:
                break
            yield from self._round(Random(f"{self.seed} {number}"), count, deadline)

    def lines(self) -> list[str]:
        """Return what came of the strikes."""
        names = ", ".join(f"{count} of {name}" for name, count in sorted(self.strikes.items()))
        beyond = sum(steps > EVERY for steps in self.twice)
        twice = self.twice or [0]
        return [
            f"{self.strikes.total()} strikes: {names}; {self.in_training} after a step of the attempt,"
            f" {self.in_saves} in a save",
            f"steps computed twice, saves every {EVERY}: median {median(twice):g}, most {max(twice)};"
            f" more than one interval, as the save was under way: {beyond} times",
        ]

    def _write_sweep(self) -> Path:
        """Write a sweep of all settings, and return its path."""
        workloads: dict[str, Any] = {}
        for setting in settings():
            steps = str(self.steps / setting.name)
            content = setting.sweep(
                step_seconds=self.place.step_seconds, hurry=str(self.hurry), steps=steps
            )
            workloads[setting.name] = content["workloads"]["mutant"]
        content |= {"name": "line", "workloads": workloads}
        content["checkpoint"] = {"every": f"{EVERY} steps", "best": True}
        path = self.folder / "line.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        return path

    def _round(
        self, random: Random, count: int, deadline: float
    ) -> Iterator[tuple[str, str | None]]:
        """Run all settings while they are killed, and compare them with the undisturbed ones."""
        for folder in (self.steps, self.results.path):
            shutil.rmtree(folder, ignore_errors=True)
        self.steps.mkdir()
        self.hurry.unlink(missing_ok=True)
        trials = load_sweep(self.sweep).trials()
        kills: Counter[str] = Counter()  # by trial
        for _ in range(self.place.starts):
            self.place.start(self.sweep, self.results)
            over_at = time.monotonic() + DEADLINE
            while not self.place.is_over(self.results) and time.monotonic() < over_at:
                time.sleep(random.uniform(0, self.place.pause))
                if self.strikes.total() < count and time.monotonic() < deadline:
                    self._strike(random, trials, kills)
                else:
                    self.hurry.touch()
            self.place.restore()
            if set(trial_states(self.results.path)) == {"done"}:
                break
        for trial in trials:
            name = f"{trial.cell.workload.label}, killed {kills[trial.id]} times"
            yield name, self._judge(trial, kills[trial.id])

    def _strike(self, random: Random, trials: Sequence[Trial], kills: Counter[str]) -> None:
        """Kill something of a trial that runs, if one does that was not killed often enough."""
        at_work = []
        for trial in trials:
            ranks = living_ranks(folder_of(self.results, trial))
            if ranks and kills[trial.id] < KILLS_PER_TRIAL:
                at_work.append((trial, ranks))
        if not at_work:
            return
        trial, ranks = random.choice(at_work)
        target, rank = random.choice(self.place.targets), random.choice(ranks)
        began_at, folder = time.time(), folder_of(self.results, trial)
        if random.random() < 1 / 3:  # in the middle of the next save, or once the rank is gone
            with suppress(TimeoutError):
                wait_until(
                    lambda: is_saving(folder, began_at) or not psutil.pid_exists(rank.pid),
                    WAIT_SECONDS,
                    every=0.002,
                )
        in_save = is_saving(folder, began_at)
        steps = self.steps / trial.cell.workload.label
        began = folder.assignment_path.stat().st_mtime
        in_training = steps.exists() and steps.stat().st_mtime > began
        if target in ("rank", "all ranks"):
            victims = ranks if target == "all ranks" else [rank]
            was_hit = kill([victim.pid for victim in victims])
        else:
            was_hit = self.place.strike(target, rank, random)
        if was_hit:
            kills[trial.id] += 1
            self.strikes[target] += 1
            self.in_training += in_training
            self.in_saves += in_save

    def _judge(self, trial: Trial, kills: int) -> str | None:
        """Return what is wrong with a trial, None if nothing is."""
        path = folder_of(self.results, trial).record_path
        if not path.exists():
            return "no record"
        record = read_record(path)
        if record.status != "done":
            return f"{record.status}: {record.failure}"
        self.twice += computed_twice(self.steps / trial.cell.workload.label, kills)
        return problem(read_record(folder_of(self.whole, trial).record_path), record)


def settings() -> list[Setting]:
    """Return all trainings that are struck."""
    drawn = []
    for strategy, ranks, workers in itertools.product(("ddp", "fsdp2"), (2, 4), (0, 2)):
        drawn.append(Setting(strategy, ranks, num_workers=workers, samples=512))
    for workers in (0, 2):  # two ranks can't both be shards and be replicas
        drawn.append(Setting("hsdp", 4, num_workers=workers, samples=512))
        drawn.append(Setting("ddp", 2, num_workers=workers, static_graph=True, samples=512))
    return drawn


def folder_of(results: Results, trial: Trial) -> TrialFolder:
    """Return the folder of a trial's newest attempt."""
    return results.sweep_folder("line").trial_folder(trial.id)


def kill(pids: Sequence[int], number: int = signal.SIGKILL) -> bool:
    """Send processes a signal, and return whether one of them was there."""
    was_there = False
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            was_there = True
    return was_there


def living_ranks(folder: TrialFolder) -> list[Heartbeat]:
    """Return the last heartbeats of the ranks of a trial that have just given a sign of life."""
    now = time.time()
    beats = read_heartbeats(folder.heartbeat_folder)
    return [beat for beat in beats if beat.at > now - FRESH and psutil.pid_exists(beat.pid)]


def leaders_of(rank: int) -> list[int]:
    """Return the process id of the leader of the job that a rank is of, none if it is gone."""
    with suppress(psutil.NoSuchProcess):
        job = psutil.Process(rank).environ().get("SLURM_JOB_ID")
        for process in psutil.process_iter(["cmdline", "environ"]):
            variables = process.info["environ"] or {}
            is_leader = {"harness.slurm.leader", "lead"} <= set(process.info["cmdline"] or [])
            is_here = variables.get("SLURM_CONF") == os.environ["SLURM_CONF"]
            if is_leader and is_here and variables.get("SLURM_JOB_ID") == job:
                return [process.pid]
    return []


def is_saving(folder: TrialFolder, since: float) -> bool:
    """Return whether a checkpoint is being written that was begun since then.

    One that is whole has a seal of each rank.
    """
    for step in folder.resume_checkpoints.glob("step-*"):
        with suppress(FileNotFoundError):
            is_whole = len([*step.glob("*.seal")]) == len([*step.glob("*.pt")]) > 0
            if step.stat().st_mtime > since and not is_whole:
                return True
    return False


def computed_twice(steps: Path, strikes: int) -> list[int]:
    """Return for each strike how many steps were computed twice, from the numbers of all steps.

    One after which nothing was computed again counts as 0.
    """
    numbers = [int(line) for line in steps.read_text(encoding="ascii").split()]
    twice = [before - after + 1 for before, after in pairwise(numbers) if after <= before]
    return twice + [0] * (strikes - len(twice))


def problem(whole: Record, struck: Record) -> str | None:
    """Return how a trial that was struck differs from the undisturbed one, None if it does not."""
    expected, found = computed(whole), computed(struck)
    for record, bits in ((whole, expected), (struck, found)):
        bits["random numbers"] = [rank.random_digest for rank in record.ranks]
    names = [name for name, value in expected.items() if found[name] != value]
    return f"other {', '.join(names)}" if names else None
