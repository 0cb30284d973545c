"""Controllers and nodes that fail while a trial runs: each trial runs once, to the undisturbed
bits.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.records.record import Record
from tests.slurm.cluster import Slurm
from tests.slurm.conftest import slurm_in
from tests.slurm.sweeps import (
    Undisturbed,
    hurry_up,
    random_sweep,
    slow_down,
    submit,
    trial_folder,
    trial_rows,
    trial_states,
    wait_for_records,
    wait_for_step,
)
from tests.support.running import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.distributed, pytest.mark.timeout(2400)]


@pytest.fixture
def slurm_with_spare_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """One node more than a job needs, which is drained."""
    nodes = ("n1", "n2", "spare")
    with slurm_in(tmp_path_factory.mktemp("spare"), nodes=nodes) as slurm:
        slurm.set_node("spare", "DRAIN")
        yield slurm


def lost_with(record: Record) -> list[tuple[str, str | None]]:
    """Return kind and host of each failure before the last attempt."""
    return [(failure.kind, failure.host) for failure in record.previous_failures]


@pytest.mark.nightly
def test_a_controller_that_restarts_a_node_that_is_drained_and_one_that_dies(
    slurm_with_spare_node: Slurm, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Three faults, one after the other, while two trials run; each hits at most one of them.

    The job whose node has died runs again on two others, although that node is back.
    """
    slurm = slurm_with_spare_node
    sweep = random_sweep(tmp_path, strategies=["ddp"], seeds=[0, 1])
    results = tmp_path / "results"
    submit(sweep, results, exclusive=True)

    wait_for_step(results, 0, 5)
    slurm.stop("slurmctld", signal.SIGKILL)
    assert trial_states(results) == ["running", "queued"], "the folder tells, without Slurm"
    slurm.start("slurmctld")
    slurm.wait_for_controller()
    # A node that is drained before the controller has found its job again counts as idle.
    wait_until(lambda: slurm.node_states()["n2"] == "allocated")

    slurm.set_node("n2", "DRAIN")
    wait_until(lambda: slurm.node_states()["n2"] == "draining")
    hurry_up(tmp_path)
    wait_until(lambda: slurm.node_states()["n2"] == "drained")
    assert trial_states(results) == ["done", "queued"], "the running trial ends, no other starts"
    slow_down(tmp_path)
    slurm.set_node("n2", "RESUME")

    wait_for_step(results, 1, 5)
    slurm.set_node("spare", "RESUME")
    slurm.stop("slurmd-n2", signal.SIGKILL)
    slurm.set_node("n2", "DOWN")  # at once, rather than when Slurm has missed it for long enough
    wait_until(lambda: trial_folder(results, 1).attempt > 1, every=0.5)
    slurm.set_node("n2", "RESUME")  # which Slurm refuses for a node whose daemon has reported
    slurm.start("slurmd-n2")
    hurry_up(tmp_path)

    records = wait_for_records(results, undisturbed)
    drained, lost = (records[row["trial"]] for row in trial_rows(results))
    assert (drained.attempt, lost_with(drained)) == (1, [])
    assert (lost.attempt, lost_with(lost)) == (2, [("NodeFailure", "n2")])
    assert lost.environment is not None
    assert lost.environment.variables["SLURM_JOB_NODELIST"] == "n1,spare"
