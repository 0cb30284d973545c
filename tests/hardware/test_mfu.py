"""MFU, at points that were computed by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.analysis.sweep_result import SweepResult
from harness.core.paths import TrialFolder
from harness.hardware.machine import Machine
from harness.hardware.mfu import mfu_numbers
from harness.launch.assemble import assemble
from harness.launch.ranks import how_ended
from harness.records.assignment import Assignment
from harness.records.files import write_rank_result
from harness.records.record import Record
from harness.sweep.cluster import ValidityRules
from harness.view.sweep import cells_table
from tests.factories import ENVIRONMENT, make_cell, make_machine, make_record, with_ranks
from tests.support.sweeps import load

FLOPS = 1e6  # a sample


def measured(
    *, throughput: float | None = 20_000.0, hosts: int = 1, gpu: str = "", **axes: Any
) -> Record:
    """A record with these numbers; `gpu` names the GPUs that it ran on."""
    found = make_record(make_cell(**axes))
    assert found.rank0 is not None
    gpus = [gpu] if gpu else []
    environment = replace(ENVIRONMENT, hardware=replace(ENVIRONMENT.hardware, gpus=gpus))
    ranks = []
    for rank in found.ranks:
        memory = {"memory_allocated_mib": 1.0} if gpu else {}
        rank = replace(rank, host=f"node{rank.rank % hosts}", numbers=memory)
        if throughput is not None:
            seconds = np.full(20, found.trial.cell.axes.batch_size / throughput)
            rank = replace(rank, step_seconds=seconds, step_phases={})
        ranks.append(rank)
    rank0 = replace(found.rank0, flops_per_sample=FLOPS)
    return with_ranks(found, ranks, rank0=rank0, environment=environment)


def mfu(record: Record, *machines: Machine) -> dict[str, float]:
    return mfu_numbers(record, record.ranks, {machine.key: machine for machine in machines})


class TestMfu:
    def test_of_a_gpu_is_of_the_vendors_peak(self) -> None:
        record = measured(gpu="NVIDIA A100-SXM4-80GB", throughput=3.12e7, precision="bf16")
        assert mfu(record) == {"mfu": pytest.approx(0.1)}

    def test_of_an_unknown_gpu_is_against_what_was_measured(self) -> None:
        record = measured(gpu="NVIDIA Z900", throughput=2e4)
        assert mfu(record) == {}
        assert record.environment is not None
        machine = make_machine(device="cuda", hardware=record.environment.hardware)
        assert mfu(record, machine) == {"mfu_measured": pytest.approx(2e10 / 100e9)}

    @pytest.mark.parametrize("axes", [{}, {"strategy": "ddp", "world_size": 2}], ids=["1", "2"])
    def test_of_a_cpu_is_of_the_measured_peak_that_the_ranks_of_a_node_share(
        self, axes: dict[str, Any]
    ) -> None:
        expected = {"mfu_measured": pytest.approx(20_000 * FLOPS / 100e9)}
        assert mfu(measured(**axes), make_machine()) == expected

    @pytest.mark.parametrize(
        "record",
        [
            measured(precision="fp16"),
            measured(throughput=None, steps=3),
            make_record(status="failed"),
        ],
        ids=["dtype", "no-throughput", "failed"],
    )
    def test_what_was_not_measured_is_unknown(self, record: Record) -> None:
        assert mfu(record, make_machine()) == {}
        other = make_machine(hardware=replace(ENVIRONMENT.hardware, usable_cores=64))
        assert mfu(measured(), other) == {}

    def test_ranks_on_two_nodes_have_the_cores_of_both(self) -> None:
        record = measured(strategy="ddp", world_size=4, hosts=2)
        assert mfu(record, make_machine()) == {
            "mfu_measured": pytest.approx(20_000 * FLOPS / 200e9)
        }

    def test_reaches_the_table(self, tmp_path: Path) -> None:
        sweep = load(tmp_path)
        record = measured()
        record = replace(record, trial=replace(record.trial, cell=sweep.cells[0]))
        result = SweepResult.of_records(sweep, [record])
        (row,) = cells_table(result, "mlp").drawn()
        assert not [field for field in row if "MFU" in field.column]
        record = replace(record, numbers={**record.numbers, "mfu_measured": 0.2})
        result = SweepResult.of_records(sweep, [record])
        (row,) = cells_table(result, "mlp").drawn()
        assert {field.column: field.text for field in row}["MFU measured"] == "20%"


def test_a_record_is_assembled_with_its_mfu(tmp_path: Path) -> None:
    """The numbers are in the record, so that the tracker needs nothing else."""
    made, folder = measured(), TrialFolder(tmp_path)
    for rank in made.ranks:
        result = replace(rank, rank0=made.rank0, environment=made.environment)
        write_rank_result(folder.result_path(rank.rank), result)
    assignment = Assignment(trial=made.trial, base_folder=str(tmp_path), device="cpu")
    peaks = {make_machine().key: make_machine()}
    ended = how_ended(folder, len(made.ranks), started=0.0)
    found = assemble("demo", assignment, ended, ValidityRules(), peaks=peaks)
    throughput = found.numbers["throughput_samples_per_s"]
    assert found.numbers["mfu_measured"] == pytest.approx(throughput * FLOPS / 100e9)
    without = assemble("demo", assignment, ended, ValidityRules())
    assert "mfu_measured" not in without.numbers
