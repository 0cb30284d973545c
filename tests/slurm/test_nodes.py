"""Nodes that are drained and nodes that die in mid-trial: each trial once, to the undisturbed bits."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.records.record import Record
from tests.slurm.cluster import Slurm
from tests.slurm.conftest import refuse
from tests.slurm.daemons import missing, running
from tests.slurm.sweeps import DDP, DROPOUT, rows, status, step, submit, undisturbed
from tests.support.running import line_sweep, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.distributed, pytest.mark.timeout(2400)]


def use(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    return slurm


@pytest.fixture
def two(short: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """With accounting, which the others do without."""
    refuse(missing(accounting=True))
    with running(short / "slurm", accounting=True) as found:
        yield use(found, monkeypatch)


@pytest.fixture
def three(short: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """A node more than a job needs."""
    refuse(missing())
    with running(short / "slurm", nodes=("n1", "n2", "spare")) as found:
        yield use(found, monkeypatch)


def lose(slurm: Slurm, node: str) -> None:
    """Its daemon is killed, and it is down at once rather than when Slurm has missed it for long enough."""
    slurm.stop(f"slurmd-{node}", signal.SIGKILL)
    slurm.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=killed")


def bring_back(slurm: Slurm, node: str) -> None:
    slurm.ask(
        "scontrol", "update", f"NodeName={node}", "State=RESUME"
    )  # a node that its daemon has reported refuses
    slurm.start(f"slurmd-{node}")


def lost_with(found: Record) -> list[tuple[str, str | None]]:
    return [(failure.kind, failure.host) for failure in found.previous_failures]


def test_a_node_that_is_drained_and_then_dies(two: Slurm, tmp_path: Path) -> None:
    sweep = line_sweep(
        tmp_path, {"line": {"options": DROPOUT, "axes": DDP}}, length={"steps": 300}, seeds=[0, 1]
    )
    results = tmp_path / "results"
    submit(sweep, results, exclusive=True)
    wait_until(lambda: step(results, 0) >= 20)
    two.ask("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=in mid-trial")
    wait_until(lambda: two.states()["n2"] == "drained")
    assert [row["state"] for row in rows(results)] == ["done", "queued"], (
        "what runs there may end, nothing else begins"
    )
    two.ask("scontrol", "update", "NodeName=n2", "State=RESUME")
    wait_until(lambda: step(results, 1) >= 20)
    lose(two, "n2")
    wait_until(lambda: status(results)["bad_nodes"] == {"n2": 1})
    bring_back(two, "n2")
    found = undisturbed(sweep, results)
    first, second = (found[row["trial"]] for row in rows(results))
    assert (first.attempt, lost_with(first)) == (1, [])
    assert (second.attempt, lost_with(second)) == (2, [("NodeFailure", "n2")])


def test_a_node_that_dies_is_left_out_of_the_retry(three: Slurm, tmp_path: Path) -> None:
    sweep = line_sweep(tmp_path, {"line": {"options": DROPOUT, "axes": DDP}}, length={"steps": 300})
    results = tmp_path / "results"
    submit(sweep, results, exclusive=True)
    wait_until(lambda: step(results, 0) >= 20)
    lose(three, "n2")
    wait_until(lambda: status(results)["bad_nodes"] == {"n2": 1})
    bring_back(three, "n2")
    (found,) = undisturbed(sweep, results).values()
    assert lost_with(found) == [("NodeFailure", "n2")]
    assert found.rank0 is not None
    assert found.rank0.environment["variables"]["SLURM_JOB_NODELIST"] == "n1,spare"
