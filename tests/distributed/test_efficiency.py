"""What real trials say of their memory traffic and of their share of the peak."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.paths import Results
from harness.hardware import machine as machines
from harness.records.environment import describe_hardware
from harness.records.record import Record
from tests.factories import make_machine
from tests.support.running import by_label, line_sweep, run

pytestmark = [pytest.mark.distributed, pytest.mark.nightly]

DDP = {"strategy": "ddp", "world_size": 2, "batch_size": 32}
VARIANTS: dict[str, dict[str, Any]] = {
    "single": {"batch_size": 16},
    "ddp": DDP,
    "ddp in a static graph": {**DDP, "ddp.static_graph": True, "ddp.gradient_as_bucket_view": True},
    "compiled": {"batch_size": 16, "execution": "compile"},
    "recomputing": {"batch_size": 16, "activation_checkpointing": True},
    "fsdp2": {**DDP, "strategy": "fsdp2"},
}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    folder = tmp_path_factory.mktemp("efficiency")
    machines.write(Results(folder / "results").peaks, make_machine(hardware=describe_hardware()))
    workloads = {label: {"axes": axes} for label, axes in VARIANTS.items()}
    return by_label(run(line_sweep(folder, workloads, length={"steps": 8}, evaluate={"steps": 8})))


def test_every_trial_is_held_against_the_measured_peak(records: dict[str, Record]) -> None:
    for label, record in records.items():
        assert record.summary is not None
        assert record.rank0 is not None
        assert record.summary.throughput is not None
        assert record.rank0.flops_per_sample is not None
        achieved = (
            record.summary.throughput
            * record.rank0.flops_per_sample
            / record.trial.cell.axes.world_size
        )
        assert record.numbers["mfu_measured"] == pytest.approx(achieved / 100e9), label
        assert "mfu" not in record.numbers, "no vendor says what a CPU can do"
