"""Runs trials whose ranks are forked from this process, which has torch loaded and computes nothing.

A trial of 48 steps at two ranks takes a second, so that hundreds of them can be compared.
"""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from harness.core.paths import TrialFolder
from harness.core.ports import LOOPBACK, free_port
from harness.core.processes import die_with_parent, end_process
from harness.launch.forkserver import TORCH
from harness.launch.launcher import rank_variables
from harness.launch.ranks import GRACE_SECONDS
from harness.records.assignment import Assignment, write_assignment
from harness.records.trace import Mark, Recording, read_traces, write_recording
from harness.sweep.cell import CheckpointRules, Trial
from harness.sweep.sweep import load_sweep
from harness.training.progress import block_signal
from tests.support.tree import TOP

MUTANT = f"{TOP / 'tests' / 'support' / 'mutants.py'}:MutantLine"
STEPS = 48
STEPS_BETWEEN_EVALUATIONS = 12
BATCH_SIZE = 32
TIMEOUT = 300.0  # seconds that one attempt at a trial may take
PRELOADED = (
    *TORCH,
    "torch.utils.data",
    "harness.reproduce.trace_worker",
    "tests.support.mutants",
)
COMPILER = "torch._inductor.compile_fx"
WORKER = "harness.training.worker"
StrikeRanks = Callable[[int], bool]  # gets the process that started the ranks


@dataclass(frozen=True)
class Setting:
    """A training of the tests' mutant workload, without a defect."""

    strategy: str
    world_size: int
    execution: str = "eager"
    num_workers: int = 0
    average: float = 0.0
    static_graph: bool = False
    samples: int = 1024
    seed: int = 0

    @property
    def name(self) -> str:
        """Return a label for it in a sweep."""
        strategy = f"{self.strategy}-static" if self.static_graph else self.strategy
        return f"{strategy}-{self.world_size}-w{self.num_workers}"

    def sweep(self, **options: Any) -> dict[str, Any]:
        """Return a sweep of it; `options` are the workload's, a defect among them."""
        axes = {
            "strategy": self.strategy,
            "world_size": self.world_size,
            "execution": self.execution,
            "num_workers": self.num_workers,
            "batch_size": BATCH_SIZE,
        }
        if self.strategy == "hsdp":
            axes["shard_size"] = self.world_size // 2 if self.world_size > 2 else 1
        if self.static_graph:
            axes["ddp.static_graph"] = True
        options = {
            "dropout": 0.3,
            "samples": self.samples,
            "average": self.average,
            **options,
        }
        if self.num_workers:
            options["noise"] = 0.1
        return {
            "name": "mutants",
            "workloads": {"mutant": {"uses": MUTANT, "axes": axes, "options": options}},
            "length": {"steps": STEPS},
            "evaluate": {"steps": STEPS_BETWEEN_EVALUATIONS},
            "warmup": 2,
            "seeds": [self.seed],
        }

    def trial(self, folder: Path, **options: Any) -> Trial:
        """Return its trial; `options` are the workload's, a defect among them."""
        path = folder / "mutants.yaml"
        path.write_text(yaml.safe_dump(self.sweep(**options)), encoding="utf-8")
        (trial,) = load_sweep(path).trials()
        return trial

    def __str__(self) -> str:
        return f"{self.strategy}×{self.world_size} {self.execution}"


def warm_up(cache: Path, *, compiles: bool) -> None:
    """Load what ranks need, with compiled code kept in `cache`, and start no thread.

    As a forkserver does, this has ranks inherit that the signal to interrupt them is blocked.
    """
    block_signal()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # a pool would be threads and processes
    for module in (*PRELOADED, COMPILER) if compiles else PRELOADED:
        import_module(module)
    gc.collect()
    gc.freeze()  # no rank looks through it again, which would also copy its pages


def trace(folder: Path, trial: Trial) -> list[Sequence[Mark]]:
    """Run a trial with every tensor of every step digested; return its ranks' traces."""
    folder.mkdir()
    trial_folder = TrialFolder(folder)
    assignment = Assignment(trial=trial, base_folder=str(folder), device="cpu")
    write_assignment(trial_folder.assignment_path, assignment)
    write_recording(folder, Recording(last_step=STEPS, all_steps=True))
    exit_code = run_ranks(trial_folder, trial, ["--task", "trace"])
    if exit_code:
        raise RuntimeError(f"{trial.cell.label} failed; logs: {trial_folder.log_folder}")
    return read_traces(folder, trial.cell.axes.world_size)


def start_attempt(
    folder: TrialFolder,
    trial: Trial,
    attempt: int,
    *,
    saves: CheckpointRules,
    strike: StrikeRanks,
) -> int:
    """Run one attempt at a trial; return the exit code."""
    assignment = Assignment(
        trial=trial,
        base_folder=str(folder.path),
        checkpoint="best",
        device="cpu",
        attempt=attempt,
        saves=saves,
    )
    write_assignment(folder.assignment_path, assignment)
    for path in folder.path.glob("rank*.json"):
        path.unlink()
    return run_ranks(folder, trial, [], strike)


def run_ranks(
    folder: TrialFolder, trial: Trial, options: Sequence[str], strike: StrikeRanks | None = None
) -> int:
    """Fork the ranks of a trial and wait for them; 0 if all ended well.

    A process between this one and the ranks ends with them.
    `strike` is called with its id again and again, until it says that it has struck.
    """
    arguments = [str(folder.path), "--write-logs", *options]
    pid = os.fork()
    if not pid:
        exit_code = 1
        try:
            os.setpgid(0, 0)
            os.environ["OMP_NUM_THREADS"] = "1"
            exit_code = fork_ranks(trial.cell.axes.world_size, arguments)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(exit_code)
    deadline = time.monotonic() + TIMEOUT
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if strike is not None and strike(pid):
            strike = None
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.005)


def fork_ranks(world_size: int, arguments: Sequence[str]) -> int:
    """Fork the ranks and wait until they have ended; return how many of them failed.

    The others of one that failed are killed after a while.
    """
    parent, port = os.getpid(), free_port()
    ranks = set()
    for rank in range(world_size):
        pid = os.fork()
        if not pid:
            exit_code = 1
            try:
                die_with_parent(parent=parent)
                os.environ.update(rank_variables(rank, world_size))
                os.environ.update(MASTER_ADDR=LOOPBACK, MASTER_PORT=str(port))
                exit_code = import_module(WORKER).main(arguments)
            except BaseException:
                traceback.print_exc()
            finally:
                end_process(exit_code)
        ranks.add(pid)
    failed = 0
    deadline = math.inf
    while ranks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        ranks.discard(pid)
        if status:
            failed += 1
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > deadline:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
        time.sleep(0.005)
    return failed
