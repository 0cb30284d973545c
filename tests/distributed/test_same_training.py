"""The same global batches and the same training, over any number of ranks, and the phases of its steps."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core.paths import Results
from harness.records.record import Record
from tests.distributed.test_interruption import assert_same_bits
from tests.support.running import by_label, line_sweep, run

pytestmark = pytest.mark.distributed

VARIANTS: dict[str, dict[str, Any]] = {
    "single": {},
    "ddp1": {"strategy": "ddp"},
    "ddp2": {"strategy": "ddp", "world_size": 2},
    "fsdp2": {"strategy": "fsdp2", "world_size": 2},
    "ddp2 workers": {"strategy": "ddp", "world_size": 2, "num_workers": 2},
    "ddp4": {"strategy": "ddp", "world_size": 4},
    "hsdp": {"strategy": "hsdp", "world_size": 4, "shard_size": 2},
}
LENGTH: dict[str, Any] = {"length": {"steps": 20}, "evaluate": {"steps": 10}}  # epochs of 8 steps


def sweep_of(folder: Path, *labels: str, **keys: Any) -> Path:
    """Write a sweep of some variants, which have a schedule that ends with the trial."""
    entries = {}
    for label in labels:
        entries[label] = {"axes": VARIANTS[label], "options": {"one_cycle": True}}
    return line_sweep(folder, entries, **LENGTH, **keys)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    all_records = run(sweep_of(tmp_path_factory.mktemp("same"), *VARIANTS), slots=4)
    assert [record.failure for record in all_records] == [None] * len(VARIANTS)
    return by_label(all_records)


def unpack(
    series: np.ndarray[tuple[int], np.dtype[np.float64]] | None,
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the values of a series that must be there."""
    assert series is not None
    return series


@pytest.mark.parametrize("label", [label for label in VARIANTS if label != "single"])
def test_losses_agree_with_one_process_within_1e_5(records: dict[str, Record], label: str) -> None:
    assert unpack(records["single"].loss).shape == (20,)
    np.testing.assert_allclose(
        unpack(records[label].loss), unpack(records["single"].loss), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("label", "other_label"), [("ddp2", "fsdp2"), ("ddp2", "ddp2 workers"), ("single", "ddp1")]
)
def test_same_world_size_gives_the_same_bits(
    records: dict[str, Record], label: str, other_label: str
) -> None:
    assert_same_bits(records[label], records[other_label])


@pytest.mark.parametrize("label", VARIANTS)
def test_evaluation_sees_each_test_sample_once(records: dict[str, Record], label: str) -> None:
    """65 samples divide evenly among neither 2 nor 4 ranks."""
    report, single = records[label].rank0, records["single"].rank0
    assert report is not None
    assert single is not None
    assert [evaluation.step for evaluation in report.evaluations] == [10, 20]
    for evaluation, expected in zip(report.evaluations, single.evaluations, strict=True):
        metrics = evaluation.metrics
        assert metrics["samples"] == 65
        assert metrics["checksum"] == pytest.approx(expected.metrics["checksum"], rel=1e-12)
        assert metrics["error"] == pytest.approx(expected.metrics["error"], rel=1e-4)


@pytest.mark.parametrize("label", ["single", "ddp2", "fsdp2"])
def test_phases_add_up_to_steps_and_to_the_trial(records: dict[str, Record], label: str) -> None:
    record = records[label]
    # On the CPU, nothing is moved to a device.
    expected = {"data_wait", "forward", "backward", "optimizer"}
    if label != "single":
        expected.add("communication")
    for rank in record.ranks:
        assert rank.step_seconds is not None
        assert set(rank.step_phases) == expected
        phases = {name: series.astype(np.float64) for name, series in rank.step_phases.items()}
        together = np.sum(list(phases.values()), axis=0)
        timed = ~np.isnan(together)  # on a slow machine there are many segments, and few are timed
        assert timed.any()
        np.testing.assert_allclose(together[timed], rank.step_seconds[timed], rtol=1e-5)
        assert all((seconds[timed] > 0).all() for seconds in phases.values())
    around = {"startup", "data", "build", "loader", "warmup", "train", "evaluate", "digest"}
    assert around <= set(record.phases)
    # Each phase is that of the rank that took longest, so the sum may be a little more.
    assert 0 < sum(record.phases.values()) < (record.ended - record.started) * 1.05


def test_a_trial_run_again_with_a_profile_leaves_the_same_bits_and_a_trace_of_further_steps(
    records: dict[str, Record], tmp_path: Path
) -> None:
    (profiled,) = run(sweep_of(tmp_path, "fsdp2", profile=3))
    assert profiled.trial.id == records["fsdp2"].trial.id
    assert_same_bits(profiled, records["fsdp2"])
    folder = Results(tmp_path / "results").sweep_folder("line").trial_folder(profiled.trial.id)
    assert len(list(folder.trace_folder.glob("*.json.gz"))) == 2
    for rank in profiled.ranks:
        assert len(unpack(rank.loss)) == 20
        assert rank.phases["profile"] > 0
        path = folder.trace_path(rank.rank)
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        steps = {event["name"] for event in events if event["name"].startswith("ProfilerStep#")}
        assert len(steps) == 3
        assert "Optimizer.step#Adam.step" in {event["name"] for event in events}
