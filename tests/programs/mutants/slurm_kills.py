"""SIGKILL at random moments of jobs on a real Slurm of two emulated nodes.

Trials of all settings run as jobs, two at a time. What is killed is one rank of a trial, all of them, the
leader of its job, a node's slurmd, or a whole node: slurmd and all that runs there at once. A daemon comes
back before Slurm has noticed, or after.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psutil
import yaml

from harness.core.paths import Results, TrialFolder
from harness.records.assignment import Heartbeat, read_heartbeats
from harness.records.files import read_record
from harness.sweep.cell import Trial
from harness.sweep.sweep import load_sweep
from tests.programs.mutants.interruptions import (
    EVERY,
    Counts,
    computed_twice,
    has_computed,
    is_saving,
    problem,
    settings,
)
from tests.slurm.cluster import Slurm
from tests.slurm.daemons import missing, running
from tests.slurm.sweeps import FINAL_STATES, submit, trial_rows
from tests.support.commands import harness
from tests.support.running import local_profile, wait_until

NODES = ("n1", "n2")
TARGETS = ("rank", "all ranks", "leader", "slurmd", "node")
STEP_SECONDS = 0.2
PAUSE = 6.0  # seconds between two kills, at most
OUTAGES = (2.0, 16.0)  # seconds without a daemon: less than Slurm's node_timeout, and more
WAIT_SECONDS = 120.0  # that a kill waits for a save to be under way
KILLS_PER_TRIAL = 3  # that are aimed at it
SUBMISSIONS = 3  # until a trial counts as lost
DEADLINE = 3000.0  # seconds in which all trials of a submission have to be over
FRESH = 6.0  # seconds; the heartbeat of a rank that lives is not older


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


@dataclass
class SlurmKiller:
    """Runs rounds of all settings as jobs, kills what runs there, and compares the trials."""

    folder: Path
    slurm: Slurm
    seed: int
    counts: Counts = field(default_factory=Counts)

    def run(self, count: int, minutes: float) -> Iterator[tuple[str, str | None]]:
        """Run rounds until so many SIGKILLs have hit a trial, or the time is over.

        Yields a description of each trial, and what is wrong with it, None if nothing is.
        """
        deadline = time.monotonic() + 60 * minutes
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        sweep, whole = self._write_sweep(), Results(self.folder / "whole")
        self._run_undisturbed(sweep, whole)
        rounds = itertools.count(1)
        while self.counts.strikes.total() < count and time.monotonic() < deadline:
            random = Random(f"slurm {self.seed} {next(rounds)}")
            yield from self._round(random, sweep, whole, count, deadline)

    def _run_undisturbed(self, sweep: Path, whole: Results) -> None:
        """Run all settings on this machine, with steps that take no longer than they must."""
        (self.folder / "steps").mkdir()
        (self.folder / "hurry").touch()
        profile = local_profile(self.folder, slots=4)
        ended = harness("--results", str(whole.path), "run", str(sweep), "--cluster", str(profile))
        if ended.code:
            raise RuntimeError(f"the undisturbed trials are not done: {ended.err}{ended.out}")
        (self.folder / "hurry").unlink()

    def _round(
        self, random: Random, sweep: Path, whole: Results, count: int, deadline: float
    ) -> Iterator[tuple[str, str | None]]:
        """Run all settings as jobs that are killed, and compare them with the undisturbed ones."""
        steps, results = self.folder / "steps", Results(self.folder / "results")
        for folder in (steps, results.path):
            shutil.rmtree(folder, ignore_errors=True)
        steps.mkdir()
        trials = load_sweep(sweep).trials()
        kills: Counter[str] = Counter()  # by trial
        for _ in range(SUBMISSIONS):
            submit(sweep, results.path, ranks_per_node=2, cpus_per_rank=1, requeues=100)
            over_at = time.monotonic() + DEADLINE
            while not set(states(results)) <= FINAL_STATES and time.monotonic() < over_at:
                time.sleep(random.uniform(0, PAUSE))
                release_held(results)
                if self.counts.strikes.total() < count and time.monotonic() < deadline:
                    self._kill(random, results, trials, kills)
                else:
                    (self.folder / "hurry").touch()
            self.slurm.restore()
            if set(states(results)) == {"done"}:
                break
        for trial in trials:
            name = f"{trial.cell.workload.label}, killed {kills[trial.id]} times"
            yield name, self._judge(trial, whole, results, steps, kills[trial.id])

    def _write_sweep(self) -> Path:
        """Write a sweep of all settings, and return its path."""
        hurry = str(self.folder / "hurry")
        workloads: dict[str, Any] = {}
        content: dict[str, Any] = {}
        for setting in settings():
            steps = str(self.folder / "steps" / setting.name)
            content = setting.sweep(step_seconds=STEP_SECONDS, hurry=hurry, steps=steps)
            workloads[setting.name] = content["workloads"]["mutant"]
        content |= {
            "name": "line",
            "workloads": workloads,
            "seeds": [0],
            "checkpoint": {"every": f"{EVERY} steps", "best": True},
        }
        path = self.folder / "line.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        return path

    def _kill(
        self, random: Random, results: Results, trials: list[Trial], kills: Counter[str]
    ) -> None:
        """Kill something of a trial that runs, if one does that was not killed often enough."""
        folder = results.sweep_folder("line")
        at_work = []
        for trial in trials:
            ranks = living_ranks(folder.trial_folder(trial.id))
            if ranks and kills[trial.id] < KILLS_PER_TRIAL:
                at_work.append((trial, ranks))
        if not at_work:
            return
        trial, ranks = random.choice(at_work)
        target, rank = random.choice(TARGETS), random.choice(ranks)
        began_at, trial_folder = time.time(), folder.trial_folder(trial.id)
        if random.random() < 1 / 3:  # in the middle of the next save, or once the rank is gone
            with suppress(TimeoutError):
                wait_until(
                    lambda: is_saving(trial_folder, began_at) or not psutil.pid_exists(rank.pid),
                    WAIT_SECONDS,
                    every=0.002,
                )
        in_save = is_saving(trial_folder, began_at)
        steps = self.folder / "steps" / trial.cell.workload.label
        in_training = has_computed(steps, trial_folder.assignment_path.stat().st_mtime)
        if self._strike(target, rank, ranks, random.choice(OUTAGES)):
            kills[trial.id] += 1
            self.counts.strikes[f"SIGKILL of {target}"] += 1
            self.counts.in_training += in_training
            self.counts.in_saves += in_save

    def _strike(self, target: str, rank: Heartbeat, ranks: list[Heartbeat], outage: float) -> bool:
        """Kill what `target` names; return whether it was there."""
        if target in ("slurmd", "node"):
            daemon = f"slurmd-{rank.host}"
            if target == "node":
                self.slurm.kill_node(rank.host)
            else:
                self.slurm.stop(daemon, signal.SIGKILL)
            time.sleep(outage)
            self.slurm.start(daemon)
            return True
        victims = ranks if target == "all ranks" else [rank]
        pids = [victim.pid for victim in victims]
        if target == "leader":
            pids = leaders_of(rank.pid)
        hit = False
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                hit = True
        return hit

    def _judge(
        self, trial: Trial, whole: Results, results: Results, steps: Path, kills: int
    ) -> str | None:
        """Return what is wrong with a trial, None if nothing is, and count it."""
        folder = results.sweep_folder("line").trial_folder(trial.id)
        undisturbed = whole.sweep_folder("line").trial_folder(trial.id)
        self.counts.trials += 1
        found: str | None = "no record"
        if folder.record_path.exists():
            record = read_record(folder.record_path)
            found = f"{record.status}: {record.failure}"
            if record.status == "done":
                self.counts.twice += computed_twice(steps / trial.cell.workload.label, kills)
                found = problem(read_record(undisturbed.record_path).ranks, record.ranks)
        self.counts.problems += found is not None
        return found


def states(results: Results) -> list[str]:
    """Return the state of each trial."""
    return [row["state"] for row in trial_rows(results.path)]


def release_held(results: Results) -> None:
    """Let jobs run that Slurm holds after many requeues, as `harness status` shows."""
    rows = trial_rows(results.path)
    for job in {row["job"] for row in rows if row["job"] and "held" in row["detail"].lower()}:
        subprocess.run(["scontrol", "release", str(job)], check=True)


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
