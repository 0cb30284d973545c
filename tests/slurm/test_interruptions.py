"""Jobs that are preempted, hit their limit, lose a node or the controller: each trial once, to the undisturbed bits."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.slurm.cluster import Slurm
from tests.slurm.sweeps import DDP, DROPOUT, STRATEGIES, rows, saved, step, submit, undisturbed
from tests.support.commands import harness
from tests.support.running import line_sweep, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.distributed, pytest.mark.timeout(2400)]


def test_preempted_at_several_steps(slurm: Slurm, tmp_path: Path) -> None:
    options = {"options": DROPOUT}
    sweep = line_sweep(
        tmp_path, {"line": options}, length={"steps": 120}, evaluate={"steps": 50}, zip=STRATEGIES
    )
    results = tmp_path / "results"
    submit(sweep, results, exclusive=True)
    for number, least in ((1, 5), (2, 60)):
        wait_until(lambda number=number, least=least: step(results, number) >= least)
        slurm.ask("srun", "--partition=urgent", "--nodes=2", "--exclusive", "true")
    found = undisturbed(sweep, results)
    interrupted = [one for one in found.values() if one.previous_failures]
    assert len(interrupted) == 2
    for one in interrupted:
        assert one.attempt == 2
        assert [failure.kind for failure in one.previous_failures] == ["Interrupted"]
        assert [taken_up.signal for taken_up in one.ranks[0].interruptions] == ["SIGUSR2"]


def test_a_time_limit_that_is_too_short(slurm: Slurm, tmp_path: Path) -> None:
    hurry = tmp_path / "hurry"
    options = {
        **DROPOUT,
        "step_seconds": 0.1,
        "hurry": str(hurry),
    }  # a minute of training, whatever the machine
    sweep = line_sweep(tmp_path, {"line": {"options": options, "axes": DDP}}, length={"steps": 600})
    results = tmp_path / "results"
    submit(sweep, results, time="1", warning=40, requeues=30)
    wait_until(lambda: any(saved(results, 0).glob("*")))
    hurry.touch()
    (one,) = undisturbed(sweep, results).values()
    assert one.attempt > 1
    assert {failure.kind for failure in one.previous_failures} == {"Interrupted"}


def test_a_node_that_dies_and_a_controller_that_restarts(slurm: Slurm, tmp_path: Path) -> None:
    sweep = line_sweep(
        tmp_path, {"line": {"options": DROPOUT, "axes": DDP}}, length={"steps": 200}, seeds=[0, 1]
    )
    results = tmp_path / "results"
    submit(sweep, results, exclusive=True)
    wait_until(lambda: step(results, 0) >= 20)
    slurm.stop("slurmctld", signal.SIGKILL)
    (first, second) = rows(results)
    assert (first["state"], second["state"]) == ("running", "queued"), (
        "the folder knows, without Slurm"
    )
    slurm.start("slurmctld")
    wait_until(lambda: step(results, 1) >= 20)
    slurm.stop("slurmd-n2", signal.SIGKILL)
    wait_until(lambda: slurm.states()["n2"].startswith("down"))
    slurm.start("slurmd-n2")
    found = undisturbed(sweep, results)
    first_record, second_record = (found[row["trial"]] for row in (first, second))
    assert (first_record.attempt, first_record.previous_failures) == (1, [])
    assert second_record.status == "done"


def test_what_was_cancelled_goes_on_when_it_is_submitted_again(
    slurm: Slurm, tmp_path: Path
) -> None:
    sweep = line_sweep(
        tmp_path, {"line": {"options": DROPOUT, "axes": DDP}}, length={"steps": 100}, seeds=[0, 1]
    )
    results = tmp_path / "results"
    submit(sweep, results, array_parallelism=1)
    wait_until(lambda: step(results, 0) >= 20)
    assert "2 jobs cancelled" in harness("cancel", "line", "--results", str(results)).out
    wait_until(lambda: not slurm.ask("squeue", "-h"))
    assert [row["state"] for row in rows(results)] == ["cancelled", "cancelled"]
    submit(sweep, results)
    found = undisturbed(sweep, results)
    first, second = (found[row["trial"]] for row in rows(results))
    assert [failure.kind for failure in first.previous_failures] == ["Interrupted"]
    assert second.previous_failures == []
