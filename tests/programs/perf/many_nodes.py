"""Measures a sweep on an emulated Slurm of many nodes, each a slurmd on this machine.

A job on all nodes trains trials of a rank each, which share a warm step. Then an array has a job of
one rank for each node, and a long one waits in the queue. All that was started ends with this
command. It needs root, Slurm's daemons, and 200 MB of memory for each node.

    python -m tests.programs.perf.many_nodes [--nodes N] [--trials N] [--jobs N] [--queued N]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import yaml

from harness.core.paths import Results, SweepFolder
from harness.records.files import read_record
from harness.records.record import Record
from tests.slurm.cluster import Slurm
from tests.slurm.daemons import bring_up, configure, missing, start_supervisor
from tests.support.repeating import repeatedly
from tests.support.running import NO_VALIDITY_LIMITS, wait_until
from tests.support.sweeps import write

HARNESS = str(Path(sys.executable).with_name("harness"))
STEPS = 5
PATIENCE = 1800.0  # seconds until a job is over
NODE_TIMEOUT = 300  # seconds; nodes that share a few cores may be silent for a while


@dataclass
class MemoryWatch:
    """Watches how much of the machine's memory becomes unavailable."""

    baseline: int = field(default_factory=lambda: psutil.virtual_memory().available)
    peak: int = 0  # bytes above the baseline

    def look(self) -> None:
        """Note the peak as of now."""
        self.peak = max(self.peak, self.baseline - psutil.virtual_memory().available)


@dataclass(frozen=True)
class Cluster:
    """An emulated Slurm, and a folder for what is submitted to it."""

    slurm: Slurm
    folder: Path

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return len(self.slurm.configuration.nodes)

    def submit(self, name: str, nodes: int, **sweep: Any) -> SweepFolder:
        """Submit a sweep of jobs on so many nodes, print how long that takes, and return its folder."""
        folder = self.folder / name
        folder.mkdir()
        profile = folder / "profile.yaml"
        # Only n1 and n2 have names; every node has the loopback interface.
        section = {"nodes": nodes, "cpus_per_rank": 1, "exclusive": False, "interface": "lo"}
        section |= {"time": "60", "array_parallelism": self.nodes}
        content = {"launcher": "slurm", "device": "cpu", "validity": NO_VALIDITY_LIMITS}
        profile.write_text(yaml.safe_dump(content | {"slurm": section}))
        path = write(folder, length={"steps": STEPS}, warmup=1, **sweep)
        results = Results(folder / "results")
        show(
            f"{name}: harness submit",
            run("submit", str(path), "--cluster", str(profile), "--results", str(results.path)),
        )
        return results.sweep_folder("demo")

    def wait_for_jobs(self) -> None:
        """Wait until no job is left."""
        wait_until(lambda: not self.slurm.run("squeue", "-h"), PATIENCE, every=1.0)


def run(*arguments: str) -> float:
    """Run a command of the harness and return the seconds that it takes; raises RuntimeError."""
    started = time.perf_counter()
    ended = subprocess.run([HARNESS, *arguments], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if ended.returncode:
        raise RuntimeError(f"harness {arguments[0]}: {ended.stderr}{ended.stdout}")
    return seconds


def show(name: str, seconds: float, note: str = "") -> None:
    """Print a row."""
    print(f"{name:44}{seconds:9.2f} s  {note}".rstrip(), flush=True)


@contextmanager
def emulated(folder: Path, nodes: int) -> Iterator[Slurm]:
    """Run a Slurm of so many nodes as long as the block, or this process, lasts."""
    names = [f"n{number}" for number in range(1, nodes + 1)]
    slurm = Slurm(configure(folder, nodes=names, cpus=1, node_timeout=NODE_TIMEOUT))
    supervisor = start_supervisor(slurm.configuration, with_parent=True)
    try:
        started = time.perf_counter()
        bring_up(slurm)
        show(f"{nodes} nodes are up", time.perf_counter() - started)
        yield slurm
    finally:
        supervisor.terminate()
        supervisor.wait()


def measure_wide_job(cluster: Cluster, trials: int) -> None:
    """Print what each phase of trials over all nodes takes, one row a trial."""
    ranks = cluster.nodes
    memory = MemoryWatch()
    with repeatedly(memory.look, every=0.5):
        submitted = time.time()
        folder = cluster.submit(
            "wide",
            ranks,
            zip=[{"strategy": ["ddp"], "world_size": [ranks]}],
            axes={"batch_size": 4 * ranks},
            matrix={"lr": [number / 100 for number in range(1, trials + 1)]},
        )
        cluster.wait_for_jobs()
    records = read_records(folder)
    print_failures(records)
    show("from submitting to the first trial", records[0][0].started - submitted)
    for number, (record, written) in enumerate(records, start=1):
        if record.status == "done":
            show(
                f"trial {number} of {ranks} ranks",
                written - record.started,
                phases(record, written),
            )
    for (_, written), (record, _) in pairwise(records):
        show("from a record to the next trial", record.started - written)
    print(f"{'memory':44}{memory.peak / 2**30:9.1f} GB above what was used before", flush=True)
    show(
        "harness results collect",
        run("results", "collect", "demo", "--results", str(folder.path.parent.parent)),
    )


def phases(record: Record, written: float) -> str:
    """Return what the phases of a trial take, of the rank that took longest.

    `end` is from the end of the last rank's last phase to the moment at which the leader has noticed
    that the step is over: ranks part and write their results. `record` is assembling and writing.
    """
    last_phase = max(rank.entered_at + sum(rank.phases.values()) for rank in record.ranks)
    seconds = {**record.phases, "end": record.ended - last_phase, "record": written - record.ended}
    return ", ".join(f"{name} {value:.2f}" for name, value in seconds.items())


def read_records(folder: SweepFolder) -> list[tuple[Record, float]]:
    """Return the records of a sweep by their start, each with the time at which it was written."""
    records = [(read_record(path), path.stat().st_mtime) for path in folder.record_paths()]
    if not records:
        logs = [path.read_text(errors="replace") for path in folder.path.glob("jobs/*/*.log")]
        raise RuntimeError("no record; the logs of the jobs:\n" + "\n".join(logs))
    return sorted(records, key=lambda pair: pair[0].started)


def print_failures(records: Sequence[tuple[Record, float]]) -> None:
    """Print how trials failed, and earlier attempts of theirs."""
    for record, _ in records:
        for failure in [*record.previous_failures, *([record.failure] if record.failure else [])]:
            print(f"{record.trial.id} attempt: {failure}", flush=True)


def measure_array(cluster: Cluster, jobs: int) -> None:
    """Print how long an array of jobs takes, each of which trains one trial of one rank."""
    started = time.perf_counter()
    folder = cluster.submit("array", 1, seeds=list(range(jobs)))
    show(
        "array: harness status", run("status", "demo", "--results", str(folder.path.parent.parent))
    )
    cluster.wait_for_jobs()
    show(f"array of {jobs} jobs", time.perf_counter() - started)
    records = read_records(folder)
    print_failures(records)
    done = sum(record.status == "done" for record, _ in records)
    print(f"{'trials that are done':44}{done:9} of {jobs}", flush=True)


def measure_queue(cluster: Cluster, jobs: int) -> None:
    """Print what commands take while an array of so many jobs waits for nodes that are drained."""
    for node in cluster.slurm.configuration.nodes:
        cluster.slurm.set_node(node, "DRAIN")
    folder = cluster.submit("queue", 1, seeds=list(range(jobs)))
    results = ["demo", "--results", str(folder.path.parent.parent)]
    show(f"status of {jobs} jobs in the queue", run("status", *results))
    show(f"cancel of {jobs} jobs in the queue", run("status", "cancel", *results))
    cluster.wait_for_jobs()


def main(arguments: Sequence[str] | None = None) -> None:
    """Start the emulated Slurm, submit to it, and print what takes how long."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--trials", type=int, default=4, help="of a rank on each node, in one job")
    parser.add_argument("--jobs", type=int, default=64, help="of the array that runs; 0: none")
    parser.add_argument("--queued", type=int, default=1000, help="jobs that wait; 0: none")
    options = parser.parse_args(arguments)
    if reason := missing():
        sys.exit(f"no Slurm here: {reason}")
    with tempfile.TemporaryDirectory(prefix="nodes-") as name:
        folder = Path(name)
        with emulated(folder / "slurm", options.nodes) as slurm:
            os.environ.update(slurm.environment)
            cluster = Cluster(slurm, folder)
            measure_wide_job(cluster, options.trials)
            if options.jobs:
                measure_array(cluster, options.jobs)
            if options.queued:
                measure_queue(cluster, options.queued)


if __name__ == "__main__":
    main()
