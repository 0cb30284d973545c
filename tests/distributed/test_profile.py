"""A profile is of further steps, once all that a trial records has been measured."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from harness.core.paths import Results, TrialFolder
from harness.records.record import Record
from tests.factories import same_loss
from tests.support.running import by_label, line_sweep, run

pytestmark = pytest.mark.distributed

STEPS = 3
VARIANTS: dict[str, dict[str, Any]] = {
    "single": {"axes": {"num_workers": 1}},
    "ddp": {"axes": {"strategy": "ddp", "world_size": 2}},
    "fsdp2": {"axes": {"strategy": "fsdp2", "world_size": 2}, "options": {"one_cycle": True}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profile")


@pytest.fixture(scope="module")
def records(folder: Path) -> dict[str, Record]:
    return by_label(
        run(line_sweep(folder, VARIANTS, length={"steps": 6}, profile={"steps": STEPS}))
    )


def trial_folder(folder: Path, record: Record) -> TrialFolder:
    """Return the folder of a record's trial."""
    return Results(folder / "results").sweep_folder("line").trial_folder(record.trial.id)


@pytest.mark.parametrize("label", VARIANTS)
def test_every_rank_leaves_a_trace_of_the_steps_and_their_table(
    folder: Path, records: dict[str, Record], label: str
) -> None:
    record = records[label]
    assert record.failure is None, record.failure
    traces = trial_folder(folder, record).trace_folder.glob("*.json.gz")
    assert len(list(traces)) == len(record.ranks)
    for rank in record.ranks:
        assert rank.loss is not None
        assert len(rank.loss) == 6
        assert rank.phases["profile"] > 0
        path = trial_folder(folder, record).trace_path(rank.rank)
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        steps = {event["name"] for event in events if event["name"].startswith("ProfilerStep#")}
        assert len(steps) == STEPS
        table = (path.parent / f"rank{rank.rank}.txt").read_text(encoding="utf-8")
        assert "Optimizer.step#Adam.step" in table


def test_a_profile_changes_nothing_that_is_recorded(
    records: dict[str, Record], tmp_path: Path
) -> None:
    (plain,) = run(line_sweep(tmp_path, {"fsdp2": VARIANTS["fsdp2"]}, length={"steps": 6}))
    profiled = records["fsdp2"]
    assert plain.rank0 is not None
    assert profiled.rank0 is not None
    assert profiled.trial.id == plain.trial.id
    assert same_loss(profiled, plain)
    assert profiled.order_digest == plain.order_digest
    assert profiled.rank0.parameter_digest == plain.rank0.parameter_digest
    assert not trial_folder(tmp_path, plain).trace_folder.exists()
