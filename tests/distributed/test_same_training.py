"""The same global batches and the same training, over any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.records.record import Record
from tests.distributed.test_interruption import assert_same_bits
from tests.support.running import by_label, line_sweep, run

pytestmark = pytest.mark.distributed

VARIANTS: dict[str, dict[str, Any]] = {
    "single": {},
    "ddp1": {"axes": {"strategy": "ddp"}},
    "ddp2": {"axes": {"strategy": "ddp", "world_size": 2}},
    "fsdp2": {"axes": {"strategy": "fsdp2", "world_size": 2}},
    "ddp2 workers": {"axes": {"strategy": "ddp", "world_size": 2, "num_workers": 2}},
    "ddp4": {"axes": {"strategy": "ddp", "world_size": 4}},
    "hsdp": {"axes": {"strategy": "hsdp", "world_size": 4, "shard_size": 2}},
}
LENGTH: dict[str, Any] = {"length": {"steps": 20}, "evaluate": {"steps": 10}}  # epochs of 8 steps


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    path = line_sweep(tmp_path_factory.mktemp("same"), VARIANTS, **LENGTH)
    all_records = run(path, slots=4)
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


def test_a_trial_run_twice_leaves_the_same_digests(
    records: dict[str, Record], tmp_path: Path
) -> None:
    path = line_sweep(
        tmp_path,
        {"ddp2": VARIANTS["ddp2"]},
        **LENGTH,
        repeats=2,
    )
    for record in run(path):
        assert_same_bits(record, records["ddp2"])
