"""A sweep on a real Slurm of two nodes: submitted, watched and collected, and equal to the same one by torchrun."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Slurm
from tests.slurm.sweeps import STRATEGIES, by_trial, computed, here, profile, submit
from tests.support.commands import harness
from tests.support.running import line_sweep

pytestmark = [pytest.mark.slurm, pytest.mark.distributed, pytest.mark.timeout(2400)]


def test_24_trials_over_two_nodes_equal_the_same_by_torchrun(slurm: Slurm, tmp_path: Path) -> None:
    variants = {
        "plain": {},
        "dropout": {"options": {"dropout": 0.3}},
        "noise": {"options": {"noise": 0.1}},
    }
    less = [
        {"workload": "dropout", "strategy": "fsdp2"},
        {"workload": "noise", "strategy": ["ddp", "fsdp2"]},
    ]
    keys = {"seeds": [0, 1, 2, 3], "zip": STRATEGIES, "exclude": less}
    sweep = line_sweep(tmp_path, variants, length={"steps": 16}, **keys)
    there = tmp_path / 'the re\'s; "$(touch pwned)"\nü'
    given = [str(sweep), "--cluster", str(profile(tmp_path)), "--results", str(there)]
    place = ["line", "--results", str(there)]

    ended = harness("submit", *given)
    assert (ended.code, ended.err) == (0, "")
    assert "24 trials" in ended.out
    again = harness("submit", *given)
    assert "0 trials; 24 are in the queue already" in again.out
    ended = harness("status", *place, "--watch")
    assert ended.code == 0
    assert "24 done" in ended.out
    rows = json.loads(harness("status", *place, "--json").out)["trials"]
    assert [row["state"] for row in rows] == ["done"] * 24
    assert len({row["job"] for row in rows}) == 4, "a block a job"

    found = by_trial(there)
    with closing(sqlite3.connect(there / "mlflow.db")) as database:
        query = "select value from tags where key = 'harness.trial'"
        assert sorted(value for (value,) in database.execute(query)) == sorted(found)
    assert "0 trials delivered, 24 were there already" in harness("collect", *place).out
    assert "24 are done" in harness("submit", *given).out
    for one in found.values():
        assert one.attempt == 1
        assert one.rank0 is not None
        assert one.rank0.environment["variables"]["SLURM_JOB_NODELIST"] == "n[1-2]"
        steps = one.rank0.environment["variables"]["SLURM_STEP_NODELIST"]
        assert steps == ("n1" if one.trial.cell.axes.strategy == "single" else "n[1-2]")

    undisturbed = here(sweep, forkserver=False)
    assert set(undisturbed) == set(found)
    for trial, one in found.items():
        assert computed(one) == computed(undisturbed[trial])
    assert not (tmp_path / "pwned").exists()
    assert not Path("pwned").exists()


def test_a_failed_rank_is_named_and_stops_no_other_trial(slurm: Slurm, tmp_path: Path) -> None:
    ddp = {"strategy": "ddp", "world_size": 2}
    variants: dict[str, dict[str, Any]] = {
        "raises": {"options": {"raise_at": 5, "rank": 1}, "axes": ddp},
        "killed": {"options": {"kill_at": 5, "rank": 1}, "axes": ddp},
        "exits": {"options": {"exit_at": 5, "rank": 1}, "axes": ddp},
        "hangs": {"options": {"hang_at": 5, "rank": 1}, "axes": ddp},
        "fine": {"axes": ddp},
    }
    results = tmp_path / "results"
    submit(line_sweep(tmp_path, variants, length={"steps": 10}, timeout=90), results)
    ended = harness("status", "line", "--watch", "--results", str(results))
    assert ended.code == 1
    found = {one.trial.cell.workload.label: one for one in by_trial(results).values()}
    assert found["fine"].status == "done"
    raised, killed, gone, hung = (
        found[label].failure for label in ("raises", "killed", "exits", "hangs")
    )
    assert raised is not None
    assert str(raised) == "rank 1 on n2: ValueError: the dog ate batch 17"
    assert killed is not None
    assert (killed.kind, killed.rank, killed.host) == ("Killed", 1, "n2")
    assert gone is not None
    assert (gone.kind, gone.rank, gone.host) == ("Exited", 1, "n2")
    assert gone.message.startswith("with code 7; the last words of its log: ")
    assert hung is not None
    assert hung.kind == "Timeout"
    trial = found["raises"].trial.id
    assert (
        "the dog ate batch 17"
        in harness("logs", trial, "--rank", "1", "--results", str(results)).out
    )
