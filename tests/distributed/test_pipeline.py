"""A pipeline of layers trains the same as one process, is evaluated, saved and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.records.record import Record
from tests.distributed.test_interruption import assert_same_bits, run_trial
from tests.distributed.test_same_training import unpack
from tests.support.running import by_label, line_sweep, run

pytestmark = pytest.mark.distributed

PIPELINE = {"strategy": "pp", "world_size": 2, "grad_accum_steps": 4}
VARIANTS: dict[str, dict[str, Any]] = {
    "single": {},
    "pp": {"axes": PIPELINE},
    "with a middle rank": {"axes": PIPELINE | {"world_size": 3}},
}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    entries = {label: {"options": {"depth": 3}, **entry} for label, entry in VARIANTS.items()}
    folder = tmp_path_factory.mktemp("pipeline")
    path = line_sweep(
        folder, entries, length={"steps": 12}, evaluate={"steps": 6}, fingerprints={"steps": [1, 6]}
    )
    all_records = run(path)
    assert [record.failure for record in all_records] == [None, None, None]
    return by_label(all_records)


@pytest.mark.parametrize("label", ["pp", "with a middle rank"])
def test_losses_and_evaluations_agree_with_one_process(
    records: dict[str, Record], label: str
) -> None:
    single, pipeline = records["single"], records[label]
    np.testing.assert_allclose(unpack(pipeline.loss), unpack(single.loss), rtol=1e-5)
    assert pipeline.order_digest == single.order_digest
    assert single.rank0 is not None
    assert pipeline.rank0 is not None
    evaluations = zip(pipeline.rank0.evaluations, single.rank0.evaluations, strict=True)
    for evaluation, expected in evaluations:
        assert evaluation.metrics["samples"] == 65
        assert evaluation.metrics["error"] == pytest.approx(expected.metrics["error"], rel=1e-4)


def test_what_ranks_pass_on_is_recorded(records: dict[str, Record]) -> None:
    """Four micro-batches of 8 samples of 8 numbers, and gradients of as many."""
    report = records["pp"].rank0
    assert report is not None
    assert report.collectives is not None
    sent = {
        entry.operation: (entry.ranks, entry.calls, entry.bytes) for entry in report.collectives
    }
    assert sent["send"] == sent["recv"] == (2, 4, 4 * 8 * 8 * 4)
    assert sent["all_reduce"][:2] == (2, 1)
    for rank in records["pp"].ranks:
        assert {"forward", "backward", "communication", "optimizer"} <= set(rank.step_phases)


def test_fingerprints_have_the_whole_model(records: dict[str, Record]) -> None:
    """Parameters are those of one process before the first step, at both ranks."""
    (single,), ranks = records["single"].ranks, records["pp"].ranks
    assert single.fingerprints is not None
    expected = single.fingerprints.steps[0].digests
    for rank in ranks:
        assert rank.fingerprints is not None
        assert rank.fingerprints.steps[0].digests["parameters"] == expected["parameters"]
    first, last = (rank.fingerprints.steps[-1].digests for rank in ranks if rank.fingerprints)
    for phase in ("parameters", "all-reduce", "optimizer state", "optimizer"):
        assert first[phase] == last[phase]


def test_an_interrupted_pipeline_ends_with_the_same_bits(tmp_path: Path) -> None:
    axes = PIPELINE | {"grad_accum_steps": 2, "lr_schedule": "one-cycle"}
    whole = run_trial(tmp_path / "whole", axes, "", depth=3)
    resumed = run_trial(tmp_path / "resumed", axes, "5", depth=3)
    assert (whole.status, resumed.status) == ("done", "done"), (whole.failure, resumed.failure)
    assert [failure.kind for failure in resumed.previous_failures] == ["Interrupted"]
    assert_same_bits(resumed, whole)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "LineFit.layers() has 1; needed: one for each of 2 ranks"),
        ({"depth": 2, "crossed": True}, "LineFit.layers() has 0; needed: one for each of 2 ranks"),
    ],
)
def test_what_has_no_stages_is_refused(
    tmp_path: Path, options: dict[str, Any], problem: str
) -> None:
    path = line_sweep(tmp_path, {"pp": {"options": options, "axes": PIPELINE}})
    (record,) = run(path)
    assert record.failure is not None
    assert record.failure.kind == "NotApplied"
    assert record.failure.message == f"strategy=pp is unavailable: {problem}"
