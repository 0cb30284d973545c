"""The same global batches and the same training, however it is spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.records.record import Record
from harness.records.series import Series
from tests.support.running import by_label, line_sweep, run

pytestmark = pytest.mark.distributed

VARIANTS: dict[str, dict[str, Any]] = {
    "single": {},
    "ddp1": {"axes": {"strategy": "ddp"}},
    "ddp2": {"axes": {"strategy": "ddp", "world_size": 2}},
    "fsdp2": {"axes": {"strategy": "fsdp2", "world_size": 2}},
    "ddp2 workers": {"axes": {"strategy": "ddp", "world_size": 2, "num_workers": 2}},
    "ddp4": {"axes": {"strategy": "ddp", "world_size": 4}},
}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    path = line_sweep(
        tmp_path_factory.mktemp("same"), VARIANTS, length={"steps": 50}, evaluate={"steps": 25}
    )
    found = run(path, slots=4)
    assert [record.failure for record in found] == [None] * len(VARIANTS)
    return by_label(found)


def unpack(series: Series | None) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    assert series is not None
    return series.unpack()


@pytest.mark.parametrize("label", [label for label in VARIANTS if label != "single"])
def test_losses_agree_with_one_process_within_1e_5(records: dict[str, Record], label: str) -> None:
    assert unpack(records["single"].loss).shape == (50,)
    np.testing.assert_allclose(
        unpack(records[label].loss), unpack(records["single"].loss), rtol=1e-5
    )


def test_every_variant_trained_on_the_same_global_batches(records: dict[str, Record]) -> None:
    assert len({record.order_digest for record in records.values()}) == 1


@pytest.mark.parametrize(
    ("one", "other"), [("ddp2", "fsdp2"), ("ddp2", "ddp2 workers"), ("single", "ddp1")]
)
def test_same_world_size_gives_the_same_bits(
    records: dict[str, Record], one: str, other: str
) -> None:
    first, second = records[one], records[other]
    assert first.rank0 is not None
    assert second.rank0 is not None
    assert first.rank0.parameter_digest == second.rank0.parameter_digest
    assert np.array_equal(unpack(first.loss), unpack(second.loss))


@pytest.mark.parametrize("label", VARIANTS)
def test_evaluation_sees_each_test_sample_once(records: dict[str, Record], label: str) -> None:
    """65 samples divide evenly among neither 2 nor 4 ranks."""
    own, single = records[label].rank0, records["single"].rank0
    assert own is not None
    assert single is not None
    assert [evaluation.step for evaluation in own.evaluations] == [25, 50]
    for mine, theirs in zip(own.evaluations, single.evaluations, strict=True):
        assert mine.metrics["samples"] == 65
        assert mine.metrics["checksum"] == pytest.approx(theirs.metrics["checksum"], rel=1e-12)
        assert mine.metrics["error"] == pytest.approx(theirs.metrics["error"], rel=1e-4)


def test_loader_workers_were_really_used(records: dict[str, Record]) -> None:
    assert [rank.loader_workers for rank in records["ddp2 workers"].ranks] == [2, 2]
    assert [rank.loader_workers for rank in records["ddp2"].ranks] == [0, 0]


def test_a_trial_run_twice_leaves_the_same_digests(
    records: dict[str, Record], tmp_path: Path
) -> None:
    path = line_sweep(
        tmp_path,
        {"ddp2": VARIANTS["ddp2"]},
        length={"steps": 50},
        evaluate={"steps": 25},
        repeats=2,
    )
    again = run(path)
    assert {record.order_digest for record in again} == {records["ddp2"].order_digest}
    digests = {
        record.rank0.parameter_digest for record in [*again, records["ddp2"]] if record.rank0
    }
    assert len(digests) == 1


def test_another_seed_leaves_other_digests(records: dict[str, Record], tmp_path: Path) -> None:
    path = line_sweep(
        tmp_path, {"single": {}}, length={"steps": 50}, evaluate={"steps": 25}, seeds=[1]
    )
    (other,) = run(path)
    first = records["single"]
    assert other.order_digest != first.order_digest
    assert other.rank0 is not None
    assert first.rank0 is not None
    assert other.rank0.parameter_digest != first.rank0.parameter_digest


def test_torchrun_and_a_fork_give_the_same_bits(tmp_path: Path) -> None:
    """A forked rank has its number of threads, generators and caches from what it was forked from."""
    chosen = {
        label: {**VARIANTS[label], "options": {"dropout": 0.3}}
        for label in ("single", "ddp2 workers", "fsdp2")
    }
    for axes in (entry.setdefault("axes", {}) for entry in chosen.values()):
        axes["num_threads"] = 2
    found = []
    for forkserver in (True, False):
        folder = tmp_path / str(forkserver)
        folder.mkdir()
        path = line_sweep(folder, chosen, length={"steps": 50}, evaluate={"steps": 25})
        found.append(by_label(run(path, slots=4, forkserver=forkserver)))
    for label in chosen:
        forked, anew = (one[label] for one in found)
        assert forked.status == anew.status == "done"
        assert forked.rank0 is not None
        assert anew.rank0 is not None
        assert forked.rank0.parameter_digest == anew.rank0.parameter_digest
        assert forked.loss == anew.loss
        assert forked.order_digest == anew.order_digest
        assert [one.metrics for one in forked.rank0.evaluations] == [
            one.metrics for one in anew.rank0.evaluations
        ]
