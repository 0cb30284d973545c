"""Sweeps on the two nodes, and the same ones without Slurm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from harness.core.paths import Results, TrialFolder
from harness.launch.runner import read_progress
from harness.records.record import Record, read_record
from tests.support.commands import harness
from tests.support.running import NO_VALIDITY_LIMITS, local_profile, wait_until

STRATEGIES = [{"strategy": ["single", "ddp", "fsdp2"], "world_size": [1, 2, 2]}]
DDP: dict[str, Any] = {"strategy": "ddp", "world_size": 2}
DROPOUT = {"dropout": 0.3, "step_seconds": 0.05}


def profile(folder: Path, **slurm: Any) -> Path:
    """Two nodes with a rank each."""
    keys = {
        "nodes": 2,
        "cpus_per_rank": 2,
        "exclusive": False,
        "time": "10",
        "array_parallelism": 2,
        **slurm,
    }
    path = folder / "two.yaml"
    path.write_text(
        yaml.safe_dump(
            {"launcher": "slurm", "device": "cpu", "validity": NO_VALIDITY_LIMITS, "slurm": keys}
        )
    )
    return path


def by_trial(results: Path, sweep: str = "line") -> dict[str, Record]:
    folder = Results(results).sweep_folder(sweep)
    return {path.parent.name: read_record(path) for path in folder.record_paths()}


def computed(found: Record) -> dict[str, Any]:
    """All that must be equal to the bit wherever a trial has run."""
    assert found.status == "done", found.failure
    assert found.rank0 is not None
    return {
        "loss": found.loss,
        "ranks": [rank.loss for rank in found.ranks],
        "order": found.order_digest,
        "parameters": found.rank0.parameter_digest,
        "evaluations": [one.metrics for one in found.rank0.evaluations],
    }


def here(sweep: Path, *, forkserver: bool = True) -> dict[str, Record]:
    """The records of the same sweep by forked ranks, or else by torchrun."""
    results = sweep.parent / "here"
    local = local_profile(sweep.parent, slots=2, forkserver=forkserver)
    ended = harness("run", str(sweep), "--cluster", str(local), "--results", str(results))
    assert ended.code == 0, ended.err + ended.out
    return by_trial(results)


def submit(sweep: Path, results: Path, **slurm: Any) -> None:
    ended = harness(
        "submit",
        str(sweep),
        "--cluster",
        str(profile(sweep.parent, **slurm)),
        "--results",
        str(results),
    )
    assert (ended.code, ended.err) == (0, ""), ended.out


def status(results: Path, sweep: str = "line") -> dict[str, Any]:
    """What `harness status` says."""
    found: dict[str, Any] = json.loads(
        harness("status", sweep, "--results", str(results), "--json").out
    )
    return found


def rows(results: Path, sweep: str = "line") -> list[dict[str, Any]]:
    """What it says of every trial."""
    found: list[dict[str, Any]] = status(results, sweep)["trials"]
    return found


def over(results: Path) -> bool:
    return all(
        row["state"] in ("done", "failed", "invalid", "lost", "cancelled") for row in rows(results)
    )


def undisturbed(sweep: Path, results: Path) -> dict[str, Record]:
    """The records, once all is over; equal to the bit to those of an undisturbed run."""
    wait_until(lambda: over(results), 900, every=1)
    found, whole = by_trial(results), here(sweep)
    assert set(found) == set(whole)
    for trial, one in found.items():
        assert computed(one) == computed(whole[trial])
    return found


def step(results: Path, number: int, sweep: str = "line") -> int:
    """How far the sweep's trial with this number is; -1 if it is not at work."""
    return int(read_progress(_trial(results, number, sweep)).get("step", -1))


def saved(results: Path, number: int, sweep: str = "line") -> Path:
    """The folder of what the trial with this number goes on from."""
    return _trial(results, number, sweep).resume_checkpoints


def _trial(results: Path, number: int, sweep: str) -> TrialFolder:
    folder = Results(results).sweep_folder(sweep)
    return folder.trial_folder(
        json.loads(folder.spec_path.read_text(encoding="utf-8"))["trials"][number]
    )
