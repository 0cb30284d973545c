"""Sweeps of one small workload: on the nodes of a Slurm, and, as the reference, on this machine."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from harness.core.paths import Results, TrialFolder
from harness.records.assignment import read_progress_file
from harness.records.files import read_record
from harness.records.record import Record
from harness.sweep.cluster import SlurmOptions
from tests.support.commands import harness
from tests.support.running import NO_VALIDITY_LIMITS, line_sweep, run, wait_until

# Every draw of random numbers that a resumed trial must repeat: the loader's and each rank's.
RANDOM: dict[str, Any] = {"dropout": 0.3, "noise": 0.1}
STEP_SECONDS = 0.3  # so that a trial lasts for half a minute, unless it is told to hurry
FINAL_STATES = {"done", "failed", "invalid", "lost", "cancelled"}

Undisturbed = Callable[[str, int], dict[str, Any]]  # what a strategy and a seed have to compute


def random_sweep(
    folder: Path,
    *,
    strategies: Sequence[str],
    seeds: Sequence[int] = (0,),
    step_seconds: float = STEP_SECONDS,
    stack: Mapping[str, Any] | None = None,
    checkpoint: Any = None,
) -> Path:
    """Write a sweep of these strategies and seeds, whose trials compute what they do in any other
    such sweep.

    Steps last for `step_seconds` until `hurry_up`. Ranks run under the `stack` with this definition. None
    of this changes what is computed.
    """
    options = {**RANDOM, "step_seconds": step_seconds, "hurry": str(folder / "hurry")}
    world_sizes = [1 if strategy == "single" else 2 for strategy in strategies]
    return line_sweep(
        folder,
        {"line": {"options": options}},
        length={"steps": 100},
        evaluate={"steps": 40},
        seeds=list(seeds),
        zip=[{"strategy": list(strategies), "world_size": world_sizes}],
        stacks={} if stack is None else {"other": stack},
        matrix={} if stack is None else {"stack": "other"},
        checkpoint=checkpoint or {},
    )


def hurry_up(folder: Path) -> None:
    """Let the steps of the slow sweep in this folder last no longer than they must."""
    (folder / "hurry").touch()


def slow_down(folder: Path) -> None:
    """Let steps last as long as before `hurry_up`; a running trial is not slowed down."""
    (folder / "hurry").unlink()


def slurm_profile(folder: Path, **slurm: Any) -> Path:
    """Write a profile of two nodes with a rank each.

    `slurm` are further keys of its section `slurm`, or else options of sbatch.
    """
    section: dict[str, Any] = {"nodes": 2, "cpus_per_rank": 2, "array_parallelism": 2}
    section["sbatch"] = {"exclusive": False, "time": 10}
    own_keys = {key.name for key in fields(SlurmOptions)}
    for key, value in slurm.items():
        (section if key in own_keys else section["sbatch"])[key] = value
    content = {
        "launcher": "slurm",
        "device": "cpu",
        "validity": NO_VALIDITY_LIMITS,
        "slurm": section,
    }
    path = folder / "two.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def submit(sweep: Path, results: Path, **slurm: Any) -> None:
    """Submit a sweep with `slurm_profile`."""
    profile = slurm_profile(sweep.parent, **slurm)
    ended = harness("submit", str(sweep), "--cluster", str(profile), "--results", str(results))
    assert (ended.code, ended.err) == (0, ""), ended.out


def read_records(results: Path, sweep: str = "line") -> dict[str, Record]:
    """Return the records of a sweep by trial id."""
    sweep_folder = Results(results).sweep_folder(sweep)
    records = map(read_record, sweep_folder.record_paths())
    return {record.trial.id: record for record in records}


def computed(record: Record) -> dict[str, Any]:
    """Return everything that must be bitwise equal wherever a trial has run."""
    assert record.status == "done", record.failure
    assert record.rank0 is not None
    return {
        "loss": None if record.loss is None else record.loss.tobytes(),
        "loss of ranks": [
            None if rank.loss is None else rank.loss.tobytes() for rank in record.ranks
        ],
        "data order": record.order_digest,
        "parameters": record.rank0.parameter_digest,
        "metrics": [evaluation.metrics for evaluation in record.rank0.evaluations],
    }


def computed_here(folder: Path, strategy: str, seed: int) -> dict[str, Any]:
    """Return what a trial computes on this machine, without Slurm and without an interruption.

    It runs once for all processes that use `folder`, by forked ranks, which tests/distributed shows to compute
    what torchrun's do.
    """
    folder = folder / f"{strategy}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (record,) = run(random_sweep(folder, strategies=[strategy], seeds=[seed], step_seconds=0.0))
    return computed(record)


def wait_for_records(results: Path, undisturbed: Undisturbed) -> dict[str, Record]:
    """Wait until every trial is over and return the records, whose outcomes must be those of the
    undisturbed trials.
    """
    # A look takes a tenth of a second of CPU time.
    wait_until(lambda: is_over(results), 900, every=3.0)
    records = read_records(results)
    for record in records.values():
        expected = undisturbed(record.trial.cell.axes.strategy, record.trial.seed)
        assert computed(record) == expected
    return records


def trial_rows(results: Path) -> list[dict[str, Any]]:
    """Return the row of each trial in `harness status --json`."""
    ended = harness("status", "line", "--results", str(results), "--json")
    rows: list[dict[str, Any]] = json.loads(ended.out)["trials"]
    return rows


def trial_states(results: Path) -> list[str]:
    """Return the state of each trial."""
    return [row["state"] for row in trial_rows(results)]


def is_over(results: Path) -> bool:
    """Return whether no trial is left to wait for."""
    return set(trial_states(results)) <= FINAL_STATES


def step_of(results: Path, number: int) -> int:
    """Return the step that the trial with this number has reached; -1 if it is not running."""
    return int(read_progress_file(trial_folder(results, number).progress_path).get("step", -1))


def wait_for_step(results: Path, number: int, step: int) -> None:
    """Return when the sweep's trial with this number has reached this step."""
    wait_until(lambda: step_of(results, number) >= step)


def trial_folder(results: Path, number: int) -> TrialFolder:
    """Return the folder of the sweep's trial with this number."""
    sweep_folder = Results(results).sweep_folder("line")
    spec = json.loads(sweep_folder.spec_path.read_text(encoding="utf-8"))
    return sweep_folder.trial_folder(spec["trials"][number])
