"""A sweep on a real Slurm of two nodes: submitted, watched and collected, and bitwise equal to a
local run.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.core.paths import Results
from harness.records.record import Record
from tests.slurm.cluster import Slurm
from tests.slurm.sweeps import (
    Outcomes,
    outcomes,
    random_sweep,
    read_records,
    slurm_profile,
    submit,
)
from tests.support.commands import harness
from tests.support.running import USER_SCRIPTS, line_sweep
from tests.support.stacks import PACKAGE, container, make_environment

pytestmark = [pytest.mark.slurm, pytest.mark.distributed, pytest.mark.timeout(2400)]

DDP = {"strategy": "ddp", "world_size": 2}


def slurm_variables(record: Record) -> dict[str, str]:
    """Return the environment variables of rank 0."""
    assert record.environment is not None
    return dict(record.environment.variables)


def packages_of(record: Record, results: Path) -> str:
    """Return the packages of the interpreter that rank 0 ran under."""
    assert record.environment is not None
    installed = str(record.environment.installed)
    return Results(results).sweep_folder(record.sweep).packages_path(installed).read_text()


def trials_in_mlflow(results: Path) -> list[str]:
    """Return the ids of the trials that were delivered."""
    with closing(sqlite3.connect(results / "mlflow.db")) as database:
        rows = database.execute("select value from tags where key = 'harness.trial'")
        return sorted(value for (value,) in rows)


def test_a_sweep_over_two_nodes_equals_a_local_run(
    slurm: Slurm, tmp_path: Path, undisturbed: Outcomes
) -> None:
    """Two strategies: a block, which is a job on both nodes, in a folder with a hostile name.

    Each trial is a step of the job, under another interpreter. The third strategy runs in
    test_interruptions.py, and so do two blocks.
    """
    stack = {"python": str(make_environment(tmp_path / "env", "2.0"))}
    sweep = random_sweep(tmp_path, strategies=("ddp", "fsdp2"), seeds=(0,), stack=stack)
    results = tmp_path / 'the re\'s; "$(touch pwned)"\nü'
    profile = slurm_profile(tmp_path)
    submission = ["submit", str(sweep), "--cluster", str(profile), "--results", str(results)]
    recorded = ["line", "--results", str(results)]

    submitted = harness(*submission)
    assert (submitted.code, submitted.err) == (0, "")
    assert "2 trials" in submitted.out
    assert "0 trials; 2 are in the queue already" in harness(*submission).out
    watched = harness("status", *recorded, "--watch")
    assert watched.code == 0
    assert "2 done" in watched.out
    rows = json.loads(harness("status", *recorded, "--json").out)["trials"]
    assert [row["state"] for row in rows] == ["done"] * 2

    records = read_records(results)
    assert trials_in_mlflow(results) == sorted(records)
    assert "0 trials delivered, 2 were there already" in harness("collect", *recorded).out
    assert "2 are done" in harness(*submission).out
    for record in records.values():
        assert record.attempt == 1
        variables = slurm_variables(record)
        assert variables["SLURM_STEP_NODELIST"] == "n[1-2]"
        assert f"{PACKAGE}==2.0\n" in packages_of(record, results)
    steps = [slurm_variables(record)["SLURM_STEP_ID"] for record in records.values()]
    assert sorted(steps) == ["0", "1"]

    for key, outcome in outcomes(records).items():
        assert outcome == undisturbed[key]
    assert not (tmp_path / "pwned").exists()
    assert not Path("pwned").exists()


@pytest.mark.nightly
def test_a_failed_rank_is_named_and_stops_no_other_trial(slurm: Slurm, tmp_path: Path) -> None:
    """The trial that hangs until its time is over does so in a job next to that of the others.

    Of those, each is a step of its own.
    """
    failing: dict[str, dict[str, Any]] = {
        "well": {"axes": DDP},
        "killed": {"options": {"kill_at": 5, "rank": 1}, "axes": DDP},
        "fine": {"axes": {"stack": "boxed"}},
    }
    box = {"prefix": container(), "python": str(make_environment(tmp_path / "box", "3.0"))}
    hanging = {"hangs": {"options": {"hang_at": 5, "rank": 1}, "axes": DDP}}
    results = tmp_path / "results"
    for name, variants, timeout in (("hanging", hanging, 30), ("failing", failing, 300)):
        folder = tmp_path / name
        folder.mkdir()
        length = {"steps": 10}
        sweep = line_sweep(
            folder,
            variants,
            name=name,
            length=length,
            timeout=timeout,
            stacks={"boxed": box},
        )
        submit(sweep, results)
    assert harness("status", "--watch", "--results", str(results)).code == 1
    records = {}
    for name in ("hanging", "failing"):
        for record in read_records(results, name).values():
            records[record.trial.cell.workload.label] = record

    assert [records[name].status for name in ("well", "fine")] == ["done", "done"]
    # Of a rank that was killed, no record has the variables. It was in the second step.
    steps = [slurm_variables(records[name])["SLURM_STEP_ID"] for name in ("well", "fine")]
    assert steps == ["0", "2"]
    fine = slurm_variables(records["fine"])
    assert fine["SLURM_JOB_NODELIST"] == "n[1-2]"
    assert fine["SLURM_STEP_NODELIST"] == "n1"
    assert f"{PACKAGE}==3.0\n" in packages_of(records["fine"], results)
    assert PACKAGE not in packages_of(records["well"], results)
    killed = records["killed"].failure
    assert killed is not None
    assert (killed.kind, killed.rank, killed.host) == ("Killed", 1, "n2")
    hung = records["hangs"].failure
    assert hung is not None
    assert (hung.kind, hung.rank, hung.host) == ("Timeout", 1, "n2")


@pytest.mark.nightly
def test_a_script_has_its_ranks_on_two_nodes(slurm: Slurm, tmp_path: Path) -> None:
    shutil.copy(USER_SCRIPTS / "ddp.py", tmp_path)
    entry = {"uses": "ddp.py", "axes": {"world_size": 2}, "target": "accuracy"}
    sweep = line_sweep(tmp_path, {"ddp": entry})
    results = tmp_path / "results"
    submit(sweep, results)
    assert harness("status", "--watch", "--results", str(results)).code == 0
    (record,) = read_records(results).values()
    assert record.status == "done", record.failure
    assert [rank.host for rank in record.ranks] == ["n1", "n2"]
    assert sum(rank.samples_per_step or 0 for rank in record.ranks) == 32
    assert record.numbers["final_accuracy"] > 0.8
