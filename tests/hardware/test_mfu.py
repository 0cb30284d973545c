"""MFU and the roofline, at points that were computed by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.scalars import scalars
from harness.analysis.sweep_result import SweepResult
from harness.core.paths import Results
from harness.hardware import machine as machines
from harness.hardware.machine import Machine
from harness.hardware.mfu import (
    device_of,
    machine_of,
    with_measured_peaks,
    with_mfu,
)
from harness.launch.assemble import assemble
from harness.records.across import in_memory_ranks
from harness.records.environment import Gpu
from harness.records.record import Record
from harness.render.cells import cells_table
from harness.spec.validity import ValidityRules
from tests.factories import ENVIRONMENT, make_cell, make_machine, make_record, with_throughput
from tests.support.sweeps import load

FLOPS = 1e6  # a sample


def measured(
    *,
    throughput: float | None = 20_000.0,
    hosts: int = 1,
    gpu: str = "",
    **axes: Any,
) -> Record:
    """A record with these numbers; `gpu` names the GPUs that it ran on."""
    found = make_record(make_cell(**axes))
    assert found.summary is not None
    if throughput is None:
        found = replace(found, summary=replace(found.summary, throughput=None))
    else:
        found = with_throughput(found, throughput)
    assert found.rank0 is not None
    gpus = [Gpu(name=gpu, memory_bytes=1)] if gpu else []
    environment = replace(ENVIRONMENT, hardware=replace(ENVIRONMENT.hardware, gpus=gpus))
    return replace(
        found,
        rank0=replace(found.rank0, flops_per_sample=FLOPS),
        environment=environment,
        ranks=in_memory_ranks(
            [
                replace(
                    rank, host=f"node{rank.rank % hosts}", memory={"allocated": 1} if gpu else {}
                )
                for rank in found.ranks
            ]
        ),
    )


class TestMfu:
    def test_of_a_gpu_is_of_the_vendors_peak(self) -> None:
        record = measured(gpu="NVIDIA A100-SXM4-80GB", throughput=3.12e7, precision="bf16")
        assert with_mfu(record, {}).summary == replace(summary(record), mfu=pytest.approx(0.1))

    def test_of_an_unknown_gpu_is_unknown(self) -> None:
        record = measured(gpu="NVIDIA Z900", precision="bf16")
        assert with_mfu(record, {}).summary == record.summary

    def test_of_a_gpu_against_what_was_measured(self) -> None:
        record = measured(gpu="NVIDIA Z900", throughput=2e4)
        assert record.environment is not None
        machine = make_machine(device="cuda", hardware=record.environment.hardware)
        assert summary(with_mfu(record, {machine.key: machine})).mfu_measured == pytest.approx(
            2e10 / 100e9
        )

    def test_of_a_cpu_is_of_the_measured_peak_alone(self) -> None:
        record = with_mfu(measured(), known(make_machine()))
        assert summary(record).mfu is None
        assert summary(record).mfu_measured == pytest.approx(20_000 * FLOPS / 100e9)

    def test_ranks_share_the_peak_of_their_node(self) -> None:
        record = with_mfu(measured(strategy="ddp", world_size=2), known(make_machine()))
        assert summary(record).mfu_measured == pytest.approx(20_000 * FLOPS / 100e9)

    @pytest.mark.parametrize(
        "record",
        [
            measured(precision="fp16"),
            measured(throughput=None),
        ],
        ids=[
            "dtype",
            "no-throughput",
        ],
    )
    def test_what_was_not_measured_is_unknown(self, record: Record) -> None:
        assert summary(with_mfu(record, known(make_machine()))).mfu_measured is None

    def test_ranks_on_two_nodes_have_the_cores_of_both(self) -> None:
        record = measured(strategy="ddp", world_size=4, hosts=2)
        assert summary(with_mfu(record, known(make_machine()))).mfu_measured is not None

    def test_another_machine_is_not_held_against(self) -> None:
        other = make_machine(hardware=replace(ENVIRONMENT.hardware, usable_cores=64))
        assert with_mfu(measured(), known(other)) == measured()
        assert machine_of(measured(), known(other)) is None

    def test_of_a_failed_trial_there_is_none(self) -> None:
        failed = make_record(status="failed")
        assert with_mfu(failed, known(make_machine())) == failed

    def test_device_is_that_whose_memory_was_used(self) -> None:
        assert (device_of(measured()), device_of(measured(gpu="NVIDIA L4"))) == ("cpu", "cuda")

    def test_reaches_mlflow_and_the_table(self, tmp_path: Path) -> None:
        sweep = load(tmp_path)
        record = measured()
        record = replace(record, trial=replace(record.trial, cell=sweep.cells[0]))
        result = SweepResult.of_records(sweep, [record])
        columns = cells_table(result, result.cells).columns
        assert not [column for column in columns if "MFU" in column]
        record = with_mfu(record, known(make_machine()))
        assert scalars(record)["mfu_measured"] == pytest.approx(0.2)
        assert "mfu" not in scalars(record)
        result = SweepResult.of_records(sweep, [record])
        table = cells_table(result, result.cells)
        (row,) = table.rows
        texts = dict(zip(table.columns, map(str, row), strict=True))
        assert texts["MFU measured"] == "20%"


def test_peaks_that_were_measured_after_the_sweep_count_and_damaged_ones_do_not(
    tmp_path: Path,
) -> None:
    folder = Results(tmp_path).peaks
    machines.write(folder, make_machine())
    (folder / "old.json").write_text("{", encoding="utf-8")
    (record,) = with_measured_peaks([measured()], folder)
    assert summary(record).mfu_measured == pytest.approx(0.2)


def test_a_record_is_assembled_with_its_mfu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers are in the record, so that the tracker needs nothing else."""
    from harness.core.paths import TrialFolder
    from harness.records.assignment import Assignment
    from harness.records.files import write_record

    made, folder = measured(), TrialFolder(tmp_path)
    for rank in made.ranks:
        write_record(
            folder.result_path(rank.rank),
            replace(rank, rank0=made.rank0, environment=made.environment),
        )
    assignment = Assignment(
        trial=made.trial,
        base_folder=str(tmp_path),
        checkpoint="best",
        device="cpu",
        attempt=1,
    )
    peaks = known(make_machine())
    found = assemble(
        folder,
        "demo",
        assignment,
        started=0.0,
        ended=9.0,
        previous_failures=(),
        ended_by=None,
        rules=ValidityRules(),
        peaks=peaks,
    )
    throughput = summary(found).throughput
    assert throughput is not None
    assert summary(found).mfu_measured == pytest.approx(throughput * FLOPS / 100e9)
    without = assemble(
        folder,
        "demo",
        assignment,
        started=0.0,
        ended=9.0,
        previous_failures=(),
        ended_by=None,
        rules=ValidityRules(),
    )
    assert summary(without).mfu_measured is None


def known(machine: Machine) -> dict[str, Machine]:
    return {machine.key: machine}


def with_cell(record: Record, cell: Any) -> Record:
    return replace(record, trial=replace(record.trial, cell=cell))


def summary(record: Record) -> Any:
    return record.summary or make_record().summary
